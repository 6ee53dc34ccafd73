//! Doorbell pages (UARs): which are used, and what was rung on those that are memory.

use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{VolatileMemory, VolatileSlice};
use wire::Qpn;

use crate::bits::initialization::{FIRST_UAR, PAGE_SIZE, UAR_SEND};
use crate::configuration::{Configuration, TRAPPED_PAGES};

/// Send doorbells of a page: four registers of two buffers each, which drivers may use in turn.
/// A program has the first two registers, the kernel also the last two.
const DOORBELLS: u32 = 8;
/// Bytes from one of them to the next.
pub(super) const STRIDE: usize = (PAGE_SIZE as usize - UAR_SEND) / DOORBELLS as usize;

/// Doorbell pages.
#[derive(Debug)]
pub(crate) struct Uars {
    used: Vec<bool>,
    any: bool,
    /// Pages in use that are memory.
    watched: Vec<Watched>,
    cursor: usize,
}

/// A page that is memory.
#[derive(Debug)]
struct Watched {
    page: u32,
    /// The last word seen at each doorbell.
    seen: [u64; DOORBELLS as usize],
    /// A bit for each doorbell that was ever rung.
    rung: u8,
    /// The doorbell that a look begins with.
    next: u32,
    /// A bit for each doorbell that may have been left by somebody before.
    stale: u8,
}

impl Uars {
    pub(super) fn new(configuration: &Configuration) -> Self {
        Self {
            used: vec![false; configuration.pages() as usize],
            any: false,
            watched: Vec::new(),
            cursor: 0,
        }
    }

    /// Allocates a page. The first is the kernel's own and one whose writes the
    /// device sees; later ones are of programs, or of the kernel's own queue pairs, and may be memory.
    pub fn allocate(&mut self) -> Option<u32> {
        let first = if self.any { TRAPPED_PAGES } else { FIRST_UAR };
        let pages = self.used.len() as u32;
        let page = (first..pages)
            .chain(FIRST_UAR..first)
            .find(|&page| !self.used[page as usize])?;
        self.any = true;
        self.take(page);
        Some(page)
    }

    /// Frees a page; whether it was allocated.
    pub fn free(&mut self, page: u32) -> bool {
        self.watched.retain(|watched| watched.page != page);
        self.used
            .get_mut(page as usize)
            .is_some_and(|used| std::mem::replace(used, false))
    }

    fn take(&mut self, page: u32) {
        self.used[page as usize] = true;
        if page >= TRAPPED_PAGES {
            self.watched.push(Watched::new(page));
        }
    }

    /// A queue pair that rings at this page begins anew: it may ring as it, or one with its number, last has.
    pub fn begin_anew(&mut self, page: u32) {
        if let Some(watched) = self.watched.iter_mut().find(|it| it.page == page) {
            watched.stale = u8::MAX;
        }
    }

    /// Whether any page was ever allocated.
    pub(super) const fn any(&self) -> bool {
        self.any
    }

    /// The pages in use: those that trap, and then those that are memory.
    pub(super) fn pages(&self) -> Vec<u32> {
        let watched = |page: &u32| self.watched.iter().any(|watched| watched.page == *page);
        let trapped = (0..self.used.len() as u32)
            .filter(|&page| self.used[page as usize])
            .filter(|page| !watched(page));
        let watched = self.watched.iter().map(|watched| watched.page);
        trapped.chain(watched).collect()
    }

    /// Has these `pages` in use, besides those that are.
    pub(super) fn restore(&mut self, pages: &[u32], any: bool) -> Result<(), String> {
        for &page in pages {
            let used = self.used.get(page as usize);
            if page < FIRST_UAR || used != Some(&false) {
                return Err(format!("doorbell page {page} is there twice, or cannot be"));
            }
            self.take(page);
        }
        self.any = any;
        Ok(())
    }

    /// Each call goes on behind the page that the last one ended with.
    #[inline]
    pub(super) fn next_rung(&mut self, area: &VolatileSlice<'_>) -> Option<Qpn> {
        for _ in 0..self.watched.len() {
            self.cursor += 1;
            if self.cursor >= self.watched.len() {
                self.cursor = 0;
            }
            let rung = self.watched[self.cursor].look(area);
            if rung.is_some() {
                return rung;
            }
        }
        None
    }
}

