//! Many subnets joined by a router, in one fabric: time and memory of discovery, routing and a migration.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::{Fabric, GlobalAddress, NodeId, NodeSpec, PortRef, Topology, TopologyError};
use rand::RngExt;
use serde::Serialize;
use subnet_manager::routing::RoutingChoice;
use subnet_manager::{
    Config, ConfigError, ForwardingTable, Graph, Migration, MigrationError, Routing, RoutingEngine,
    RoutingError, SubnetManager, Target,
};
use topologies::Hosts;
use wire::attribute::NodeType;
use wire::{ExtendedLid, Gid, Guid, Lid, Sl};

use super::{Managed, processor_time};
use crate::{Progress, Shape, ShapeError, Step, generator};

/// Subnets that a router can join here: GUIDs have room for so many.
pub const MAX_SUBNETS: u8 = 250;
/// Places for hosts that a subnet needs: the manager's, two hypervisors', the router's.
pub const MIN_HOSTS: usize = 4;
/// Functions of a hypervisor: one with a VM, one without.
const FUNCTIONS: u8 = 2;
/// Random paths to follow.
const SAMPLES: usize = 1000;
/// Bytes that the fabric and the manager take for a port, external ports of switches included: a low estimate, to
/// refuse what has no room from the start.
const MIN_PORT_BYTES: u64 = 400;

/// Extent of the experiment.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Number of subnets, up to [`MAX_SUBNETS`].
    pub subnets: u8,
    /// Topology of each.
    pub shape: Shape,
    /// Routing engine of each manager.
    pub engine: RoutingChoice,
    /// Migrations, one after the other.
    pub migrations: usize,
    /// Seed of what is random.
    pub seed: u64,
    /// Memory that the process may take, in bytes.
    pub memory: u64,
}

/// Duration of a stage, of all subnets together.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Stage {
    /// By the clock, in seconds.
    pub seconds: f64,
    /// Processor time, in seconds.
    pub processor_seconds: f64,
}

/// Durations of single migrations.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Moves {
    /// Number.
    pub count: usize,
    /// Median in milliseconds, by the clock.
    pub median_ms: f64,
    /// The shortest.
    pub min_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// Mean of the processor time.
    pub processor_ms: f64,
    /// Switches that a migration sent blocks to, vSwitches included; the largest number.
    pub switches: usize,
    /// Packets of a migration; the largest number.
    pub packets: u64,
}

/// Paths of random pairs, followed through the fabric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Followed {
    /// Number.
    pub paths: usize,
    /// Those that end at the right port.
    pub arriving: usize,
}

