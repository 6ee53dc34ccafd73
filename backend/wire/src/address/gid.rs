//! Global identifiers.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use crate::address::guid::Guid;
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
