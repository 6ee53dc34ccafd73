//! Routing engines at the scale of a data centre, and OpenSM's on the same subnets.

mod degraded;
pub mod growth;

use std::error::Error;
use std::io;
use std::time::Instant;

use simulator::opensm;
use subnet_manager::Graph;
use subnet_manager::routing::{
    self, Dfsssp, Lash, MinHop, Nue, RoutingEngine, UpDown, VSwitchFatTree,
};
use topologies::{FatTree, Hosts};

use crate::daemons::memory::{peak_mib, reset_peak};
use crate::daemons::pace::median;
use crate::{BenchError, Context, Measurement, Reference, Result, Tell};

/// The fat-trees of 36-port switches that "Efficient Routing and Reconfiguration in Virtualized HPC
/// Environments with vSwitch-enabled Lossless Networks" has figures for, and two between them, by number of nodes.
const TREES: [(usize, &str); 6] = [
    (324, "XGFT(2;18,18;18,1)"),
    (648, "XGFT(2;36,18;18,1)"),
    (2916, "XGFT(3;9,18,18;18,18,1)"),
    (5832, "XGFT(3;18,18,18;18,18,1)"),
    (8748, "XGFT(3;27,18,18;18,18,1)"),
    (11664, "XGFT(3;36,18,18;18,18,1)"),
];

/// The hypervisors of 16 virtual functions that the LIDs of a subnet are enough for.
const HYPERVISORS: usize = 2891;
const FUNCTIONS: u8 = 16;

type Engine = fn() -> Box<dyn RoutingEngine>;