/// Result.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Subnets that were brought up.
    pub subnets: usize,
    /// Ports with a LID, but for those of switches: adapters, VMs, ports of the router.
    pub end_ports: usize,
    /// Switches, vSwitches included.
    pub switches: usize,
    /// All ports in the fabric.
    pub ports: usize,
    /// LIDs of the largest subnet.
    pub lids: usize,
    /// The engine that has routed all subnets; empty where they differ.
    pub engine: &'static str,
    /// Making of nodes and cables.
    pub build: Stage,
    /// Discovery, partitions and LIDs.
    pub discovery: Stage,
    /// Computation of all routes.
    pub routing: Stage,
    /// Writing of tables, activation of ports.
    pub writing: Stage,
    /// Subnet management packets that the managers sent.
    pub packets: u64,
    /// Memory of the fabric before any manager came, in bytes.
    pub fabric_bytes: u64,
    /// Memory that managers and their settings took in addition.
    pub managed_bytes: u64,
    /// The most memory that the process ever had.
    pub peak_bytes: u64,
    /// Paths within a subnet.
    pub within: Followed,
    /// Paths from one subnet to another.
    pub across: Followed,
    /// Migrations.
    pub migrations: Moves,
    /// Why there are fewer subnets than were asked for.
    pub stopped: Option<String>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// No such topology.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Nodes and cables do not fit.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Too few hosts.
    #[error(
        "a subnet of {0} hosts; a subnet takes {MIN_HOSTS} or more: for its manager, two hypervisors and the router"
    )]
    Hosts(usize),
    /// More LIDs than there are.
    #[error(
        "a subnet of {0} ports that need a LID; a subnet has 49151: take more and smaller ones"
    )]
    Lids(usize),
    /// Not enough memory from the start.
    #[error(
        "{ports} ports take {} MiB at least, of {} MiB: take fewer subnets, or give more memory with --memory",
        .needed >> 20, .memory >> 20
    )]
    Memory {
        /// Ports of all nodes.
        ports: u64,
        /// Bytes.
        needed: u64,
        /// Bytes.
        memory: u64,
    },
    /// An engine without tables of its own.
    #[error("the engine {0} has tables of others only; choose one that computes them")]
    Engine(&'static str),
    /// A setting of the managers.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Subnet not up.
    #[error("subnet {subnet} does not come up: {reason}")]
    NotUp {
        /// Number, from 1.
        subnet: usize,
        /// The first error of its manager.
        reason: String,
    },
    /// No migration.
    #[error("the VM did not move: {0}")]
    Migration(#[from] MigrationError),
}

/// Moments of the computation of routes.
#[derive(Debug, Clone, Copy)]
struct Moment {
    clock: Instant,
    processor: Duration,
}

impl Moment {
    fn now() -> Self {
        Self {
            clock: Instant::now(),
            processor: processor_time(),
        }
    }
}

impl Stage {
    fn add(&mut self, from: Moment, to: Moment) {
        self.seconds += (to.clock - from.clock).as_secs_f64();
        let processor = to.processor.saturating_sub(from.processor);
        self.processor_seconds += processor.as_secs_f64();
    }
}

/// An engine that remembers when it began and ended.
#[derive(Debug)]
struct Timed {
    engine: Box<dyn RoutingEngine>,
    last: Arc<Mutex<Option<(Moment, Moment)>>>,
}

impl Timed {
    fn during<T>(&self, route: impl FnOnce() -> T) -> T {
        let began = Moment::now();
        let routed = route();
        let mut last = self.last.lock().unwrap_or_else(|held| held.into_inner());
        *last = Some((began, Moment::now()));
        routed
    }
}

impl RoutingEngine for Timed {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn is_layered(&self) -> bool {
        self.engine.is_layered()
    }

    fn keeps_tables(&self) -> bool {
        self.engine.keeps_tables()
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        self.during(|| self.engine.route(graph))
    }

    fn reroute(
        &self,
        graph: &Graph,
        before: (&Graph, &[ForwardingTable]),
    ) -> Result<Routing, RoutingError> {
        self.during(|| self.engine.reroute(graph, before))
    }
}

/// Places of one subnet.
#[derive(Debug, Clone)]
struct Places {
    manager: Guid,
    /// The router's port.
    router: Guid,
    /// The VM's function, and the free one of the other hypervisor.
    vm: Guid,
    free: Guid,
    spares: [Guid; 2],
    /// Ports of adapters and VMs.
    ends: Vec<Guid>,
}

fn prefix(subnet: usize) -> u64 {
    0xfec0_0000_0000_0001 + subnet as u64
}

/// The GUID of a node of one subnet in the fabric of all.
fn moved(guid: Guid, subnet: u8) -> Guid {
    Guid::new(guid.value() + (u64::from(subnet) << 32))
}

/// The GUID of the router's port in a subnet; above those of all subnets.
fn router_port(subnet: u8) -> Guid {
    Guid::new(0x0002_c9ff_0000_0001 + u64::from(subnet))
}

/// Adds a subnet of this shape: its first host is the manager's, the second and the last but one are hypervisors, and the router
/// is in place of the last.
fn add_subnet(all: &mut Topology, shape: &Topology, router: NodeId, subnet: u8) -> Places {
    let nodes = shape.nodes();
    let hosts: Vec<usize> = (0..nodes.len())
        .filter(|&node| nodes[node].kind == NodeType::ChannelAdapter)
        .collect();
    let [manager, first, .., second, last] = hosts[..] else {
        unreachable!("the caller has checked the number of hosts");
    };
    let mut ends = Vec::with_capacity(nodes.len());
    let places: Vec<(NodeId, Option<u8>)> = nodes
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let guid = moved(spec.guid, subnet);
            if index == last {
                return (router, Some(subnet + 1));
            }
            if index == first || index == second {
                let vswitch = all.add(NodeSpec::switch(guid, FUNCTIONS + 1, "vSwitch"));
                for function in 1..=FUNCTIONS {
                    let own = Guid::new(guid.value() + u64::from(function));
                    let vf = all.add(NodeSpec::virtual_function(own, "VF"));
                    all.link((vswitch, function + 1), (vf, 1), Default::default());
                }
                ends.push(Guid::new(guid.value() + 1));
                return (vswitch, None);
            }
            if spec.kind == NodeType::ChannelAdapter {
                ends.push(guid);
            }
            let spec = NodeSpec {
                guid,
                system_image_guid: moved(spec.system_image_guid, subnet),
                port_guids: { spec.port_guids.iter() }
                    .map(|&guid| moved(guid, subnet))
                    .collect(),
                ..spec.clone()
            };
            (all.add(spec), None)
        })
        .collect();
    for &(a, b, rate) in shape.links() {
        let end = |at: PortRef| {
            let (node, port) = places[at.node.index()];
            (node, port.unwrap_or(at.port))
        };
        all.link(end(a), end(b), rate);
    }
    let function =
        |host: usize, function: u64| Guid::new(moved(nodes[host].guid, subnet).value() + function);
    Places {
        manager: moved(nodes[manager].guid, subnet),
        router: router_port(subnet),
        vm: function(first, 1),
        free: function(second, 2),
        spares: [function(first, 2), function(second, 2)],
        ends,
    }
}

