//! Fat-tree routing beside OpenSM's where one in a hundred cables between switches is broken.

use simulator::opensm;
use subnet_manager::RoutingEngine;
use subnet_manager::routing::{FatTree as FatTreeRouting, Roles, Verdict};
use topologies::{FatTree, Hosts, break_cables, trunks};

use super::{failed, measurement, time};
use crate::{BenchError, Measurement, Reference, Result, Tell};

/// Percentage of cables between switches that are broken.
const BROKEN: usize = 1;

/// The seed that `ibvswitch simulate routing` has by default.
const SEED: u64 = 1;

/// Our time divided by OpenSM's, and the paths on the busiest cable of our tables divided by those of OpenSM's.
/// OpenSM is told the roots: without them it takes such a tree for none, and routes it with `minhop`.
pub(super) fn compare(tree: &FatTree, rounds: usize, tell: Tell<'_>) -> Result<()> {
    let whole = tree.topology(Hosts::Adapters);
    let broken = (trunks(&whole) * BROKEN).div_ceil(100);
    let topology = break_cables(whole, broken, SEED).map_err(failed)?;
    let roots = topology.nodes()[..tree.roots()].iter();
    let roles = Roles {
        roots: roots.map(|node| node.guid).collect(),
        ..Roles::default()
    };
    let theirs = opensm::route(&topology, "ftree", &roles)?;
    if theirs.used != "ftree" {
        return Err(BenchError::Subnet(format!(
            "OpenSM did not route {tree} less {broken} cables with ftree, but with {}",
            theirs.used
        )));
    }
    // With OpenSM's LIDs, so that both route the same.
    let graph = &theirs.graph;
    let ours = FatTreeRouting.route(graph).map_err(failed)?;
    let most = |routing| Verdict::new(graph, routing).loads.maximum as f64;
    let seconds = time(|| Box::new(FatTreeRouting), graph, rounds)?;
    for (name, ours, theirs, reference) in [
        (
            "ftree_broken_over_opensm",
            seconds,
            theirs.time.as_secs_f64(),
            "OpenSM, s",
        ),
        (
            "ftree_broken_load_over_opensm",
            most(&ours),
            most(&theirs.routing),
            "OpenSM, paths",
        ),
    ] {
        tell(Measurement {
            reference: Some(Reference {
                name: reference,
                value: theirs,
            }),
            ..measurement(name, ours / theirs, "x")
        })?;
    }
    Ok(())
}
