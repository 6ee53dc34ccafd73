//! Which physical LID a virtual one stands for.

use std::collections::BTreeMap;

use wire::Lid;

const LIDS: usize = 1 << 16;

/// A direct-mapped table each way: 2^16 entries of 16 bits, 128 KiB. Zero stands for none.
///
/// Multicast and permissive LIDs are the same for everybody.
pub struct LidMap {
    physical: Box<[u16]>,
    seen: Box<[u16]>,
    /// Pairs of virtual and physical LIDs, with how many hold each.
    holders: BTreeMap<(Lid, Lid), u32>,
}

impl std::fmt::Debug for LidMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LidMap").field(&self.holders).finish()
    }
}

impl Default for LidMap {
    fn default() -> Self {
        Self {
            physical: vec![0; LIDS].into_boxed_slice(),
            seen: vec![0; LIDS].into_boxed_slice(),
            holders: BTreeMap::new(),
        }
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
        let (from, to) = (usize::from(seen.value()), usize::from(physical.value()));
        let other = |fits: fn(&(Lid, Lid), Lid) -> bool, lid| {
            self.holders.keys().find(|pair| fits(pair, lid)).copied()
        };
        if self.physical[from] == physical.value() {
            self.physical[from] = other(|pair, lid| pair.0 == lid, seen).map_or(0, |p| p.1.value());
        }
        if self.seen[to] == seen.value() {
            self.seen[to] = other(|pair, lid| pair.1 == lid, physical).map_or(0, |p| p.0.value());
        }
    }

    fn enter(&mut self, seen: Lid, physical: Lid) {
        self.physical[usize::from(seen.value())] = physical.value();
        self.seen[usize::from(physical.value())] = seen.value();
    }

    /// The physical LID behind a virtual one.
    #[must_use]
    pub fn physical(&self, seen: Lid) -> Option<Lid> {
        look_up(&self.physical, seen)
    }

    /// The virtual LID of a physical one.
    #[must_use]
    pub fn seen(&self, physical: Lid) -> Option<Lid> {
        look_up(&self.seen, physical)
    }
}

fn look_up(table: &[u16], lid: Lid) -> Option<Lid> {
    if !lid.is_unicast() {
        // No LID yet, a group, or whoever is there.
        return Some(lid);
    }
    Lid::unicast(table[usize::from(lid.value())])
}