impl Setting {
    /// Nodes and cables of all subnets.
    fn topology(&self) -> Result<(Topology, Vec<Places>), ScaleError> {
        let shape = self.shape.topology(Hosts::Adapters, self.seed)?;
        let is_host = |spec: &&NodeSpec| spec.kind == NodeType::ChannelAdapter;
        let hosts = shape.nodes().iter().filter(is_host).count();
        if hosts < MIN_HOSTS {
            return Err(ScaleError::Hosts(hosts));
        }
        // Two adapters more than before at hypervisors, which have functions and a vSwitch without a LID.
        let lids = shape.nodes().len() + 2 * usize::from(FUNCTIONS);
        if lids > usize::from(Lid::UNICAST_LAST.value()) {
            return Err(ScaleError::Lids(lids));
        }
        let ports = |spec: &NodeSpec| u64::from(spec.ports) + 1;
        let ports: u64 = shape.nodes().iter().map(ports).sum();
        let ports = ports * u64::from(self.subnets);
        let needed = ports * MIN_PORT_BYTES;
        if needed > self.memory {
            return Err(ScaleError::Memory {
                ports,
                needed,
                memory: self.memory,
            });
        }
        let mut all = Topology::new();
        let guids = (0..self.subnets).map(router_port).collect();
        let router = NodeSpec::router(Guid::new(0x0002_c9fe_0000_0001), guids, "router");
        let router = all.add(router);
        let places = (0..self.subnets)
            .map(|subnet| add_subnet(&mut all, &shape, router, subnet))
            .collect();
        Ok((all, places))
    }

