//! Queue pair numbers and packet sequence numbers: 24 bits each.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, number};

const MASK: u32 = 0x00ff_ffff;

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The subnet management interface.
    pub const QP0: Self = Self(0);
    /// The general service interface.
    pub const QP1: Self = Self(1);
    /// The destination of multicast packets.
    pub const MULTICAST: Self = Self(MASK);

    /// The number of the lower 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The value, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

impl FromStr for Qpn {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match number(text) {
            Some(value) if value <= u64::from(MASK) => Ok(Self(value as u32)),
            _ => Err(ParseError::new("queue pair number", "0x0 to 0xffffff")),
        }
    }
}

impl From<Qpn> for u32 {
    fn from(qpn: Qpn) -> Self {
        qpn.0
    }
}

/// A packet sequence number: 24 bits that wrap (IBA 9.7.2).
///
/// The order of `Ord` is that of the plain values, for use as a key; the order in the sequence is
/// [`Psn::distance`] and [`Psn::precedes`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Psn(u32);

impl Psn {
    /// The number of the lower 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The value, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Number of packets by which this one comes after `earlier`: -2^23 to 2^23 - 1, negative when it comes before.
    pub const fn distance(self, earlier: Self) -> i32 {
        (self.0.wrapping_sub(earlier.0) << 8) as i32 >> 8
    }

    /// Whether this one comes before `other` in the sequence.
    pub const fn precedes(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({self})")
    }
}

impl FromStr for Psn {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match number(text) {
            Some(value) if value <= u64::from(MASK) => Ok(Self(value as u32)),
            _ => Err(ParseError::new("packet sequence number", "0x0 to 0xffffff")),
        }
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> Self {
        psn.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_wraps() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).distance(last), 1);
        assert_eq!(last.distance(Psn::new(0)), -1);
        assert!(last.precedes(Psn::new(0)));
        assert!(!Psn::new(5).precedes(Psn::new(5)));
        assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), 0x7f_ffff);
    }

    #[test]
    fn text() {
        assert_eq!("0x11".parse(), Ok(Qpn::new(17)));
        assert_eq!(Qpn::MULTICAST.to_string(), "0xffffff");
        assert!("0x1000000".parse::<Qpn>().is_err());
        assert_eq!("16777215".parse(), Ok(Psn::new(0xff_ffff)));
    }
}
