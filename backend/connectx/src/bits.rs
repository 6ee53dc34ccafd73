//! Layouts of the interface's structures: where each field is, and nothing
//! about what it means.
//!
//! All structures are arrays of big-endian 32-bit words ("dwords"); bit 31 of a
//! dword is the most significant one. The names are those of the Linux driver's
//! interface description, so that the two can be read side by side; a test
//! holds the offsets here against ones computed from that description.

pub mod capability;
pub mod command;
pub mod completion;
pub mod counter;
pub mod dynamic;
pub mod event;
pub mod initialization;
pub mod memory_key;
pub mod network;
pub mod port;
pub mod queue_pair;
pub mod resource_dump;
pub mod shared_receive;
pub mod signature;
pub mod work;

/// A field of at most 32 bits within one dword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    shift: u32,
    mask: u32,
}

impl Field {
    /// Bits `high` to `low`, both included, of the dword at byte `offset`.
    #[must_use]
    pub const fn new(offset: usize, high: u32, low: u32) -> Self {
        assert!(offset.is_multiple_of(4) && low <= high && high < 32);
        Self {
            offset,
            shift: low,
            mask: u32::MAX >> (31 - (high - low)),
        }
    }

    /// The value; zero where the structure ends before the field, as a device
    /// reads an input that the driver cut short.
    #[inline]
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u32 {
        (dword(bytes, self.offset) >> self.shift) & self.mask
    }

    /// Whether any bit of the field is set.
    #[inline]
    #[must_use]
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Puts `value`, of which only as many bits count as the field has. Does
    /// nothing where the structure ends before the field.
    #[inline]
    pub fn set(self, bytes: &mut [u8], value: u32) {
        if let Some(dword) = bytes
            .get_mut(self.offset..)
            .and_then(<[u8]>::first_chunk_mut::<4>)
        {
            let old = u32::from_be_bytes(*dword);
            let new = old & !(self.mask << self.shift) | (value & self.mask) << self.shift;
            *dword = new.to_be_bytes();
        }
    }

    /// First bit within the structure, counted as the interface description
    /// does, and number of bits.
    #[must_use]
    pub const fn position(self) -> (usize, usize) {
        let width = self.mask.count_ones();
        (
            self.offset * 8 + (32 - self.shift - width) as usize,
            width as usize,
        )
    }
}

/// A field of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wide {
    offset: usize,
}

impl Wide {
    /// The eight bytes at byte `offset`.
    #[must_use]
    pub const fn new(offset: usize) -> Self {
        assert!(offset.is_multiple_of(4));
        Self { offset }
    }

    /// The value; zero where the structure ends before the field.
    #[inline]
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        bytes
            .get(self.offset..)
            .and_then(<[u8]>::first_chunk::<8>)
            .map_or(0, |b| u64::from_be_bytes(*b))
    }

    /// Puts `value`; nothing where the structure ends before the field.
    #[inline]
    pub fn set(self, bytes: &mut [u8], value: u64) {
        if let Some(field) = bytes
            .get_mut(self.offset..)
            .and_then(<[u8]>::first_chunk_mut::<8>)
        {
            *field = value.to_be_bytes();
        }
    }

    /// As [`Field::position`].
    #[must_use]
    pub const fn position(self) -> (usize, usize) {
        (self.offset * 8, 64)
    }
}

/// A run of bytes: an array, or a structure within a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    offset: usize,
    len: usize,
}

impl Span {
    /// `len` bytes at byte `offset`.
    #[must_use]
    pub const fn new(offset: usize, len: usize) -> Self {
        Self { offset, len }
    }

    /// The bytes; fewer where the structure ends before.
    #[inline]
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> &[u8] {
        let end = bytes.len().min(self.offset + self.len);
        bytes.get(self.offset..end).unwrap_or_default()
    }

    /// The bytes, to change them.
    #[inline]
    pub fn get_mut(self, bytes: &mut [u8]) -> &mut [u8] {
        let end = bytes.len().min(self.offset + self.len);
        bytes.get_mut(self.offset..end).unwrap_or_default()
    }

    /// The bytes as an array, zero past the end of the structure.
    #[inline]
    #[must_use]
    pub fn array<const N: usize>(self, bytes: &[u8]) -> [u8; N] {
        let mut array = [0; N];
        for (to, from) in array.iter_mut().zip(self.get(bytes)) {
            *to = *from;
        }
        array
    }

    /// Puts `data`, cut to the length of the run.
    #[inline]
    pub fn set(self, bytes: &mut [u8], data: &[u8]) {
        for (to, from) in self.get_mut(bytes).iter_mut().zip(data) {
            *to = *from;
        }
    }

    /// As [`Field::position`].
    #[must_use]
    pub const fn position(self) -> (usize, usize) {
        (self.offset * 8, self.len * 8)
    }
}

