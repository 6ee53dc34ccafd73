//! The P_Key table of a guest that has some of the port's partitions, and not all: which of the VF's indexes is
//! behind each of the guest's.
//!
//! All packets, of connections and datagrams, have the P_Key at the index that a queue pair was given by a
//! command. So the VF gets no index but those of partitions that are the guest's.

use std::collections::HashMap;

use connectx::bits::port::listed_pkey;

/// Entries of a port's table.
pub(crate) const TABLE: usize = 128;
/// The index that asks for all of the table.
pub(crate) const ALL: u32 = 0xffff;
/// Where a reply to QUERY_HCA_VPORT_PKEY has the table.
pub(crate) const BODY: usize = 0x10;
/// Bytes of the reply that has all of it.
pub(crate) const REPLY: usize = BODY + 4 * TABLE;
/// Bits of a P_Key without that of full membership (IBA 10.9.1.1).
const PARTITION: u16 = 0x7fff;

/// The P_Keys in a reply to QUERY_HCA_VPORT_PKEY about all of the table.
pub(crate) fn read_table(reply: &[u8]) -> Vec<u16> {
    let key = |at| listed_pkey(at).get(reply) as u16;
    (0..TABLE).map(key).collect()
}

/// A guest's table over the port's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partitions {
    granted: Vec<u16>,
    table: Vec<u16>,
}

impl Partitions {
    /// Creates the table of a guest that may have these P_Keys, in this order from index 0.
    pub fn new(granted: Vec<u16>) -> Self {
        Self {
            granted,
            table: Vec::new(),
        }
    }

    /// The port's table is this one now.
    pub fn learn(&mut self, table: Vec<u16>) {
        self.table = table;
    }

    /// The P_Key at an index of the guest's; 0 where it has none, or the port does not have it.
    pub fn key(&self, index: usize) -> u16 {
        let granted = self.granted.get(index).copied();
        granted.filter(|key| self.table.contains(key)).unwrap_or(0)
    }

    /// All of the guest's table up to the last one that it may have.
    pub fn keys(&self) -> Vec<u16> {
        (0..self.granted.len())
            .map(|index| self.key(index))
            .collect()
    }

    /// The VF's index behind one of the guest's. Where there is no P_Key, it is one without a P_Key; `None`
    /// where the port's table is full.
    pub fn behind(&self, index: u16) -> Option<u16> {
        let key = self.key(index.into());
        let is_it = |entry: &u16| {
            if key == 0 {
                entry & PARTITION == 0
            } else {
                *entry == key
            }
        };
        // The last one without, since managers fill tables from the front.
        let found = if key == 0 {
            self.table.iter().rposition(is_it)
        } else {
            self.table.iter().position(is_it)
        };
        found.map(|at| at as u16)
    }

    /// Whether who has the VF's index `physical` for its own `index` is in a partition that is not the one
    /// there: the port's table has changed.
    fn is_astray(&self, index: u16, physical: u16) -> bool {
        let there = self.table.get(usize::from(physical)).copied();
        let there = there.unwrap_or(0);
        there & PARTITION != 0 && there != self.key(index.into())
    }
}

/// An index that a queue pair has: the guest's, and the VF's.
pub(crate) type Place = (u16, u16);

/// The indexes of queue pairs' paths, primary and alternate.
#[derive(Debug, Default)]
pub(crate) struct Places(HashMap<u32, [Option<Place>; 2]>);

impl Places {
    /// Returns the places of a queue pair.
    pub fn of(&self, queue_pair: u32) -> [Option<Place>; 2] {
        self.0.get(&queue_pair).copied().unwrap_or_default()
    }

    /// A queue pair has these now.
    pub fn set(&mut self, queue_pair: u32, places: [Option<Place>; 2]) {
        self.0.insert(queue_pair, places);
    }

    /// A queue pair is gone.
    pub fn remove(&mut self, queue_pair: u32) {
        self.0.remove(&queue_pair);
    }

    /// Queue pairs in partitions that are not the guest's, since the port's table has changed.
    pub fn astray(&self, partitions: &Partitions) -> Vec<u32> {
        let astray = self.0.iter().filter(|(_, places)| {
            let mut places = places.iter().flatten();
            places.any(|(index, physical)| partitions.is_astray(*index, *physical))
        });
        astray.map(|(queue_pair, _)| *queue_pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest with three partitions at a port that has two of them, and others.
    fn partitions() -> Partitions {
        let mut partitions = Partitions::new(vec![0x8003, 0x0004, 0x8005]);
        let mut table = vec![0; TABLE];
        table[..5].copy_from_slice(&[0xffff, 0x8005, 0x8004, 0x8003, 0x8000]);
        partitions.learn(table);
        partitions
    }

    #[test]
    fn indexes_are_those_of_the_guests_partitions() {
        let partitions = partitions();
        assert_eq!(partitions.keys(), [0x8003, 0, 0x8005]);
        let behind = [0, 1, 2, 3, u16::MAX].map(|index| partitions.behind(index));
        // A limited member is not a full one, so that there is nothing at 1.
        assert_eq!(behind, [3, 127, 1, 127, 127].map(Some));
    }

    #[test]
    fn a_table_without_room_has_nothing_for_who_has_none() {
        let mut partitions = partitions();
        partitions.learn(vec![0x8003; TABLE]);
        assert_eq!(partitions.behind(0), Some(0));
        assert_eq!(partitions.behind(2), None);
        partitions.learn(Vec::new());
        assert_eq!(partitions.behind(0), None);
    }

    #[test]
    fn queue_pairs_go_astray_where_the_table_changes() {
        let mut partitions = partitions();
        let mut places = Places::default();
        for (queue_pair, given) in [
            (10, [Some((0, 3)), None]),
            (11, [Some((2, 1)), Some((0, 3))]),
            (12, [Some((7, 127)), None]),
        ] {
            places.set(queue_pair, given);
        }
        let astray = |partitions: &Partitions| {
            let mut found = places.astray(partitions);
            found.sort_unstable();
            found
        };
        assert!(astray(&partitions).is_empty());
        // A key that goes away harms nobody, and neither does a key at an index without users.
        let mut table = vec![0; TABLE];
        (table[1], table[9]) = (0x8005, 0x8009);
        partitions.learn(table.clone());
        assert!(astray(&partitions).is_empty());
        // Another partition, the same as a limited member, and one where there was none.
        (table[1], table[3], table[127]) = (0x0005, 0x8005, 0x8004);
        partitions.learn(table);
        assert_eq!(astray(&partitions), [10, 11, 12]);
    }
}
