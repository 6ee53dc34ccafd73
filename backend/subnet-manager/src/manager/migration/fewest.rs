//! The fewest switches that have to change in a fat-tree.

use wire::Lid;
use wire::attribute::LinearBlock;

use super::plan::place;
use super::{Blocks, Migrations};
use crate::manager::Knowledge;
use crate::migration::NotFewest;
use crate::model::At;
use crate::routing::reconfiguration::FatTreeMinimum;

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

impl Migrations {
    /// Gets ready to tell, if one of those that wait asks.
    pub(super) fn look_for_fewest(&mut self, known: &Knowledge) {
        let mut waiting = self.waiting.iter();
        if self.minimum.is_none() && waiting.any(|each| each.asked.fewest) {
            let lanes = known.paths.levels.count();
            let found = FatTreeMinimum::new(&known.paths.graph);
            let found = found.map_err(|error| NotFewest::NoTree(error.reason));
            // Elsewhere a path's lane is that of the way which all take to the destination.
            let found = match lanes {
                1 => found,
                _ => Err(NotFewest::Lanes),
            };
            self.minimum = Some(found);
        }
    }

    /// As few nodes as have to change when a VM goes from one switch to another, or why that is not
    /// known.
    pub(super) fn fewest(
        &self,
        known: &Knowledge,
        from: At,
        to: At,
    ) -> Result<Vec<usize>, NotFewest> {
        let minimum = match &self.minimum {
            Some(Ok(minimum)) => minimum,
            Some(Err(reason)) => return Err(reason.clone()),
            None => return Err(NotFewest::Lost),
        };
        let nodes = &known.paths.nodes;
        let switch = |edge: At| nodes.iter().position(|&node| node == edge.0);
        let (Some(from), Some(to)) = (switch(from), switch(to)) else {
            return Err(NotFewest::Lost);
        };
        let touched = minimum.touched(from, to);
        Ok(touched.into_iter().map(|switch| nodes[switch]).collect())
    }
}