/// The dword at byte `offset`, zero past the end.
#[inline]
#[must_use]
pub fn dword(bytes: &[u8], offset: usize) -> u32 {
    bytes
        .get(offset..)
        .and_then(<[u8]>::first_chunk::<4>)
        .map_or(0, |b| u32::from_be_bytes(*b))
}

/// Declares structures. A field is written `NAME: offset kind;` where the kind
/// is `[high:low]` for bits of a dword, `wide` for 64 bits, and `(n)` for a run
/// of `n` bytes.
macro_rules! structures {
    ($( $(#[$doc:meta])* $structure:ident ($size:literal) { $( $(#[$note:meta])* $name:ident : $offset:literal $kind:tt ; )* } )*) => {
        $(
            $(#[$doc])*
            pub mod $structure {
                #[allow(unused_imports, reason = "not every structure has every kind of field")]
                use $crate::bits::{Field, Span, Wide};

                /// Size of the structure in bytes, without any list behind it.
                pub const SIZE: usize = $size;

                $(
                    #[doc = concat!("`", stringify!($offset), stringify!($kind), "`")]
                    $(#[$note])*
                    pub const $name: $crate::bits::structures!(@type $kind) =
                        $crate::bits::structures!(@value $offset $kind);
                )*

                /// Names and positions of the fields, to check them.
                #[cfg(test)]
                pub(crate) const FIELDS: &[(&str, (usize, usize))] = &[$((stringify!($name), $name.position())),*];
            }
        )*

        /// The structures of this module and their fields, to check them.
        #[cfg(test)]
        pub(crate) const STRUCTURES: &[(&str, usize, &[(&str, (usize, usize))])] =
            &[$((stringify!($structure), $size, $structure::FIELDS)),*];
    };
    (@type [$high:literal : $low:literal]) => { Field };
    (@type wide) => { Wide };
    (@type ($len:literal)) => { Span };
    (@value $offset:literal [$high:literal : $low:literal]) => { Field::new($offset, $high, $low) };
    (@value $offset:literal wide) => { Wide::new($offset) };
    (@value $offset:literal ($len:literal)) => { Span::new($offset, $len) };
}
pub(crate) use structures;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_field_leaves_its_neighbours_alone() {
        let mut bytes = [0xff_u8; 8];
        let field = Field::new(4, 23, 8);
        field.set(&mut bytes, 0x1234);
        assert_eq!(bytes, [0xff, 0xff, 0xff, 0xff, 0xff, 0x12, 0x34, 0xff]);
        assert_eq!(field.get(&bytes), 0x1234);
        let top = Field::new(0, 31, 31);
        top.set(&mut bytes, 0);
        assert_eq!(bytes[0], 0x7f);
        assert!(!top.is_set(&bytes));
    }

    #[test]
    fn past_the_end_reads_zero_and_keeps_nothing() {
        let mut short = [0xff_u8; 6];
        assert_eq!(Field::new(4, 31, 0).get(&short), 0);
        assert_eq!(Wide::new(0).get(&short), 0);
        assert_eq!(Span::new(4, 8).get(&short), &[0xff, 0xff]);
        assert_eq!(Span::new(40, 8).get(&short), &[] as &[u8]);
        Field::new(4, 31, 0).set(&mut short, 0);
        Wide::new(4).set(&mut short, 0);
        assert_eq!(short, [0xff; 6]);
    }

    /// Offsets computed from the Linux kernel's interface description by
    /// `layout.sh`: one line per field, its structure, name, first bit, bits.
    const LAYOUT: &str = include_str!("bits/layout.txt");

    #[test]
    fn fields_are_where_the_interface_description_has_them() {
        let known: HashMap<(&str, String), (usize, usize)> = LAYOUT
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let mut parts = line.split_whitespace();
                let structure = parts.next().unwrap();
                let name = parts.next().unwrap().to_uppercase();
                let first = parts.next().unwrap().parse().unwrap();
                let bits = parts.next().unwrap().parse().unwrap();
                ((structure, name), (first, bits))
            })
            .collect();
        let mut checked = 0;
        let mut wrong = Vec::new();
        for module in [
            capability::STRUCTURES,
            command::STRUCTURES,
            completion::STRUCTURES,
            dynamic::STRUCTURES,
            counter::STRUCTURES,
            event::STRUCTURES,
            initialization::STRUCTURES,
            memory_key::STRUCTURES,
            network::STRUCTURES,
            port::STRUCTURES,
            queue_pair::STRUCTURES,
            resource_dump::STRUCTURES,
            shared_receive::STRUCTURES,
            signature::STRUCTURES,
            work::STRUCTURES,
        ] {
            for (structure, _, fields) in module {
                for (name, position) in *fields {
                    let expected = known.get(&(*structure, (*name).to_string()));
                    if expected != Some(position) {
                        wrong.push(format!(
                            "{structure}.{name}: {position:?}, not {expected:?}"
                        ));
                    }
                    checked += 1;
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
        assert!(checked > 200, "only {checked} fields were checked");
    }
}
