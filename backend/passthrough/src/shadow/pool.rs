//! Room for queues in the daemon's memory.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::window::{PAGE, RINGS_SIZE, SIZE};

/// All of it, in pages.
const PAGES: usize = RINGS_SIZE / PAGE;

/// Free memory of the pool.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<Mutex<Free>>);

/// Stretches of pages: the first, and how many, in their order, none next to another.
#[derive(Debug)]
struct Free(Vec<(usize, usize)>);

impl Default for Pool {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Free(vec![(0, PAGES)]))))
    }
}

/// Room for the queues of one queue pair, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Ring {
    pool: Pool,
    first: usize,
    pages: usize,
}

impl Pool {
    /// Room for so many bytes, from the start of a page on.
    pub fn take(&self, len: usize) -> Option<Ring> {
        let pages = len.div_ceil(PAGE).max(1);
        let mut free = self.0.lock();
        let at = free.0.iter().position(|(_, count)| *count >= pages)?;
        let (first, count) = &mut free.0[at];
        let taken = *first;
        (*first, *count) = (*first + pages, *count - pages);
        if *count == 0 {
            free.0.remove(at);
        }
        Some(Ring {
            pool: self.clone(),
            first: taken,
            pages,
        })
    }
}

impl Ring {
    /// Where it is in the window.
    pub const fn offset(&self) -> usize {
        SIZE + self.first * PAGE
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let free = &mut self.pool.0.lock().0;
        let at = free.partition_point(|(first, _)| *first < self.first);
        free.insert(at, (self.first, self.pages));
        if at + 1 < free.len() && free[at].0 + free[at].1 == free[at + 1].0 {
            free[at].1 += free.remove(at + 1).1;
        }
        if at > 0 && free[at - 1].0 + free[at - 1].1 == free[at].0 {
            free[at - 1].1 += free.remove(at).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_once_and_comes_back() {
        let pool = Pool::default();
        assert!(pool.take(RINGS_SIZE + 1).is_none());
        let whole = pool.take(RINGS_SIZE).expect("is free");
        assert_eq!(whole.offset(), SIZE);
        assert!(pool.take(1).is_none());
        drop(whole);
        let mut rings: Vec<Ring> = (1..=4)
            .map(|pages| pool.take(pages * PAGE - 1).expect("is free"))
            .collect();
        let offsets: Vec<usize> = rings.iter().map(|it| (it.offset() - SIZE) / PAGE).collect();
        assert_eq!(offsets, [0, 1, 3, 6]);
        // Given back in any order, it is one stretch again.
        for at in [1, 0, 1, 0] {
            drop(rings.remove(at));
        }
        assert_eq!(pool.0.lock().0, [(0, PAGES)]);
    }
}
