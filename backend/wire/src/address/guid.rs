//! Global unique identifiers.

use core::fmt;
use core::str::FromStr;

use crate::error::ParseError;

/// A global unique identifier (EUI-64) of a node, port or system image (IBA 4.1.1).
///
/// Prints as `0002:c903:0000:0101`, as the verbs tools do; `{:#}` prints `0x0002c90300000101`, as
/// OpenSM and the diagnostics do. Reads both, and sixteen bare digits.
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
        let error = ParseError::new(
            "GUID",
            "16 hexadecimal digits as 0002:c903:0000:0101 or 0x0002c90300000101",
        );
        let digits = |part: &str, count| part.len() == count && hexadecimal(part);
        if text.contains(':') {
            let mut value = 0;
            let mut parts = 0;
            for part in text.split(':') {
                if !digits(part, 4) {
                    return Err(error);
                }
                value = (value << 16) | u64::from_str_radix(part, 16).map_err(|_| error)?;
                parts += 1;
            }
            return if parts == 4 {
                Ok(Self(value))
            } else {
                Err(error)
            };
        }
        let bare = text.strip_prefix("0x").unwrap_or(text);
        let long_enough = if bare.len() == text.len() {
            bare.len() == 16
        } else {
            (1..=16).contains(&bare.len())
        };
        if !long_enough || !hexadecimal(bare) {
            return Err(error);
        }
        u64::from_str_radix(bare, 16).map(Self).map_err(|_| error)
    }
}

fn hexadecimal(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
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

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(good.parse(), Ok(guid), "{good}");
        }
        for bad in [
            "",
            "0x",
            "101",
            "0002:c903:0000",
            "0002:c903:0000:0101:0000",
            "2:c903:0:101",
            "0x10002c90300000101",
            "0002:c903:0000:01g1",
        ] {
            assert!(bad.parse::<Guid>().is_err(), "{bad}");
        }
    }
}