impl Watched {
    const fn new(page: u32) -> Self {
        Self {
            page,
            seen: [0; DOORBELLS as usize],
            rung: 0,
            next: 0,
            stale: u8::MAX,
        }
    }

    /// Where a doorbell is in the memory of the pages.
    #[inline]
    const fn place(&self, doorbell: u32) -> usize {
        let page = (self.page - TRAPPED_PAGES) as usize * PAGE_SIZE as usize;
        page + UAR_SEND + doorbell as usize * STRIDE
    }

    /// Looks at the doorbells that were ever rung and at one of the others, which is another one each
    /// time: most pages have one doorbell that is used, and each look costs the line that it is in.
    /// Returns the queue pair of the first that is not what it was. The next look begins behind the
    /// first doorbell of this one, so that a busy one hides none.
    #[inline]
    fn look(&mut self, area: &VolatileSlice<'_>) -> Option<Qpn> {
        if self.stale != 0
            && let Some(qpn) = self.clear(area)
        {
            return Some(qpn);
        }
        let first = self.next;
        self.next = (first + 1) % DOORBELLS;
        let mut left = self.rung.rotate_right(first) | 1;
        while left != 0 {
            let doorbell = (first + left.trailing_zeros()) % DOORBELLS;
            left &= left - 1;
            let Ok(word) = area.get_atomic_ref::<AtomicU64>(self.place(doorbell)) else {
                continue;
            };
            let word = word.load(Ordering::Acquire);
            let seen = &mut self.seen[doorbell as usize];
            if word != *seen {
                *seen = word;
                self.rung |= 1 << doorbell;
                return Some(queue_pair(word));
            }
        }
        None
    }

    /// Takes away what may have been left at doorbells by somebody who rang there before: the very doorbell that is
    /// rung next, which would look like no other. The first that was there may be one that was just rung, so it is
    /// told of; the next look goes on with the others.
    #[cold]
    fn clear(&mut self, area: &VolatileSlice<'_>) -> Option<Qpn> {
        while self.stale != 0 {
            let doorbell = self.stale.trailing_zeros();
            self.stale &= self.stale - 1;
            let word = area.get_atomic_ref::<AtomicU64>(self.place(doorbell));
            let word = word.map_or(0, |word| word.swap(0, Ordering::AcqRel));
            self.seen[doorbell as usize] = 0;
            if word != 0 {
                self.rung |= 1 << doorbell;
                return Some(queue_pair(word));
            }
        }
        None
    }
}

