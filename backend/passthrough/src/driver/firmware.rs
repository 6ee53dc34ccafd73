//! Pages of the daemon's memory that the VF's firmware has.

use std::collections::HashSet;

use connectx::bits::command::{Opcode, PAGES_RETURNED, create_eq_in, query_pages_out};

use crate::driver::window::{FIRMWARE, FIRMWARE_PAGES, PAGE, Window};

/// Kind of the event by which firmware asks for pages, or offers some back.
pub(crate) const PAGE_REQUEST: u8 = 0xb;
/// Most pages in a request of drivers.
const PAGES_PER_REQUEST: usize = 512;
/// Where the list of pages begins, in requests and replies.
const LIST: usize = 0x10;

/// Operations of MANAGE_PAGES.
const CANNOT_GIVE: u32 = 0;
const GIVE: u32 = 1;
const TAKE: u32 = 2;

/// Pages that firmware has, and their limit.
#[derive(Debug)]
pub(crate) struct FirmwarePages {
    /// DMA addresses, the next one last.
    free: Vec<u64>,
    given: HashSet<u64>,
    /// Pages that it has asked for, and not got yet; below zero, that it offers.
    wanted: i64,
    /// Number of pages that the last request takes back.
    taken: usize,
}

impl Default for FirmwarePages {
    /// All are free.
    fn default() -> Self {
        let pages = (0..FIRMWARE_PAGES).rev();
        Self {
            free: pages
                .map(|page| Window::address(FIRMWARE + page * PAGE))
                .collect(),
            given: HashSet::new(),
            wanted: 0,
            taken: 0,
        }
    }
}

impl FirmwarePages {
    /// Firmware asks for so many, or offers them.
    pub fn ask(&mut self, count: i32) {
        // Whatever it says, there are no more.
        let most = FIRMWARE_PAGES as i64;
        self.wanted = (self.wanted + i64::from(count)).clamp(-most, most + 1);
    }

    /// The event by which firmware asks; `None` where it is not for this function.
    pub fn asked(data: &[u8]) -> Option<i32> {
        let (function, count) = (data.get(2..4)?, data.get(4..8)?.first_chunk()?);
        (function == [0, 0]).then(|| i32::from_be_bytes(*count))
    }

    /// Returns the number of free pages.
    pub const fn free(&self) -> usize {
        self.free.len()
    }

    /// The next request that answers firmware, with the length of its reply; `None` where it wants nothing.
    pub fn request(&mut self) -> Option<(Vec<u8>, usize)> {
        match self.wanted {
            0 => None,
            wanted if wanted > 0 => {
                if wanted as usize > self.free.len() {
                    self.wanted = 0;
                    return Some((manage(CANNOT_GIVE, 0), LIST));
                }
                let now = (wanted as usize).min(PAGES_PER_REQUEST);
                let pages = self.free.split_off(self.free.len() - now);
                self.wanted -= now as i64;
                let mut request = manage(GIVE, now);
                request.extend(pages.iter().rev().flat_map(|page| page.to_be_bytes()));
                self.given.extend(pages);
                Some((request, LIST))
            }
            offered => {
                let now = (offered.unsigned_abs() as usize).min(PAGES_PER_REQUEST);
                self.taken = now;
                Some((manage(TAKE, now), LIST + now * 8))
            }
        }
    }

    /// Firmware has answered a request. Pages that it refuses are not given to it again, since its records of
    /// them are unknown.
    pub fn answered(&mut self, request: u32, reply: Option<&[u8]>) {
        if request != TAKE {
            return;
        }
        let count = reply
            .map_or(0, |reply| PAGES_RETURNED.get(reply) as usize)
            .min(self.taken);
        let list = reply
            .and_then(|reply| reply.get(LIST..))
            .unwrap_or_default();
        for page in list.as_chunks::<8>().0.iter().take(count) {
            let page = u64::from_be_bytes(*page);
            // Not what it never had.
            if self.given.remove(&page) {
                self.free.push(page);
            }
        }
        // It may have asked for others meanwhile. What it offers and does not give, it keeps.
        self.wanted = if count == 0 {
            self.wanted.max(0)
        } else {
            self.wanted + count as i64
        };
    }
}

