//! Memory of the device (MEMIC): which pieces of it are allocated.

use std::collections::BTreeMap;

use crate::configuration::{Configuration, MAX_DEVICE_MEMORY};

/// The unit of addresses and lengths, in bytes.
pub(crate) const UNIT: u64 = 64;

/// Why there is none at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unallocated {
    /// It is not in the device's memory, or no such piece can be.
    Invalid,
    /// Some of it is allocated, or the function has all that it may have.
    Taken,
}

/// Allocated pieces: where they begin in BAR 0, and how long they are, in bytes.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    pieces: BTreeMap<u64, u64>,
    /// Bytes of all of them.
    taken: u64,
}

impl DeviceMemory {
    /// Takes `len` bytes at the first multiple of `UNIT << log_alignment` from `from` on, which are to end
    /// before `end`. Returns where they begin.
    pub fn allocate(
        &mut self,
        configuration: &Configuration,
        (from, end): (u64, u64),
        len: u64,
        log_alignment: u32,
    ) -> Result<u64, Unallocated> {
        let alignment = UNIT.checked_shl(log_alignment).unwrap_or(u64::MAX);
        let (begin, size) = (configuration.device_memory_area()).ok_or(Unallocated::Invalid)?;
        let at = (from.checked_next_multiple_of(alignment)).ok_or(Unallocated::Invalid)?;
        let behind = at.checked_add(len).ok_or(Unallocated::Invalid)?;
        let valid =
            len > 0 && len.is_multiple_of(UNIT) && at >= begin && behind <= end.min(begin + size);
        if !valid {
            return Err(Unallocated::Invalid);
        }
        let before = self.pieces.range(..behind).next_back();
        let overlaps = before.is_some_and(|(begin, size)| begin + size > at);
        if overlaps || self.taken + len > MAX_DEVICE_MEMORY {
            return Err(Unallocated::Taken);
        }
        self.pieces.insert(at, len);
        self.taken += len;
        Ok(at)
    }

    /// Gives a piece back; whether it was there.
    pub fn free(&mut self, at: u64, len: u64) -> bool {
        let found = self.pieces.get(&at) == Some(&len);
        if found {
            self.pieces.remove(&at);
            self.taken -= len;
        }
        found
    }

    /// Whether all of `len` bytes at `at` are of one piece.
    pub fn has(&self, at: u64, len: u64) -> bool {
        let piece = self.pieces.range(..=at).next_back();
        piece.is_some_and(|(begin, size)| {
            at.checked_add(len)
                .is_some_and(|behind| behind <= begin + size)
        })
    }

    /// Its part of an image.
    pub fn save(&self) -> Vec<(u64, u64)> {
        self.pieces.iter().map(|(&at, &len)| (at, len)).collect()
    }

    /// The pieces of an image.
    pub fn restore(pieces: &[(u64, u64)], configuration: &Configuration) -> Result<Self, String> {
        let mut memory = Self::default();
        for &(at, len) in pieces {
            let range = (at, at.saturating_add(len));
            if memory.allocate(configuration, range, len, 0) != Ok(at) {
                return Err(format!(
                    "{len} bytes of the device's memory at {at:#x} are there twice, or cannot be"
                ));
            }
        }
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_there_are_no_more_than_allowed() {
        let configuration = Configuration::default();
        let (begin, size) = configuration.device_memory_area().unwrap();
        let end = begin + size;
        let mut memory = DeviceMemory::default();
        let mut at = |from, end, len, log| memory.allocate(&configuration, (from, end), len, log);
        assert_eq!(at(begin, begin + 4096, 64, 0), Ok(begin));
        for (from, end, len) in [
            (begin, begin + 4096, 64),
            (begin, begin + 8192, 8192),
            (begin - 64, begin + 64, 64),
        ] {
            assert!(at(from, end, len, 0).is_err(), "{from:#x}");
        }
        // The range that it is asked for is what counts, not where it would be aligned to.
        assert_eq!(at(begin + 64, end, 128, 6), Ok(begin + 4096));
        assert_eq!(
            at(begin + 64, begin + 4096, 64, 6),
            Err(Unallocated::Invalid)
        );
        for (from, len, log) in [
            (begin + 8192, 0, 0),
            (begin + 8192, 65, 0),
            (end, 64, 0),
            (end - 64, 128, 0),
            (0, 64, 0),
            (u64::MAX, 64, 0),
            (begin, 64, 255),
            (begin, u64::MAX - 63, 0),
        ] {
            let refused = at(from, u64::MAX, len, log);
            assert_eq!(refused, Err(Unallocated::Invalid), "{from:#x} {len} {log}");
        }
        assert_eq!(
            at(begin + 8192, end, MAX_DEVICE_MEMORY, 0),
            Err(Unallocated::Taken)
        );
        let most = MAX_DEVICE_MEMORY - 192;
        assert_eq!(at(begin + 8192, end, most, 0), Ok(begin + 8192));
        assert_eq!(at(end - 64, end, 64, 0), Err(Unallocated::Taken));
        assert!(memory.has(begin + 8192, most) && memory.has(begin + 8256, 64));
        assert!(!memory.has(begin + 8192, most + 1) && !memory.has(begin + 64, 1));
        assert!(!memory.has(begin, u64::MAX));
        assert!(!memory.free(begin + 8192, 64) && memory.free(begin + 8192, most));
        let image = memory.save();
        assert_eq!(image, [(begin, 64), (begin + 4096, 128)]);
        let restored = DeviceMemory::restore(&image, &configuration).unwrap();
        assert_eq!((restored.save(), restored.taken), (image, 192));
        assert!(DeviceMemory::restore(&[(begin, 64), (begin, 64)], &configuration).is_err());
        assert!(DeviceMemory::restore(&[(0, 64)], &configuration).is_err());
    }
}
