//! What a virtual machine's move changes in forwarding tables, and the least that it must.
//!
//! The methods of "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
//! vSwitch-enabled Lossless Networks" (sections 3 and 6): paths are not computed anew, since those to
//! where the machine goes are there already.

use std::collections::BTreeSet;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::skeleton::Skeleton;
use super::tree::Tree;
use super::{ForwardingTable, Graph, RoutingError};

/// What becomes of LIDs when a virtual machine moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// The machine's LID and that of the virtual function it goes to change places ("prepopulated
    /// LIDs").
    Swap {
        /// The machine's.
        lid: Lid,
        /// The virtual function's.
        other: Lid,
    },
    /// The machine's LID goes where another one of the same hypervisor is ("dynamic LIDs").
    Copy {
        /// The machine's.
        lid: Lid,
        /// The hypervisor's own.
        hypervisor: Lid,
    },
}

/// New entries for the forwarding table of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The switch, as an index of [`Graph::switches`].
    pub switch: usize,
    /// LIDs and their ports: one or two.
    pub entries: Vec<(Lid, u8)>,
}

impl Update {
    /// Packets that bring it to the switch: one for every block of 64 LIDs.
    pub fn packets(&self) -> usize {
        let block = |&(lid, _): &(Lid, u8)| lid.value() / LinearBlock::LIDS;
        self.entries
            .iter()
            .map(block)
            .collect::<BTreeSet<_>>()
            .len()
    }
}

impl Exchange {
    /// The machine's LID.
    pub fn lid(self) -> Lid {
        match self {
            Self::Swap { lid, .. } | Self::Copy { lid, .. } => lid,
        }
    }

    /// Whether anything changes in the table of a switch.
    pub fn changes(self, table: &ForwardingTable) -> bool {
        let (lid, other) = self.lids();
        table.port(lid) != table.port(other)
    }

    /// The machine's LID and the one whose ways it gets.
    fn lids(self) -> (Lid, Lid) {
        match self {
            Self::Swap { lid, other } => (lid, other),
            Self::Copy { lid, hypervisor } => (lid, hypervisor),
        }
    }

    /// What changes in the table of a switch; `None` where nothing does.
    pub fn update(self, switch: usize, table: &ForwardingTable) -> Option<Update> {
        if !self.changes(table) {
            return None;
        }
        let (lid, other) = self.lids();
        let mut entries = vec![(lid, table.port(other))];
        if matches!(self, Self::Swap { .. }) {
            entries.push((other, table.port(lid)));
        }
        Some(Update { switch, entries })
    }
}

/// The iterative reconfiguration, for any topology: every switch whose table changes.
pub fn iterative(tables: &[ForwardingTable], exchange: Exchange) -> Vec<Update> {
    let switches = tables.iter().enumerate();
    switches
        .filter_map(|(switch, table)| exchange.update(switch, table))
        .collect()
}

/// Changes tables.
pub fn apply(tables: &mut [ForwardingTable], updates: &[Update]) {
    for update in updates {
        if let Some(table) = tables.get_mut(update.switch) {
            for &(lid, port) in &update.entries {
                table.set(lid, port);
            }
        }
    }
}

/// What is to be sent first so that nothing goes the old way while something goes the new one: the
/// machine's LID is dropped by all switches that will be updated ("partially static").
pub fn drops(updates: &[Update], exchange: Exchange) -> Vec<Update> {
    let drop = |update: &Update| Update {
        switch: update.switch,
        entries: vec![(exchange.lid(), LinearBlock::DROP)],
    };
    updates.iter().map(drop).collect()
}

/// Whether two moves touch no switch in common and so may be made at the same time.
pub fn are_disjoint(a: &[Update], b: &[Update]) -> bool {
    let switches: BTreeSet<usize> = a.iter().map(|update| update.switch).collect();
    !b.iter().any(|update| switches.contains(&update.switch))
}

/// The least that must change in a topology of any kind: one switch after the other from where the
/// machine was, until every switch reaches the machine at its new place.
///
/// `from` and `to` are the switches where the machine was and will be. Fewer switches than
/// [`iterative`] updates: the others send the LID to one of these in any case.
pub fn skyline(
    graph: &Graph,
    tables: &[ForwardingTable],
    exchange: Exchange,
    from: usize,
    to: usize,
) -> Vec<Update> {
    let mut changed = vec![false; tables.len()];
    changed[from] = true;
    changed[to] = true;
    let ends = match exchange {
        Exchange::Swap { lid, other } => vec![(lid, to), (other, from)],
        Exchange::Copy { lid, .. } => vec![(lid, to)],
    };
    // A switch that changes for one LID does so for the other, too.
    loop {
        let before = changed.clone();
        for &(lid, end) in &ends {
            spread_change(graph, tables, exchange, (lid, end), &mut changed);
        }
        if changed == before {
            break;
        }
    }
    let switches = (0..tables.len()).filter(|&switch| changed[switch]);
    switches
        .filter_map(|switch| exchange.update(switch, &tables[switch]))
        .collect()
}

