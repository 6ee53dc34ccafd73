//! Local identifiers.

use core::fmt;
use core::str::FromStr;

use crate::error::{ParseError, number};

/// A local identifier: the address of a port within its subnet (IBA 4.1.3).
///
/// Prints as decimal (`18`), in its long form `{:#}` with the hexadecimal value beside it
/// (`18 (0x0012)`); reads decimal or `0x` hexadecimal.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lid(u16);

impl Lid {
    /// Not a LID: what a port holds before a subnet manager gave it one.
    pub const NONE: Self = Self(0);
    /// The lowest unicast LID.
    pub const UNICAST_FIRST: Self = Self(0x0001);
    /// The highest unicast LID.
    pub const UNICAST_LAST: Self = Self(0xbfff);
    /// The lowest multicast LID.
    pub const MULTICAST_FIRST: Self = Self(0xc000);
    /// The highest multicast LID.
    pub const MULTICAST_LAST: Self = Self(0xfffe);
    /// The permissive LID: whoever receives the packet is the one meant.
    pub const PERMISSIVE: Self = Self(0xffff);

    /// The LID of this value.
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The LID of this value if it is in the unicast range 0x0001 to 0xBFFF.
    pub const fn unicast(value: u16) -> Option<Self> {
        let lid = Self(value);
        if lid.is_unicast() { Some(lid) } else { None }
    }

    /// The value.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether this is an address of one port (0x0001 to 0xBFFF).
    pub const fn is_unicast(self) -> bool {
        self.0 >= Self::UNICAST_FIRST.0 && self.0 <= Self::UNICAST_LAST.0
    }

    /// Whether this is an address of a multicast group (0xC000 to 0xFFFE).
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::MULTICAST_FIRST.0 && self.0 <= Self::MULTICAST_LAST.0
    }

    /// Whether a port whose base LID is this one and whose LID mask control is `lmc` (0 to 7)
    /// answers to `lid` as well.
    pub const fn covers(self, lmc: u8, lid: Self) -> bool {
        let paths = !((1u16 << (lmc & 7)) - 1);
        self.is_unicast() && lid.is_unicast() && lid.0 & paths == self.0 & paths
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            write!(f, "{} (0x{:04x})", self.0, self.0)
        } else {
            fmt::Display::fmt(&self.0, f)
        }
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid(0x{:04x})", self.0)
    }
}

impl FromStr for Lid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        number(text)
            .and_then(|value| u16::try_from(value).ok())
            .map(Self)
            .ok_or(ParseError::new("LID", "0 to 65535 or 0x0 to 0xffff"))
    }
}

impl From<u16> for Lid {
    fn from(value: u16) -> Self {
        Self(value)
    }
}

impl From<Lid> for u16 {
    fn from(lid: Lid) -> Self {
        lid.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert!(!Lid::NONE.is_unicast());
        assert!(Lid::new(1).is_unicast());
        assert!(Lid::new(0xbfff).is_unicast());
        assert!(Lid::new(0xc000).is_multicast());
        assert!(Lid::new(0xfffe).is_multicast());
        assert!(!Lid::PERMISSIVE.is_multicast());
        assert_eq!(Lid::unicast(0xc000), None);
    }

    #[test]
    fn mask_control() {
        assert!(Lid::new(8).covers(2, Lid::new(11)));
        assert!(!Lid::new(8).covers(2, Lid::new(12)));
        assert!(!Lid::NONE.covers(7, Lid::NONE));
        assert!(Lid::new(5).covers(0, Lid::new(5)));
        assert!(!Lid::new(1).covers(1, Lid::NONE));
    }

    #[test]
    fn text() {
        assert_eq!("18".parse(), Ok(Lid::new(18)));
        assert_eq!("0xC000".parse(), Ok(Lid::new(0xc000)));
        for bad in ["", "65536", "-1", "+1", "0x", "c000", "0x+1"] {
            assert!(bad.parse::<Lid>().is_err(), "{bad}");
        }
    }
}
