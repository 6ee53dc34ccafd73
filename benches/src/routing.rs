//! Routing engines at the scale of a data centre.

use std::error::Error;
use std::io;
use std::time::Instant;

use fabric::{FatTree, Hosts};
use subnet::Graph;
use subnet::routing::{self, Dfsssp, Lash, MinHop, RoutingEngine, UpDown, VSwitchFatTree};

use crate::pace::median;
use crate::{BenchError, Context, Measurement, Result};

/// The fat-trees of 36-port switches that "Efficient Routing and Reconfiguration in Virtualized HPC
/// Environments with vSwitch-enabled Lossless Networks" has figures for, by number of nodes.
const TREES: [(usize, &str); 4] = [
    (324, "XGFT(2;18,18;18,1)"),
    (648, "XGFT(2;36,18;18,1)"),
    (5832, "XGFT(3;18,18,18;18,18,1)"),
    (11664, "XGFT(3;36,18,18;18,18,1)"),
];

/// The hypervisors of 16 virtual functions that the LIDs of a subnet are enough for.
const HYPERVISORS: usize = 2891;
const FUNCTIONS: u8 = 16;

type Engine = fn() -> Box<dyn RoutingEngine>;

const ENGINES: [(Engine, [&str; 4]); 6] = [
    (
        || Box::new(routing::FatTree),
        [
            "route_ftree_324_s",
            "route_ftree_648_s",
            "route_ftree_5832_s",
            "route_ftree_11664_s",
        ],
    ),
    (
        || Box::new(VSwitchFatTree),
        [
            "route_vswitchftree_324_s",
            "route_vswitchftree_648_s",
            "route_vswitchftree_5832_s",
            "route_vswitchftree_11664_s",
        ],
    ),
    (
        || Box::new(MinHop),
        [
            "route_minhop_324_s",
            "route_minhop_648_s",
            "route_minhop_5832_s",
            "route_minhop_11664_s",
        ],
    ),
    (
        || Box::new(UpDown::default()),
        [
            "route_updn_324_s",
            "route_updn_648_s",
            "route_updn_5832_s",
            "route_updn_11664_s",
        ],
    ),
    (
        || Box::new(Dfsssp::default()),
        [
            "route_dfsssp_324_s",
            "route_dfsssp_648_s",
            "route_dfsssp_5832_s",
            "route_dfsssp_11664_s",
        ],
    ),
    (
        || Box::new(Lash::default()),
        [
            "route_lash_324_s",
            "route_lash_648_s",
            "route_lash_5832_s",
            "route_lash_11664_s",
        ],
    ),
];

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(error: E) -> BenchError {
    BenchError::System {
        what: "route a fat-tree",
        source: io::Error::other(error),
    }
}

fn graph(tree: &FatTree) -> Result<Graph> {
    simulate::graph(&tree.topology(Hosts::Adapters)).map_err(failed)
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

/// Measures the time from a graph to its forwarding tables, in one thread.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let (trees, rounds) = match context.effort.rounds {
        1 => (1, 1),
        _ => (TREES.len(), 3),
    };
    let mut results = Vec::new();
    for (index, (_, tree)) in TREES.into_iter().take(trees).enumerate() {
        let graph = graph(&tree.parse().map_err(failed)?)?;
        for (engine, names) in ENGINES {
            results.push(Measurement {
                name: names[index],
                value: time(engine, &graph, rounds)?,
                unit: "s",
                reference: None,
            });
        }
    }
    if trees > 1 {
        let tree = FatTree::rlft(36, HYPERVISORS as u32).map_err(failed)?;
        let graph = simulate::with_hypervisors(&graph(&tree)?, HYPERVISORS, FUNCTIONS);
        let graph = graph.map_err(failed)?;
        results.push(Measurement {
            name: "route_46256_vms_s",
            value: time(|| Box::new(VSwitchFatTree), &graph, 1)?,
            unit: "s",
            reference: None,
        });
    }
    Ok(results)
}
