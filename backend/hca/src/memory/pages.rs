//! Lists of pages, in little room: a list of a region or a queue is as long as
//! its owner likes, and is the host's to keep.

use std::ops::Range;

use thiserror::Error;

use crate::memory::page_image::{BlockImageV1, PagesImageV1};

/// Bits of an address that lie within the smallest page.
const LOG_SMALLEST: u8 = 12;

/// Pages of a block, as a power of two: a list of more of them is kept in blocks, so that nothing that
/// happens to it takes longer than a block takes.
const LOG_BLOCK: u32 = 15;
const BLOCK: usize = 1 << LOG_BLOCK;

/// Most pages of a list: 1 TiB at 4 KiB.
pub(crate) const MAX_PAGES: u64 = 1 << 28;

/// An image has what is no list of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("invalid page list: more than {MAX_PAGES} pages, or blocks that do not fit")]
pub struct NoPageList;

/// In an entry of a list, beside the address: the page may not be written.
pub const NO_WRITE: u64 = 1;
/// The same: the page may not be read.
pub const NO_READ: u64 = 2;
/// An entry of a page that is not there.
pub const ABSENT: u64 = NO_WRITE | NO_READ;

/// DMA addresses of pages, at 4 KiB or more each, and in the low bits of an entry what may not be done with
/// the page ([`NO_READ`], [`NO_WRITE`]). Pages that lie side by side and are there
/// take no room at all, others four bytes each below 2^42 and eight beyond, and
/// those that were skipped, and are not there, take room with their neighbours only.
#[derive(Debug, Clone)]
pub struct PageList(List);

#[derive(Debug, Clone)]
enum List {
    /// Pages of any number that lie side by side, or of a block's at most.
    Short(Pages),
    /// The first of them, by blocks. A block that is not there, or ends early,
    /// is of pages that are not there.
    Long {
        blocks: Vec<Option<Box<Pages>>>,
        count: usize,
        /// Bytes that the blocks have.
        held: usize,
    },
}

#[derive(Debug, Clone)]
enum Pages {
    /// Page `n` is at `first + (n << log_stride)`.
    Run {
        first: u64,
        log_stride: u8,
        count: usize,
    },
    /// Numbers of 4 KiB pages, and in the low bits of each what may not be done with it.
    Narrow(Vec<u32>),
    /// Addresses, with the same bits.
    Wide(Vec<u64>),
}

impl Default for PageList {
    fn default() -> Self {
        Self(List::Short(Pages::NONE))
    }
}

impl PartialEq for PageList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PageList {}

/// The address of a page, whatever its low bits say besides.
const fn page(address: u64) -> u64 {
    address >> LOG_SMALLEST << LOG_SMALLEST
}

/// An entry, without bits that mean nothing. A page that is not there has no address.
const fn entry(said: u64) -> u64 {
    match said & ABSENT {
        ABSENT => ABSENT,
        missing => page(said) | missing,
    }
}

/// The block of a page, and its index there.
const fn place(index: usize) -> (usize, usize) {
    (index >> LOG_BLOCK, index % BLOCK)
}

/// Divides `count` pages, for index `at` on, by block: the block, the index there, and the range of pages.
fn by_block(at: usize, count: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (block, within) = place(at + done);
        let part = done..count.min(done + BLOCK - within);
        done = part.end;
        (!part.is_empty()).then_some((block, within, part))
    })
}

impl PageList {
    /// The list of these addresses of pages of `1 << log_size` bytes (4 KiB at
    /// least); low bits of an address do not count.
    #[must_use]
    pub fn new<I>(log_size: u8, addresses: I) -> Self
    where
        I: IntoIterator<Item = u64>,
        I::IntoIter: ExactSizeIterator + Clone,
    {
        Self::with_entries(log_size, addresses.into_iter().map(page))
    }

    /// The list of these entries: addresses, and in the two lowest bits what may not be done with the
    /// pages.
    #[must_use]
    pub fn with_entries<I>(log_size: u8, entries: I) -> Self
    where
        I: IntoIterator<Item = u64>,
        I::IntoIter: ExactSizeIterator + Clone,
    {
        let addresses = entries.into_iter().map(entry);
        let count = addresses.len();
        if let Some(run) = Pages::run(log_size, addresses.clone()) {
            return Self(List::Short(run));
        }
        if count <= BLOCK {
            return Self(List::Short(Pages::list(addresses)));
        }
        let mut rest = addresses;
        let block = |_| {
            let addresses: Vec<u64> = rest.by_ref().take(BLOCK).collect();
            let addresses = addresses.into_iter();
            let run = Pages::run(log_size, addresses.clone());
            Some(Box::new(run.unwrap_or_else(|| Pages::list(addresses))))
        };
        let blocks: Vec<_> = (0..count.div_ceil(BLOCK)).map(block).collect();
        let held = blocks.iter().flatten().map(|block| block.held()).sum();
        Self(List::Long {
            blocks,
            count,
            held,
        })
    }

