//! Indirect keys of stretches that are all of one size, as those of all of a program's memory are: most
//! of the stretches are away.

/// The key of stretches that are not there.
pub const NULL_KEY: u32 = 0xff;

/// Most stretches of such a key: 2^56 bytes in stretches of 1 GiB.
pub const MAX_STRETCHES: usize = 1 << 26;

/// Stretches of a block: where none of them is there, the block takes no room.
const BLOCK: usize = 512;

/// A stretch: the other key, and the address of its first byte there.
pub type Stretch = (u32, u64);

/// A stretch that is not there.
const ABSENT: Stretch = (NULL_KEY, 0);

type Block = Option<Box<[Stretch; BLOCK]>>;

/// The stretches by number.
#[derive(Debug, Clone, Default)]
pub struct Stretches {
    blocks: Vec<Block>,
    /// Blocks that are there.
    filled: usize,
}

impl PartialEq for Stretches {
    fn eq(&self, other: &Self) -> bool {
        self.present().eq(other.present())
    }
}

impl Eq for Stretches {}

impl Stretches {
    /// The stretch with this number; past the end, none is there.
    #[must_use]
    pub fn get(&self, at: usize) -> Stretch {
        let block = self.blocks.get(at / BLOCK).and_then(Option::as_deref);
        block.map_or(ABSENT, |block| block[at % BLOCK])
    }

    /// Returns the stretches that are there, with their numbers.
    pub fn present(&self) -> impl Iterator<Item = (usize, Stretch)> {
        let blocks = self.blocks.iter().enumerate();
        let filled = blocks.filter_map(|(at, block)| Some((at, block.as_deref()?)));
        let all = filled.flat_map(|(at, block)| {
            let numbered = block.iter().enumerate();
            numbered.map(move |(within, stretch)| (at * BLOCK + within, *stretch))
        });
        all.filter(|(_, (key, _))| *key != NULL_KEY)
    }

    /// Puts `new` at number `at`.
    pub fn replace(&mut self, at: usize, new: impl Iterator<Item = Stretch>) {
        for (at, stretch) in (at..MAX_STRETCHES).zip(new) {
            let (block, within) = (at / BLOCK, at % BLOCK);
            let absent = stretch.0 == NULL_KEY;
            if absent && self.blocks.get(block).is_none_or(Option::is_none) {
                continue;
            }
            if block >= self.blocks.len() {
                self.blocks.reserve_exact(block + 1 - self.blocks.len());
                self.blocks.resize(block + 1, None);
            }
            let filled = &mut self.filled;
            let block = self.blocks[block].get_or_insert_with(|| {
                *filled += 1;
                Box::new([ABSENT; BLOCK])
            });
            block[within] = stretch;
        }
    }

    /// Bytes of the host's memory that they take.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.filled * size_of::<[Stretch; BLOCK]>()
    }

    /// Bytes that they take at most with these at number `at`.
    pub(crate) fn held_with(&self, at: usize, new: &[Stretch]) -> usize {
        let first = at / BLOCK;
        let mut held = self.held();
        for (block, part) in (first..).zip(new.chunks(BLOCK)) {
            if part.iter().any(|(key, _)| *key != NULL_KEY) {
                // A part may lie across two blocks.
                let room = (block + 2).saturating_sub(self.blocks.capacity());
                held += room * size_of::<Block>() + 2 * size_of::<[Stretch; BLOCK]>();
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_where_they_were_put_and_the_rest_takes_no_room() {
        let mut list = Stretches::default();
        list.replace(0, (0..100_000).map(|_| ABSENT));
        assert_eq!((list.held(), list.get(5)), (0, ABSENT));
        let new = [(0x1200, 7), ABSENT, (0x1300, 9)];
        assert!(list.held_with(1023, &new) > 0);
        let most = list.held_with(1023, &new);
        list.replace(1023, new.into_iter());
        assert!(list.held() <= most, "{} {most}", list.held());
        assert_eq!(list.get(1023), (0x1200, 7));
        assert_eq!(list.get(1024), ABSENT);
        let present: Vec<_> = list.present().collect();
        assert_eq!(present, [(1023, (0x1200, 7)), (1025, (0x1300, 9))]);
        assert_eq!(list.get(usize::MAX), ABSENT);
    }
}
