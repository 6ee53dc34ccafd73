//! The order in which switches are told of changed tables: those that most active routes cross come first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::Knowledge;
use crate::routing::reconfiguration::ActiveRoutes;
use crate::sa::Paths;

/// A block that is to be sent: the switch, as an index of [`Paths::nodes`], its number and content.
pub(super) type Change = (usize, u16, LinearBlock);

/// Orders the blocks of new paths by the active routes that their changed entries carry: routes between adapters'
/// LIDs, those that no VM has left out.
pub(super) fn by_active_routes(known: &Knowledge, paths: &Paths, changes: &mut [Change]) {
    let mut changed: BTreeMap<Lid, Vec<usize>> = BTreeMap::new();
    for (place, &(switch, number, block)) in changes.iter().enumerate() {
        let guid = paths.graph.switches[switch].guid;
        let held = known.tables.linear(guid, number);
        for (entry, lid) in (number * LinearBlock::LIDS..)
            .map(Lid::new)
            .take(block.0.len())
            .enumerate()
        {
            if held.is_none_or(|held| held.0[entry] != block.0[entry]) {
                changed.entry(lid).or_default().push(place);
            }
        }
    }
    let spares = known.spare_lids();
    let is_live = |lid: Lid| !spares.contains(&lid);
    let mut routes = ActiveRoutes::new(&paths.graph, is_live);
    let mut carried = vec![0u64; changes.len()];
    for end in paths
        .graph
        .endpoints
        .iter()
        .filter(|end| end.port != 0 && is_live(end.lid))
    {
        let Some(places) = changed.get(&end.lid) else {
            continue;
        };
        let crossing = routes.to(|at| paths.tables[at].port(end.lid));
        for &place in places {
            carried[place] += u64::from(crossing[changes[place].0]);
        }
    }
    let mut order: Vec<(Reverse<u64>, Change)> = carried
        .into_iter()
        .map(Reverse)
        .zip(changes.iter().copied())
        .collect();
    order.sort_by_key(|&(carried, _)| carried);
    for (change, (_, ordered)) in changes.iter_mut().zip(order) {
        *change = ordered;
    }
}