/// A request of MANAGE_PAGES, before its list.
fn manage(operation: u32, count: usize) -> Vec<u8> {
    let mut request = vec![0; LIST];
    create_eq_in::OPCODE.set(&mut request, Opcode::ManagePages.code().into());
    create_eq_in::OP_MOD.set(&mut request, operation);
    query_pages_out::NUM_PAGES.set(&mut request, count as u32);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(request: &[u8]) -> (u32, u32) {
        (
            create_eq_in::OP_MOD.get(request),
            query_pages_out::NUM_PAGES.get(request),
        )
    }

    fn back(pages: &[u64]) -> Vec<u8> {
        let mut reply = vec![0; LIST];
        PAGES_RETURNED.set(&mut reply, pages.len() as u32);
        reply.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
        reply
    }

    #[test]
    fn pages_go_and_come_back() {
        let mut pages = FirmwarePages::default();
        assert_eq!(pages.request(), None);
        pages.ask(600);
        let sizes: Vec<_> = std::iter::from_fn(|| pages.request())
            .map(|(request, _)| (operation(&request), request.len()))
            .collect();
        assert_eq!(
            sizes,
            [((GIVE, 512), LIST + 4096), ((GIVE, 88), LIST + 88 * 8)]
        );
        assert_eq!(pages.free(), FIRMWARE_PAGES - 600);
        pages.ask(-2);
        let (request, len) = pages.request().expect("a request");
        assert_eq!((operation(&request), len), ((TAKE, 2), LIST + 16));
        let first = Window::address(FIRMWARE);
        // One that it had, twice, and one that it never had.
        pages.answered(TAKE, Some(&back(&[first, first])));
        assert_eq!(
            (pages.free(), pages.request()),
            (FIRMWARE_PAGES - 599, None)
        );
        pages.ask(-1);
        pages.request();
        pages.answered(TAKE, Some(&back(&[Window::address(0)])));
        assert_eq!(
            (pages.free(), pages.request()),
            (FIRMWARE_PAGES - 599, None)
        );
    }

    #[test]
    fn requests_that_cannot_be_met() {
        let mut pages = FirmwarePages::default();
        for count in [i32::MAX, i32::MAX, FIRMWARE_PAGES as i32 + 1] {
            pages.ask(count);
            let (request, _) = pages.request().expect("a request");
            assert_eq!(operation(&request), (CANNOT_GIVE, 0));
            assert_eq!(pages.request(), None);
        }
        pages.ask(i32::MIN);
        let (request, _) = pages.request().expect("a request");
        assert_eq!(operation(&request), (TAKE, PAGES_PER_REQUEST as u32));
        // It has offered what it does not have, and says so; or refuses.
        pages.answered(TAKE, Some(&back(&[])));
        assert_eq!(pages.request(), None);
        pages.ask(-5);
        pages.request();
        pages.answered(TAKE, None);
        assert_eq!(pages.request(), None);
        assert_eq!(pages.free(), FIRMWARE_PAGES);
        // It asks for some while others come back, and gives back more than it was asked for.
        pages.ask(1);
        pages.request();
        pages.ask(-1);
        pages.request();
        pages.ask(7);
        let mut reply = back(&[Window::address(FIRMWARE)]);
        PAGES_RETURNED.set(&mut reply, 100);
        pages.answered(TAKE, Some(&reply));
        let (request, _) = pages.request().expect("a request");
        assert_eq!(operation(&request), (GIVE, 7));
    }

    #[test]
    fn requests_are_for_this_function() {
        assert_eq!(FirmwarePages::asked(&[0, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(
            FirmwarePages::asked(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            Some(-1)
        );
        assert_eq!(FirmwarePages::asked(&[0, 0, 0, 1, 0, 0, 0, 1]), None);
        assert_eq!(FirmwarePages::asked(&[0; 7]), None);
    }
}
