//! Random numbers that a seed determines.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence each time. A test that fails shows the seed.
    #[must_use]
    pub fn of_the_clock() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(shown(now.map_or(1, |time| time.as_nanos() as u64)))
    }

    /// A number of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below the limit.
    ///
    /// # Panics
    /// If the limit is zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.number().to_le_bytes()[..chunk.len()]);
        }
    }
}

fn shown(seed: u64) -> u64 {
    println!("IBVSWITCH_SEED={seed}");
    seed
}

/// The number in the environment variable `IBVSWITCH_SEED`, or else this one. A test that fails shows it.
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn seed(usual: u64) -> u64 {
    let given = std::env::var("IBVSWITCH_SEED").ok();
    shown(given.map_or(usual, |seed| {
        seed.parse().expect("IBVSWITCH_SEED is a number")
    }))
}

/// Bytes that differ from place to place and from seed to seed.
#[must_use]
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As published with the reference code.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        assert_eq!(Random::new(0).number(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn payload_begins_alike_at_every_length() {
        assert_eq!(payload(7, 20)[..13], payload(7, 13));
        assert_ne!(payload(7, 20), payload(8, 20));
    }
}
