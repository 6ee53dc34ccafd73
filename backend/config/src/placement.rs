//! The switches of hypervisors that name none: leaves, evenly.

use std::collections::BTreeSet;

use fabric::NodeId;
use vswitch::model::{Subnet, Wiring};
use wire::attribute::NodeType;

/// External ports that a switch may have: 255 means "drop" in a linear forwarding table
/// (IBA 18.2.4.3.3).
pub(super) const SWITCH_PORTS_MAX: usize = 254;

/// Choice of a switch for one hypervisor after the other.
pub(super) struct Placement {
    /// For each switch, ports that no cable and no hypervisor has.
    free: Vec<usize>,
    /// For each leaf, its switch and the hypervisors that were put there.
    leaves: Vec<(usize, usize)>,
}

impl Placement {
    pub(super) fn new(wiring: &Wiring, subnets: &[Subnet]) -> Self {
        let leaves = leaves(wiring).into_iter().map(|leaf| (leaf, 0)).collect();
        Self {
            free: free_ports(wiring, subnets),
            leaves,
        }
    }

    /// Returns the leaf with a free port and the fewest hypervisors so far, or the first leaf if all are full.
    pub(super) fn leaf(&self) -> usize {
        let is_free = |switch: usize| self.free.get(switch).is_some_and(|&left| left > 0);
        let free = self.leaves.iter().filter(|&&(switch, _)| is_free(switch));
        free.min_by_key(|&&(_, count)| count)
            .or(self.leaves.first())
            .map_or(0, |&(switch, _)| switch)
    }

    /// Takes a port of a switch for a hypervisor. `false` if there is none.
    pub(super) fn take(&mut self, switch: usize) -> bool {
        if let Some((_, count)) = self.leaves.iter_mut().find(|(leaf, _)| *leaf == switch) {
            *count += 1;
        }
        match self.free.get_mut(switch) {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}

/// The leaves among the switches of the first subnet: those with most adapters of a file, else those with the fewest
/// neighbours. If all have equally many and there are two levels, the level of the first switch.
pub(super) fn leaves(wiring: &Wiring) -> Vec<usize> {
    let count = wiring.switches.len();
    let (mut neighbours, mut adapters) =
        (vec![BTreeSet::new(); count], vec![BTreeSet::new(); count]);
    let mut join = |a: usize, b: usize| {
        neighbours[a].insert(b);
        neighbours[b].insert(a);
    };
    match &wiring.file {
        Some(file) => {
            let switch = |id: NodeId| file.switches.iter().position(|&it| it == id);
            for &(a, b, _) in file.topology.links() {
                match (switch(a.node), switch(b.node)) {
                    (Some(a), Some(b)) => join(a, b),
                    (Some(at), None) => drop(adapters[at].insert(b.node)),
                    (None, Some(at)) => drop(adapters[at].insert(a.node)),
                    (None, None) => {}
                }
            }
            let nodes = file.topology.nodes();
            for of_switch in &mut adapters {
                of_switch.retain(|id| nodes[id.index()].kind == NodeType::ChannelAdapter);
            }
        }
        None => wiring.cables.iter().for_each(|&(a, b)| join(a, b)),
    }
    let subnet = wiring.switches.first().map_or(0, |first| first.subnet);
    let here: Vec<usize> = (0..count)
        .filter(|&at| wiring.switches[at].subnet == subnet)
        .collect();
    let most = here.iter().map(|&at| adapters[at].len()).max().unwrap_or(0);
    if most > 0 {
        // A spine may have a few: the subnet manager's host, or an aggregation node.
        let is_leaf = |at: &usize| 2 * adapters[*at].len() >= most;
        return here.into_iter().filter(is_leaf).collect();
    }
    let fewest = here.iter().map(|&at| neighbours[at].len()).min();
    let leaves: Vec<usize> = here
        .iter()
        .copied()
        .filter(|&at| Some(neighbours[at].len()) == fewest)
        .collect();
    let Some(&first) = leaves.first() else {
        return leaves;
    };
    let same_level: Vec<usize> = here
        .iter()
        .copied()
        .filter(|&at| neighbours[at] == neighbours[first])
        .collect();
    let two_levels = here
        .iter()
        .all(|&at| same_level.contains(&at) || neighbours[first].contains(&at));
    if leaves.len() == here.len() && two_levels {
        return same_level;
    }
    leaves
}

/// For each switch, ports that no cable between switches and no host has.
fn free_ports(wiring: &Wiring, subnets: &[Subnet]) -> Vec<usize> {
    let mut free: Vec<usize> = match &wiring.file {
        Some(file) => {
            let nodes = file.topology.nodes();
            let ports = |id: &NodeId| usize::from(nodes[id.index()].ports);
            file.switches.iter().map(ports).collect()
        }
        None => vec![SWITCH_PORTS_MAX; wiring.switches.len()],
    };
    let mut take = |switch: usize| {
        if let Some(left) = free.get_mut(switch) {
            *left = left.saturating_sub(1);
        }
    };
    match &wiring.file {
        Some(file) => {
            for &(a, b, _) in file.topology.links() {
                for end in [a, b] {
                    if let Some(at) = file.switches.iter().position(|&it| it == end.node) {
                        take(at);
                    }
                }
            }
        }
        None => wiring.ends(subnets).for_each(take),
    }
    free
}
