//! Randomness that a seed decides.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

/// The random numbers of instance `instance` of an experiment with this seed: instances may be
/// computed in any order.
#[must_use]
pub fn generator(seed: u64, instance: u64) -> Pcg64Mcg {
    // SplitMix64's step between instances keeps their streams apart.
    Pcg64Mcg::seed_from_u64(seed.wrapping_add(instance.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
