//! A client's cache of path records, as *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets* has it.
//!
//! It keeps a record whose flag says that addresses move with their owners, and asks no more for its destination. The paper
//! leaves open how a client learns that a path's service level or MTU is another one after a move. Here it learns it in two ways:
//! a client that has moved is told so (client reregistration), and forgets all; one whose peer has moved finds that the
//! connection fails, forgets that peer, and asks once.

use std::collections::HashMap;

use wire::Gid;
use wire::sa::PathRecord;

/// Records that may be kept, by destination.
#[derive(Debug, Clone, Default)]
pub struct PathCache {
    records: HashMap<Gid, PathRecord>,
    /// Former records of destinations that have failed.
    former: HashMap<Gid, PathRecord>,
}

/// Difference between the paths before and after a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathChange {
    /// The service level is another one.
    pub sl: bool,
    /// The MTU is another one.
    pub mtu: bool,
    /// The rate is another one.
    pub rate: bool,
}

impl PathCache {
    /// The path to a destination, if the subnet administration need not be asked.
    #[must_use]
    pub fn path(&self, to: Gid) -> Option<&PathRecord> {
        self.records.get(&to)
    }

    /// Takes in an answer of the subnet administration; tells what has changed since a path to the same destination failed.
    pub fn answered(&mut self, record: PathRecord) -> PathChange {
        let before = self.former.remove(&record.dgid);
        let before = self.records.remove(&record.dgid).or(before);
        if record.cacheable {
            self.records.insert(record.dgid, record);
        }
        before.map_or_else(PathChange::default, |before| PathChange {
            sl: before.sl != record.sl,
            mtu: before.mtu != record.mtu,
            rate: before.rate != record.rate,
        })
    }

    /// A connection by the path to a destination has failed: the next one asks.
    pub fn failed(&mut self, to: Gid) {
        if let Some(record) = self.records.remove(&to) {
            self.former.insert(to, record);
        }
    }

    /// The client is at another place: all paths begin elsewhere.
    pub fn moved(&mut self) {
        self.former.extend(self.records.drain());
    }
}

#[cfg(test)]
mod tests {
    use wire::{Guid, Sl};

    use super::*;

    fn record(cacheable: bool, sl: u8) -> PathRecord {
        PathRecord {
            dgid: Gid::new(1, Guid::new(2)),
            cacheable,
            sl: Sl::new(sl),
            ..PathRecord::default()
        }
    }

    #[test]
    fn without_the_flag_nothing_is_kept() {
        let mut cache = PathCache::default();
        let to = record(true, 0).dgid;
        cache.answered(record(false, 0));
        assert_eq!(cache.path(to), None);
        cache.answered(record(true, 0));
        assert_eq!(cache.path(to), Some(&record(true, 0)));
        // The option was switched off.
        cache.answered(record(false, 0));
        assert_eq!(cache.path(to), None);
    }

    #[test]
    fn a_change_is_learned_once_it_matters() {
        let mut cache = PathCache::default();
        let to = record(true, 0).dgid;
        cache.answered(record(true, 0));
        cache.failed(to);
        assert_eq!(cache.path(to), None);
        let change = cache.answered(record(true, 3));
        assert_eq!((change.sl, change.mtu), (true, false));
        cache.failed(to);
        let mtu = 4;
        let smaller = PathRecord {
            mtu,
            ..record(true, 3)
        };
        let change = cache.answered(smaller);
        assert_eq!((change.sl, change.mtu), (false, true));
        cache.moved();
        assert_eq!(cache.path(to), None);
        assert_eq!(cache.answered(smaller), PathChange::default());
    }
}
