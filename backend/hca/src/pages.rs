//! Lists of pages, in little room: a list of a region or a queue is as long as
//! its owner likes, and is the host's to keep.

/// Bits of an address that lie within the smallest page.
const LOG_SMALLEST: u8 = 12;

/// DMA addresses of pages, at 4 KiB or more each. Pages that lie side by side
/// take no room at all, others four bytes each below 2^44 and eight beyond.
#[derive(Debug, Clone)]
pub struct PageList(Pages);

#[derive(Debug, Clone)]
enum Pages {
    /// Page `n` is at `first + (n << log_stride)`.
    Run {
        first: u64,
        log_stride: u8,
        count: usize,
    },
    /// Numbers of 4 KiB pages.
    Narrow(Vec<u32>),
    /// Addresses.
    Wide(Vec<u64>),
}

impl Default for PageList {
    fn default() -> Self {
        Self(Pages::Run {
            first: 0,
            log_stride: LOG_SMALLEST,
            count: 0,
        })
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

impl PageList {
    /// The list of these addresses of pages of `1 << log_size` bytes (4 KiB at
    /// least); low bits of an address do not count.
    #[must_use]
    pub fn new<I>(log_size: u8, addresses: I) -> Self
    where
        I: IntoIterator<Item = u64>,
        I::IntoIter: ExactSizeIterator + Clone,
    {
        let addresses = addresses.into_iter().map(page);
        let count = addresses.len();
        let first = addresses.clone().next().unwrap_or(0);
        let log_stride = log_size.clamp(LOG_SMALLEST, 63);
        let expected = |at: usize| first.wrapping_add((at as u64) << log_stride);
        let mut numbered = addresses.clone().enumerate();
        if numbered.all(|(at, page)| page == expected(at)) {
            return Self(Pages::Run {
                first,
                log_stride,
                count,
            });
        }
        Self(match addresses.clone().all(is_narrow) {
            true => Pages::Narrow(
                addresses
                    .map(|page| (page >> LOG_SMALLEST) as u32)
                    .collect(),
            ),
            false => Pages::Wide(addresses.collect()),
        })
    }

    /// Number of pages.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.0 {
            Pages::Run { count, .. } => *count,
            Pages::Narrow(numbers) => numbers.len(),
            Pages::Wide(addresses) => addresses.len(),
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
            Pages::Run { .. } => 0,
            Pages::Narrow(numbers) => numbers.capacity() * 4,
            Pages::Wide(addresses) => addresses.capacity() * 8,
        }
    }

