//! Forwarding tables of switches, as far as they have confirmed them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wire::Guid;
use wire::attribute::{LinearBlock, MulticastBlock, PKeyBlock, SharedBlocks, SlToVl};
use wire::mad::AttributeId;
use wire::smp::DATA;

use crate::routing::ForwardingTable;

/// Blocks of a linear table, by number: those that are known.
#[derive(Debug, Default)]
struct LinearBlocks(Vec<Option<Arc<LinearBlock>>>);

/// Blocks that a table grows by.
const GROWTH: usize = 16;

impl LinearBlocks {
    fn get(&self, number: u16) -> Option<&LinearBlock> {
        self.0.get(usize::from(number))?.as_deref()
    }

    fn insert(&mut self, number: u16, block: Arc<LinearBlock>) {
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
    secondary: BTreeMap<u16, Arc<LinearBlock>>,
    multicast: BTreeMap<(u16, u8), MulticastBlock>,
    /// By port, attribute and modifier.
    settings: BTreeMap<(u8, AttributeId, u32), [u8; DATA]>,
    /// By port and number: the P_Keys that an external port lets through.
    partitions: BTreeMap<(u8, u16), PKeyBlock>,
}

impl Held {
    fn insert(&mut self, number: u16, block: Arc<LinearBlock>) {
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

/// Bits of the modifier of a table from service levels to lanes: to all ports, and from all ports (IBA 14.2.5.8).
pub(crate) const TO_ALL: u32 = 1 << 16;
pub(crate) const FROM_ALL: u32 = 1 << 17;

/// Whether two such modifiers are of one pair of a switch's ports.
fn overlap(one: u32, other: u32) -> bool {
    let same = |all: u32, port: u32| (one | other) & all != 0 || one & port == other & port;
    same(TO_ALL, 0xff) && same(FROM_ALL, 0xff00)
}

/// Tables of switches, by GUID. Only blocks that differ are sent.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    held: HashMap<Guid, Held>,
    blocks: SharedBlocks,
}

impl Tables {
    /// Forgets a switch that has lost its tables, or may have.
    pub(crate) fn forget(&mut self, switch: Guid) {
        self.held.remove(&switch);
    }

    /// Forgets all switches: another manager may have written to them.
    pub(crate) fn forget_all(&mut self) {
        self.held.clear();
    }

    /// A block is written: until that is answered nobody knows what the switch holds.
    pub(crate) fn writes_linear(&mut self, switch: Guid, number: u16) {
        if let Some(held) = self.held.get_mut(&switch) {
            held.remove(number);
        }
    }

    /// Blocks of a switch's second table that it is known to hold.
    pub(crate) fn secondary_blocks(&self, switch: Guid) -> impl Iterator<Item = u16> {
        let held = self.held.get(&switch).map(|held| &held.secondary);
        held.into_iter().flat_map(|held| held.keys().copied())
    }

    /// Forgets the tables that a virtual port of a node's port was sent: it has begun anew.
    pub(crate) fn forget_vport(&mut self, node: Guid, port: u8, index: u16) {
        let tables = [AttributeId::VPORT_P_KEY_TABLE, AttributeId::VPORT_GUID_INFO];
        if let Some(held) = self.held.get_mut(&node) {
            let of_vport = |&(number, what, modifier): &(u8, AttributeId, u32)| {
                number == port && tables.contains(&what) && (modifier >> 16) as u16 == index
            };
            held.settings.retain(|place, _| !of_vport(place));
        }
    }

    /// As [`Tables::writes_linear`].
    pub(crate) fn writes_multicast(&mut self, switch: Guid, at: (u16, u8)) {
        if let Some(held) = self.held.get_mut(&switch) {
            held.multicast.remove(&at);
        }
    }

    pub(crate) fn linear_changes(
        &self,
        switch: Guid,
        table: &ForwardingTable,
    ) -> Vec<(u16, LinearBlock)> {
        let held = self.held.get(&switch).map(|held| &held.linear);
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
        let held = self.held.get(&switch)?;
        if number >= LinearBlock::SECONDARY_FIRST {
            return Some(
                held.secondary
                    .get(&number)
                    .map_or_else(Default::default, |block| **block),
            );
        }
        let held = &held.linear;
        if let Some(block) = held.get(number) {
            return Some(*block);
        }
        let is_beyond = usize::from(number) > held.last()?;
        is_beyond.then(LinearBlock::default)
    }

    pub(crate) fn holds_linear(&mut self, switch: Guid, number: u16, block: LinearBlock) {
        let block = self.blocks.share(block);
        self.held.entry(switch).or_default().insert(number, block);
    }

    pub(crate) fn multicast_differs(
        &self,
        switch: Guid,
        at: (u16, u8),
        block: &MulticastBlock,
    ) -> bool {
        let held = self.held.get(&switch);
        held.and_then(|held| held.multicast.get(&at)) != Some(block)
    }

    /// P_Key blocks that a port is known to hold, or was sent.
    pub(crate) fn partition_blocks(&self, switch: Guid, port: u8) -> u16 {
        let held = self.held.get(&switch).map(|held| &held.partitions);
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
        let held = self.held.get(&switch);
        held.and_then(|held| held.partitions.get(&place)) != Some(block)
    }

