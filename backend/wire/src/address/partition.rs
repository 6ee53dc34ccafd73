//! Partition keys and queue keys.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, number};

/// A partition key: 15 bits that name the partition and, as the highest bit, full membership
/// (IBA 10.9).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKey(u16);

impl PKey {
    /// An empty table entry; a packet with it matches nothing.
    pub const INVALID: Self = Self(0);
    /// Full membership of the default partition.
    pub const DEFAULT_FULL: Self = Self(0xffff);
    /// Limited membership of the default partition.
    pub const DEFAULT_LIMITED: Self = Self(0x7fff);

    /// The key of this value, membership bit included.
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The value, membership bit included.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// The partition without the membership bit.
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether this is a full membership.
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether this names a partition at all.
    pub const fn is_valid(self) -> bool {
        self.partition() != 0
    }

    /// Whether a packet with one of the keys may pass where the other one is in the table: the
    /// same partition, and not limited on both sides (IBA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        self.is_valid()
            && self.partition() == other.partition()
            && (self.is_full() || other.is_full())
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({self})")
    }
}

impl FromStr for PKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        number(text)
            .and_then(|value| u16::try_from(value).ok())
            .map(Self)
            .ok_or(ParseError::new("P_Key", "0x0 to 0xffff"))
    }
}

impl From<u16> for PKey {
    fn from(value: u16) -> Self {
        Self(value)
    }
}

impl From<PKey> for u16 {
    fn from(key: PKey) -> Self {
        key.0
    }
}

/// A queue key, which a datagram must share with the queue pair it is sent to (IBA 10.2.4).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QKey(u32);

impl QKey {
    /// The key of the subnet management queue pair 0, which is never checked.
    pub const QP0: Self = Self(0);
    /// The well-known key of the general services queue pair 1.
    pub const QP1: Self = Self(0x8001_0000);

    /// The key of this value.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Whether this is a controlled key: in a work request it stands for the sender's own key.
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({self})")
    }
}

impl FromStr for QKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        number(text)
            .and_then(|value| u32::try_from(value).ok())
            .map(Self)
            .ok_or(ParseError::new("Q_Key", "0x0 to 0xffffffff"))
    }
}

impl From<u32> for QKey {
    fn from(value: u32) -> Self {
        Self(value)
    }
}

impl From<QKey> for u32 {
    fn from(key: QKey) -> Self {
        key.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching() {
        let full = PKey::new(0x8001);
        let limited = PKey::new(0x0001);
        assert!(full.matches(full));
        assert!(full.matches(limited));
        assert!(limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PKey::new(0x8002)));
        assert!(!PKey::new(0x8000).matches(PKey::new(0x8000)));
        assert!(!PKey::INVALID.matches(PKey::DEFAULT_FULL));
    }

    #[test]
    fn text() {
        assert_eq!("0xffff".parse(), Ok(PKey::DEFAULT_FULL));
        assert_eq!(PKey::DEFAULT_LIMITED.to_string(), "0x7fff");
        assert!("0x10000".parse::<PKey>().is_err());
        assert_eq!("0x80010000".parse(), Ok(QKey::QP1));
        assert_eq!(QKey::QP1.to_string(), "0x80010000");
        assert!(QKey::QP1.is_controlled());
    }
}
