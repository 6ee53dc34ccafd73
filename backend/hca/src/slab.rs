//! Storage of objects by a small index that the engine alone uses.

/// Objects by index; indices of removed objects are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<Box<T>>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        // Those behind the end have been given back.
        let end = self.entries.len();
        while let Some(index) = self.free.pop() {
            if (index as usize) < end {
                self.entries[index as usize] = Some(Box::new(value));
                return index;
            }
        }
        self.entries.push(Some(Box::new(value)));
        end as u32
    }

    pub fn remove(&mut self, index: u32) -> Option<Box<T>> {
        let value = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        while self.entries.pop_if(|last| last.is_none()).is_some() {}
        if self.entries.is_empty() {
            *self = Self::default();
        } else if self.entries.len() < self.entries.capacity() / 4 {
            let end = self.entries.len() as u32;
            self.free.retain(|&index| index < end);
            self.free.shrink_to_fit();
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
