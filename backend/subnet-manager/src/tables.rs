//! Forwarding tables of switches, as far as they have confirmed them.

use std::collections::{BTreeMap, HashMap};

use wire::Guid;
use wire::attribute::{LinearBlock, MulticastBlock, PKeyBlock};
use wire::mad::AttributeId;
use wire::smp::DATA;

use crate::routing::ForwardingTable;

/// Blocks of a linear table, by number: those that are known.
#[derive(Debug, Default)]
struct LinearBlocks(Vec<Option<LinearBlock>>);

/// Blocks that a table grows by.
const GROWTH: usize = 16;

impl LinearBlocks {
    fn get(&self, number: u16) -> Option<&LinearBlock> {
        self.0.get(usize::from(number))?.as_ref()
    }

    fn insert(&mut self, number: u16, block: LinearBlock) {
        let index = usize::from(number);
        if self.0.len() <= index {
            let size = (index + 1).next_multiple_of(GROWTH);
            self.0.reserve_exact(size - self.0.len());
            self.0.resize(size, None);
        }
        self.0[index] = Some(block);
    }

    fn remove(&mut self, number: u16) {
        if let Some(block) = self.0.get_mut(usize::from(number)) {
            *block = None;
        }
    }

    /// The last one.
    fn last(&self) -> Option<usize> {
        self.0.iter().rposition(Option::is_some)
    }
}

#[derive(Debug, Default)]
struct Held {
    linear: LinearBlocks,
    /// Blocks of the second table, by number from [`LinearBlock::SECONDARY_FIRST`] on.
    secondary: BTreeMap<u16, LinearBlock>,
    multicast: BTreeMap<(u16, u8), MulticastBlock>,
    /// By port, attribute and modifier.
    settings: BTreeMap<(u8, AttributeId, u32), [u8; DATA]>,
    /// By port and number: the P_Keys that an external port lets through.
    partitions: BTreeMap<(u8, u16), PKeyBlock>,
}

impl Held {
    fn insert(&mut self, number: u16, block: LinearBlock) {
        if number >= LinearBlock::SECONDARY_FIRST {
            self.secondary.insert(number, block);
        } else {
            self.linear.insert(number, block);
        }
    }

    fn remove(&mut self, number: u16) {
        if number >= LinearBlock::SECONDARY_FIRST {
            self.secondary.remove(&number);
        } else {
            self.linear.remove(number);
        }
    }
}

/// Tables of switches, by GUID. Only blocks that differ are sent.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<Guid, Held>);

impl Tables {
    /// Forgets a switch that has lost its tables, or may have.
    pub(crate) fn forget(&mut self, switch: Guid) {
        self.0.remove(&switch);
    }

    /// Forgets all switches: another manager may have written to them.
    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    /// A block is written: until that is answered nobody knows what the switch holds.
    pub(crate) fn writes_linear(&mut self, switch: Guid, number: u16) {
        if let Some(held) = self.0.get_mut(&switch) {
            held.remove(number);
        }
    }

    /// Blocks of a switch's second table that it is known to hold.
    pub(crate) fn secondary_blocks(&self, switch: Guid) -> impl Iterator<Item = u16> {
        let held = self.0.get(&switch).map(|held| &held.secondary);
        held.into_iter().flat_map(|held| held.keys().copied())
    }

    /// Forgets the tables that a virtual port of a node's port was sent: it has begun anew.
    pub(crate) fn forget_vport(&mut self, node: Guid, port: u8, index: u16) {
        let tables = [AttributeId::VPORT_P_KEY_TABLE, AttributeId::VPORT_GUID_INFO];
        if let Some(held) = self.0.get_mut(&node) {
            let of_vport = |&(number, what, modifier): &(u8, AttributeId, u32)| {
                number == port && tables.contains(&what) && (modifier >> 16) as u16 == index
            };
            held.settings.retain(|place, _| !of_vport(place));
        }
    }

    /// As [`Tables::writes_linear`].
    pub(crate) fn writes_multicast(&mut self, switch: Guid, at: (u16, u8)) {
        if let Some(held) = self.0.get_mut(&switch) {
            held.multicast.remove(&at);
        }
    }

    pub(crate) fn linear_changes(
        &self,
        switch: Guid,
        table: &ForwardingTable,
    ) -> Vec<(u16, LinearBlock)> {
        let held = self.0.get(&switch).map(|held| &held.linear);
        let differs = |number: u16, block: &LinearBlock| {
            held.and_then(|held| held.get(number)) != Some(block)
        };
        (0u16..)
            .zip(table.blocks())
            .filter(|(number, block)| differs(*number, block))
            .collect()
    }

