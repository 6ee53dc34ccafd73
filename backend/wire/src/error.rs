//! Errors in bytes and in text.

use core::fmt;

/// A result with this crate's [`Error`].
pub type Result<T> = core::result::Result<T, Error>;

/// Why bytes are not the packet, header or attribute they were taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the structure has.
    Truncated {
        /// The structure.
        what: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes there were.
        have: usize,
    },
    /// A field holds a value that the specification reserves.
    Reserved {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        value: u64,
    },
    /// A check sum does not fit the bytes.
    Checksum {
        /// Name of the check sum.
        what: &'static str,
        /// The value found.
        found: u32,
        /// The value computed.
        computed: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { what, needed, have } => {
                write!(f, "{what}: {needed} bytes needed, {have} there")
            }
            Self::Reserved { what, field, value } => {
                write!(f, "{what}: {field} holds the reserved value {value:#x}")
            }
            Self::Checksum {
                what,
                found,
                computed,
            } => write!(f, "{what} is {found:#x}, computed {computed:#x}"),
        }
    }
}

impl core::error::Error for Error {}

/// Why text is not the address or number it was taken for.
///
/// The message says what would have been right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParseError {
    what: &'static str,
    expected: &'static str,
}

impl ParseError {
    pub(crate) const fn new(what: &'static str, expected: &'static str) -> Self {
        Self { what, expected }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a {}: expected {}", self.what, self.expected)
    }
}

impl core::error::Error for ParseError {}

/// Reads an unsigned number as people write it: decimal, or hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits_only = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_hexdigit());
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if digits_only(hex) => u64::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if digits_only(text) => text.parse().ok(),
        None => None,
    }
}
