//! The order in which switches are told of changed tables: those that most active routes cross come first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wire::attribute::LinearBlock;
use wire::{ExtendedLid, Guid, Lid};

use crate::manager::Knowledge;
use crate::model::At;
use crate::routing::reconfiguration::ActiveRoutes;
use crate::routing::{Endpoint, Graph};
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
    let mut routes = ActiveRoutes::new(&paths.graph, Live::of(known, &paths.graph).0);
    let mut carried = vec![0u64; changes.len()];
    for end in paths
        .graph
        .endpoints
        .iter()
        .filter(|end| is_live(known, end))
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

/// Live LIDs by switch, as an index of [`Paths::nodes`]; none where they are not counted.
#[derive(Debug, Default)]
pub(in crate::manager) struct Live(Vec<u32>);

impl Live {
    fn of(known: &Knowledge, graph: &Graph) -> Self {
        Self(ActiveRoutes::live(graph, |end| is_live(known, end)))
    }

    /// Counts them if they are not.
    pub(in crate::manager) fn count(&mut self, known: &Knowledge) {
        if self.0.is_empty() {
            *self = Self::of(known, &known.paths.graph);
        }
    }

    /// A VM has gone from one switch to another.
    pub(in crate::manager) fn moved(&mut self, known: &Knowledge, vm: Guid, places: [At; 2]) {
        let lids = 1 << known.lmc_of(vm);
        let [from, to] = places.map(|(node, _)| self.place(known, node));
        if let (Some(from), Some(to)) = (from, to) {
            self.0[from] = self.0[from].saturating_sub(lids);
            self.0[to] += lids;
        }
    }

    fn place(&self, known: &Knowledge, node: usize) -> Option<usize> {
        let place = known.paths.nodes.iter().position(|&other| other == node);
        place.filter(|&place| place < self.0.len())
    }
}

/// Orders the switches whose blocks a VM's move from a switch changes by the active routes to the VM that will cross
/// them.
pub(in crate::manager) fn of_switches(
    known: &Knowledge,
    live: &Live,
    blocks: &BTreeMap<usize, BTreeMap<u16, LinearBlock>>,
    (vm, from): (Guid, At),
) -> Vec<usize> {
    let paths = &known.paths;
    let mut others = live.0.clone();
    match live.place(known, from.0) {
        Some(from) => others[from] = others[from].saturating_sub(1 << known.lmc_of(vm)),
        None => return blocks.keys().copied().collect(),
    }
    let mut routes = ActiveRoutes::new(&paths.graph, others);
    let mut carried: BTreeMap<usize, u64> = blocks.keys().map(|&node| (node, 0)).collect();
    for lid in known.lids_of(vm) {
        let (number, entry) = ExtendedLid::from(lid).place();
        let crossing = routes.to(|at| {
            let changed = blocks.get(&paths.nodes[at]);
            let block = changed.and_then(|blocks| blocks.get(&number));
            block.map_or_else(|| paths.tables[at].port(lid), |block| block.0[entry])
        });
        for (node, &routes) in paths.nodes.iter().zip(crossing) {
            if let Some(carried) = carried.get_mut(node) {
                *carried += u64::from(routes);
            }
        }
    }
    let mut order: Vec<usize> = blocks.keys().copied().collect();
    order.sort_by_key(|node| Reverse(carried[node]));
    order
}

/// Whether a LID is an adapter's, and not one that no VM has.
fn is_live(known: &Knowledge, end: &Endpoint) -> bool {
    end.port != 0 && !known.config.spare_functions.contains(&end.guid)
}
