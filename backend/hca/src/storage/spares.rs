//! Work requests kept for the next ones.

/// Number of spares that are kept: as many as a steady load needs.
const KEPT: usize = 256;

/// Structures kept for later. They go from here to queue pairs and back, so by pointer and not by the
/// kilobyte.
#[derive(Debug)]
pub(crate) struct Spares<T>(Vec<Box<T>>);

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Spares<T> {
    /// One that was kept, as it was left, or a new one.
    #[inline]
    pub fn take(&mut self, make: impl FnOnce() -> T) -> Box<T> {
        self.0.pop().unwrap_or_else(|| Box::new(make()))
    }

    /// Keeps one.
    #[inline]
    pub fn keep(&mut self, spare: Box<T>) {
        self.0.push(spare);
    }

    /// Whether more are here than are kept.
    #[inline]
    pub const fn overflows(&self) -> bool {
        self.0.len() > KEPT
    }

    /// Takes out those that are too many.
    pub fn surplus(&mut self) -> Vec<Box<T>> {
        self.0.split_off(KEPT.min(self.0.len()))
    }
}