    /// Its image.
    #[must_use]
    pub fn save(&self) -> PagesImageV1 {
        match &self.0 {
            List::Short(pages) => PagesImageV1::Short(pages.save()),
            List::Long { count, .. } => PagesImageV1::Long {
                count: *count as u64,
                blocks: Vec::new(),
            },
        }
    }

    /// A block of a list of several, for an image, and how many pages it has.
    pub fn save_block(&self, at: usize) -> Option<(Option<BlockImageV1>, usize)> {
        let List::Long { blocks, .. } = &self.0 else {
            return None;
        };
        let block = blocks.get(at)?.as_deref();
        Some((block.map(Pages::save), block.map_or(0, Pages::len)))
    }

    /// The same pages, each of which may be read and written.
    #[must_use]
    pub fn present(self, log_size: u8) -> Self {
        let misses = |entry: u64| entry & ABSENT != 0;
        // The addresses of a run of pages differ above the bits of an entry, and a run may have millions.
        if let List::Short(Pages::Run {
            first, log_stride, ..
        }) = self.0
            && log_stride >= LOG_SMALLEST
            && !misses(first)
        {
            return self;
        }
        if self.iter().any(misses) {
            let addresses: Vec<u64> = self.iter().collect();
            return Self::new(log_size, addresses);
        }
        self
    }

    /// The list that an image has.
    ///
    /// # Errors
    /// [`NoPageList`].
    pub fn restore(image: PagesImageV1) -> Result<Self, NoPageList> {
        Ok(Self(match image {
            PagesImageV1::Short(block) => List::Short(Pages::restore(block)?),
            PagesImageV1::Long { count, blocks } => {
                let most = count.div_ceil(BLOCK as u64);
                if count > MAX_PAGES || blocks.len() as u64 > most {
                    return Err(NoPageList);
                }
                let mut left = count;
                let mut restored = Vec::with_capacity(blocks.len());
                let mut held = 0;
                for block in blocks {
                    let pages = block.map(Pages::restore).transpose()?.map(Box::new);
                    let len = pages.as_ref().map_or(0, |pages| pages.len());
                    if len > BLOCK || len as u64 > left {
                        return Err(NoPageList);
                    }
                    left = left.saturating_sub(BLOCK as u64);
                    held += pages.as_ref().map_or(0, |pages| pages.held());
                    restored.push(pages);
                }
                List::Long {
                    blocks: restored,
                    count: count as usize,
                    held,
                }
            }
        }))
    }

    /// Number of pages.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.0 {
            List::Short(pages) => pages.len(),
            List::Long { count, .. } => *count,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the host's memory that it takes beside itself.
    #[must_use]
    pub const fn held(&self) -> usize {
        match &self.0 {
            List::Short(pages) => pages.held(),
            List::Long { blocks, held, .. } => *held + blocks.capacity() * BLOCK_ENTRY,
        }
    }