/// Names of an engine's results.
struct Names {
    /// The engine.
    engine: &'static str,
    /// Times by tree.
    seconds: [&'static str; TREES.len()],
    /// Memory by tree.
    memory: [&'static str; TREES.len()],
    /// Name of the time's growth.
    growth: &'static str,
}

macro_rules! names {
    ($engine:literal) => {
        Names {
            engine: $engine,
            seconds: [
                concat!("route_", $engine, "_324_s"),
                concat!("route_", $engine, "_648_s"),
                concat!("route_", $engine, "_2916_s"),
                concat!("route_", $engine, "_5832_s"),
                concat!("route_", $engine, "_8748_s"),
                concat!("route_", $engine, "_11664_s"),
            ],
            memory: [
                concat!("route_", $engine, "_324_mib"),
                concat!("route_", $engine, "_648_mib"),
                concat!("route_", $engine, "_2916_mib"),
                concat!("route_", $engine, "_5832_mib"),
                concat!("route_", $engine, "_8748_mib"),
                concat!("route_", $engine, "_11664_mib"),
            ],
            growth: concat!("route_", $engine, "_growth"),
        }
    };
}

const ENGINES: [(Engine, Names); 6] = [
    (|| Box::new(routing::FatTree), names!("ftree")),
    (|| Box::new(VSwitchFatTree), names!("vswitchftree")),
    (|| Box::new(MinHop), names!("minhop")),
    (|| Box::new(UpDown::default()), names!("updn")),
    (|| Box::new(Dfsssp::default()), names!("dfsssp")),
    (|| Box::new(Lash::default()), names!("lash")),
];

/// An engine that OpenSM has, too.
struct Compared {
    engine: Engine,
    /// OpenSM's name of it.
    theirs: &'static str,
    /// The tree to route, as an index of [`TREES`].
    tree: usize,
    name: &'static str,
}

/// Trees as large as OpenSM routes them within a minute: with LASH it did not get ready with 5832 nodes
/// in that time.
const COMPARED: [Compared; 6] = [
    Compared {
        engine: || Box::new(routing::FatTree),
        theirs: "ftree",
        tree: 5,
        name: "ftree_over_opensm",
    },
    Compared {
        engine: || Box::new(MinHop),
        theirs: "minhop",
        tree: 5,
        name: "minhop_over_opensm",
    },
    Compared {
        engine: || Box::new(UpDown::default()),
        theirs: "updn",
        tree: 5,
        name: "updn_over_opensm",
    },
    Compared {
        engine: || Box::new(Dfsssp::default()),
        theirs: "dfsssp",
        tree: 3,
        name: "dfsssp_5832_over_opensm",
    },
    Compared {
        engine: || Box::new(Lash::default()),
        theirs: "lash",
        tree: 1,
        name: "lash_648_over_opensm",
    },
    Compared {
        engine: || Box::new(Nue { lanes: 1 }),
        theirs: "nue",
        tree: 1,
        name: "nue_648_over_opensm",
    },
];

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(error: E) -> BenchError {
    BenchError::System {
        what: "route a fat-tree",
        source: io::Error::other(error),
    }
}

fn graph(tree: &FatTree) -> Result<Graph> {
    simulator::graph(&tree.topology(Hosts::Adapters)).map_err(failed)
}

fn time(engine: Engine, graph: &Graph, rounds: usize) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        // A new one each time: some keep to what they have answered before.
        let engine = engine();
        let start = Instant::now();
        engine.route(graph).map_err(failed)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

fn measurement(name: &'static str, value: f64, unit: &'static str) -> Measurement {
    Measurement {
        name,
        value,
        unit,
        reference: None,
    }
}

/// Our time for a tree divided by OpenSM's.
fn compare(compared: &Compared, tree: usize, rounds: usize) -> Result<Measurement> {
    let tree: FatTree = TREES[tree].1.parse().map_err(failed)?;
    let topology = tree.topology(Hosts::Adapters);
    let theirs = opensm::time(&topology, compared.theirs)?;
    if theirs.used != compared.theirs {
        return Err(BenchError::Subnet(format!(
            "OpenSM did not route {tree} with {}, but with {}",
            compared.theirs, theirs.used
        )));
    }
    let ours = time(compared.engine, &graph(&tree)?, rounds)?;
    let theirs = theirs.time.as_secs_f64();
    Ok(Measurement {
        reference: Some(Reference {
            name: "OpenSM, s",
            value: theirs,
        }),
        ..measurement(compared.name, ours / theirs, "x")
    })
}

/// Measures the time from a graph to its forwarding tables, in one thread, and the most memory that
/// this process has in the meantime; and how the time grows from 648 nodes to 11 664, where 1 is as
/// fast as nodes times switches.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context, tell: Tell<'_>) -> Result<()> {
    let (trees, rounds) = match context.effort.rounds {
        1 => (1, 1),
        _ => (TREES.len(), 3),
    };
    let mut sizes = Vec::new();
    let mut times = [const { Vec::new() }; ENGINES.len()];
    for (index, (nodes, tree)) in TREES.into_iter().take(trees).enumerate() {
        let graph = graph(&tree.parse().map_err(failed)?)?;
        sizes.push((nodes * graph.switches.len()) as f64);
        for ((engine, names), times) in ENGINES.iter().zip(&mut times) {
            reset_peak()?;
            let seconds = time(*engine, &graph, rounds)?;
            times.push(seconds);
            tell(measurement(names.seconds[index], seconds, "s"))?;
            tell(measurement(names.memory[index], peak_mib()?, "MiB"))?;
        }
    }
    for ((_, names), times) in ENGINES.iter().zip(&times) {
        if let ([_, small, .., large], [_, few, .., many]) = (&sizes[..], &times[..]) {
            let growth = (many / few) / (large / small);
            tell(measurement(names.growth, growth, "x"))?;
        }
    }
    if trees > 1 {
        reset_peak()?;
        let tree = FatTree::rlft(36, HYPERVISORS as u32).map_err(failed)?;
        let graph = simulator::with_hypervisors(&graph(&tree)?, HYPERVISORS, FUNCTIONS);
        let graph = graph.map_err(failed)?;
        let seconds = time(|| Box::new(VSwitchFatTree), &graph, 1)?;
        tell(measurement("route_46256_vms_s", seconds, "s"))?;
        tell(measurement("route_46256_vms_mib", peak_mib()?, "MiB"))?;
    }
    Ok(())
}

/// Measures the same and what OpenSM takes, in turns; then with a fat-tree that has broken cables.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run_beside_opensm(context: &Context, tell: Tell<'_>) -> Result<()> {
    let (largest, rounds) = match context.effort.rounds {
        1 => (0, 1),
        _ => (TREES.len() - 1, 3),
    };
    let mut compared = COMPARED.iter();
    compared.try_for_each(|one| tell(compare(one, one.tree.min(largest), rounds)?))?;
    degraded::compare(&TREES[largest].1.parse().map_err(failed)?, rounds, tell)
}
