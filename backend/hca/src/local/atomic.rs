//! Atomic operations: what they make of a value.

use crate::objects::work::{AtomicOperands, Operation};

/// New value of an atomic operation, or `None` where the value stays.
#[inline]
pub(crate) fn atomic_result(
    operation: Operation,
    operands: AtomicOperands,
    value: u64,
) -> Option<u64> {
    match operation {
        Operation::CompareSwap => (value == operands.compare).then_some(operands.swap_add),
        Operation::FetchAdd => Some(value.wrapping_add(operands.swap_add)),
        Operation::MaskedCompareSwap => ((value ^ operands.compare) & operands.compare_mask == 0)
            .then_some((value & !operands.swap_mask) | (operands.swap_add & operands.swap_mask)),
        // No carry leaves a value of four bytes either.
        Operation::MaskedFetchAdd if operands.half => {
            let sum = masked_add(value, operands.swap_add, operands.swap_mask);
            Some(sum & u64::from(u32::MAX))
        }
        Operation::MaskedFetchAdd => Some(masked_add(value, operands.swap_add, operands.swap_mask)),
        _ => None,
    }
}

/// Adds field by field. A set bit of `boundaries` is the most significant bit of a field. No carry
/// leaves a field.
fn masked_add(value: u64, addend: u64, boundaries: u64) -> u64 {
    let low = (value & !boundaries).wrapping_add(addend & !boundaries);
    low ^ ((value ^ addend) & boundaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operands(swap_add: u64, compare: u64, swap_mask: u64, compare_mask: u64) -> AtomicOperands {
        AtomicOperands {
            swap_add,
            compare,
            swap_mask,
            compare_mask,
            half: false,
        }
    }

    #[test]
    fn values_of_four_bytes_are_no_longer() {
        let half = |operands| AtomicOperands {
            half: true,
            ..operands
        };
        let add = half(operands(2, 0, 0, 0));
        let result = atomic_result(Operation::MaskedFetchAdd, add, u64::from(u32::MAX));
        assert_eq!(result, Some(1));
        let swap = half(operands(
            0xaabb_ccdd,
            5,
            u64::from(u32::MAX),
            u64::from(u32::MAX),
        ));
        let swapped = |value| atomic_result(Operation::MaskedCompareSwap, swap, value);
        assert_eq!((swapped(5), swapped(6)), (Some(0xaabb_ccdd), None));
        assert_eq!(
            add.answer(0x0102_0304, false),
            ([1, 2, 3, 4, 0, 0, 0, 0], 4)
        );
    }

    #[test]
    fn masked_add_keeps_carries_in_their_field() {
        // two 32-bit fields
        let boundaries = 0x8000_0000_8000_0000;
        assert_eq!(
            masked_add(0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, boundaries),
            0x0000_0002_0000_0000
        );
        // no boundaries: a plain addition
        assert_eq!(masked_add(u64::MAX, 2, 0), 1);
        assert_eq!(
            masked_add(0x7fff_ffff_ffff_ffff, 1, 1 << 63),
            0x8000_0000_0000_0000
        );
    }

    #[test]
    fn masked_add_equals_field_by_field_addition() {
        // Independent formulation: every bit position with its carry.
        let slow = |value: u64, addend: u64, boundaries: u64| {
            let (mut result, mut carry) = (0_u64, 0_u64);
            for bit in 0..64 {
                let sum = (value >> bit & 1) + (addend >> bit & 1) + carry;
                result |= (sum & 1) << bit;
                carry = if boundaries >> bit & 1 == 1 {
                    0
                } else {
                    sum >> 1
                };
            }
            result
        };
        let mut random = testing::Random::new(1);
        for _ in 0..1000 {
            let mut next = || random.number();
            let (value, addend, boundaries) = (next(), next(), next());
            assert_eq!(
                masked_add(value, addend, boundaries),
                slow(value, addend, boundaries)
            );
        }
    }

    #[test]
    fn compare_and_swap_under_masks() {
        let op = Operation::MaskedCompareSwap;
        assert_eq!(
            atomic_result(op, operands(0xaa, 0x10, 0xff, 0xf0), 0x1234_5618),
            Some(0x1234_56aa)
        );
        assert_eq!(
            atomic_result(op, operands(0xaa, 0x20, 0xff, 0xf0), 0x1234_5618),
            None
        );
        assert_eq!(
            atomic_result(Operation::CompareSwap, operands(7, 5, 0, 0), 5),
            Some(7)
        );
        assert_eq!(
            atomic_result(Operation::CompareSwap, operands(7, 5, 0, 0), 6),
            None
        );
    }
}
