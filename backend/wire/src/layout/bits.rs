//! Bit fields by their offsets in the specification's tables.
//!
//! The specification counts bits from the most significant bit of the first byte; so does this
//! module. A field is a range of bits.

use core::ops::Range;

/// Reads the field `bits` (at most 128 bits wide) of `data`.
///
/// # Panics
/// When the field lies outside `data`: offsets are constants, a caller checks the length once.
pub(crate) fn get(data: &[u8], bits: Range<usize>) -> u128 {
    let width = bits.end - bits.start;
    debug_assert!((1..=128).contains(&width));
    let first = bits.start / 8;
    let last = (bits.end - 1) / 8;
    // A field of 128 bits is byte aligned wherever the specification has one, so the bytes it
    // touches always fit the accumulator.
    debug_assert!(last - first < 16);
    let value = data[first..=last]
        .iter()
        .fold(0u128, |value, &byte| (value << 8) | u128::from(byte));
    (value >> (last * 8 + 7 - (bits.end - 1))) & mask(width)
}

/// Writes `value` to the field `bits` of `data`; bits beyond the width of the field are dropped.
///
/// # Panics
/// As [`get`].
pub(crate) fn set(data: &mut [u8], bits: Range<usize>, value: u128) {
    let width = bits.end - bits.start;
    debug_assert!((1..=128).contains(&width));
    let first = bits.start / 8;
    let last = (bits.end - 1) / 8;
    debug_assert!(last - first < 16);
    let shift = last * 8 + 7 - (bits.end - 1);
    let mut value = (value & mask(width)) << shift;
    let mut keep = !(mask(width) << shift);
    for byte in data[first..=last].iter_mut().rev() {
        *byte = (*byte & keep as u8) | value as u8;
        keep >>= 8;
        value >>= 8;
    }
}

const fn mask(width: usize) -> u128 {
    u128::MAX >> (128 - width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_within_and_across_bytes() {
        let data = [0x12, 0x34, 0x56, 0x78];
        assert_eq!(get(&data, 0..4), 1);
        assert_eq!(get(&data, 4..8), 2);
        assert_eq!(get(&data, 4..12), 0x23);
        assert_eq!(get(&data, 0..32), 0x1234_5678);
        assert_eq!(get(&data, 13..16), 4);
        assert_eq!(get(&data, 31..32), 0);
    }

    #[test]
    fn setting_leaves_the_neighbours() {
        let mut data = [0xff; 4];
        set(&mut data, 6..11, 0);
        assert_eq!(data, [0xfc, 0x1f, 0xff, 0xff]);
        set(&mut data, 6..11, 0xfff1);
        assert_eq!(data, [0xfe, 0x3f, 0xff, 0xff]);
    }

    #[test]
    fn a_whole_gid() {
        let mut data = [0; 16];
        set(&mut data, 0..128, u128::MAX - 1);
        assert_eq!(get(&data, 0..128), u128::MAX - 1);
    }
}
