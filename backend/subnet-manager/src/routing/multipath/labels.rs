//! LIDs for paths that are added to others.

use super::network::LinkId;
use super::paths::{Distances, Legality, LinkLoads, lightest};
use super::tree::Tree;
use super::wires::{Destination, Wires};

/// The LIDs of a destination while paths are put under them.
pub(super) struct Labels<'a> {
    wires: &'a Wires,
    to: usize,
    trees: Vec<Tree>,
    offsets: Vec<u8>,
    limit: usize,
    pub(super) following: usize,
}

impl<'a> Labels<'a> {
    pub(super) fn new(wires: &'a Wires, to: usize, limit: usize) -> Self {
        Self {
            wires,
            to,
            trees: Vec::new(),
            offsets: vec![0; wires.ends.len()],
            limit,
            following: 0,
        }
    }

    pub(super) fn enter(&mut self, from: usize, links: &[LinkId], label: usize) {
        let network = &self.wires.network;
        while self.trees.len() <= label {
            self.trees.push(Tree::new(network));
        }
        self.trees[label].enter(network, links);
        self.offsets[from] = label as u8;
    }

    /// Finds a path under one of the LIDs, or under a further one; otherwise it follows the base LID's. Returns whether
    /// there is any.
    pub(super) fn find(
        &mut self,
        from: usize,
        distances: &Distances,
        loads: &mut LinkLoads,
    ) -> bool {
        let wires = self.wires;
        let legality = Legality::UpDown(&wires.order);
        let path = |loads: &LinkLoads, entries: Option<&Tree>| {
            let entries = entries.map(Tree::entries);
            let from = wires.machine(from);
            lightest(&wires.network, legality, from, distances, loads, entries)
        };
        let under = |(label, tree)| Some((label, path(loads, Some(tree))?));
        let found = self.trees.iter().enumerate().find_map(under);
        let found = match found {
            Some(found) => Some(found),
            None if self.trees.len() < self.limit => {
                let Some(links) = path(loads, None) else {
                    return false;
                };
                Some((self.trees.len(), links))
            }
            None => None,
        };
        match found {
            Some((label, links)) => {
                loads.add(&links);
                self.enter(from, &links, label);
            }
            None => self.following += 1,
        }
        true
    }

    pub(super) fn finish(mut self, loads: &mut LinkLoads) -> Destination {
        let wires = self.wires;
        let machine = wires.machine(self.to);
        for (label, tree) in self.trees.iter_mut().enumerate() {
            if !tree.complete(&wires.network, &wires.order, machine, loads) && label == 0 {
                // Not all can go on as they did and everybody reach the base LID.
                *tree = wires.complete(machine, loads);
            }
        }
        if self.trees.is_empty() {
            self.trees.push(wires.complete(machine, loads));
        }
        Destination {
            ways: self.trees.iter().map(|tree| wires.ports(tree)).collect(),
            offsets: self.offsets,
        }
    }
}
