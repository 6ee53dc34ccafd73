//! Traffic over the paths of the subnet.
//!
//! A message moves without crossing the switches on its path; still, they would have counted it.
//! The engine counts by path, whoever manages the subnet knows which ports a path crosses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::objects::counters::TrafficCounters;

/// A path, as the subnet numbers them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PathId(u32);

/// Paths in a piece of the table.
const PIECE: usize = 1024;
/// Pieces: a million paths.
const PIECES: usize = 1024;

impl PathId {
    /// Nobody counts: the path crosses no switch, or there are too many paths.
    pub const NONE: Self = Self(0);

    /// The path of this number, from 1 on; none when it is past the table's end.
    #[must_use]
    pub const fn new(number: usize) -> Self {
        if number < PIECE * PIECES {
            Self(number as u32)
        } else {
            Self::NONE
        }
    }
}

/// Packets and their length.
#[derive(Debug, Default)]
struct Passed {
    packets: AtomicU64,
    words: AtomicU64,
}

/// Counters of all paths. Written by the engine alone, read by whoever manages the subnet.
#[derive(Debug)]
pub struct PathTraffic {
    pieces: Box<[OnceLock<Box<[Passed]>>]>,
}

impl Default for PathTraffic {
    fn default() -> Self {
        Self {
            pieces: (0..PIECES).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl PathTraffic {
    /// Makes room for the counters of a path. Until then nothing is counted.
    pub fn open(&self, path: PathId) {
        if path != PathId::NONE
            && let Some(piece) = self.pieces.get(path.0 as usize / PIECE)
        {
            piece.get_or_init(|| (0..PIECE).map(|_| Passed::default()).collect());
        }
    }

    /// Packets that passed, and their length in units of four octets.
    #[must_use]
    pub fn read(&self, path: PathId) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.passed(path).map_or((0, 0), |passed| {
            (read(&passed.packets), read(&passed.words))
        })
    }

    #[inline]
    pub(crate) fn add(&self, path: PathId, words: u64, packets: u64) {
        if let Some(passed) = self.passed(path) {
            TrafficCounters::add(&passed.packets, packets);
            TrafficCounters::add(&passed.words, words);
        }
    }

    #[inline]
    fn passed(&self, path: PathId) -> Option<&Passed> {
        if path == PathId::NONE {
            return None;
        }
        let at = path.0 as usize;
        self.pieces.get(at / PIECE)?.get()?.get(at % PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_all_numbers() {
        let traffic = PathTraffic::default();
        let last = PathId::new(PIECE * PIECES - 1);
        for path in [PathId::new(1), PathId::new(PIECE), last] {
            traffic.add(path, 5, 1);
            assert_eq!(traffic.read(path), (0, 0), "nobody has asked for it");
            traffic.open(path);
            traffic.add(path, 5, 1);
            traffic.add(path, 5, 1);
            assert_eq!(traffic.read(path), (2, 10));
        }
        let beyond = PathId::new(PIECE * PIECES);
        assert_eq!(beyond, PathId::NONE);
        traffic.open(beyond);
        traffic.add(beyond, 5, 1);
        assert_eq!(traffic.read(beyond), (0, 0));
    }
}
