//! Global identifiers.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use crate::address::guid::{Guid, hexadecimal};
use crate::error::ParseError;

/// A global identifier: 128 bits in the form of an IPv6 address, subnet prefix and GUID
/// (IBA 4.1.1).
///
/// Prints and reads as IPv6 addresses do (`fe80::2:c903:0:101`); `{:#}` prints all digits
/// (`fe80:0000:0000:0000:0002:c903:0000:0101`), as sysfs does.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(u128);

impl Gid {
    /// No GID.
    pub const NONE: Self = Self(0);
    /// The subnet prefix `fe80::/64` that a port has unless its subnet manager sets another.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// The GID of a port in the subnet of this prefix.
    pub const fn new(prefix: u64, guid: Guid) -> Self {
        Self(((prefix as u128) << 64) | guid.value() as u128)
    }

    /// The subnet prefix that a text says: as IPv6 writes it (`2001:db8:0:5::/64`, `fe80::`), its four groups alone, or
    /// as a GUID is written.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse_prefix(text: &str) -> Result<u64, ParseError> {
        let whole = |text: &str| {
            let gid: Self = text.parse().ok()?;
            (gid.to_bits() as u64 == 0).then_some(gid.prefix())
        };
        let network = text.strip_suffix("/64").unwrap_or(text);
        let found = hexadecimal(network, 8).or_else(|| whole(network));
        let expected = "64 bits as fe80::, 2001:db8:0:5 or 0xfe80000000000000";
        found.ok_or(ParseError::new("subnet prefix", expected))
    }

    /// The GID of this 128-bit value.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128-bit value.
    pub const fn to_bits(self) -> u128 {
        self.0
    }

    /// The GID of these bytes in wire order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The bytes in wire order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The upper 64 bits: the subnet prefix of a unicast GID.
    pub const fn prefix(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The lower 64 bits: the GUID of a unicast GID.
    pub const fn guid(self) -> Guid {
        Guid::new(self.0 as u64)
    }

    /// Whether this is the address of a multicast group (`ff00::/8`).
    pub const fn is_multicast(self) -> bool {
        self.0 >> 120 == 0xff
    }

    /// Whether this address means something in its own subnet alone (`fe80::/10`, IBA 4.1.1).
    pub const fn is_link_local(self) -> bool {
        self.0 >> 118 == 0xfe80 >> 6
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.0);
        if !f.alternate() {
            return fmt::Display::fmt(&address, f);
        }
        for (i, part) in address.segments().iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{part:04x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl FromStr for Gid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        text.parse::<Ipv6Addr>()
            .map(|address| Self(address.to_bits()))
            .map_err(|_| ParseError::new("GID", "an address as fe80::2:c903:0:101"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (text, prefix) in [
            ("2001:db8:1f07:b005", 0x2001_0db8_1f07_b005),
            ("2001:db8:1f07:b005::", 0x2001_0db8_1f07_b005),
            ("2001:db8:1f07:b005::/64", 0x2001_0db8_1f07_b005),
            ("2001:db8:1f07:b005/64", 0x2001_0db8_1f07_b005),
            ("2001:db8:1f07:b005:0:0:0:0", 0x2001_0db8_1f07_b005),
            ("20:01:0d:b8:1f:07:b0:05", 0x2001_0db8_1f07_b005),
            ("fe:80:00:00:00:00:00:00", Gid::DEFAULT_PREFIX),
            ("fe80::", Gid::DEFAULT_PREFIX),
            ("fe80::/64", Gid::DEFAULT_PREFIX),
            ("fe80:0000:0000:0000", Gid::DEFAULT_PREFIX),
            (
                "fe80:0000:0000:0000:0000:0000:0000:0000",
                Gid::DEFAULT_PREFIX,
            ),
            ("0xfe80000000000000", Gid::DEFAULT_PREFIX),
            ("fe80000000000000", Gid::DEFAULT_PREFIX),
        ] {
            assert_eq!(Gid::parse_prefix(text), Ok(prefix), "{text}");
        }
        for bad in [
            "",
            "fe80",
            "fe80::1",
            "fe80::/10",
            "fe80::/64/64",
            "2001:db8",
        ] {
            assert!(Gid::parse_prefix(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn text_and_parts() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x0002_c903_0000_0101));
        assert_eq!(gid.to_string(), "fe80::2:c903:0:101");
        assert_eq!(
            format!("{gid:#}"),
            "fe80:0000:0000:0000:0002:c903:0000:0101"
        );
        assert_eq!("fe80::2:c903:0:101".parse(), Ok(gid));
        assert!("fe80::1::2".parse::<Gid>().is_err());
        assert_eq!(gid.prefix(), Gid::DEFAULT_PREFIX);
        assert_eq!(gid.guid().value(), 0x0002_c903_0000_0101);
        assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
        assert!(!gid.is_multicast());
        assert!("ff12:401b:ffff::1".parse::<Gid>().unwrap().is_multicast());
    }
}