    /// As [`Tables::writes_linear`].
    pub(crate) fn writes_partitions(&mut self, switch: Guid, place: (u8, u16)) {
        if let Some(held) = self.held.get_mut(&switch) {
            held.partitions.remove(&place);
        }
    }

    pub(crate) fn holds_partitions(&mut self, switch: Guid, place: (u8, u16), block: PKeyBlock) {
        let held = self.held.entry(switch).or_default();
        held.partitions.insert(place, block);
    }

    /// Whether a port has been set to something else, or to nothing yet.
    pub(crate) fn setting_differs(
        &self,
        node: Guid,
        place: (u8, AttributeId, u32),
        data: &[u8; DATA],
    ) -> bool {
        self.setting(node, place) != Some(data)
    }

    /// A table of a port, as it was sent.
    pub(crate) fn setting(&self, node: Guid, place: (u8, AttributeId, u32)) -> Option<&[u8; DATA]> {
        self.held.get(&node)?.settings.get(&place)
    }

    /// As [`Tables::writes_linear`]. Where a switch has several tables set by one packet, that is none of those any more
    /// that were set by themselves, and the other way round.
    pub(crate) fn writes_setting(&mut self, node: Guid, place: (u8, AttributeId, u32)) {
        let Some(held) = self.held.get_mut(&node) else {
            return;
        };
        held.settings.remove(&place);
        let (_, attribute, modifier) = place;
        if attribute == AttributeId::SL_TO_VL && modifier >> 16 != 0 {
            held.settings
                .retain(|&(_, what, other), _| what != attribute || !overlap(modifier, other));
        } else if attribute == AttributeId::SL_TO_VL && modifier != 0 {
            let (from, to) = (modifier & 0xff00, modifier & 0xff);
            for (port, broad) in [
                (0, FROM_ALL | TO_ALL),
                (0, TO_ALL | from),
                (to as u8, FROM_ALL | to),
            ] {
                held.settings.remove(&(port, attribute, broad));
            }
        }
    }

    /// The table from service levels to lanes that a node has from one port to another; that of an adapter's port, the
    /// second, if it is no switch.
    pub(crate) fn lanes(
        &self,
        node: Guid,
        is_switch: bool,
        (from, to): (u8, u8),
    ) -> Option<SlToVl> {
        let settings = &self.held.get(&node)?.settings;
        let (entering, leaving) = (u32::from(from) << 8, u32::from(to));
        let places = [
            (to, entering | leaving),
            (to, FROM_ALL | leaving),
            (0, TO_ALL | entering),
            (0, FROM_ALL | TO_ALL),
        ];
        let places = if is_switch { &places[..] } else { &[(to, 0)] };
        let mut held = { places.iter() }
            .filter_map(|&(port, modifier)| settings.get(&(port, AttributeId::SL_TO_VL, modifier)));
        held.next().map(SlToVl::parse)
    }

    pub(crate) fn holds_setting(
        &mut self,
        node: Guid,
        place: (u8, AttributeId, u32),
        data: [u8; DATA],
    ) {
        self.held
            .entry(node)
            .or_default()
            .settings
            .insert(place, data);
    }

    /// Forgets the settings of a port, and those of all ports of its switch, which are held as its port 0's.
    pub(crate) fn forget_settings(&mut self, node: Guid, port: u8) {
        if let Some(held) = self.held.get_mut(&node) {
            held.settings
                .retain(|place, _| place.0 != port && place.0 != 0);
        }
    }

    pub(crate) fn holds_multicast(&mut self, switch: Guid, at: (u16, u8), block: MulticastBlock) {
        let held = self.held.entry(switch).or_default();
        held.multicast.insert(at, block);
    }
}

#[cfg(test)]
mod tests {
    use wire::Lid;

    use super::*;

    #[test]
    fn lanes_of_several_ports() {
        let (node, attribute) = (Guid::new(1), AttributeId::SL_TO_VL);
        let all = (0, attribute, FROM_ALL | TO_ALL);
        let from = (0, attribute, TO_ALL | 0x0300);
        let to = (4, attribute, FROM_ALL | 4);
        let one = (4, attribute, 0x0304);
        let other = (5, attribute, 0x0205);
        let places = [all, from, to, one, other];
        let left = |writes| {
            let mut tables = Tables::default();
            for place in places {
                tables.holds_setting(node, place, [0; DATA]);
            }
            tables.writes_setting(node, writes);
            let held = |&&place: &&_| !tables.setting_differs(node, place, &[0; DATA]);
            places.iter().filter(held).copied().collect::<Vec<_>>()
        };
        assert_eq!(left(all), []);
        assert_eq!(left(from), [other]);
        assert_eq!(left(to), [other]);
        assert_eq!(left(one), [other]);
        assert_eq!(left(other), [from, to, one]);
        // Adapters have a table for each port, all with this modifier.
        assert_eq!(left((1, attribute, 0)), places);
    }

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