    /// The address of page `index`.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        match &self.0 {
            Pages::Run {
                first,
                log_stride,
                count,
            } => (index < *count).then(|| first.wrapping_add((index as u64) << log_stride)),
            Pages::Narrow(numbers) => numbers.get(index).map(|&number| address(number)),
            Pages::Wide(addresses) => addresses.get(index).copied(),
        }
    }

    /// All addresses.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// How many of the `most` pages behind page `index`, of `1 << log_size`
    /// bytes, continue it, one behind the other.
    #[inline]
    pub(crate) fn side_by_side(&self, index: usize, most: usize, log_size: u8) -> u64 {
        match &self.0 {
            Pages::Run {
                log_stride, count, ..
            } if *log_stride == log_size => (count - index - 1).min(most) as u64,
            Pages::Run { .. } => {
                let later = |at: usize| self.get(index + 1 + at).unwrap_or(0);
                let base = self.get(index).unwrap_or(0);
                let most = most.min(self.len() - index - 1);
                let mask = (1_u64 << log_size) - 1;
                let next = |at: usize| (base & !mask).wrapping_add((at as u64 + 1) << log_size);
                (0..most)
                    .take_while(|&at| later(at) & !mask == next(at))
                    .count() as u64
            }
            Pages::Narrow(numbers) => continued(&numbers[index..], most, log_size, address),
            Pages::Wide(addresses) => continued(&addresses[index..], most, log_size, |page| page),
        }
    }

    /// Bytes that it takes at most with `new` at index `at`.
    pub(crate) fn held_with(&self, at: usize, new: &[u64]) -> usize {
        let narrow = !matches!(self.0, Pages::Wide(_)) && new.iter().copied().all(is_narrow);
        let narrow = narrow && self.is_narrow();
        let count = self.len().max(at.saturating_add(new.len()));
        count
            .saturating_mul(if narrow { 4 } else { 8 })
            .max(self.held())
    }

    /// Puts `new` at index `at`, which with what precedes it is there or is filled with zeros.
    pub(crate) fn replace(&mut self, at: usize, new: &[u64]) {
        let end = at + new.len();
        let narrow = self.is_narrow() && new.iter().copied().all(is_narrow);
        match &mut self.0 {
            Pages::Narrow(numbers) if narrow => {
                let new = new.iter().map(|&page| (page >> LOG_SMALLEST) as u32);
                lay(numbers, at, end, new);
            }
            Pages::Wide(addresses) => lay(addresses, at, end, new.iter().copied().map(page)),
            _ => {
                let count = self.len().max(end);
                let old = self.iter();
                self.0 = match narrow {
                    true => {
                        let mut numbers = Vec::with_capacity(count);
                        numbers.extend(old.map(|page| (page >> LOG_SMALLEST) as u32));
                        Pages::Narrow(numbers)
                    }
                    false => {
                        let mut addresses = Vec::with_capacity(count);
                        addresses.extend(old);
                        Pages::Wide(addresses)
                    }
                };
                self.replace(at, new);
            }
        }
    }

    /// Appends zeros until there are `len`, with room for `room`, if that can be
    /// done without making the list anew: a run becomes a list when it is
    /// replaced. Whether it was.
    pub(crate) fn grow(&mut self, len: usize, room: usize) -> bool {
        if self.is_empty() {
            self.0 = Pages::Narrow(Vec::new());
        }
        match &mut self.0 {
            Pages::Run { .. } => false,
            Pages::Narrow(numbers) => {
                numbers.reserve_exact(room.saturating_sub(numbers.len()));
                numbers.resize(len, 0);
                true
            }
            Pages::Wide(addresses) => {
                addresses.reserve_exact(room.saturating_sub(addresses.len()));
                addresses.resize(len, 0);
                true
            }
        }
    }

    /// Whether all addresses are below 2^44.
    fn is_narrow(&self) -> bool {
        match &self.0 {
            Pages::Run { .. } => self.iter().all(is_narrow),
            Pages::Narrow(_) => true,
            Pages::Wide(_) => false,
        }
    }
}

const fn is_narrow(page: u64) -> bool {
    page >> (LOG_SMALLEST + 32) == 0
}

const fn address(number: u32) -> u64 {
    (number as u64) << LOG_SMALLEST
}

/// Puts the entries from index `at` to `end`.
fn lay<T: Copy + Default>(list: &mut Vec<T>, at: usize, end: usize, new: impl Iterator<Item = T>) {
    if let Some(more) = end.checked_sub(list.len()) {
        list.reserve_exact(more);
        list.resize(end, T::default());
    }
    for (entry, new) in list[at..end].iter_mut().zip(new) {
        *entry = new;
    }
}

/// How many of the pages behind the first continue it.
#[inline]
fn continued<T: Copy>(pages: &[T], most: usize, log_size: u8, address: impl Fn(T) -> u64) -> u64 {
    /// Pages compared without a branch between them.
    const GROUP: usize = 16;
    let Some((&first, pages)) = pages.split_first() else {
        return 0;
    };
    let pages = &pages[..most.min(pages.len())];
    let size = 1_u64 << log_size;
    let mask = size - 1;
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
                    plain.resize(plain.len().max(at + new.len()), 0);
                    plain[at..at + new.len()].copy_from_slice(new);
                    let most = pages.held_with(at, new);
                    pages.replace(at, new);
                    assert_eq!(pages.iter().collect::<Vec<_>>(), plain);
                    assert!(pages.held() <= most, "{start:x?} {new:x?} {at}");
                }
            }
        }
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
