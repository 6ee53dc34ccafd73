//! Global unique identifiers.

use core::fmt;
use core::str::FromStr;

use crate::error::ParseError;

/// A global unique identifier (EUI-64) of a node, port or system image (IBA 4.1.1).
///
/// Prints as `0002:c903:0000:0101`, as the verbs tools do; `{:#}` prints `0x0002c90300000101`, as
/// OpenSM and the diagnostics do. Reads both, with or without leading zeros, eight octets between colons or hyphens,
/// as sysfs and `ip link` have them, and sixteen bare digits; never decimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(u64);

impl Guid {
    /// No GUID.
    pub const NONE: Self = Self(0);

    /// The GUID of this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// Whether this is zero, which no port may have.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        if f.alternate() {
            write!(f, "0x{v:016x}")
        } else {
            let [a, b, c, d] = [v >> 48, v >> 32, v >> 16, v].map(|part| part & 0xffff);
            write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
        }
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

impl FromStr for Guid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let expected = "16 hexadecimal digits as 0002:c903:0000:0101, 00:02:c9:03:00:00:01:01 or \
             0x0002c90300000101";
        let value = hexadecimal(text, 8).map(Self);
        value.ok_or(ParseError::new("GUID", expected))
    }
}

impl From<u64> for Guid {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<Guid> for u64 {
    fn from(guid: Guid) -> Self {
        guid.0
    }
}

/// The value of `bytes` bytes in hexadecimal: after `0x` with or without leading zeros, all digits bare, or in
/// groups of one or two bytes between colons or hyphens (of two bytes also between dots).
pub(crate) fn hexadecimal(text: &str, bytes: usize) -> Option<u64> {
    let digits = |part: &str, most: usize| {
        let right = (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        right.then(|| u64::from_str_radix(part, 16).ok())?
    };
    if let Some(bare) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return digits(bare, 2 * bytes);
    }
    let Some(separator) = text.chars().find(|c| [':', '-', '.'].contains(c)) else {
        return digits(text, 2 * bytes).filter(|_| text.len() == 2 * bytes);
    };
    let width = match (bytes).checked_div(text.split(separator).count())? {
        1 if separator != '.' => 1,
        2 => 2,
        _ => return None,
    };
    let mut parts = text.split(separator);
    let value = parts.try_fold(0, |value, part| {
        Some(value << (8 * width) | digits(part, 2 * width)?)
    })?;
    (text.split(separator).count() * width == bytes).then_some(value)
}

/// The value of the 48 bits of an Ethernet address.
#[must_use]
pub fn ethernet_address(text: &str) -> Option<[u8; 6]> {
    let [_, _, address @ ..] = hexadecimal(text, 6)?.to_be_bytes();
    Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses() {
        let address = Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        for good in [
            "52:54:00:12:34:56",
            "52-54-00-12-34-56",
            "5254.0012.3456",
            "525400123456",
            "52:54:0:12:34:56",
        ] {
            assert_eq!(ethernet_address(good), address, "{good}");
        }
        for bad in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:00",
            "52:54:00:12:34:5g",
            "52.54.00.12.34.56",
            "52:54-00:12:34:56",
            "052:54:00:12:34:56",
            ":::::",
        ] {
            assert_eq!(ethernet_address(bad), None, "{bad}");
        }
    }

    #[test]
    fn text() {
        let guid = Guid::new(0x0002_c903_0000_0101);
        assert_eq!(guid.to_string(), "0002:c903:0000:0101");
        assert_eq!(format!("{guid:#}"), "0x0002c90300000101");
        for good in [
            "0002:c903:0000:0101",
            "0x0002c90300000101",
            "0x2c90300000101",
            "0002c90300000101",
            "0002:C903:0000:0101",
            "2:c903:0:101",
            "00:02:c9:03:00:00:01:01",
            "0:2:c9:3:0:0:1:1",
            "00-02-C9-03-00-00-01-01",
            "0X0002c90300000101",
        ] {
            assert_eq!(good.parse(), Ok(guid), "{good}");
        }
        for bad in [
            "",
            "0x",
            "101",
            "0002:c903:0000",
            "0002:c903:0000:0101:0000",
            "00002:c903:0000:0101",
            "784598236856577",
            "00:02:c9:03:00:00:01:001",
            "::",
            "0x10002c90300000101",
            "0002:c903:0000:01g1",
        ] {
            assert!(bad.parse::<Guid>().is_err(), "{bad}");
        }
    }
}
