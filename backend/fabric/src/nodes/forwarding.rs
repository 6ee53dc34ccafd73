//! A switch's forwarding tables.

use std::sync::Arc;

use wire::attribute::{LinearBlock, MulticastBlock};
use wire::{ExtendedLid, Lid};

use super::chunks::Chunks;

/// Blocks of a table that change together where a copy of the table is kept: of a linear one 16 pointers, else 1 KiB.
const TOGETHER: usize = 16;

/// The linear forwarding table. Blocks that were never set drop everything and take no room.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinearTable {
    blocks: Chunks<Option<Arc<LinearBlock>>, TOGETHER>,
}

impl LinearTable {
    /// Entries, as SwitchInfo tells.
    pub(crate) const CAP: u16 = LinearBlock::COUNT * LinearBlock::LIDS;

    pub(crate) fn block(&self, number: u16) -> LinearBlock {
        self.known(number).copied().unwrap_or_default()
    }

    fn known(&self, number: u16) -> Option<&LinearBlock> {
        self.blocks.get(usize::from(number))?.as_deref()
    }

    /// Whether that changed anything. The caller has checked `number` against the table's size.
    pub(crate) fn set(&mut self, number: u16, block: impl Into<Arc<LinearBlock>>) -> bool {
        let block = block.into();
        if self.block(number) == *block {
            return false;
        }
        self.blocks.set(usize::from(number), Some(block));
        true
    }

    /// The port for a LID; [`LinearBlock::DROP`] for none.
    pub(crate) fn port(&self, lid: Lid) -> u8 {
        let (number, entry) = ExtendedLid::from(lid).place();
        self.entry(number, entry)
    }

    /// The port that an entry of a block says.
    pub(crate) fn entry(&self, number: u16, entry: usize) -> u8 {
        self.known(number)
            .map_or(LinearBlock::DROP, |block| block.0[entry])
    }
}

/// The second table of a switch that speaks the extended LID space, for the LIDs of virtual machines.
/// Its blocks are counted on from those of the first one.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondaryTable(LinearTable);

impl SecondaryTable {
    /// The block's number in this table; `None` when it is none of its.
    fn own(number: u16) -> Option<u16> {
        let own = number.checked_sub(LinearBlock::SECONDARY_FIRST)?;
        (own < LinearBlock::SECONDARY_COUNT).then_some(own)
    }

    /// A block; `None` when there is none of this number.
    pub(crate) fn block(&self, number: u16) -> Option<LinearBlock> {
        Some(self.0.block(Self::own(number)?))
    }

    /// Whether that changed anything.
    pub(crate) fn set(&mut self, number: u16, block: impl Into<Arc<LinearBlock>>) -> bool {
        Self::own(number).is_some_and(|own| self.0.set(own, block))
    }

    /// The port for a vLID; [`LinearBlock::DROP`] for none.
    pub(crate) fn port(&self, lid: ExtendedLid) -> u8 {
        let (number, entry) = lid.place();
        Self::own(number).map_or(LinearBlock::DROP, |own| self.0.entry(own, entry))
    }
}

/// Multicast LIDs that a switch can forward.
pub const MULTICAST_LIDS: u16 = 1024;

/// The multicast forwarding table.
#[derive(Debug, Clone)]
pub(crate) struct MulticastTable {
    positions: u8,
    /// Blocks in order, each as its positions in order.
    blocks: Chunks<MulticastBlock, TOGETHER>,
}

impl MulticastTable {
    /// Entries, as SwitchInfo tells.
    pub(crate) const CAP: u16 = MULTICAST_LIDS;

    /// A table for a switch with external ports up to `ports`.
    pub(crate) fn new(ports: u8) -> Self {
        Self {
            positions: ports / MulticastBlock::PORTS + 1,
            blocks: Chunks::default(),
        }
    }

    fn index(&self, number: u16, position: u8) -> Option<usize> {
        (number < Self::CAP / MulticastBlock::LIDS && position < self.positions)
            .then(|| usize::from(number) * usize::from(self.positions) + usize::from(position))
    }

    /// A block; `None` where the table has none.
    pub(crate) fn block(&self, number: u16, position: u8) -> Option<MulticastBlock> {
        let index = self.index(number, position)?;
        Some(self.blocks.get(index).copied().unwrap_or_default())
    }

    /// Whether that changed anything; `None` where the table has no such block.
    pub(crate) fn set(&mut self, number: u16, position: u8, block: MulticastBlock) -> Option<bool> {
        let index = self.index(number, position)?;
        if self.block(number, position)? == block {
            return Some(false);
        }
        self.blocks.set(index, block);
        Some(true)
    }

    /// The ports that get a copy of a packet to this multicast LID.
    pub(crate) fn ports(&self, lid: Lid) -> impl Iterator<Item = u8> {
        let offset = lid.value().wrapping_sub(Lid::MULTICAST_FIRST.value());
        let (number, entry) = (offset / MulticastBlock::LIDS, offset % MulticastBlock::LIDS);
        (0..self.positions).flat_map(move |position| {
            let mask = self
                .block(number, position)
                .map_or(0, |block| block.0[usize::from(entry)]);
            (0..MulticastBlock::PORTS)
                .filter(move |bit| mask >> bit & 1 != 0)
                .map(move |bit| position * MulticastBlock::PORTS + bit)
        })
    }
}

#[cfg(test)]
impl LinearTable {
    /// By chunk, whether it is the same one.
    pub(crate) fn shared_with(&self, other: &Self) -> impl Iterator<Item = bool> {
        self.blocks.shared_with(&other.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_entries_drop() {
        let mut table = LinearTable::default();
        assert_eq!(table.port(Lid::new(5)), LinearBlock::DROP);
        let mut block = LinearBlock::default();
        block.0[1] = 7;
        assert!(table.set(767, block));
        assert!(!table.set(767, block));
        assert_eq!(table.port(Lid::new(767 * 64 + 1)), 7);
        assert_eq!(table.port(Lid::new(5)), LinearBlock::DROP);
    }

    #[test]
    fn multicast_ports() {
        let mut table = MulticastTable::new(36);
        let mut block = MulticastBlock::default();
        block.0[1] = 0b1000_0000_0000_0010;
        assert_eq!(table.set(0, 0, block), Some(true));
        block.0[1] = 0b1_0000;
        assert_eq!(table.set(0, 2, block), Some(true));
        assert_eq!(table.set(0, 3, block), None);
        assert_eq!(table.set(32, 0, block), None);
        let ports: Vec<_> = table.ports(Lid::new(0xc001)).collect();
        assert_eq!(ports, [1, 15, 36]);
        assert_eq!(table.ports(Lid::new(0xc000)).count(), 0);
        assert_eq!(table.ports(Lid::new(0xfffe)).count(), 0);
    }
}
