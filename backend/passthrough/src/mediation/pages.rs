//! Lists of pages and records of doorbells: DMA addresses that the VF gets from a guest.

use connectx::bits::command::Status;

use super::{Refusal, refuse};
use crate::driver::window::Window;

/// Largest page, as a power of two.
const LOG_MAX_PAGE: u32 = 31;
/// Smallest page, as a power of two. The bits below it in an entry are flags.
const LOG_MIN_PAGE: u32 = 12;

/// Checks that none of the pages in a list, each of `1 << log_size` bytes, has a part of the daemon's
/// window.
pub(super) fn check_pages(list: &[u8], log_size: u32) -> Result<(), Refusal> {
    if log_size > LOG_MAX_PAGE {
        return refuse(Status::BadParameter, "a page has at most 2 GiB");
    }
    let size = 1_u64 << log_size.max(LOG_MIN_PAGE);
    for entry in list.chunks(8) {
        // Missing bytes at the end are zero for the VF.
        let mut bytes = [0; 8];
        bytes[..entry.len()].copy_from_slice(entry);
        let page = u64::from_be_bytes(bytes);
        // Whatever the VF makes of the lower bits.
        let begin = page & !(size - 1);
        if Window::overlaps(begin, size + (page - begin)) {
            return refuse(Status::BadParameter, "a page is not the guest's memory");
        }
    }
    Ok(())
}

/// Checks that the record of a doorbell is not in the daemon's window.
pub(super) fn check_record(addr: u64) -> Result<(), Refusal> {
    if Window::overlaps(addr & !0x3f, 0x80) {
        return refuse(
            Status::BadParameter,
            "the doorbell record is not in the guest's memory",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::window::{BASE, RINGS_BASE, SIZE};

    fn check(pages: &[u64], log_size: u32) -> bool {
        let list: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        check_pages(&list, log_size).is_ok()
    }

    #[test]
    fn pages_that_touch_the_window() {
        let end = BASE + SIZE as u64;
        for (page, log_size, fits) in [
            (0, 12, true),
            (RINGS_BASE - 4096, 12, true),
            // A byte of it, a flag, and the page after.
            (RINGS_BASE - 4095, 12, false),
            (RINGS_BASE, 12, false),
            (BASE, 12, false),
            (end - 4096, 12, false),
            (end, 12, true),
            (RINGS_BASE - (1 << 27), 27, true),
            (RINGS_BASE, 27, false),
            (BASE, 27, false),
            // The VF might cut the address off, or not.
            (BASE + 7, 30, false),
            (RINGS_BASE - (1 << 29), 30, false),
            (u64::MAX, 31, true),
            // Smaller than there are.
            (RINGS_BASE - 4096 + 512, 0, false),
            (0, 32, false),
            (0, 63, false),
        ] {
            assert_eq!(check(&[0, page], log_size), fits, "{page:#x} {log_size}");
        }
        // The beginning of an address, of which the rest is zero.
        assert!(check_pages(&BASE.to_be_bytes()[..5], 12).is_err());
        assert!(check_pages(&BASE.to_be_bytes()[..4], 12).is_ok());
        assert!(check(&[], 12) && !check(&[], 40));
    }

    #[test]
    fn records_that_touch_the_window() {
        for (addr, fits) in [
            (0, true),
            (RINGS_BASE - 0x80, true),
            (RINGS_BASE - 8, false),
            (BASE + 64, false),
            (BASE + SIZE as u64 - 8, false),
            (BASE + SIZE as u64, true),
            (u64::MAX, true),
        ] {
            assert_eq!(check_record(addr).is_ok(), fits, "{addr:#x}");
        }
    }
}
