//! Costs of migrating a VM's addresses in large subnets: packets, and time.
//!
//! The fat-trees of 36-port switches of *Towards the InfiniBand SR-IOV vSwitch Architecture*, with
//! every node a function that a VM can move to, half of them free; the subnet manager and the fabric
//! are in this process and talk by packets, which are what is counted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fabric::{Fabric, NodeSpec, Station, Topology};
use subnet_manager::{
    Config, Method, Migration, MigrationError, MinHop, Moved, SubnetManager, Target,
};
use testing::Random;
use topologies::{FatTree, Hosts};
use wire::Guid;
use wire::attribute::NodeType;

use crate::{BenchError, Context, Effort, Measurement, Reference, Result};

/// A row of the paper's table, and the names that its figures have here.
struct Row {
    tree: &'static str,
    full: f64,
    most: f64,
    names: [&'static str; 4],
}

const ROWS: [Row; 3] = [
    Row {
        tree: "XGFT(2;18,18;18,1)",
        full: 216.0,
        most: 72.0,
        names: [
            "full_324_smps",
            "migration_324_max_smps",
            "migration_324_mean_smps",
            "migration_324_us",
        ],
    },
    Row {
        tree: "XGFT(2;36,18;18,1)",
        full: 594.0,
        most: 108.0,
        names: [
            "full_648_smps",
            "migration_648_max_smps",
            "migration_648_mean_smps",
            "migration_648_us",
        ],
    },
    Row {
        tree: "XGFT(3;18,18,18;18,18,1)",
        full: 104_004.0,
        most: 1944.0,
        names: [
            "full_5832_smps",
            "migration_5832_max_smps",
            "migration_5832_mean_smps",
            "migration_5832_us",
        ],
    },
];

/// Hypervisors with vSwitches, for what a migration costs that stays below one leaf switch.
const HYPERVISORS: &str = "XGFT(2;36,18;18,1)";

/// A fabric and its manager, in step.
struct Lab {
    manager: SubnetManager,
    fabric: Fabric,
    station: Station,
    now: Duration,
}

fn failed(what: impl ToString) -> BenchError {
    BenchError::Subnet(what.to_string())
}

impl Lab {
    /// The subnet of `topology`, managed from `manager`, once it is up.
    fn new(topology: &Topology, manager: Guid, spare_functions: BTreeSet<Guid>) -> Result<Self> {
        let mut fabric = Fabric::new(topology).map_err(failed)?;
        let port = fabric
            .port_by_guid(manager)
            .ok_or_else(|| failed("no port for the manager"))?;
        let config = Config {
            spare_functions,
            ..Config::default()
        };
        let mut lab = Self {
            manager: SubnetManager::new(config, Box::new(MinHop)).map_err(failed)?,
            station: Station::of_manager(&mut fabric, port),
            fabric,
            now: Duration::ZERO,
        };
        while !lab.manager.is_up() {
            lab.step()?;
        }
        match lab.manager.report().errors.first() {
            None => Ok(lab),
            Some(error) => Err(failed(error)),
        }
    }

    fn poll(&mut self) -> Option<Duration> {
        let port = &mut self.station.at(&mut self.fabric);
        self.manager.poll(self.now, port)
    }

    fn step(&mut self) -> Result<()> {
        let next = self.poll();
        self.now = next.ok_or(BenchError::Timeout("the subnet manager"))?;
        Ok(())
    }