    fn config(&self, subnet: usize, places: &[Places]) -> Config {
        let others = (0..places.len()).filter(|&other| other != subnet);
        Config {
            gid_prefix: prefix(subnet),
            prefix_routes: others
                .map(|other| (prefix(other), places[subnet].router))
                .collect(),
            spare_functions: places[subnet].spares.into(),
            // A VM that moves takes its LID along, and none comes back.
            without_lid: places[subnet].spares.into(),
            sweep_interval: Duration::ZERO,
            ..Config::default()
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`ScaleError`].
    pub fn run(&self, progress: Progress<'_>) -> Result<Outcome, ScaleError> {
        let tell = |what: &str, done: usize| {
            progress(Step {
                what,
                done,
                of: usize::from(self.subnets) + 2,
            });
        };
        let before = Memory::now();
        tell("nodes and cables", 0);
        let began = Moment::now();
        let (topology, places) = self.topology()?;
        let mut fabric = Fabric::new(&topology)?;
        let mut outcome = Outcome::of(&topology, &places);
        drop(topology);
        outcome.build.add(began, Moment::now());
        let built = Memory::now();
        outcome.fabric_bytes = built.resident.saturating_sub(before.resident);
        let mut managers: Vec<Managed> = Vec::new();
        for subnet in 0..places.len() {
            let resident = Memory::now().resident;
            let each = resident.saturating_sub(built.resident) / managers.len().max(1) as u64;
            if resident + each > self.memory {
                outcome.stopped = Some(format!(
                    "{} MiB of {} MiB are in use and a subnet takes {} MiB more",
                    resident >> 20,
                    self.memory >> 20,
                    each >> 20
                ));
                break;
            }
            tell(&format!("subnet {}", subnet + 1), subnet + 1);
            managers.push(self.bring_up(subnet, &places, &mut fabric, &mut outcome)?);
        }
        outcome.subnets = managers.len();
        outcome.managed_bytes = Memory::now().resident.saturating_sub(built.resident);
        tell("paths and migrations", places.len() + 1);
        outcome.follow(&fabric, &places[..managers.len()], self.seed);
        if let (Some(managed), Some(places)) = (managers.first_mut(), places.first()) {
            outcome.migrations = moves(managed, &mut fabric, places, self.migrations)?;
        }
        outcome.peak_bytes = Memory::now().peak;
        Ok(outcome)
    }

    fn bring_up(
        &self,
        subnet: usize,
        places: &[Places],
        fabric: &mut Fabric,
        outcome: &mut Outcome,
    ) -> Result<Managed, ScaleError> {
        let not_up = |reason: String| ScaleError::NotUp {
            subnet: subnet + 1,
            reason,
        };
        let last = Arc::default();
        let engine = self.engine.engine(1);
        let engine = Timed {
            engine: engine.ok_or(ScaleError::Engine(self.engine.name()))?,
            last: Arc::clone(&last),
        };
        let config = self.config(subnet, places);
        let manager = SubnetManager::new(config, Box::new(engine))?;
        let port = fabric.port_by_guid(places[subnet].manager);
        let port = port.ok_or_else(|| not_up("its manager has no port".to_owned()))?;
        let began = Moment::now();
        let mut managed = Managed::new(manager, port, fabric);
        let up = managed.until(fabric, |manager| manager.is_up().then_some(()));
        let ended = Moment::now();
        let report = managed.manager.report();
        if up.is_none() || !report.errors.is_empty() {
            let reason = report.errors.first().cloned();
            return Err(not_up(reason.unwrap_or_default()));
        }
        let routed = *last.lock().unwrap_or_else(|held| held.into_inner());
        let (first, second) = routed.ok_or_else(|| not_up("no engine has run".to_owned()))?;
        outcome.discovery.add(began, first);
        outcome.routing.add(first, second);
        outcome.writing.add(second, ended);
        outcome.packets += managed.manager.smps_sent();
        outcome.lids = outcome.lids.max(managed.manager.lids().len());
        let engine = managed.manager.routed_by().unwrap_or_default();
        if subnet == 0 {
            outcome.engine = engine;
        } else if outcome.engine != engine {
            outcome.engine = "";
        }
        Ok(managed)
    }
}

impl Outcome {
    fn of(topology: &Topology, places: &[Places]) -> Self {
        let nodes = topology.nodes();
        let switches = nodes.iter().filter(|spec| spec.kind == NodeType::Switch);
        let switches = switches.count();
        let ends: usize = places.iter().map(|places| places.ends.len() + 1).sum();
        let ports: usize = nodes.iter().map(|spec| usize::from(spec.ports)).sum();
        Self {
            subnets: 0,
            end_ports: ends,
            switches,
            // Port 0 of each switch.
            ports: ports + switches,
            lids: 0,
            engine: "",
            build: Stage::default(),
            discovery: Stage::default(),
            routing: Stage::default(),
            writing: Stage::default(),
            packets: 0,
            fabric_bytes: 0,
            managed_bytes: 0,
            peak_bytes: 0,
            within: Followed::default(),
            across: Followed::default(),
            migrations: Moves::of(Vec::new()),
            stopped: None,
        }
    }

    /// Bytes of fabric and managers for each end port.
    #[must_use]
    pub fn bytes_per_port(&self) -> f64 {
        (self.fabric_bytes + self.managed_bytes) as f64 / self.end_ports as f64
    }

