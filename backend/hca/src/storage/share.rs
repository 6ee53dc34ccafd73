//! Host memory that a function's guest takes by creating objects.

/// Blocks of this many bytes and more go back to the system when they are
/// freed; smaller ones stay in the heap.
const LARGE: usize = 128 << 10;
/// Bytes that the heap takes for itself with each block.
const HEADER: usize = 16;
/// Sizes of smaller blocks, as powers of two.
const CLASSES: usize = LARGE.ilog2() as usize;

/// A function's share of the host's memory, in bytes.
///
/// A freed block makes room for a block of about the same size. A guest that frees many small blocks has not given
/// the pages back that they were in, so blocks count, class by class, as many as there were at most, until the
/// function is reset.
#[derive(Debug)]
pub struct Memory {
    limit: usize,
    /// Classes' peaks and large blocks.
    charged: usize,
    classes: [Class; CLASSES],
}

/// Blocks of about the same size, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    now: usize,
    peak: usize,
}

impl Memory {
    /// Room for `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            charged: 0,
            classes: [Class { now: 0, peak: 0 }; CLASSES],
        }
    }

    /// Bytes that are taken, or were and have not gone back to the system.
    #[must_use]
    pub const fn charged(&self) -> usize {
        self.charged
    }

    /// Bytes that a further block may have at most.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.limit
            .saturating_sub(self.charged)
            .saturating_sub(HEADER)
    }

    /// Takes a block of `bytes`; false where that is too much.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let more = match self.class(bytes) {
            Some(class) => (class.now + bytes + HEADER).saturating_sub(class.peak),
            None => bytes.saturating_add(HEADER),
        };
        let fits = more <= self.limit.saturating_sub(self.charged);
        if fits {
            self.add(bytes);
        }
        fits
    }

    /// Takes several blocks, or none of them.
    #[must_use]
    pub(crate) fn take_all<const N: usize>(&mut self, blocks: [usize; N]) -> bool {
        let taken = blocks.iter().take_while(|&&block| self.take(block)).count();
        if taken < N {
            blocks[..taken].iter().for_each(|&block| self.give(block));
        }
        taken == N
    }

    /// Gives several blocks back.
    pub(crate) fn give_all<const N: usize>(&mut self, blocks: [usize; N]) {
        blocks.into_iter().for_each(|block| self.give(block));
    }

    /// Gives a block of `bytes` back that was taken.
    pub fn give(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        match self.class(bytes) {
            Some(class) => class.now = class.now.saturating_sub(bytes + HEADER),
            None => self.charged = self.charged.saturating_sub(bytes + HEADER),
        }
    }

    /// A block has another size now, which [`Memory::left`] has allowed.
    pub(crate) fn exchange(&mut self, before: usize, after: usize) {
        if before != after {
            self.give(before);
            if after > 0 {
                self.add(after);
            }
        }
    }

    /// Everything has gone back.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    fn add(&mut self, bytes: usize) {
        let bytes = bytes + HEADER;
        let more = match self.class(bytes - HEADER) {
            Some(class) => {
                class.now += bytes;
                let more = class.now.saturating_sub(class.peak);
                class.peak += more;
                more
            }
            None => bytes,
        };
        self.charged += more;
    }

    /// The class of a block, if it is none of the large ones.
    fn class(&mut self, bytes: usize) -> Option<&mut Class> {
        self.classes.get_mut(bytes.max(1).ilog2() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_go_back_and_small_ones_make_room_for_their_like() {
        let mut memory = Memory::new(1 << 20);
        assert!(memory.take(900 << 10));
        assert!(!memory.take(200 << 10), "no room for a second");
        memory.give(900 << 10);
        assert_eq!(memory.charged(), 0);
        let small = (0..).take_while(|_| memory.take(1000)).count();
        assert_eq!(small, (1 << 20) / 1016);
        for _ in 0..small {
            memory.give(1000);
        }
        assert!(!memory.take(2048), "the pages may still be pinned");
        assert_eq!((0..).take_while(|_| memory.take(1000)).count(), small);
        memory.clear();
        assert!(memory.take(900 << 10));
        assert!(!memory.take(usize::MAX), "and nothing overflows");
    }
}
