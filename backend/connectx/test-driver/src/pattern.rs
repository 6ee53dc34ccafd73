//! Bytes that tell where they came from, to check that payload arrives whole
//! and in its place.

use thiserror::Error;

use crate::memory::{Buffer, PAGE};

/// A byte that is not what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("payload byte {index} of {len} is {found:#04x}, sent was {expected:#04x} (seed {seed})")]
pub struct Mismatch {
    /// Its place in the payload.
    pub index: usize,
    /// Length of the payload.
    pub len: usize,
    /// The byte found.
    pub found: u8,
    /// The byte of the pattern.
    pub expected: u8,
    /// The pattern's seed.
    pub seed: u64,
}

fn word(seed: u64, number: u64) -> u64 {
    // SplitMix64.
    let mut z = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes the bytes of a pattern from byte `first` on to `data`.
pub fn bytes(seed: u64, first: usize, data: &mut [u8]) {
    let mut at = first;
    let mut rest = data;
    while !rest.is_empty() {
        let within = at % 8;
        let word = word(seed, (at / 8) as u64).to_le_bytes();
        let n = (8 - within).min(rest.len());
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&word[within..within + n]);
        rest = later;
        at += n;
    }
}

/// Fills `len` bytes at `offset` with the pattern of `seed`.
///
/// # Panics
/// Past the end of the buffer.
pub fn fill(buffer: &Buffer, offset: usize, len: usize, seed: u64) {
    let mut block = [0; PAGE];
    for at in (0..len).step_by(PAGE) {
        let n = PAGE.min(len - at);
        bytes(seed, at, &mut block[..n]);
        buffer.write(offset + at, &block[..n]);
    }
}

/// Checks that `len` bytes at `offset` are the pattern of `seed`.
///
/// # Errors
/// [`Mismatch`]: the first byte that is not.
///
/// # Panics
/// Past the end of the buffer.
pub fn verify(buffer: &Buffer, offset: usize, len: usize, seed: u64) -> Result<(), Mismatch> {
    let mut expected = [0; PAGE];
    let mut found = [0; PAGE];
    for at in (0..len).step_by(PAGE) {
        let n = PAGE.min(len - at);
        bytes(seed, at, &mut expected[..n]);
        buffer.read(offset + at, &mut found[..n]);
        if let Some(i) = (0..n).find(|&i| expected[i] != found[i]) {
            return Err(Mismatch {
                index: at + i,
                len,
                found: found[i],
                expected: expected[i],
                seed,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn a_changed_byte_is_found() {
        let memory = Memory::new(0, 4 * PAGE).unwrap();
        let buffer = memory.allocate(3 * PAGE, 64).unwrap();
        fill(&buffer, 3, 10_000, 7);
        verify(&buffer, 3, 10_000, 7).unwrap();
        assert!(verify(&buffer, 3, 10_000, 8).is_err());
        let mut byte = [0];
        buffer.read(9003, &mut byte);
        buffer.write(9003, &[!byte[0]]);
        let mismatch = verify(&buffer, 3, 10_000, 7).unwrap_err();
        assert_eq!((mismatch.index, mismatch.expected), (9000, byte[0]));
    }

    #[test]
    fn a_pattern_is_the_same_in_parts() {
        let mut whole = [0; 40];
        bytes(3, 5, &mut whole);
        let mut part = [0; 13];
        bytes(3, 14, &mut part);
        assert_eq!(part, whole[9..22]);
    }
}
