//! Allocation of object numbers that a peer cannot guess and that are not
//! soon used again.

use std::collections::VecDeque;

use crate::storage::share::Memory;

/// Freed slots that rest before the first of them is used again, as long as the
/// table is not full.
const RESTING: usize = 64;

/// A table of objects with numbers of which the low bits are the slot and the
/// high bits are drawn anew at each allocation.
///
/// A number that was freed does not name its successor, so a stale or guessed
/// number finds nothing: a slot rests while others have been free for longer,
/// and its next number differs in the high bits.
#[derive(Debug)]
pub struct Numbers<T> {
    slots: Vec<Slot<T>>,
    /// Freed slots, in the order they were freed.
    free: VecDeque<u32>,
    len: usize,
    log_size: u8,
    bits: u8,
    first: u32,
    random: u64,
}

#[derive(Debug)]
struct Slot<T> {
    number: u32,
    value: Option<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self::new(8, 24, 0, 0)
    }
}

impl<T> Numbers<T> {
    /// A table of at most `1 << log_size` objects with numbers of `bits` bits,
    /// whose slots below `first` are never given out.
    #[must_use]
    pub fn new(log_size: u8, bits: u8, first: u32, seed: u64) -> Self {
        debug_assert!(log_size <= bits && (1..=32).contains(&bits));
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            len: 0,
            log_size,
            bits,
            first,
            random: seed,
        }
    }

    /// Number of objects.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for one object more in a table that grows by doubling; false where `memory` does
    /// not suffice for that.
    pub fn make_room(&mut self, memory: &mut Memory) -> bool {
        let have = self.slots.capacity();
        if self.slots.len() < have || self.is_full() || self.free.len() > RESTING {
            return true;
        }
        self.grow(have, memory)
    }

    fn grow(&mut self, have: usize, memory: &mut Memory) -> bool {
        const FIRST: usize = 16;
        let wanted = (have * 2).max(FIRST);
        // Each slot may come to stand in the list of free ones, which doubles, too.
        let bytes = |slots: usize| slots * (size_of::<Slot<T>>() + 2 * size_of::<u32>());
        let fits = memory.take(bytes(wanted));
        if fits {
            memory.give(bytes(have));
            self.slots.reserve_exact(wanted - self.slots.len());
        }
        fits
    }

    /// As [`Numbers::make_room`], for an object that has its number already. Entries before it in the table take
    /// room, too.
    pub fn make_room_at(&mut self, number: u32, memory: &mut Memory) -> bool {
        let needed = self.slot(number).saturating_add(1);
        if self.slots.len() >= needed || needed > 1 << self.log_size {
            return true;
        }
        while self.slots.capacity() < needed {
            let have = self.slots.capacity();
            if !self.grow(have, memory) {
                return false;
            }
        }
        true
    }

    /// Stores `value` under this number; false where there is no such number, or its slot is in use.
    /// When all are stored, [`Numbers::close`] the table.
    pub fn insert_at(&mut self, number: u32, value: T) -> bool {
        let low = number & self.low_mask();
        let fits = u64::from(number) < 1 << self.bits && low >= self.first;
        let slot = self.slot(number);
        if !fits
            || self
                .slots
                .get(slot)
                .is_some_and(|slot| slot.value.is_some())
        {
            return false;
        }
        while self.slots.len() <= slot {
            self.slots.push(Slot {
                number: 0,
                value: None,
            });
        }
        self.slots[slot] = Slot {
            number,
            value: Some(value),
        };
        self.len += 1;
        true
    }

    /// Slots that [`Numbers::insert_at`] has left empty may be given out from now on.
    pub fn close(&mut self) {
        let empty = |(at, slot): (usize, &Slot<T>)| slot.value.is_none().then_some(at as u32);
        self.free = self.slots.iter().enumerate().filter_map(empty).collect();
    }

    const fn is_full(&self) -> bool {
        self.slots.len() as u64 + self.first as u64 >= 1 << self.log_size
    }

    /// Stores `value` under a new number; `None` when the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        self.insert_with(|_| value)
    }

    /// As [`Numbers::insert`], for a value that holds its own number.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        self.insert_free(|_| true, make)
    }

    /// As [`Numbers::insert_with`], under a number that is `free` elsewhere, too; `None` also when
    /// no number of the slot is.
    pub fn insert_free(
        &mut self,
        free: impl Fn(u32) -> bool,
        make: impl FnOnce(u32) -> T,
    ) -> Option<u32> {
        let slot = if self.is_full() || self.free.len() > RESTING {
            self.free.pop_front()?
        } else {
            self.slots.push(Slot {
                number: 0,
                value: None,
            });
            (self.slots.len() - 1) as u32
        };
        let low_mask = self.low_mask();
        let mask = (u64::from(u32::MAX) >> (32 - self.bits)) as u32;
        let last = self.slots[slot as usize].number;
        let drawn = self.next_random() as u32;
        let step = low_mask.wrapping_add(1);
        let low = slot + self.first;
        let mut numbers = (0..1_u64 << (self.bits - self.log_size)).map(|further| {
            let high = drawn.wrapping_add(step.wrapping_mul(further as u32)) & mask & !low_mask;
            low | high
        });
        // Where there is but one number for a slot, it has to be that one again.
        let only = self.bits == self.log_size;
        let differs = |number: &u32| only || number & !low_mask != last & !low_mask;
        let Some(number) = numbers.find(|number| differs(number) && free(*number)) else {
            self.free.push_back(slot);
            return None;
        };
        self.slots[slot as usize] = Slot {
            number,
            value: Some(make(number)),
        };
        self.len += 1;
        Some(number)
    }

    #[inline]
    fn slot(&self, number: u32) -> usize {
        (number & self.low_mask()).wrapping_sub(self.first) as usize
    }

    #[inline]
    const fn low_mask(&self) -> u32 {
        ((1_u64 << self.log_size) - 1) as u32
    }

    /// The object with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(self.slot(number))?;
        if slot.number == number {
            slot.value.as_ref()
        } else {
            None
        }
    }

    /// The object with this number, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let at = self.slot(number);
        let slot = self.slots.get_mut(at)?;
        if slot.number == number {
            slot.value.as_mut()
        } else {
            None
        }
    }

    /// Removes the object with this number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let at = self.slot(number);
        let slot = self.slots.get_mut(at)?;
        if slot.number != number {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back(at as u32);
        self.len -= 1;
        Some(value)
    }

    /// Takes all objects out at once; numbers go on being drawn.
    #[must_use]
    pub fn replace(&mut self) -> Self {
        let empty = Self::new(self.log_size, self.bits, self.first, self.random);
        std::mem::replace(self, empty)
    }

    /// Takes the object out of the last slot, if there is one in it; `None` when no slot is left.
    /// Numbers that are freed this way are not given out again.
    pub fn pop(&mut self) -> Option<Option<T>> {
        let value = self.slots.pop()?.value;
        self.len -= usize::from(value.is_some());
        Some(value)
    }

    /// Number of slots, with objects in them or not.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The object in a slot.
    #[must_use]
    pub fn in_slot(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.value.as_ref()
    }

    /// The object in a slot, with its number.
    #[must_use]
    pub fn numbered(&self, slot: usize) -> Option<(u32, &T)> {
        let slot = self.slots.get(slot)?;
        slot.value.as_ref().map(|value| (slot.number, value))
    }

    /// All objects with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots
            .iter()
            .filter_map(|slot| slot.value.as_ref().map(|value| (slot.number, value)))
    }

    /// All objects with their numbers, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.value.as_mut().map(|value| (slot.number, value)))
    }

    // SplitMix64: the sequence is fixed by the seed, which the program draws
    // from the system.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_number_names_nobody() {
        let mut table = Numbers::new(4, 24, 2, 42);
        let a = table.insert("a").unwrap();
        assert_eq!(table.remove(a), Some("a"));
        assert_eq!(table.remove(a), None);
        let b = table.insert("b").unwrap();
        assert_ne!(a, b);
        assert_eq!(table.get(a), None);
        assert_eq!(table.get(b), Some(&"b"));
        assert!(b < 1 << 24 && b & 0xf >= 2);
    }

    #[test]
    fn numbers_are_not_used_again_soon() {
        for log_size in [1, 4, 8, 17] {
            let mut table = Numbers::new(log_size, 24, 1, 7);
            let mut last = 0;
            let mut seen = std::collections::HashSet::new();
            for turn in 0..1000 {
                let number = table.insert(turn).unwrap();
                assert_ne!(number, last, "log_size {log_size}");
                // With a large table nothing comes back while others rest.
                if log_size > 8 && turn < 64 {
                    assert!(seen.insert(number & 0x1_ffff));
                }
                table.remove(number);
                last = number;
            }
        }
    }

    #[test]
    fn what_is_taken_elsewhere_is_not_given() {
        let mut others: Vec<Numbers<()>> = Vec::new();
        // Three high bits, of which a slot does not begin with 0: seven numbers for each slot, and one
        // table for each of them.
        for seed in 0..7 {
            let mut table = Numbers::new(3, 6, 2, seed);
            let free = |number: u32| others.iter().all(|other| other.get(number).is_none());
            for _ in 0..6 {
                assert!(table.insert_free(free, |_| ()).is_some(), "table {seed}");
            }
            others.push(table);
        }
        let mut last = Numbers::new(3, 6, 2, 9);
        let free = |number: u32| others.iter().all(|other| other.get(number).is_none());
        assert_eq!(last.insert_free(free, |_| ()), None, "all are taken");
        assert_eq!(last.len(), 0);
        // Nothing is lost by that.
        assert!((0..6).all(|_| last.insert(()).is_some()));
    }

    #[test]
    fn full_means_full() {
        let mut table = Numbers::new(3, 24, 2, 1);
        let numbers: Vec<_> = (0..6).map(|i| table.insert(i).unwrap()).collect();
        assert_eq!(table.insert(6), None);
        table.remove(numbers[3]);
        assert!(table.insert(7).is_some());
        assert_eq!(table.len(), 6);
    }
}