/// Changes switches until all of them reach a LID at the switch `end`.
fn spread_change(
    graph: &Graph,
    tables: &[ForwardingTable],
    exchange: Exchange,
    (lid, end): (Lid, usize),
    changed: &mut [bool],
) {
    let port = |switch: usize, changed: &[bool]| {
        let table = &tables[switch];
        match exchange {
            _ if !changed[switch] => table.port(lid),
            Exchange::Swap { lid: a, other } if lid == other => table.port(a),
            Exchange::Swap { other, .. } => table.port(other),
            Exchange::Copy { hypervisor, .. } => table.port(hypervisor),
        }
    };
    // Switches that are known to reach it.
    let mut reaches = vec![false; tables.len()];
    reaches[end] = true;
    let mut start = 0;
    while start < tables.len() {
        let mut path = vec![start];
        let mut on_path = vec![false; tables.len()];
        let mut at = start;
        let arrived = loop {
            if reaches[at] {
                break true;
            }
            on_path[at] = true;
            let out = port(at, changed);
            let trunks = &graph.switches[at].trunks;
            let Some(trunk) = trunks.iter().find(|trunk| trunk.port == out) else {
                break false;
            };
            at = trunk.to;
            path.push(at);
            if on_path[at] {
                break false;
            }
        };
        let stale = path.iter().rev().find(|&&switch| !changed[switch]);
        match (arrived, stale) {
            (false, Some(&switch)) => {
                changed[switch] = true;
                continue;
            }
            (true, _) => {
                for switch in path {
                    reaches[switch] = true;
                }
            }
            // No way at all, before or after.
            (false, None) => {}
        }
        start += 1;
    }
}

/// The minimal reconfiguration of fat-trees, FTreeMinRC.
///
/// Only the leaves of both places change, and whatever is above them up to where the ways up from
/// both meet: all others send the LID to one of these.
#[derive(Debug)]
pub struct FatTreeMinimum {
    /// Switches that are vertices, as indices of [`Graph::switches`].
    switches: Vec<usize>,
    /// For every switch the vertex that it is or hangs at.
    vertices: Vec<usize>,
    /// For every switch and port, where that leads: the vertex.
    next: Vec<Vec<(u8, u32)>>,
    tree: Tree,
}

impl FatTreeMinimum {
    /// Looks at the levels of a fat-tree.
    ///
    /// # Errors
    /// [`RoutingError`] when the graph is none.
    pub fn new(graph: &Graph) -> Result<Self, RoutingError> {
        let skeleton = Skeleton::new(graph);
        let tree = Tree::new(graph, &skeleton).map_err(|reason| RoutingError {
            engine: "the minimal reconfiguration",
            reason,
        })?;
        let next = (0..skeleton.len())
            .map(|vertex| {
                let arcs = skeleton.arcs_of(vertex);
                let arcs = skeleton.arcs[arcs].iter();
                arcs.map(|arc| (arc.port, arc.to)).collect()
            })
            .collect();
        Ok(Self {
            vertices: skeleton.vertices(graph),
            switches: skeleton.switches,
            next,
            tree,
        })
    }

    /// The level and digits by which OpenSM's fat-tree routing knows a switch; none for a vSwitch's
    /// own, which is known by the switch that it hangs at.
    pub fn tuple(&self, switch: usize) -> &[u16] {
        &self.tree.tuple[self.vertices[switch]]
    }

    /// The switches that a move between two switches, or vSwitches, may change, vSwitches not among
    /// them; as indices of [`Graph::switches`].
    pub fn marked(&self, from: usize, to: usize) -> Vec<usize> {
        let marked = self.mark(self.vertices[from], self.vertices[to]);
        marked
            .into_iter()
            .map(|vertex| self.switches[vertex as usize])
            .collect()
    }

    fn mark(&self, from: usize, to: usize) -> Vec<u32> {
        let mut sides = [vec![from as u32], vec![to as u32]];
        let mut marked = Vec::new();
        while sides[0] != sides[1] {
            for side in &mut sides {
                marked.extend(side.iter());
                let groups = side.iter().flat_map(|&at| &self.tree.up[at as usize]);
                let mut above: Vec<u32> = groups.map(|group| group.to).collect();
                above.sort_unstable();
                above.dedup();
                *side = above;
            }
        }
        marked.extend(&sides[0]);
        marked.sort_unstable();
        marked.dedup();
        marked
    }

    /// What a move changes: the switches between the two places first, then the rest; the vSwitches
    /// that the machine leaves and comes to are among the first.
    pub fn plan(
        &self,
        tables: &[ForwardingTable],
        exchange: Exchange,
        from: usize,
        to: usize,
    ) -> Vec<Update> {
        let (source, target) = (self.vertices[from], self.vertices[to]);
        let mut active = vec![from, to];
        let (lid, other) = exchange.lids();
        // From where the machine was to where it will be, and from there to where it was.
        for (start, lid) in [(source, other), (target, lid)] {
            active.extend(self.trace(tables, start, lid));
        }
        let mut seen = BTreeSet::new();
        let marked = self.mark(source, target);
        let is_marked = |switch: &usize| {
            *switch == from
                || *switch == to
                || marked
                    .binary_search(&(self.vertices[*switch] as u32))
                    .is_ok()
        };
        let rest = marked.iter().map(|&vertex| self.switches[vertex as usize]);
        let order: Vec<usize> = active.into_iter().filter(is_marked).chain(rest).collect();
        order
            .into_iter()
            .filter(|&switch| seen.insert(switch))
            .filter_map(|switch| exchange.update(switch, tables.get(switch)?))
            .collect()
    }

    /// The switches by which a vertex sends a LID.
    fn trace(&self, tables: &[ForwardingTable], start: usize, lid: Lid) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = start;
        // No path is longer than up and down again.
        for _ in 0..=2 * self.tree.leaf_level {
            let switch = self.switches[at];
            path.push(switch);
            let port = tables[switch].port(lid);
            match self.next[at].iter().find(|&&(from, _)| from == port) {
                Some(&(_, to)) => at = to as usize,
                None => break,
            }
        }
        path
    }
}