    /// The entry of page `index`: its address, and what may not be done with it.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        match &self.0 {
            List::Short(pages) => pages.get(index),
            List::Long { blocks, count, .. } => {
                let (block, within) = place(index);
                let pages = blocks.get(block).and_then(Option::as_deref);
                let address = pages.and_then(|pages| pages.get(within));
                (index < *count).then(|| address.unwrap_or(ABSENT))
            }
        }
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Number of the `most` pages behind page `index`, of `1 << log_size` bytes, that continue it, one behind the
    /// other; no further than to the end of a block.
    #[inline]
    pub(crate) fn side_by_side(&self, index: usize, most: usize, log_size: u8) -> u64 {
        match &self.0 {
            List::Short(pages) => pages.side_by_side(index, most, log_size),
            List::Long { blocks, .. } => {
                let (block, within) = place(index);
                match blocks.get(block).and_then(Option::as_deref) {
                    Some(pages) if within < pages.len() => {
                        pages.side_by_side(within, most, log_size)
                    }
                    _ => 0,
                }
            }
        }
    }

    /// Bytes that it takes at most with pages at index `at` that are not there, so many of them.
    pub(crate) fn held_without(&self, at: usize, count: usize) -> usize {
        match &self.0 {
            List::Long { blocks, held, .. } => {
                let len = self.len().max(at.saturating_add(count));
                let room = Self::directory(blocks.capacity(), len).saturating_mul(BLOCK_ENTRY);
                by_block(at, count)
                    .filter_map(|(block, within, part)| {
                        let pages = blocks.get(block)?.as_deref()?;
                        Some(pages.held_with(within, part.len(), true) - pages.held())
                    })
                    .fold(room.saturating_add(*held), usize::saturating_add)
            }
            List::Short(pages) if pages.len() == 0 && at.saturating_add(count) > BLOCK => {
                Self::directory(0, at.saturating_add(count)).saturating_mul(BLOCK_ENTRY)
            }
            List::Short(_) => self.held_with(at, count, true),
        }
    }

    /// Bytes that it takes at most with `count` pages at index `at`, all of them below 2^42 if `narrow`.
    pub(crate) fn held_with(&self, at: usize, count: usize, narrow: bool) -> usize {
        let len = self.len().max(at.saturating_add(count));
        let (room, had, more): (_, _, &dyn Fn(usize, usize, usize) -> usize) = match &self.0 {
            List::Short(pages) if len <= BLOCK => return pages.held_with(at, count, narrow),
            // Of a run each block is made anew that changes.
            List::Short(pages) => (0, pages.held(), &|_, within, count| {
                8 * BLOCK.min(pages.len()).max(within + count)
            }),
            List::Long { blocks, held, .. } => {
                (blocks.capacity(), *held, &|block, within, count| {
                    let pages: Option<&Pages> = blocks.get(block).and_then(Option::as_deref);
                    let pages = pages.unwrap_or(&Pages::NONE);
                    pages.held_with(within, count, narrow) - pages.held()
                })
            }
        };
        let room = Self::directory(room, len).saturating_mul(BLOCK_ENTRY);
        by_block(at, count)
            .map(|(block, within, part)| more(block, within, part.len()))
            .fold(room.saturating_add(had), usize::saturating_add)
    }

    /// Blocks that there is room for when a list that has room for `had` of them gets so many pages.
    fn directory(had: usize, count: usize) -> usize {
        let needed = count.div_ceil(BLOCK);
        if needed <= had {
            had
        } else {
            needed.max(2 * had)
        }
    }

    /// Puts the entries `new` at index `at`; pages that are not there fill what is between the end and there.
    pub(crate) fn replace(&mut self, at: usize, new: &[u64]) {
        let end = at + new.len();
        if let List::Short(pages) = &mut self.0 {
            if end.max(pages.len()) <= BLOCK {
                return pages.replace(at, new);
            }
            let pages = std::mem::replace(pages, Pages::NONE);
            self.0 = pages.in_blocks();
        }
        let List::Long {
            blocks,
            count,
            held,
        } = &mut self.0
        else {
            return;
        };
        *count = end.max(*count);
        let needed = count.div_ceil(BLOCK);
        if needed > blocks.capacity() {
            // Zeros that the system has at hand: who names a page far away is not waited for.
            let mut wider = vec![None; Self::directory(blocks.capacity(), *count)];
            for (wider, block) in wider.iter_mut().zip(blocks.iter_mut()) {
                *wider = block.take();
            }
            *blocks = wider;
        } else if needed > blocks.len() {
            blocks.resize(needed, None);
        }
        for (block, within, part) in by_block(at, new.len()) {
            // Pages that are away take no room, as long as no page of the block is there.
            let whole = part.len() == BLOCK || blocks[block].is_none();
            if whole && new[part.clone()].iter().all(|new| new & ABSENT == ABSENT) {
                *held -= blocks[block].take().map_or(0, |pages| pages.held());
                continue;
            }
            let pages = blocks[block].get_or_insert_with(|| Box::new(Pages::NONE));
            *held -= pages.held();
            pages.replace(within, &new[part]);
            *held += pages.held();
        }
    }
}

/// Bytes that a block takes beside what it holds.
const BLOCK_ENTRY: usize = size_of::<Option<Box<Pages>>>() + size_of::<Pages>();

impl Pages {
    const NONE: Self = Self::Run {
        first: 0,
        log_stride: LOG_SMALLEST,
        count: 0,
    };

