//! The fewest switches that have to change in a fat-tree.

use wire::Lid;
use wire::attribute::LinearBlock;

use super::deadlock::routing;
use super::plan::place;
use super::{Blocks, Migrations};
use crate::manager::Knowledge;
use crate::migration::NotFewest;
use crate::model::At;
use crate::routing::Verdict;
use crate::routing::reconfiguration::{FatTreeMinimum, chain};
use crate::sa::Paths;

impl Knowledge {
    /// Whether a LID is found at a switch's port from all switches when these blocks are changed.
    pub(super) fn is_found(&self, lid: Lid, end: At, blocks: &Blocks) -> bool {
        let (number, entry) = place(lid);
        let mut known = vec![false; self.subnet.nodes.len()];
        let mut way = Vec::new();
        for &start in &self.paths.nodes {
            let mut at = start;
            while !known[at] {
                if way.len() > self.paths.nodes.len() {
                    return false;
                }
                way.push(at);
                let changed = blocks.get(&at).and_then(|blocks| blocks.get(&number));
                let switch = self.subnet.nodes[at].info.node_guid;
                let block = changed
                    .copied()
                    .or_else(|| self.tables.linear(switch, number));
                let port = block.map_or(LinearBlock::DROP, |block| block.0[entry]);
                if (at, port) == end {
                    break;
                }
                let next = self.subnet.port((at, port)).and_then(|port| port.peer);
                match next {
                    Some((next, _)) if self.subnet.nodes[next].is_switch() => at = next,
                    _ => return false,
                }
            }
            for at in way.drain(..) {
                known[at] = true;
            }
        }
        true
    }
}

/// The rule by which the fewest switches are found.
#[derive(Debug)]
pub(super) enum Least {
    /// FTreeMinRC.
    Tree(FatTreeMinimum),
    /// Skylines, where the subnet is no fat-tree or paths need lanes.
    Skyline,
}

/// LIDs that change places with others: each with the one whose ways it gets, the switch that it leaves and its new
/// place.
type Exchanged = Vec<(Lid, Lid, usize, At)>;

impl Migrations {
    /// Gets ready to tell, if one of those that wait asks.
    pub(super) fn look_for_fewest(&mut self, known: &Knowledge) {
        self.live.count(known);
        let mut waiting = self.waiting.iter();
        if self.least.is_none() && waiting.any(|each| !each.asked.every_switch) {
            // Elsewhere a path's lane is that of the way which all take to the destination.
            let is_plain = known.paths.levels.lanes() == 1;
            let tree = is_plain.then(|| FatTreeMinimum::new(&known.paths.graph).ok());
            self.least = Some(tree.flatten().map_or(Least::Skyline, Least::Tree));
        }
    }

    /// The blocks of as few switches as have to change when LIDs change places, or why those are not known.
    pub(super) fn fewest(
        &self,
        known: &Knowledge,
        (own, spares): (&[Lid], &[Lid]),
        (from, to): (At, At),
    ) -> Result<Blocks, NotFewest> {
        let nodes = &known.paths.nodes;
        let switch = |edge: At| nodes.iter().position(|&node| node == edge.0);
        let (Some(old), Some(new)) = (switch(from), switch(to)) else {
            return Err(NotFewest::Lost);
        };
        let own_end = own.iter().map(|&lid| (lid, to));
        let ends: Vec<(Lid, At)> = own_end
            .chain(spares.iter().map(|&lid| (lid, from)))
            .collect();
        let blocks = match &self.least {
            Some(Least::Tree(minimum)) => {
                let touched = minimum.touched(old, new).into_iter();
                let touched = touched.map(|switch| nodes[switch]).collect();
                known.changes(own, spares, to, touched).ok()
            }
            _ => {
                let vswitch = || known.vswitch_lid(to);
                let paired =
                    |lids: &[Lid], number: usize| lids.get(number).or(lids.first()).copied();
                let came = own.iter().enumerate().map(|(number, &lid)| {
                    Some((lid, paired(spares, number).or_else(vswitch)?, old, to))
                });
                let left = spares.iter().enumerate();
                let left = left.map(|(number, &lid)| Some((lid, paired(own, number)?, new, from)));
                let exchanged: Option<Exchanged> = came.chain(left).collect();
                exchanged.and_then(|exchanged| skylines(known, &exchanged))
            }
        };
        let blocks = blocks.ok_or(NotFewest::Lost)?;
        let mut found = ends.iter();
        if !found.all(|&(lid, edge)| known.is_found(lid, edge, &blocks)) {
            Err(NotFewest::Lost)
        } else if !matches!(self.least, Some(Least::Tree(_))) && makes_circle(known, &ends, &blocks)
        {
            Err(NotFewest::Deadlock)
        } else {
            Ok(blocks)
        }
    }
}

/// The blocks that change with the shortest chain of switches for each LID.
fn skylines(known: &Knowledge, exchanged: &Exchanged) -> Option<Blocks> {
    let Paths {
        graph,
        nodes,
        tables,
        ..
    } = &known.paths;
    let mut blocks = Blocks::new();
    for &(lid, other, from, end) in exchanged {
        let to = nodes.iter().position(|&node| node == end.0)?;
        let (number, entry) = place(lid);
        for switch in chain(graph, tables, (lid, other), from, to)? {
            let node = nodes[switch];
            let held = known.tables.linear(graph.switches[switch].guid, number)?;
            let blocks = blocks.entry(node).or_default();
            let block = blocks.entry(number).or_insert(held);
            block.0[entry] = if node == end.0 {
                end.1
            } else {
                tables[switch].port(other)
            };
            if *block == held {
                blocks.remove(&number);
            }
        }
    }
    blocks.retain(|_, blocks| !blocks.is_empty());
    Some(blocks)
}

/// Whether packets can wait for each other for ever with these blocks, and cannot without.
fn makes_circle(known: &Knowledge, ends: &[(Lid, At)], blocks: &Blocks) -> bool {
    let old = routing(&known.paths);
    let (mut graph, mut new) = (known.paths.graph.clone(), old.clone());
    for (node, table) in known.paths.nodes.iter().zip(&mut new.tables) {
        for (&number, block) in blocks.get(node).into_iter().flatten() {
            table.set_block(number, block);
        }
    }
    for &(lid, (node, port)) in ends {
        let switch = known.paths.nodes.iter().position(|&other| other == node);
        let ends = graph.endpoints.iter_mut();
        let (Some(switch), Some(end)) = (switch, { ends }.find(|end| end.lid == lid)) else {
            return true;
        };
        new.levels.moved(lid, switch);
        (end.switch, end.port) = (switch, port);
    }
    let circle = |graph, routing| Verdict::new(graph, routing).circle.is_some();
    circle(&graph, &new) && !circle(&known.paths.graph, &old)
}
