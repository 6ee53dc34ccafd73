//! Costs of finding the forwarding tables that a VM's move changes, and of changing them, in memory: no packet
//! is sent.

use std::error::Error;
use std::hint::black_box;
use std::io;
use std::time::Instant;

use subnet_manager::routing::reconfiguration::{Exchange, FatTreeMinimum, apply};
use subnet_manager::routing::{self, RoutingEngine};
use subnet_manager::{Endpoint, Graph, Routing};
use topologies::{FatTree, Hosts};

use crate::daemons::pace::median;
use crate::{BenchError, Context, Effort, Measurement, Reference, Result};

/// A tree of "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
/// vSwitch-enabled Lossless Networks" and what the paper says of it.
struct Tree {
    tree: &'static str,
    /// To find the switches of a move between the leaves that are farthest apart, in microseconds.
    published: f64,
    /// The names of two measurements: the time to find the switches, and the time of the whole move.
    names: [&'static str; 2],
}

const TREES: [Tree; 3] = [
    Tree {
        tree: "XGFT(3;18,18,18;18,18,1)",
        published: 3000.0,
        names: ["mark_972_us", "migrate_972_us"],
    },
    Tree {
        tree: "XGFT(3;36,18,18;18,18,1)",
        published: 3400.0,
        names: ["mark_1620_us", "migrate_1620_us"],
    },
    Tree {
        tree: "XGFT(4;12,12,12,12;12,12,12,1)",
        published: 79_000.0,
        names: ["mark_6912_us", "migrate_6912_us"],
    },
];

/// The largest tree of the paper's simulator.
const NODES_1024: &str = "XGFT(3;16,8,8;8,8,1)";

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(error: E) -> BenchError {
    BenchError::System {
        what: "move LIDs in a fat-tree",
        source: io::Error::other(error),
    }
}

/// A routed subnet that LIDs move in.
struct Lab {
    minimum: FatTreeMinimum,
    routing: Routing,
    /// The places of adapters, in the order of the tree.
    hosts: Vec<Endpoint>,
}

impl Lab {
    fn new(tree: &str) -> Result<Self> {
        let tree: FatTree = tree.parse().map_err(failed)?;
        let graph: Graph = simulator::graph(&tree.topology(Hosts::Adapters)).map_err(failed)?;
        let hosts = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
        Ok(Self {
            minimum: FatTreeMinimum::new(&graph).map_err(failed)?,
            routing: routing::FatTree.route(&graph).map_err(failed)?,
            hosts: hosts.copied().collect(),
        })
    }

    /// Exchanges the LIDs of two hosts.
    fn swap(&mut self, a: usize, b: usize) {
        let (from, to) = (self.hosts[a], self.hosts[b]);
        let exchange = Exchange::Swap {
            lid: from.lid,
            other: to.lid,
        };
        let tables = &mut self.routing.tables;
        let plan = self.minimum.plan(tables, exchange, from.switch, to.switch);
        apply(tables, &plan);
        (self.hosts[a].lid, self.hosts[b].lid) = (to.lid, from.lid);
    }
}

/// The times of `count` calls, in microseconds: their median.
fn time(count: usize, mut each: impl FnMut(usize)) -> f64 {
    let times = (0..count).map(|number| {
        let start = Instant::now();
        each(number);
        start.elapsed().as_secs_f64() * 1e6
    });
    median(times.collect())
}

/// Hosts of the first and of the last eighth of a tree, which meet at its roots: never one twice in
/// a row, so that caches help little.
fn far_apart(hosts: usize, number: usize) -> (usize, usize) {
    let part = hosts / 8;
    (number * 7919 % part, hosts - 1 - number * 6151 % part)
}

/// Measures it.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let full = context.effort == Effort::FULL;
    let mut results = Vec::new();
    let (trees, count) = if full {
        (&TREES[..], 1000)
    } else {
        (&TREES[..0], 10)
    };
    for tree in trees {
        let mut lab = Lab::new(tree.tree)?;
        let hosts = lab.hosts.len();
        let marking = time(count, |number| {
            let (a, b) = far_apart(hosts, number);
            let (from, to) = (lab.hosts[a].switch, lab.hosts[b].switch);
            black_box(lab.minimum.marked(from, to));
        });
        let moving = time(count, |number| {
            let (a, b) = far_apart(hosts, number);
            lab.swap(a, b);
        });
        let published = Reference {
            name: "the paper's, us",
            value: tree.published,
        };
        let values = [(marking, Some(published)), (moving, None)];
        for (name, (value, reference)) in tree.names.into_iter().zip(values) {
            results.push(Measurement {
                name,
                value,
                unit: "us",
                reference,
            });
        }
    }
    // Anybody to anywhere, one after the other.
    let mut lab = Lab::new(NODES_1024)?;
    let (hosts, moves) = (lab.hosts.len(), 100 * count);
    let start = Instant::now();
    for number in 0..moves {
        let (a, b) = (number * 7919 % hosts, number * 6151 % hosts);
        if a != b {
            lab.swap(a, b);
        }
    }
    results.push(Measurement {
        name: "migrations_per_s_1024",
        value: moves as f64 / start.elapsed().as_secs_f64(),
        unit: "1/s",
        reference: None,
    });
    Ok(results)
}