    /// Returns addresses that lie side by side, as pages of `1 << log_size` bytes.
    fn run(log_size: u8, addresses: impl ExactSizeIterator<Item = u64> + Clone) -> Option<Self> {
        let count = addresses.len();
        let first = addresses.clone().next().unwrap_or(0);
        let log_stride = log_size.clamp(LOG_SMALLEST, 63);
        let expected = |at: usize| first.wrapping_add((at as u64) << log_stride);
        let mut numbered = addresses.enumerate();
        let run = numbered.all(|(at, page)| page == expected(at));
        run.then_some(Self::Run {
            first,
            log_stride,
            count,
        })
    }

    /// Returns addresses that do not lie side by side.
    fn list(addresses: impl Iterator<Item = u64> + Clone) -> Self {
        if addresses.clone().all(is_narrow) {
            Self::Narrow(addresses.map(number).collect())
        } else {
            Self::Wide(addresses.collect())
        }
    }

    /// The same, in blocks.
    fn in_blocks(self) -> List {
        let count = self.len();
        let blocks = match self {
            pages if pages.len() == 0 => Vec::new(),
            Self::Run {
                first,
                log_stride,
                count,
            } if count > BLOCK => (0..count.div_ceil(BLOCK))
                .map(|block| {
                    let before = block * BLOCK;
                    Some(Box::new(Self::Run {
                        first: first.wrapping_add((before as u64) << log_stride),
                        log_stride,
                        count: BLOCK.min(count - before),
                    }))
                })
                .collect(),
            pages => vec![Some(Box::new(pages))],
        };
        let held = blocks.iter().flatten().map(|block| block.held()).sum();
        List::Long {
            blocks,
            count,
            held,
        }
    }

    fn save(&self) -> BlockImageV1 {
        match *self {
            Self::Run {
                first,
                log_stride,
                count,
            } => BlockImageV1::Run {
                first,
                log_stride,
                count: count as u64,
            },
            Self::Narrow(_) | Self::Wide(_) => BlockImageV1::List(self.iter().collect()),
        }
    }

    fn restore(image: BlockImageV1) -> Result<Self, NoPageList> {
        match image {
            BlockImageV1::Run {
                first,
                log_stride,
                count,
            } => {
                let is_run = (LOG_SMALLEST..=63).contains(&log_stride) && page(first) == first;
                (is_run && count <= MAX_PAGES)
                    .then_some(Self::Run {
                        first,
                        log_stride,
                        count: count as usize,
                    })
                    .ok_or(NoPageList)
            }
            BlockImageV1::List(addresses) if addresses.len() <= BLOCK => {
                Ok(Self::list(addresses.into_iter().map(entry)))
            }
            BlockImageV1::List(_) => Err(NoPageList),
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::Run { count, .. } => *count,
            Self::Narrow(numbers) => numbers.len(),
            Self::Wide(addresses) => addresses.len(),
        }
    }

    const fn held(&self) -> usize {
        match self {
            Self::Run { .. } => 0,
            Self::Narrow(numbers) => numbers.capacity() * 4,
            Self::Wide(addresses) => addresses.capacity() * 8,
        }
    }