/// The queue pair of a doorbell: the first eight bytes of a request's control segment.
#[inline]
fn queue_pair(word: u64) -> Qpn {
    Qpn::new(u64::from_be(word) as u32 >> 8)
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    fn ring(area: &VolatileSlice<'_>, (page, at): (u32, usize), index: u8, qpn: u32) {
        let at = (page - TRAPPED_PAGES) as usize * 4096 + at;
        let word = [[0, 0, index, 0x0a], (qpn << 8 | 3).to_be_bytes()].concat();
        area.write_slice(&word, at).unwrap();
    }

    #[test]
    fn the_first_doorbell_page_traps_and_later_ones_need_not() {
        let mut uars = Uars::new(&Configuration {
            bar_size: 128 << 10,
            device_memory: 0,
            ..Configuration::default()
        });
        assert_eq!(uars.allocate(), Some(FIRST_UAR));
        assert_eq!(uars.allocate(), Some(TRAPPED_PAGES));
        let rest: Vec<u32> = std::iter::from_fn(|| uars.allocate()).collect();
        assert_eq!(rest.len(), 32 - 4 - 2);
        assert!(uars.free(TRAPPED_PAGES));
        assert!(!uars.free(TRAPPED_PAGES));
        assert!(!uars.free(1));
        assert!(!uars.free(u32::MAX));
        assert_eq!(uars.allocate(), Some(TRAPPED_PAGES));
    }

    #[test]
    fn a_doorbell_in_memory_names_its_queue_pair() {
        let mut uars = Uars::new(&Configuration::default());
        let pages: Vec<u32> = (0..3).filter_map(|_| uars.allocate()).collect();
        let mut memory = vec![0_u8; 16 * 4096];
        let area = VolatileSlice::from(&mut memory[..]);
        assert_eq!(uars.next_rung(&area), None);
        let (one, two) = ((pages[1], 0x800), (pages[2], 0x800));
        ring(&area, one, 0, 0x1234);
        ring(&area, two, 0, 0x5678);
        let mut rung: Vec<_> = (0..16).filter_map(|_| uars.next_rung(&area)).collect();
        rung.sort();
        assert_eq!(rung, [Qpn::new(0x1234), Qpn::new(0x5678)]);
        ring(&area, one, 1, 0x1234);
        assert_eq!(uars.next_rung(&area), Some(Qpn::new(0x1234)));
        uars.free(pages[1]);
        ring(&area, one, 2, 0x1234);
        assert_eq!(uars.next_rung(&area), None);
        // The next who has the page rings as the last one did.
        assert_eq!(uars.allocate(), Some(pages[1]));
        while uars.next_rung(&area).is_some() {}
        ring(&area, one, 2, 0x1234);
        assert_eq!(uars.next_rung(&area), Some(Qpn::new(0x1234)));
        uars.free(pages[1]);
        // Less memory than there are pages is no reason to look past its end.
        let mut short = [0_u8; 16];
        assert_eq!(uars.next_rung(&VolatileSlice::from(&mut short[..])), None);
    }

    #[test]
    fn a_queue_pair_that_begins_anew_may_ring_as_it_has() {
        let mut uars = Uars::new(&Configuration::default());
        let pages: Vec<u32> = (0..2).filter_map(|_| uars.allocate()).collect();
        let mut memory = vec![0_u8; 16 * 4096];
        let area = VolatileSlice::from(&mut memory[..]);
        let look = |uars: &mut Uars| {
            let found: Vec<_> = (0..16).filter_map(|_| uars.next_rung(&area)).collect();
            found.iter().map(|qpn| qpn.value()).collect::<Vec<_>>()
        };
        ring(&area, (pages[1], 0x800), 0, 0x1234);
        ring(&area, (pages[1], 0x900), 0, 0x5678);
        assert_eq!(look(&mut uars), [0x1234, 0x5678]);
        // It rings before anybody has looked, and after.
        for early in [true, false] {
            uars.begin_anew(pages[1]);
            if !early {
                look(&mut uars);
            }
            ring(&area, (pages[1], 0x800), 0, 0x1234);
            assert!(look(&mut uars).contains(&0x1234), "early: {early}");
            assert!(look(&mut uars).is_empty());
        }
        // Others who ring meanwhile are found as well.
        uars.begin_anew(pages[1]);
        ring(&area, (pages[1], 0x900), 1, 0x5678);
        assert_eq!(look(&mut uars), [0x1234, 0x5678]);
        // A page that traps has nothing to look at.
        uars.begin_anew(pages[0]);
        assert!(look(&mut uars).is_empty());
    }

    /// Linux 6.12.117 rings for the kernel's own queue pairs at 0xc00 and 0xd00 in turn, on a page that is
    /// memory.
    #[test]
    fn all_doorbells_of_a_page_are_found() {
        let mut uars = Uars::new(&Configuration::default());
        let pages: Vec<u32> = (0..2).filter_map(|_| uars.allocate()).collect();
        let mut memory = vec![0_u8; 16 * 4096];
        let area = VolatileSlice::from(&mut memory[..]);
        assert_eq!(uars.next_rung(&area), None);
        for at in (0x800..0x1000).step_by(0x100) {
            ring(&area, (pages[1], at), 1, at as u32);
            let found: Vec<_> = (0..8).filter_map(|_| uars.next_rung(&area)).collect();
            assert_eq!(found, [Qpn::new(at as u32)]);
        }
        // One that is rung without end hides none.
        ring(&area, (pages[1], 0xf00), 2, 0xf00);
        let found = (0..16).any(|turn| {
            ring(&area, (pages[1], 0x800), turn, 0x800);
            uars.next_rung(&area) == Some(Qpn::new(0xf00))
        });
        assert!(found);
    }
}
