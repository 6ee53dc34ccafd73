//! Storage of objects by a small index that the engine alone uses.

/// Indices behind the last object that are given back when an object goes: the others stay until
/// further objects go, so that to remove one never takes long.
const GIVEN_BACK: usize = 64;

/// Objects by index; indices of removed objects are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<Box<T>>>,
    /// Empty entries, a bit each.
    free: Vec<u64>,
    /// No word before this one has a bit set.
    first: usize,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            first: 0,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        while let Some(word) = self.free.get_mut(self.first) {
            if *word != 0 {
                let index = self.first * 64 + word.trailing_zeros() as usize;
                *word &= *word - 1;
                self.entries[index] = Some(Box::new(value));
                return index as u32;
            }
            self.first += 1;
        }
        let index = self.entries.len();
        self.entries.push(Some(Box::new(value)));
        if self.free.len() <= index / 64 {
            self.free.push(0);
        }
        index as u32
    }

    pub fn remove(&mut self, index: u32) -> Option<Box<T>> {
        let value = self.entries.get_mut(index as usize)?.take()?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
            return Some(value);
        }
        let word = index as usize / 64;
        self.free[word] |= 1 << (index % 64);
        self.first = self.first.min(word);
        for _ in 0..GIVEN_BACK {
            if self.entries.pop_if(|last| last.is_none()).is_none() {
                break;
            }
            let end = self.entries.len();
            self.free[end / 64] &= !(1 << (end % 64));
        }
        self.free.truncate(self.entries.len().div_ceil(64));
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        Some(value)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_deref_mut()
    }

    /// Two different objects at once; `None` when either is gone or both are one.
    #[inline]
    pub fn pair_mut(&mut self, a: u32, b: u32) -> Option<(&mut T, &mut T)> {
        let [a, b] = self
            .entries
            .get_disjoint_mut([a as usize, b as usize])
            .ok()?;
        Some((a.as_deref_mut()?, b.as_deref_mut()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map_whose_keys_are_used_again() {
        let (mut slab, mut map) = (Slab::default(), BTreeMap::new());
        // Grows to a thousand or so, loses nearly all, and again.
        let (mut random, mut most) = (7_u64, 0);
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (chance, some) = (random >> 62, (random >> 20) as usize);
            let grows = step / 2000 % 2 == 0;
            if map.is_empty() || chance == 0 || grows && chance != 3 {
                let index = slab.insert(step);
                assert_eq!(map.insert(index, step), None, "step {step}");
                most = most.max(map.len());
                assert!(
                    (index as usize) < most,
                    "step {step}: a free one is used first"
                );
            } else {
                let at = some % map.len();
                let index = *map.keys().nth(at).expect("is within");
                assert_eq!(slab.remove(index).map(|value| *value), map.remove(&index));
                assert_eq!(slab.remove(index), None, "step {step}");
            }
            let index = some as u32 % 2048;
            assert_eq!(slab.get(index), map.get(&index), "step {step}");
        }
        while let Some((index, value)) = map.pop_last() {
            assert_eq!(slab.remove(index).as_deref(), Some(&value));
        }
        assert_eq!((slab.entries.capacity(), slab.len), (0, 0));
        assert_eq!(slab.insert(1), 0);
    }
}
