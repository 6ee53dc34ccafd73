//! Lists of stretches behind an indirect key.

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::memory::sge::Sge;

/// Time of a step from an indirect key to the next one: the list and the key are seldom in the cache.
pub(super) const STEP_NS: i64 = 1024;

/// Time of each place that is looked at in a long list to find an address.
pub(super) const PROBE_NS: i64 = 256;

/// An element of an indirect key: a stretch of another key. Where the first element names [`Klm::REPEATED`], the
/// list is a pattern, and says how its stretches repeat: the upper 32 bits of the first address are how often, the
/// lower 16 how many elements follow. In these the lower 16 bits of the length are the bytes of a stretch, and the
/// upper 16 how far it is to the same stretch of the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Klm {
    /// Length in bytes.
    pub len: u32,
    /// The other key.
    pub key: u32,
    /// Address within it.
    pub addr: u64,
}

impl Klm {
    /// Key number of the first element of a pattern. No key has this number.
    pub const REPEATED: u32 = 0x400;

    /// Number of repetitions of the pattern that this element begins, and number of its stretches.
    fn repeats(&self) -> Option<(u64, usize)> {
        (self.key == Self::REPEATED).then_some((self.addr >> 32, usize::from(self.addr as u16)))
    }
}

/// The stretches of an indirect key, with running totals so that an address is
/// found without walking the list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KlmList {
    pub(crate) entries: Vec<Klm>,
    pub(crate) ends: Vec<u64>,
}

impl KlmList {
    /// A list of these entries.
    #[must_use]
    pub fn new(entries: Vec<Klm>) -> Self {
        let mut list = Self {
            ends: Vec::with_capacity(entries.len()),
            entries,
        };
        list.add_up(0);
        list
    }

    /// Adds up the lengths of the entries from `from` on.
    fn add_up(&mut self, from: usize) {
        let mut total = match from {
            0 => 0,
            _ => self.ends[from - 1],
        };
        let pattern = self.entries.first().and_then(Klm::repeats);
        self.ends.truncate(from);
        let numbered = self.entries.iter().enumerate().skip(from);
        self.ends.extend(numbered.map(|(at, klm)| {
            total += match pattern {
                None => u64::from(klm.len),
                Some((_, count)) if (1..=count).contains(&at) => u64::from(klm.len & 0xffff),
                Some(_) => 0,
            };
            total
        }));
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[Klm] {
        &self.entries
    }

    /// Bytes of the host's memory that it takes.
    pub(crate) fn held(&self) -> usize {
        Self::bytes(self.entries.capacity().max(self.ends.capacity()))
    }

    /// Bytes that a list of `count` entries takes.
    pub(crate) const fn bytes(count: usize) -> usize {
        count * (size_of::<Klm>() + size_of::<u64>())
    }

    /// Appends empty entries until there are `len`, with room for `room`.
    pub(crate) fn grow(&mut self, len: usize, room: usize) {
        const EMPTY: Klm = Klm {
            len: 0,
            key: 0,
            addr: 0,
        };
        if let Some(more) = room.checked_sub(self.entries.len()) {
            self.entries.reserve_exact(more);
            self.ends.reserve_exact(more);
        }
        if self.entries.len() < len {
            let total = self.ends.last().copied().unwrap_or(0);
            self.entries.resize(len, EMPTY);
            self.ends.resize(len, total);
        }
    }

    /// Puts `new` at index `at`, which with what precedes it is there or is
    /// filled with empty entries.
    pub(crate) fn replace(&mut self, at: usize, new: &[Klm]) {
        let end = at + new.len();
        self.grow(end, end);
        self.entries[at..end].copy_from_slice(new);
        self.add_up(self.ends.len().min(at));
    }

    /// The entry that holds byte `offset`, and how far into it that byte lies. The time to find it is charged to
    /// `budget`.
    pub(crate) fn find(&self, offset: u64, budget: &mut Budget) -> Option<(Klm, u64)> {
        let pattern = self.entries.first().and_then(Klm::repeats);
        let (turn, offset) = match pattern {
            None => (0, offset),
            Some((count, _)) => {
                let all = self.ends.last().copied().filter(|all| *all != 0)?;
                let turn = offset / all;
                (turn < count).then_some((turn, offset % all))?
            }
        };
        let at = match self.guess(offset) {
            Some(at) => at,
            None => {
                budget.take(i64::from(self.ends.len().max(1).ilog2()) * PROBE_NS);
                self.ends.partition_point(|&end| end <= offset)
            }
        };
        budget.take(STEP_NS);
        let mut klm = *self.entries.get(at)?;
        if pattern.is_some() {
            let stride = u64::from(klm.len >> 16);
            klm.addr = klm.addr.wrapping_add(turn.wrapping_mul(stride));
            klm.len &= 0xffff;
        }
        let start = self.ends[at] - u64::from(klm.len);
        Some((klm, offset - start))
    }

    /// The stretch of another key at byte `offset`, at most `len` bytes of it.
    pub(crate) fn stretch(&self, offset: u64, len: u64) -> Option<Sge> {
        let (klm, into) = self.find(offset, &mut { Budget::NONE })?;
        Some(Sge {
            addr: klm.addr.wrapping_add(into),
            lkey: klm.key,
            len: (u64::from(klm.len) - into).min(len) as u32,
        })
    }

    /// Where byte `offset` is if all stretches are as long as the first, as they are in most lists.
    fn guess(&self, offset: u64) -> Option<usize> {
        let at = usize::try_from(offset.checked_div(*self.ends.first()?)?).ok()?;
        let start = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        (start <= offset && offset < *self.ends.get(at)?).then_some(at)
    }
}