    /// Follows paths of random pairs.
    fn follow(&mut self, fabric: &Fabric, subnets: &[Places], seed: u64) {
        let mut random = generator(seed, 0);
        for _ in 0..SAMPLES {
            let mut end = |subnet: usize| {
                let ends = &subnets[subnet].ends;
                ends[random.random_range(0..ends.len())]
            };
            let subnet = self.within.paths % subnets.len();
            let (from, to) = (end(subnet), end(subnet));
            let arrives = arrives(fabric, from, to, None);
            self.within.paths += 1;
            self.within.arriving += usize::from(arrives);
            if subnets.len() > 1 {
                let other = (subnet + 1 + self.across.paths % (subnets.len() - 1)) % subnets.len();
                let to = end(other);
                let global = GlobalAddress {
                    dgid: Gid::new(prefix(other), to),
                    hop_limit: 255,
                };
                let arrives =
                    self::arrives(fabric, from, to, Some((subnets[subnet].router, global)));
                self.across.paths += 1;
                self.across.arriving += usize::from(arrives);
            }
        }
    }
}

/// Whether a packet from one port ends at the other, by a router if there is one.
fn arrives(fabric: &Fabric, from: Guid, to: Guid, by: Option<(Guid, GlobalAddress)>) -> bool {
    let next = by.map_or(to, |(router, _)| router);
    let [from, to, next] = [from, to, next].map(|guid| fabric.port_by_guid(guid));
    let lid = next.and_then(|next| Some(fabric.port_info(next)?.lid));
    let (Some(from), Some(to), Some(lid)) = (from, to, lid) else {
        return false;
    };
    if from == to {
        return true;
    }
    let global = by.map(|(_, global)| global);
    let (_, end) = fabric.follow_routed(from, ExtendedLid::from(lid), Sl::default(), None, global);
    end.is_ok_and(|routed| routed.route.port == to)
}

impl Moves {
    fn of(mut milliseconds: Vec<f64>) -> Self {
        milliseconds.sort_by(f64::total_cmp);
        let at = |index: usize| milliseconds.get(index).copied().unwrap_or_default();
        let count = milliseconds.len();
        Self {
            count,
            median_ms: at(count / 2),
            min_ms: at(0),
            max_ms: at(count.saturating_sub(1)),
            processor_ms: 0.0,
            switches: 0,
            packets: 0,
        }
    }
}

/// Moves a VM from one hypervisor to the other and back.
fn moves(
    managed: &mut Managed,
    fabric: &mut Fabric,
    places: &Places,
    count: usize,
) -> Result<Moves, MigrationError> {
    let mut times = Vec::with_capacity(count);
    let (mut switches, mut packets) = (0, 0);
    let before = processor_time();
    for number in 0..count {
        let to = if number % 2 == 0 {
            places.free
        } else {
            places.vm
        };
        let began = Instant::now();
        let migration = Migration::new(places.vm, Target::Function(to));
        let ticket = managed.manager.migrate(migration);
        let moved = managed.until(fabric, |manager| manager.take_migration(ticket));
        times.push(began.elapsed().as_secs_f64() * 1e3);
        if let Some(moved) = moved.transpose()? {
            let sent = [
                moved.functions,
                moved.drops,
                moved.vswitches,
                moved.switches,
            ];
            packets = packets.max(sent.iter().map(|sent| sent.sent).sum());
            switches = switches.max(moved.per_switch.len());
        }
    }
    let processor = processor_time().saturating_sub(before).as_secs_f64();
    Ok(Moves {
        processor_ms: processor * 1e3 / count.max(1) as f64,
        switches,
        packets,
        ..Moves::of(times)
    })
}

/// Memory of this process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    resident: u64,
    peak: u64,
}

impl Memory {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            resident: kibibytes(&status, "VmRSS:") << 10,
            peak: kibibytes(&status, "VmHWM:") << 10,
        }
    }
}

/// Memory that is free on this machine, in bytes.
#[must_use]
pub fn free_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kibibytes(&text, "MemAvailable:") << 10
}

/// A line's number.
fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent;

    #[test]
    fn three_subnets() {
        let setting = Setting {
            subnets: 3,
            shape: "XGFT(2;10,10;5,1)".parse().unwrap(),
            engine: RoutingChoice::FatTree,
            migrations: 2,
            seed: 1,
            memory: u64::MAX,
        };
        let outcome = setting.run(&silent).unwrap();
        // 97 adapters, 2 VMs and a router's port.
        assert_eq!(outcome.end_ports, 3 * (97 + 2 + 1));
        // 15 of the tree, and two vSwitches.
        assert_eq!((outcome.subnets, outcome.switches), (3, 3 * (15 + 2)));
        assert_eq!(outcome.lids, 97 + 2 + 1 + 15 + 2);
        assert_eq!(outcome.engine, "ftree");
        let all = Followed {
            paths: SAMPLES,
            arriving: SAMPLES,
        };
        assert_eq!((outcome.within, outcome.across), (all, all));
        assert_eq!(outcome.migrations.count, 2);
        assert_eq!(outcome.stopped, None);
    }

    #[test]
    fn mistakes() {
        let setting = |shape: &str, memory| Setting {
            subnets: 2,
            shape: shape.parse().unwrap(),
            engine: RoutingChoice::MinHop,
            migrations: 1,
            seed: 1,
            memory,
        };
        let error = |shape, memory| setting(shape, memory).run(&silent).unwrap_err().to_string();
        assert!(error("XGFT(1;3;1)", u64::MAX).starts_with("a subnet of 3 hosts; "));
        assert!(error("XGFT(1;4;1)", 1 << 10).starts_with("26 ports take "));
    }
}