    /// A block of a switch's linear table; `None` where the switch's table is not known. Entries beyond the highest
    /// LID were never sent, and count as dropped; so do those of the second table that were never sent.
    pub(crate) fn linear(&self, switch: Guid, number: u16) -> Option<LinearBlock> {
        let held = self.0.get(&switch)?;
        if number >= LinearBlock::SECONDARY_FIRST {
            return Some(held.secondary.get(&number).copied().unwrap_or_default());
        }
        let held = &held.linear;
        if let Some(block) = held.get(number) {
            return Some(*block);
        }
        let is_beyond = usize::from(number) > held.last()?;
        is_beyond.then(LinearBlock::default)
    }

    pub(crate) fn holds_linear(&mut self, switch: Guid, number: u16, block: LinearBlock) {
        self.0.entry(switch).or_default().insert(number, block);
    }

    pub(crate) fn multicast_differs(
        &self,
        switch: Guid,
        at: (u16, u8),
        block: &MulticastBlock,
    ) -> bool {
        let held = self.0.get(&switch);
        held.and_then(|held| held.multicast.get(&at)) != Some(block)
    }

    /// P_Key blocks that a port is known to hold, or was sent.
    pub(crate) fn partition_blocks(&self, switch: Guid, port: u8) -> u16 {
        let held = self.0.get(&switch).map(|held| &held.partitions);
        let mut of_port = held
            .into_iter()
            .flat_map(|held| held.range((port, 0)..=(port, u16::MAX)));
        of_port
            .next_back()
            .map_or(0, |(&(_, number), _)| number + 1)
    }

    pub(crate) fn partitions_differ(
        &self,
        switch: Guid,
        place: (u8, u16),
        block: &PKeyBlock,
    ) -> bool {
        let held = self.0.get(&switch);
        held.and_then(|held| held.partitions.get(&place)) != Some(block)
    }

    /// As [`Tables::writes_linear`].
    pub(crate) fn writes_partitions(&mut self, switch: Guid, place: (u8, u16)) {
        if let Some(held) = self.0.get_mut(&switch) {
            held.partitions.remove(&place);
        }
    }

    pub(crate) fn holds_partitions(&mut self, switch: Guid, place: (u8, u16), block: PKeyBlock) {
        let held = self.0.entry(switch).or_default();
        held.partitions.insert(place, block);
    }

    /// Whether a port has been set to something else, or to nothing yet.
    pub(crate) fn setting_differs(
        &self,
        node: Guid,
        place: (u8, AttributeId, u32),
        data: &[u8; DATA],
    ) -> bool {
        let held = self.0.get(&node);
        held.and_then(|held| held.settings.get(&place)) != Some(data)
    }

    /// As [`Tables::writes_linear`].
    pub(crate) fn writes_setting(&mut self, node: Guid, place: (u8, AttributeId, u32)) {
        if let Some(held) = self.0.get_mut(&node) {
            held.settings.remove(&place);
        }
    }

    pub(crate) fn holds_setting(
        &mut self,
        node: Guid,
        place: (u8, AttributeId, u32),
        data: [u8; DATA],
    ) {
        self.0.entry(node).or_default().settings.insert(place, data);
    }

    /// Forgets the settings of a port, and those of all ports of its switch, which are held as its port 0's.
    pub(crate) fn forget_settings(&mut self, node: Guid, port: u8) {
        if let Some(held) = self.0.get_mut(&node) {
            held.settings
                .retain(|place, _| place.0 != port && place.0 != 0);
        }
    }

    pub(crate) fn holds_multicast(&mut self, switch: Guid, at: (u16, u8), block: MulticastBlock) {
        let held = self.0.entry(switch).or_default();
        held.multicast.insert(at, block);
    }
}

#[cfg(test)]
mod tests {
    use wire::Lid;

    use super::*;

    #[test]
    fn only_what_differs() {
        let mut tables = Tables::default();
        let switch = Guid::new(1);
        let mut table = ForwardingTable::new(Lid::new(130));
        table.set(Lid::new(70), 3);
        let changes = tables.linear_changes(switch, &table);
        assert_eq!(changes.len(), 3);
        for (number, block) in changes {
            tables.holds_linear(switch, number, block);
        }
        assert_eq!(tables.linear_changes(switch, &table), []);
        table.set(Lid::new(70), 4);
        let changes = tables.linear_changes(switch, &table);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].0, 1);
        tables.forget(switch);
        assert_eq!(tables.linear_changes(switch, &table).len(), 3);
    }
}
