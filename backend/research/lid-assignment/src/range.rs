//! LIDs in ranges: a port owns 2^LMC of them, from a base LID that is a multiple of that.

use wire::Lid;

/// The most LIDs of one port: the LMC has 3 bits (IBA 4.1.3).
const LMC_MAX: u8 = 7;

/// LIDs a destination is charged for `configurations`: the next power of two.
#[must_use]
pub fn charged(configurations: usize) -> usize {
    configurations.max(1).next_power_of_two()
}

/// The LMC that a destination with so many configurations needs; `None` when 128 LIDs are too few.
#[must_use]
pub fn lmc(configurations: usize) -> Option<u8> {
    let lmc = charged(configurations).trailing_zeros() as u8;
    (lmc <= LMC_MAX).then_some(lmc)
}

/// Why ranges could not be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A destination needs more LIDs than a port can have.
    #[error("destination {destination} needs {configurations} LIDs, {} when rounded up, and a port has at most 128 (LMC 7); choose paths that part less often", charged(*configurations))]
    TooMany {
        /// The destination.
        destination: usize,
        /// The LIDs it needs.
        configurations: usize,
    },
    /// The unicast LIDs do not suffice.
    #[error("{wanted} LIDs are wanted and {} unicast LIDs exist (0x0001 to 0xbfff): {wanted} > 49151 less what alignment loses; use fewer destinations or paths that part less often", Lid::UNICAST_LAST.value())]
    Exhausted {
        /// LIDs of all destinations together.
        wanted: usize,
    },
}

/// A base LID and an LMC for every destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LidRanges(Vec<(Lid, u8)>);

impl LidRanges {
    /// Places the ranges of destinations that need so many LIDs each: those with the same need get
    /// rising LIDs in their order.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn place(configurations: &[usize]) -> Result<Self, RangeError> {
        let lmcs = configurations
            .iter()
            .enumerate()
            .map(|(destination, &configurations)| {
                lmc(configurations).ok_or(RangeError::TooMany {
                    destination,
                    configurations,
                })
            })
            .collect::<Result<Vec<u8>, _>>()?;
        let mut order: Vec<usize> = (0..lmcs.len()).collect();
        // Smallest first from LID 1 on: each larger power of two begins at a multiple of itself
        // with less than one range lost.
        order.sort_by_key(|&destination| lmcs[destination]);
        let mut ranges = vec![(Lid::NONE, 0); lmcs.len()];
        let mut next = 1usize;
        for destination in order {
            let size = 1usize << lmcs[destination];
            let base = next.next_multiple_of(size);
            next = base + size;
            if next - 1 > usize::from(Lid::UNICAST_LAST.value()) {
                let wanted = lmcs.iter().map(|lmc| 1usize << lmc).sum();
                return Err(RangeError::Exhausted { wanted });
            }
            ranges[destination] = (Lid::new(base as u16), lmcs[destination]);
        }
        Ok(Self(ranges))
    }

    /// Base LID and LMC of a destination.
    #[must_use]
    pub fn get(&self, destination: usize) -> Option<(Lid, u8)> {
        self.0.get(destination).copied()
    }

    /// The LID of a configuration of a destination.
    #[must_use]
    pub fn lid(&self, destination: usize, configuration: usize) -> Option<Lid> {
        let (base, lmc) = self.get(destination)?;
        (configuration < 1 << lmc).then(|| Lid::new(base.value() + configuration as u16))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn charges_are_powers_of_two() {
        let charges = [0, 1, 2, 3, 4, 5, 128].map(charged);
        assert_eq!(charges, [1, 1, 2, 4, 4, 8, 128]);
        assert_eq!(
            [lmc(1), lmc(5), lmc(128), lmc(129)],
            [Some(0), Some(3), Some(7), None]
        );
    }

    #[test]
    fn too_many_are_refused_with_the_arithmetic() {
        // One LID per path fails from 130 machines on: 129 paths to each.
        assert_eq!(
            LidRanges::place(&[128, 129]),
            Err(RangeError::TooMany {
                destination: 1,
                configurations: 129
            })
        );
        assert!(
            LidRanges::place(&[128; 383]).is_ok(),
            "383 blocks of 128 from 0x0080 to 0xbfff"
        );
        let error = LidRanges::place(&[128; 384]).unwrap_err();
        assert_eq!(error, RangeError::Exhausted { wanted: 49_152 });
    }

    proptest! {
        #[test]
        fn ranges_are_aligned_and_disjoint(needs in prop::collection::vec(1usize..=128, 0..200)) {
            let ranges = LidRanges::place(&needs).unwrap();
            let mut taken = std::collections::HashSet::new();
            for (destination, &need) in needs.iter().enumerate() {
                let (base, lmc) = ranges.get(destination).unwrap();
                prop_assert_eq!(base.value() % (1 << lmc), 0);
                prop_assert!(1 << lmc >= need);
                for configuration in 0..1 << lmc {
                    let lid = ranges.lid(destination, configuration).unwrap();
                    prop_assert!(lid.is_unicast());
                    prop_assert!(taken.insert(lid));
                }
                prop_assert_eq!(ranges.lid(destination, 1 << lmc), None);
            }
        }
    }
}
