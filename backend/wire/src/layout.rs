//! Structures written down as the specification's tables do: a name, a type, a range of bits.

pub(crate) mod bits;

use crate::{
    Gid, Guid, Lid, LinkSpeed, LinkSpeedExt, LinkWidth, Mtu, PKey, PhysicalState, PortState, Psn,
    QKey, Qpn, Sl, Vl,
};

/// Kind of a field, for translation of a packet from one space of addresses to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A LID of 16 bits.
    Lid,
    /// A GID.
    Gid,
    /// A P_Key.
    PKey,
    /// No address.
    Other,
}

/// The byte at which a field begins, by its name in a structure's `FIELDS`.
///
/// # Panics
/// Where no field has this name, or one that has it begins within a byte: in a constant, when it is
/// compiled.
#[must_use]
pub const fn byte_of(fields: &[(&str, core::ops::Range<usize>)], name: &str) -> usize {
    let mut at = 0;
    while at < fields.len() {
        let (field, bits) = &fields[at];
        if is_same(field.as_bytes(), name.as_bytes()) {
            assert!(bits.start.is_multiple_of(8), "begins within a byte");
            return bits.start / 8;
        }
        at += 1;
    }
    panic!("no field has this name");
}

/// Strings are not compared in constants.
const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}

/// A type that is a bit field. `None`: the specification reserves these bits' value.
pub(crate) trait Field: Copy {
    /// Kind of a field of this type.
    const KIND: Kind = Kind::Other;
    fn from_bits(bits: u128) -> Option<Self>;
    fn to_bits(self) -> u128;
}

macro_rules! integer_field {
    ($($type:ty),+) => {$(
        impl Field for $type {
            fn from_bits(bits: u128) -> Option<Self> { Some(bits as $type) }
            fn to_bits(self) -> u128 { self as u128 }
        }
    )+};
}
integer_field!(u8, u16, u32, u64, u128);

impl Field for bool {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(bits != 0)
    }
    fn to_bits(self) -> u128 {
        u128::from(self)
    }
}

impl Field for Gid {
    const KIND: Kind = Kind::Gid;
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self::from_bits(bits))
    }
    fn to_bits(self) -> u128 {
        self.to_bits()
    }
}

macro_rules! number_field {
    ($($type:ty: $inner:ty $(= $kind:ident)?),+) => {$(
        impl Field for $type {
            $( const KIND: Kind = Kind::$kind; )?
            fn from_bits(bits: u128) -> Option<Self> { Some(Self::new(bits as $inner)) }
            fn to_bits(self) -> u128 { u128::from(self.value()) }
        }
    )+};
}
number_field!(Lid: u16 = Lid, Guid: u64, PKey: u16 = PKey, QKey: u32, Qpn: u32, Psn: u32, Sl: u8, Vl: u8);

macro_rules! coded_field {
    ($($type:ty),+) => {$(
        impl Field for $type {
            fn from_bits(bits: u128) -> Option<Self> { Self::from_code(bits as u8) }
            fn to_bits(self) -> u128 { u128::from(self.code()) }
        }
    )+};
}
coded_field!(
    Mtu,
    PortState,
    PhysicalState,
    LinkWidth,
    LinkSpeed,
    LinkSpeedExt
);

/// Declares a structure of bit fields, with `parse` and `emit`; with `view`, also a borrowed view
/// that reads single fields in place.
///
/// Bits that no field names are reserved: written as zero, ignored when read.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident, $size:literal bytes, view $view:ident { $($fields:tt)+ }
    ) => {
        $crate::layout::layout! { $(#[$meta])* $name, $size bytes { $($fields)+ } }
        $crate::layout::layout! { @view $name, $size, $view { $($fields)+ } }
    };
    (
        $(#[$meta:meta])*
        $name:ident, $size:literal bytes {
            $( $(#[$fmeta:meta])* $field:ident: $type:ty = $start:literal .. $end:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $type, )+ }

        impl $name {
            /// Bytes on the wire.
            pub const SIZE: usize = $size;

            /// Every field's name and place, as bits from the most significant bit of the first
            /// byte: what a check against a published layout needs.
            pub const FIELDS: &'static [(&'static str, core::ops::Range<usize>)] =
                &[ $( (stringify!($field), $start..$end), )+ ];

            /// First bit, as in [`Self::FIELDS`], and kind of every field.
            pub const KINDS: &'static [(usize, $crate::Kind)] =
                &[ $( ($start, <$type as $crate::layout::Field>::KIND), )+ ];

            /// Reads the structure from the front of `bytes`.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated) when `bytes` is shorter than
            /// [`Self::SIZE`], [`Error::Reserved`](crate::Error::Reserved) when a field holds a
            /// value the specification reserves.
            pub fn parse(bytes: &[u8]) -> crate::Result<Self> {
                $crate::layout::check::<$size>(stringify!($name), bytes)?;
                Ok(Self {
                    $( $field: $crate::layout::field(
                        stringify!($name), stringify!($field), bytes, $start..$end,
                    )?, )+
                })
            }

            /// Writes the structure to the front of `bytes`, reserved bits as zero.
            ///
            /// # Panics
            /// When `bytes` is shorter than [`Self::SIZE`].
            pub fn emit(&self, bytes: &mut [u8]) {
                let bytes = &mut bytes[..$size];
                bytes.fill(0);
                $( $crate::layout::bits::set(
                    bytes, $start..$end, $crate::layout::Field::to_bits(self.$field),
                ); )+
            }

            /// The structure as bytes.
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                self.emit(&mut bytes);
                bytes
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($name))?;
                $( write!(f, " {}={}", stringify!($field), self.$field)?; )+
                Ok(())
            }
        }
    };
    (@view $name:ident, $size:literal, $view:ident {
        $( $(#[$fmeta:meta])* $field:ident: $type:ty = $start:literal .. $end:literal, )+
    }) => {
        #[doc = concat!("A borrowed [`", stringify!($name), "`]: reads single fields in place.")]
        #[derive(Debug, Clone, Copy)]
        pub struct $view<T>(T);

        impl<T: AsRef<[u8]>> $view<T> {
            /// The view, once `bytes` is known to be long enough.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated).
            pub fn new_checked(bytes: T) -> crate::Result<Self> {
                $crate::layout::check::<$size>(stringify!($name), bytes.as_ref())?;
                Ok(Self(bytes))
            }

            /// The bytes after this header.
            pub fn payload(&self) -> &[u8] {
                &self.0.as_ref()[$size..]
            }

            $(
                $(#[$fmeta])*
                pub fn $field(&self) -> $type {
                    $crate::layout::Field::from_bits(
                        $crate::layout::bits::get(self.0.as_ref(), $start..$end),
                    )
                    .unwrap_or_default()
                }
            )+
        }
    };
}
pub(crate) use layout;

pub(crate) fn check<const SIZE: usize>(what: &'static str, bytes: &[u8]) -> crate::Result<()> {
    if bytes.len() < SIZE {
        return Err(crate::Error::Truncated {
            what,
            needed: SIZE,
            have: bytes.len(),
        });
    }
    Ok(())
}

pub(crate) fn field<T: Field>(
    what: &'static str,
    field: &'static str,
    bytes: &[u8],
    range: core::ops::Range<usize>,
) -> crate::Result<T> {
    let bits = crate::layout::bits::get(bytes, range);
    T::from_bits(bits).ok_or(crate::Error::Reserved {
        what,
        field,
        value: bits as u64,
    })
}
