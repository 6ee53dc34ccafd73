//! The physical LIDs behind virtual ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use wire::Lid;

const LIDS: usize = 1 << 16;
/// Entries of a table that change together where a copy of it is kept: 512 bytes.
const PAGE: usize = 256;

/// An entry of 16 bits for each LID; zero stands for none. Copies share the pages in which they are the
/// same, and pages without entries take no room.
#[derive(Clone)]
struct Table(Box<[Arc<[u16; PAGE]>]>);

impl Default for Table {
    fn default() -> Self {
        let unset = Arc::new([0; PAGE]);
        Self(vec![unset; LIDS / PAGE].into())
    }
}

impl Table {
    fn get(&self, lid: Lid) -> u16 {
        let index = usize::from(lid.value());
        self.0[index / PAGE][index % PAGE]
    }

    fn set(&mut self, lid: Lid, value: Lid) {
        let index = usize::from(lid.value());
        Arc::make_mut(&mut self.0[index / PAGE])[index % PAGE] = value.value();
    }

    /// The entry of a LID.
    fn look_up(&self, lid: Lid) -> Option<Lid> {
        if !lid.is_unicast() {
            // No LID yet, a group, or whoever is there.
            return Some(lid);
        }
        Lid::unicast(self.get(lid))
    }
}

/// A direct-mapped table each way: 2^16 entries of 16 bits, 128 KiB at most.
///
/// Multicast and permissive LIDs are the same for everybody.
#[derive(Clone, Default)]
pub(crate) struct LidTables {
    physical: Table,
    seen: Table,
}

impl fmt::Debug for LidTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LidTables").finish_non_exhaustive()
    }
}

impl LidTables {
    /// The physical LID behind a virtual one.
    pub(crate) fn physical(&self, seen: Lid) -> Option<Lid> {
        self.physical.look_up(seen)
    }

    /// The virtual LID of a physical one.
    pub(crate) fn seen(&self, physical: Lid) -> Option<Lid> {
        self.seen.look_up(physical)
    }
}

/// The tables, and who has entered what stands in them.
#[derive(Default)]
pub struct LidMap {
    tables: Arc<LidTables>,
    /// Pairs of virtual and physical LIDs, with how many hold each.
    holders: BTreeMap<(Lid, Lid), u32>,
}

impl fmt::Debug for LidMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LidMap").field(&self.holders).finish()
    }
}

impl LidMap {
    /// Has `seen` stand for `physical` from now on, whatever either stood for before. Several may
    /// hold the same pair: while a VM moves, two ports have its LID.
    pub fn hold(&mut self, seen: Lid, physical: Lid) {
        *self.holders.entry((seen, physical)).or_default() += 1;
        self.enter(seen, physical);
    }

    /// Ends what [`LidMap::hold`] began; what else holds either LID comes into its own.
    pub fn release(&mut self, seen: Lid, physical: Lid) {
        match self.holders.get_mut(&(seen, physical)) {
            Some(count) if *count > 1 => {
                *count -= 1;
                return;
            }
            Some(_) => self.holders.remove(&(seen, physical)),
            None => return,
        };
        let other = |fits: fn(&(Lid, Lid), Lid) -> bool, lid| {
            self.holders.keys().find(|pair| fits(pair, lid)).copied()
        };
        let tables = Arc::make_mut(&mut self.tables);
        if tables.physical.get(seen) == physical.value() {
            let other = other(|pair, lid| pair.0 == lid, seen);
            tables.physical.set(seen, other.map_or(Lid::NONE, |p| p.1));
        }
        if tables.seen.get(physical) == seen.value() {
            let other = other(|pair, lid| pair.1 == lid, physical);
            tables.seen.set(physical, other.map_or(Lid::NONE, |p| p.0));
        }
    }

    fn enter(&mut self, seen: Lid, physical: Lid) {
        let tables = Arc::make_mut(&mut self.tables);
        tables.physical.set(seen, physical);
        tables.seen.set(physical, seen);
    }

    /// The tables as they are now.
    pub(crate) fn tables(&self) -> &Arc<LidTables> {
        &self.tables
    }

    /// The physical LID behind a virtual one.
    #[must_use]
    pub fn physical(&self, seen: Lid) -> Option<Lid> {
        self.tables.physical(seen)
    }

    /// The virtual LID of a physical one.
    #[must_use]
    pub fn seen(&self, physical: Lid) -> Option<Lid> {
        self.tables.seen(physical)
    }
}