    #[inline]
    fn get(&self, index: usize) -> Option<u64> {
        match self {
            Self::Run {
                first,
                log_stride,
                count,
            } => (index < *count).then(|| first.wrapping_add((index as u64) << log_stride)),
            Self::Narrow(numbers) => numbers.get(index).map(|&number| address(number)),
            Self::Wide(addresses) => addresses.get(index).copied(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    #[inline]
    fn side_by_side(&self, index: usize, most: usize, log_size: u8) -> u64 {
        match self {
            Self::Run {
                log_stride, count, ..
            } if *log_stride == log_size => (count - index - 1).min(most) as u64,
            Self::Run { .. } => {
                let later = |at: usize| self.get(index + 1 + at).unwrap_or(ABSENT);
                let base = self.get(index).unwrap_or(0);
                let most = most.min(self.len() - index - 1);
                let mask = (1_u64 << log_size) - 1;
                let next = |at: usize| (base & !mask).wrapping_add((at as u64 + 1) << log_size);
                (0..most)
                    .take_while(|&at| later(at) & !mask == next(at))
                    .count() as u64
            }
            Self::Narrow(numbers) => continued(&numbers[index..], most, log_size, address),
            Self::Wide(addresses) => continued(&addresses[index..], most, log_size, |page| page),
        }
    }

    /// Bytes that they take at most with `count` pages at index `at`, all of them below 2^42 if `narrow`.
    fn held_with(&self, at: usize, count: usize, narrow: bool) -> usize {
        let narrow = narrow && self.is_narrow();
        let len = self.len().max(at.saturating_add(count));
        len.saturating_mul(if narrow { 4 } else { 8 })
            .max(self.held())
    }

    /// Puts the entries `new` at index `at`, which with what precedes it are there or are filled with pages
    /// that are not.
    fn replace(&mut self, at: usize, new: &[u64]) {
        let end = at + new.len();
        let narrow = self.is_narrow() && new.iter().copied().all(is_narrow);
        match self {
            Self::Narrow(numbers) if narrow => {
                let new = new.iter().map(|&said| number(entry(said)));
                lay(numbers, at, end, ABSENT as u32, new);
            }
            Self::Wide(addresses) => {
                let new = new.iter().copied().map(entry);
                lay(addresses, at, end, ABSENT, new);
            }
            _ => {
                let count = self.len().max(end);
                let old = self.iter();
                *self = if narrow {
                    let mut numbers = Vec::with_capacity(count);
                    numbers.extend(old.map(number));
                    Self::Narrow(numbers)
                } else {
                    let mut addresses = Vec::with_capacity(count);
                    addresses.extend(old);
                    Self::Wide(addresses)
                };
                self.replace(at, new);
            }
        }
    }

    /// Whether all addresses are below 2^42.
    fn is_narrow(&self) -> bool {
        match self {
            Self::Run { .. } => self.iter().all(is_narrow),
            Self::Narrow(_) => true,
            Self::Wide(_) => false,
        }
    }
}

/// Whether a page takes four bytes.
pub(crate) const fn is_narrow(entry: u64) -> bool {
    entry >> (LOG_SMALLEST + 30) == 0
}

/// An entry in four bytes.
const fn number(entry: u64) -> u32 {
    ((entry >> LOG_SMALLEST << 2) | entry & ABSENT) as u32
}

/// The entry that four bytes stand for.
const fn address(number: u32) -> u64 {
    (number as u64 >> 2 << LOG_SMALLEST) | number as u64 & ABSENT
}

/// Puts the entries from index `at` to `end`, and `absent` before them where the list ends early.
fn lay<T: Copy>(list: &mut Vec<T>, at: usize, end: usize, absent: T, new: impl Iterator<Item = T>) {
    if let Some(more) = end.checked_sub(list.len()) {
        list.reserve_exact(more);
        list.resize(end, absent);
    }
    for (entry, new) in list[at..end].iter_mut().zip(new) {
        *entry = new;
    }
}

/// Number of the pages behind the first that continue it with the same rights.
#[inline]
fn continued<T: Copy>(pages: &[T], most: usize, log_size: u8, address: impl Fn(T) -> u64) -> u64 {
    /// Pages compared without a branch between them.
    const GROUP: usize = 16;
    let Some((&first, pages)) = pages.split_first() else {
        return 0;
    };
    let pages = &pages[..most.min(pages.len())];
    let size = 1_u64 << log_size;
    let mask = (size - 1) & !ABSENT;
    let mut expected = (address(first) & !mask).wrapping_add(size);
    let mut found = 0;
    for group in pages.chunks(GROUP) {
        let strays = |(at, &page): (usize, &T)| {
            (address(page) & !mask) ^ expected.wrapping_add(size.wrapping_mul(at as u64))
        };
        let each = || group.iter().enumerate();
        if each().fold(0, |all, page| all | strays(page)) != 0 {
            return found + each().take_while(|&page| strays(page) == 0).count() as u64;
        }
        found += group.len() as u64;
        expected = expected.wrapping_add(size.wrapping_mul(GROUP as u64));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEYOND: u64 = 1 << 44;

    fn list(log_size: u8, pages: &[u64]) -> PageList {
        PageList::new(log_size, pages.iter().copied())
    }

    #[test]
    fn room_that_lists_take() {
        let run: Vec<u64> = (0..100).map(|page| BEYOND + (page << 16)).collect();
        assert_eq!(list(16, &run).held(), 0);
        assert_eq!(list(12, &run).held(), 800, "of other pages it is no run");
        assert_eq!(list(12, &[0x5000, 0x3000, 0x4000]).held(), 12);
        assert_eq!(list(12, &[0x5000, 0x3000, BEYOND]).held(), 24);
        assert_eq!(list(12, &[]).held(), 0);
    }

    #[test]
    fn a_list_is_what_it_was_made_of() {
        for pages in [
            &[][..],
            &[0x7fff],
            &[0x1000, 0x2fff, 0x3000],
            &[0x5000, 0x3000, BEYOND - 1],
            &[0x5000, 0x3000, u64::MAX],
        ] {
            let list = list(12, pages);
            let masked: Vec<u64> = pages.iter().map(|&address| page(address)).collect();
            assert_eq!(list.iter().collect::<Vec<_>>(), masked);
            assert_eq!((list.get(pages.len()), list.len()), (None, pages.len()));
        }
    }

    /// Every list and change beside the same done to an ordinary vector.
    #[test]
    fn changes_are_those_of_a_vector() {
        let starts: [&[u64]; 4] = [
            &[],
            &[0x1000, 0x2000, 0x3000],
            &[0x9000, 0x2000],
            &[BEYOND, 0x2000],
        ];
        let changes: [&[u64]; 3] = [&[0x4000], &[0x7000, 0x8000, 0x1000], &[BEYOND, 0x1000]];
        for start in starts {
            for new in changes {
                for at in [0, 1, 5] {
                    let (mut pages, mut plain) = (list(12, start), start.to_vec());
                    plain.resize(plain.len().max(at + new.len()), ABSENT);
                    plain[at..at + new.len()].copy_from_slice(new);
                    let narrow = new.iter().copied().all(is_narrow);
                    let most = pages.held_with(at, new.len(), narrow);
                    pages.replace(at, new);
                    assert_eq!(pages.iter().collect::<Vec<_>>(), plain);
                    assert!(pages.held() <= most, "{start:x?} {new:x?} {at}");
                }
            }
        }
    }

    /// The same where blocks begin and end, and where some are not there.
    #[test]
    fn long_lists_change_as_a_vector_does() {
        let scattered = |count: usize| (0..count as u64).map(|page| (page ^ 1) << 13);
        let run = |count: usize| (0..count as u64).map(|page| page << 12);
        let starts: [Vec<u64>; 4] = [
            scattered(3).collect(),
            run(2 * BLOCK + 9).collect(),
            scattered(BLOCK + 1).chain(run(BLOCK)).collect(),
            scattered(BLOCK).collect(),
        ];
        let places = [0, BLOCK - 2, BLOCK, 2 * BLOCK + 9, 5 * BLOCK - 1];
        for start in &starts {
            for new in [&[0x7000, 0x3000, 0x1000, 0][..], &[BEYOND, 0x1000, 0x2000]] {
                let (mut pages, mut plain) = (list(12, start), start.clone());
                for at in places {
                    plain.resize(plain.len().max(at + new.len()), ABSENT);
                    plain[at..at + new.len()].copy_from_slice(new);
                    let narrow = new.iter().copied().all(is_narrow);
                    let most = pages.held_with(at, new.len(), narrow);
                    pages.replace(at, new);
                    assert!(
                        pages.iter().eq(plain.iter().copied()),
                        "{} {at}",
                        start.len()
                    );
                    assert!(pages.held() <= most, "{} {at}", start.len());
                }
                for at in places.into_iter().chain([3 * BLOCK]) {
                    let expected = (1..4)
                        .take_while(|next| plain[at] + (next << 12) == plain[at + *next as usize])
                        .count() as u64;
                    let found = pages.side_by_side(at, 3, 12);
                    let left = (BLOCK - 1 - at % BLOCK) as u64;
                    assert_eq!(found, expected.min(left), "{} {at}", start.len());
                }
            }
        }
    }

    #[test]
    fn a_page_far_away_takes_no_room_for_what_lies_between() {
        let mut pages = list(12, &[0x5000, 0x3000]);
        pages.replace(29_000_000, &[0x7000]);
        assert_eq!(
            (pages.get(28_999_999), pages.get(29_000_000)),
            (Some(ABSENT), Some(0x7000))
        );
        assert!(pages.held() < 256 << 10, "{}", pages.held());
    }

    #[test]
    fn a_run_in_pages_of_another_size() {
        let pages = list(12, &[0, 0x1000, 0x2000, 0x3000]);
        assert_eq!(pages.side_by_side(0, 8, 12), 3);
        assert_eq!(pages.side_by_side(1, 1, 12), 1);
        // As pages of 8 KiB the first two are one and the same.
        assert_eq!(pages.side_by_side(0, 8, 13), 0);
        assert_eq!(pages.side_by_side(1, 8, 13), 1);
    }
}
