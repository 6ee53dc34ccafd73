//! The time that work may take, in nanoseconds of a calibrated machine: a machine that copies [`BYTES_PER_NS`].
//!
//! A step that touches guest memory or walks a list takes from a [`Budget`], and ends when nothing is left. Copies take
//! their bytes; the other steps have their times here and beside them.

/// Bytes that are copied in a nanosecond.
const BYTES_PER_NS: i64 = 8;

/// Time of a turn while nobody else has work.
pub(crate) const TURN: Budget = Budget::of_ns(16_384);
/// Time of a turn while others have work: how long each of them waits for it.
pub(crate) const SHARED_TURN: Budget = Budget::of_ns(2048);
/// Time of a request: to fetch it, to check it, to complete it.
pub(crate) const REQUEST_NS: i64 = 128;
/// Time of a look at an object that is seldom in the cache.
pub(crate) const LOOK_NS: i64 = 64;
/// Time of a timer that runs out.
pub(crate) const TIMER_NS: i64 = 128;
/// Time of a queue pair that fails: an event and its interrupt, and some requests that are flushed.
pub(crate) const FAILURE_NS: i64 = 1024;
/// Time of an object that is taken away after a reset.
pub(crate) const REMOVAL_NS: i64 = 32;
/// Least time of a window of memory: lists of tiny elements take time without moving bytes.
pub(crate) const WINDOW_NS: i64 = 8;

/// Time that is left. The last step may overdraw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget {
    /// In bytes that can be copied in it.
    bytes: i64,
}

impl Budget {
    /// No time.
    pub const NONE: Self = Self { bytes: 0 };
    /// More time than anything takes.
    pub const UNLIMITED: Self = Self { bytes: i64::MAX };

    /// So many nanoseconds.
    #[must_use]
    pub const fn of_ns(nanoseconds: i64) -> Self {
        Self {
            bytes: nanoseconds * BYTES_PER_NS,
        }
    }

    /// The time in which so many bytes are copied.
    #[must_use]
    pub const fn of_bytes(bytes: i64) -> Self {
        Self { bytes }
    }

    /// Bytes that can be copied in what is left; not above zero if nothing is.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> i64 {
        self.bytes
    }

    /// Whether there is some time left.
    #[inline]
    #[must_use]
    pub const fn is_left(self) -> bool {
        self.bytes > 0
    }

    /// Takes nanoseconds.
    #[inline]
    pub const fn take(&mut self, nanoseconds: i64) {
        self.bytes -= nanoseconds * BYTES_PER_NS;
    }

    /// Takes the time in which so many bytes are copied.
    #[inline]
    pub const fn take_bytes(&mut self, bytes: usize) {
        self.bytes -= bytes as i64;
    }

    /// Takes the time of a window of memory that has so many bytes.
    #[inline]
    pub fn take_window(&mut self, bytes: usize) {
        self.bytes -= (bytes as i64).max(WINDOW_NS * BYTES_PER_NS);
    }

    /// Takes the time that a part has used: it had `part`, and has `left` now.
    #[inline]
    pub const fn charge(&mut self, part: Self, left: Self) {
        self.bytes -= part.bytes - left.bytes;
    }

    /// Ends the turn: nothing is left.
    #[inline]
    pub fn end(&mut self) {
        self.bytes = self.bytes.min(0);
    }

    /// So much of it, halved `halvings` times.
    #[inline]
    #[must_use]
    pub const fn halved(self, halvings: u32) -> Self {
        Self {
            bytes: self.bytes >> halvings,
        }
    }

    /// Remainder when `other` has been taken from it.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// Does something as a whole, whatever is left, and takes the time that it has used. If it ends its turn, the turn
    /// ends.
    #[inline]
    pub fn as_a_whole<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        let mut left = Self::UNLIMITED;
        let done = act(&mut left);
        if left.is_left() {
            self.charge(Self::UNLIMITED, left);
        } else {
            self.end();
        }
        done
    }
}
