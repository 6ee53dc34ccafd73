//! Sequences whose copies share what is the same in them.

use std::sync::Arc;

/// A sequence in chunks of `N` elements. A copy shares the chunks, until either of the two changes an
/// element: that costs a copy of one chunk, once.
#[derive(Debug, Clone)]
pub(crate) struct Chunks<T, const N: usize>(Vec<Arc<[T]>>);

impl<T, const N: usize> Default for Chunks<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> FromIterator<T> for Chunks<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter().peekable();
        let mut chunks = Vec::new();
        while all.peek().is_some() {
            chunks.push(all.by_ref().take(N).collect());
        }
        Self(chunks)
    }
}

impl<T, const N: usize> Chunks<T, N> {
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / N)?.get(index % N)
    }

    pub(crate) fn len(&self) -> usize {
        let last = self.0.last().map_or(0, |chunk| chunk.len());
        self.0.len().saturating_sub(1) * N + last
    }
}

#[cfg(test)]
impl<T, const N: usize> Chunks<T, N> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }

    /// By chunk, whether it is the same one.
    pub(crate) fn shared_with(&self, other: &Self) -> impl Iterator<Item = bool> {
        let pairs = self.0.iter().zip(&other.0);
        pairs.map(|(own, others)| Arc::ptr_eq(own, others))
    }
}

impl<T: Clone, const N: usize> Chunks<T, N> {
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Arc::make_mut(self.0.get_mut(index / N)?).get_mut(index % N)
    }
}

impl<T: Clone + Default, const N: usize> Chunks<T, N> {
    /// Sets an element. Where the sequence ends before it, it grows by chunks of defaults, which share
    /// their room.
    pub(crate) fn set(&mut self, index: usize, value: T) {
        let chunks = index / N + 1;
        if self.0.len() < chunks {
            let unset: Arc<[T]> = (0..N).map(|_| T::default()).collect();
            self.0.resize(chunks, unset);
        }
        if let Some(place) = self.get_mut(index) {
            *place = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shares_all_but_what_changed() {
        let original: Chunks<u8, 4> = (0..10).collect();
        let mut copy = original.clone();
        assert_eq!(copy.len(), 10);
        *copy.get_mut(5).unwrap() = 50;
        assert_eq!(copy.get_mut(12), None);
        let shared: Vec<bool> = original.shared_with(&copy).collect();
        assert_eq!(shared, [true, false, true]);
        assert_eq!(
            original.iter().copied().collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        assert_eq!(copy.get(5), Some(&50));
        assert_eq!(copy.get(4), Some(&4));
    }

    #[test]
    fn what_was_never_set_takes_no_room() {
        let mut table: Chunks<u8, 4> = Chunks::default();
        assert_eq!((table.len(), table.get(0)), (0, None));
        table.set(13, 7);
        let values: Vec<_> = table.iter().copied().collect();
        assert_eq!(values, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
        assert!(Arc::ptr_eq(&table.0[0], &table.0[2]));
    }
}
