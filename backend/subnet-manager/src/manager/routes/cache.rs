//! Paths that stay while a part of the subnet is away, such as a host or a leaf switch that boots.

use std::sync::Arc;

use wire::attribute::SlToVl;

use crate::routing::{Endpoint, Graph, Vertex};
use crate::sa::Paths;

/// The paths that there were, for a graph that lacks only what they do not need: adapters, and switches that no
/// path to anybody else crosses. `None` where paths are to be computed.
pub(super) fn part_of(
    whole: &Paths,
    graph: &Graph,
    nodes: &[usize],
    lanes: Option<SlToVl>,
) -> Option<Paths> {
    let is_same = whole.lanes == lanes && whole.graph.roles == graph.roles;
    let levels = graph.lanes.unwrap_or(u8::MAX);
    whole
        .engine
        .filter(|_| is_same && whole.levels.lanes() <= levels)?;
    let all = &whole.graph.switches;
    let mut places = vec![None; all.len()];
    let mut kept = Vec::with_capacity(graph.switches.len());
    for (place, switch) in graph.switches.iter().enumerate() {
        let old = all
            .binary_search_by_key(&switch.guid, |old| old.guid)
            .ok()?;
        places[old] = Some(place);
        kept.push(old);
    }
    for (switch, &old) in graph.switches.iter().zip(&kept) {
        let ways = ways_lost(&all[old], switch, &places)?;
        let table = &whole.tables[old];
        let needs = |end: &Endpoint| ways.contains(&table.port(end.lid));
        if !ways.is_empty() && graph.endpoints.iter().any(needs) {
            return None;
        }
    }
    let old = &whole.graph.endpoints;
    let is_there = |end: &Endpoint| {
        let found = old.binary_search_by_key(&end.lid, |old| old.lid);
        found.is_ok_and(|found| {
            let old = &old[found];
            let place = (places[old.switch], old.guid, old.port);
            place == (Some(end.switch), end.guid, end.port)
        })
    };
    if !graph.endpoints.iter().all(is_there) {
        return None;
    }
    Some(Paths {
        tables: Arc::new(kept.iter().map(|&old| whole.tables[old].clone()).collect()),
        levels: whole.levels.of_switches(&kept),
        graph: graph.clone(),
        nodes: nodes.to_vec(),
        lanes,
        engine: whole.engine,
        refusals: whole.refusals.clone(),
        plan: whole.plan.clone(),
        overlay: None,
    })
}

/// The ports of a switch that led to switches that are away; `None` if another cable of it came or went.
fn ways_lost(old: &Vertex, new: &Vertex, places: &[Option<usize>]) -> Option<Vec<u8>> {
    let mut left = new.trunks.iter();
    let mut lost = Vec::new();
    for trunk in &old.trunks {
        let Some(to) = places[trunk.to] else {
            lost.push(trunk.port);
            continue;
        };
        let found = left.next()?;
        if (found.port, found.to, found.to_port) != (trunk.port, to, trunk.to_port) {
            return None;
        }
    }
    let is_same = left.next().is_none() && old.ports == new.ports;
    is_same.then_some(lost)
}
