//! Flow tables: entries that match packets by their EtherType and the protocol of IP, and say where they go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::packet::Headers;

/// Entries of a table, as a power of two.
pub(crate) const LOG_MAX_SIZE: u32 = 7;
/// Groups of a table.
pub(crate) const MAX_GROUPS: usize = 16;

/// Values of fields, or which of their bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    pub ethertype: u16,
    pub protocol: u8,
}

impl Fields {
    const fn match_by(self, criteria: Self, headers: &Headers<'_>) -> bool {
        (headers.ethertype ^ self.ethertype) & criteria.ethertype == 0
            && (headers.protocol ^ self.protocol) & criteria.protocol == 0
    }
}

/// Where packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Next {
    /// Nowhere.
    Drop,
    /// To another table.
    Table(u32),
    /// To a TIR.
    Tir(u32),
}

/// Entries that match by the same criteria, which may be those of these indices, the last among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub first: u32,
    pub last: u32,
    pub criteria: Fields,
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowEntry {
    index: u32,
    pub group: u32,
    /// As its group has them.
    criteria: Fields,
    value: Fields,
    pub next: Next,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlowTable {
    pub level: u8,
    log_size: u32,
    /// Treatment of packets that no entry matches.
    pub miss: Next,
    groups: BTreeMap<u32, Group>,
    /// In the order of their indices, side by side: a packet may look at all of them.
    entries: Vec<FlowEntry>,
}

impl FlowTable {
    /// A table without entries, if there may be one of this size.
    pub fn new(level: u8, log_size: u32, miss: Next) -> Option<Self> {
        (log_size <= LOG_MAX_SIZE).then(|| Self {
            level,
            log_size,
            miss,
            groups: BTreeMap::new(),
            entries: Vec::new(),
        })
    }

    /// Adds a group, and returns its number.
    pub fn add_group(&mut self, group: Group) -> Option<u32> {
        let overlaps = |other: &Group| group.first <= other.last && other.first <= group.last;
        let fits = group.first <= group.last && group.last < 1 << self.log_size;
        if !fits || self.groups.len() >= MAX_GROUPS || self.groups.values().any(overlaps) {
            return None;
        }
        let number = (0..).find(|number| !self.groups.contains_key(number))?;
        self.groups.insert(number, group);
        Some(number)
    }

    /// Takes a group away; whether there was one, and without entries.
    pub fn remove_group(&mut self, number: u32) -> bool {
        let used = self.entries.iter().any(|entry| entry.group == number);
        !used && self.groups.remove(&number).is_some()
    }

    /// Adds an entry; whether its group has such a place, which is free.
    pub fn add_entry(&mut self, index: u32, group: u32, value: Fields, next: Next) -> bool {
        let Some(of) = self.groups.get(&group) else {
            return false;
        };
        if !(of.first..=of.last).contains(&index) {
            return false;
        }
        let Err(at) = self.place(index) else {
            return false;
        };
        let entry = FlowEntry {
            index,
            group,
            criteria: of.criteria,
            value,
            next,
        };
        self.entries.insert(at, entry);
        true
    }

    /// Takes an entry away.
    pub fn remove_entry(&mut self, index: u32) -> Option<FlowEntry> {
        let at = self.place(index).ok()?;
        Some(self.entries.remove(at))
    }

    /// Where an entry is, or would be.
    fn place(&self, index: u32) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&index, |entry| entry.index)
    }

    /// Whether it has neither entries nor groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Where it sends packets, all that it names.
    pub fn named(&self) -> impl Iterator<Item = Next> {
        let entries = self.entries.iter().map(|entry| entry.next);
        entries.chain([self.miss])
    }

    /// Entries and groups.
    pub fn parts(&self) -> usize {
        self.groups.len() + self.entries.len()
    }

    /// Where a packet goes: as the first entry says that matches it; and how many entries were looked at.
    pub fn next(&self, headers: &Headers<'_>) -> (Next, u32) {
        let mut entries = self.entries.iter();
        let found = entries.position(|entry| entry.value.match_by(entry.criteria, headers));
        let (next, looked) = match found {
            Some(at) => (self.entries[at].next, at + 1),
            None => (self.miss, self.entries.len()),
        };
        (next, looked as u32)
    }

    /// The table of an image, made anew of its parts.
    pub fn restored(&self) -> Option<Self> {
        let mut table = Self::new(self.level, self.log_size, self.miss)?;
        for (number, group) in &self.groups {
            let given = table.add_group(*group)?;
            // Some between may be gone.
            let group = table.groups.remove(&given)?;
            table.groups.insert(*number, group);
        }
        for entry in &self.entries {
            if !table.add_entry(entry.index, entry.group, entry.value, entry.next) {
                return None;
            }
        }
        // Entries out of order, or with other criteria than their group's, are not the same.
        (table == *self).then_some(table)
    }
}
