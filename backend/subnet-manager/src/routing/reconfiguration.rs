//! Changes of forwarding tables by a virtual machine's move, and the least that are necessary.
//!
//! The methods of "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
//! vSwitch-enabled Lossless Networks" (sections 3 and 6): paths are not computed anew, since those to
//! where the machine goes are there already.

mod active;
mod fat_tree;
mod kept;
mod rounds;
mod skyline;

use std::collections::BTreeSet;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::ForwardingTable;

pub use active::ActiveRoutes;
pub use fat_tree::FatTreeMinimum;
pub(in crate::routing) use kept::{Before, keep, keep_absent};
pub use rounds::rounds;
pub(crate) use skyline::chain;
pub use skyline::skyline;

/// Change of LIDs when a virtual machine moves.
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
    /// The switch, as an index of [`Graph::switches`](crate::Graph::switches).
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

    /// Changes in the table of a switch; `None` where there are none.
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

/// Changes to be sent first so that nothing goes the old way while something goes the new one: the machine's LID is
/// dropped by all switches that will send it another way ("partially static").
pub fn drops(updates: &[Update], exchange: Exchange) -> Vec<Update> {
    let lid = exchange.lid();
    let changing = updates.iter().filter(|update| {
        let mut entries = update.entries.iter();
        entries.any(|entry| entry.0 == lid)
    });
    let drop = |update: &Update| Update {
        switch: update.switch,
        entries: vec![(lid, LinearBlock::DROP)],
    };
    changing.map(drop).collect()
}