    fn migrate(&mut self, migration: Migration) -> Result<Option<Moved>> {
        let ticket = self.manager.migrate(migration);
        loop {
            let next = self.poll();
            match self.manager.take_migration(ticket) {
                Some(Ok(moved)) => return Ok(Some(moved)),
                Some(Err(MigrationError::AlreadyThere | MigrationError::Occupied { .. })) => {
                    return Ok(None);
                }
                Some(Err(error)) => return Err(failed(error)),
                None => self.now = next.ok_or(BenchError::Timeout("the subnet manager"))?,
            }
        }
    }
}

/// The tree with its adapters as functions; their GUIDs by rising place, so that neighbours come
/// one after the other.
fn functions(tree: &str) -> Result<(Topology, Vec<Guid>)> {
    let tree: FatTree = tree.parse().map_err(failed)?;
    let plain = tree.topology(Hosts::Adapters);
    let mut topology = Topology::new();
    let mut guids = Vec::new();
    for node in plain.nodes() {
        let virtual_function = node.kind == NodeType::ChannelAdapter;
        if virtual_function {
            guids.push(node.guid);
        }
        topology.add(NodeSpec {
            virtual_function,
            port_guids: if virtual_function {
                vec![node.guid]
            } else {
                node.port_guids.clone()
            },
            ..node.clone()
        });
    }
    for &(a, b, rate) in plain.links() {
        topology.link((a.node, a.port), (b.node, b.port), rate);
    }
    guids.sort_unstable();
    Ok((topology, guids))
}

fn row(row: &Row, migrations: usize) -> Result<Vec<Measurement>> {
    let (topology, guids) = functions(row.tree)?;
    let is_spare = |number: &usize| number % 2 == 1;
    let spares = (0..guids.len())
        .filter(is_spare)
        .map(|number| guids[number]);
    let mut lab = Lab::new(&topology, guids[0], spares.collect())?;
    let mut random = Random::new(1);
    let (mut sum, mut most, mut time) = (0, 0, Duration::ZERO);
    let mut done = 0;
    while done < migrations {
        // The manager's own node stays.
        let vm = guids[2 + 2 * random.below(guids.len() / 2 - 1)];
        let to = Target::Function(guids[random.below(guids.len())]);
        let started = Instant::now();
        if let Some(moved) = lab.migrate(Migration::new(vm, to))? {
            time += started.elapsed();
            let sent = moved.switches.sent;
            sum += sent;
            most = most.max(sent);
            done += 1;
        }
    }
    let full = Migration {
        method: Some(Method::Full),
        ..Migration::new(guids[2], free(&lab, &guids)?)
    };
    let full = lab.migrate(full)?.ok_or_else(|| failed("nothing moved"))?;
    let paper = |name, value| Some(Reference { name, value });
    let [full_name, most_name, mean_name, time_name] = row.names;
    let measurement = |name, value, unit, reference| Measurement {
        name,
        value,
        unit,
        reference,
    };
    Ok(vec![
        measurement(
            full_name,
            full.switches.sent as f64,
            "packets",
            paper("the paper's, packets", row.full),
        ),
        measurement(
            most_name,
            most as f64,
            "packets",
            paper("the paper's limit, packets", row.most),
        ),
        measurement(mean_name, sum as f64 / migrations as f64, "packets", None),
        measurement(
            time_name,
            time.as_secs_f64() * 1e6 / migrations as f64,
            "us",
            None,
        ),
    ])
}

/// A free function.
fn free(lab: &Lab, guids: &[Guid]) -> Result<Target> {
    let mut spares = guids.iter().skip(1).step_by(2);
    let function = spares.find_map(|&guid| lab.manager.function_of(guid));
    function
        .map(Target::Function)
        .ok_or_else(|| failed("no function is free"))
}

/// From one hypervisor to another of the same leaf switch: packets to switches.
fn within_a_leaf() -> Result<Measurement> {
    let tree: FatTree = HYPERVISORS.parse().map_err(failed)?;
    let topology = tree.topology(Hosts::Hypervisors { functions: 2 });
    let functions: Vec<Guid> = topology
        .nodes()
        .iter()
        .filter(|node| node.virtual_function)
        .map(|node| node.guid)
        .collect();
    // The second function of every hypervisor is free.
    let spares = functions.iter().skip(1).step_by(2).copied().collect();
    let mut lab = Lab::new(&topology, functions[0], spares)?;
    let migration = Migration::new(functions[2], Target::Function(functions[5]));
    let moved = lab
        .migrate(migration)?
        .ok_or_else(|| failed("nothing moved"))?;
    Ok(Measurement {
        name: "leaf_migration_smps",
        value: moved.switches.sent as f64,
        unit: "packets",
        reference: Some(Reference {
            name: "the paper's, packets",
            value: 1.0,
        }),
    })
}

/// Measures it.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let full = context.effort == Effort::FULL;
    let (rows, migrations) = if full {
        (&ROWS[..], 1000)
    } else {
        (&ROWS[..1], 10)
    };
    let mut results = vec![within_a_leaf()?];
    for each in rows {
        results.extend(row(each, migrations)?);
    }
    Ok(results)
}
