//! Doorbells in pages that trap: what a write to a page rings. A processor without stores of eight bytes
//! writes a doorbell in two halves (as `mlx5_write64` of 32-bit kernels does), and an emulator may part a store, too.

use serde::{Deserialize, Serialize};

use crate::bits::initialization::{UAR_CQ, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_SEND};
use crate::state::uar::STRIDE;

/// Most first halves that wait for their second ones: one for each processor that is just ringing.
const WAITING: usize = 16;

/// A doorbell that a write is, or is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// A send queue or a completion queue: `register` is its place in the page.
    Queue { register: u16, part: Part },
    /// The event queue whose number is in the upper byte of `word`.
    Events { word: u32, arm: bool },
}

/// Part of a doorbell of eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole([u8; 8]),
    First([u8; 4]),
    Second([u8; 4]),
}

impl Doorbell {
    /// Returns the doorbell that a write of `data` at byte `offset` of a page rings. If a driver writes a whole
    /// request behind a send doorbell (BlueFlame), only the request's first eight bytes ring.
    pub fn new(offset: usize, data: &[u8]) -> Option<Self> {
        let first = data.first_chunk::<4>();
        if matches!(offset, UAR_EQ_ARM | UAR_EQ_UPDATE) {
            return Some(Self::Events {
                word: u32::from_be_bytes(*first?),
                arm: offset == UAR_EQ_ARM,
            });
        }
        let register = offset & !7;
        if register != UAR_CQ && (register < UAR_SEND || !register.is_multiple_of(STRIDE)) {
            return None;
        }
        let part = match (offset - register, data.first_chunk()) {
            (0, Some(whole)) => Part::Whole(*whole),
            (0, None) => Part::First(*first?),
            (4, _) => Part::Second(*first?),
            _ => return None,
        };
        let register = register.try_into().ok()?;
        Some(Self::Queue { register, part })
    }
}

/// First half of a doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Half {
    uar: u32,
    register: u16,
    word: [u8; 4],
}

/// First halves that wait for their second ones.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    waiting: [Option<Half>; WAITING],
    next: usize,
}

impl Halves {
    /// The whole doorbell in `register` of page `uar` that this part completes, if it does.
    pub fn join(&mut self, uar: u32, register: u16, part: Part) -> Option<[u8; 8]> {
        let is_here = |half: &Half| (half.uar, half.register) == (uar, register);
        let here = (self.waiting.iter()).position(|half| half.as_ref().is_some_and(is_here));
        let earlier = here.and_then(|at| self.waiting[at].take());
        match part {
            Part::Whole(whole) => Some(whole),
            Part::First(word) => {
                self.wait(Half {
                    uar,
                    register,
                    word,
                });
                None
            }
            Part::Second(second) => {
                let mut whole = [0; 8];
                whole[..4].copy_from_slice(&earlier?.word);
                whole[4..].copy_from_slice(&second);
                Some(whole)
            }
        }
    }

    /// Has a half wait, in place of the oldest one where there are too many.
    fn wait(&mut self, half: Half) {
        self.waiting[self.next] = Some(half);
        self.next = (self.next + 1) % WAITING;
    }

    /// The halves that wait, the oldest first.
    pub fn save(&self) -> Vec<Half> {
        let (newer, older) = self.waiting.split_at(self.next);
        older.iter().chain(newer).flatten().copied().collect()
    }

    pub fn restore(halves: &[Half]) -> Self {
        let mut restored = Self::default();
        halves.iter().for_each(|half| restored.wait(*half));
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(register: u16, part: Part) -> Option<Doorbell> {
        Some(Doorbell::Queue { register, part })
    }

    #[test]
    fn writes_are_doorbells_at_registers_only() {
        let data: [u8; 64] = std::array::from_fn(|at| at as u8);
        let (first, whole) = ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]);
        for register in [0x20, 0x800, 0x900, 0xf00] {
            let at = usize::from(register);
            for len in [8, 16, 64] {
                let of = Doorbell::new(at, &data[..len]);
                assert_eq!(of, queue(register, Part::Whole(whole)), "{len}");
            }
            let of = |offset| Doorbell::new(offset, &data[..4]);
            assert_eq!(of(at), queue(register, Part::First(first)));
            assert_eq!(of(at + 4), queue(register, Part::Second(first)));
        }
        for (offset, len) in [
            (0, 8),
            (0x28, 8),
            (0x7f8, 8),
            (0x801, 8),
            (0x806, 4),
            (0x808, 8),
            (0x8fc, 4),
            (0xff8, 8),
            (0x800, 3),
            (0x804, 2),
            (0x40, 3),
            (0x44, 4),
        ] {
            assert_eq!(
                Doorbell::new(offset, &data[..len]),
                None,
                "{offset:#x} {len}"
            );
        }
        let events = |arm| {
            let word = 0x0001_0203;
            Some(Doorbell::Events { word, arm })
        };
        assert_eq!(Doorbell::new(0x40, &data[..4]), events(true));
        assert_eq!(Doorbell::new(0x48, &data[..8]), events(false));
    }

    #[test]
    fn halves_of_processors_that_ring_at_once_are_kept_apart() {
        let mut halves = Halves::default();
        let first = |uar: u32| Part::First(uar.to_be_bytes());
        let second = Part::Second([9; 4]);
        let whole = |uar: u32| {
            let mut whole = [9; 8];
            whole[..4].copy_from_slice(&uar.to_be_bytes());
            Some(whole)
        };
        assert_eq!(halves.join(0, 0x800, second), None);
        for uar in 0..WAITING as u32 {
            assert_eq!(halves.join(uar, 0x800, first(uar)), None);
        }
        assert_eq!(halves.join(3, 0x900, second), None);
        let mut halves = Halves::restore(&halves.save());
        for uar in (0..WAITING as u32).rev() {
            assert_eq!(halves.join(uar, 0x800, second), whole(uar));
            assert_eq!(halves.join(uar, 0x800, second), None);
        }
        // One too many takes the place of the oldest; one anew at its place, of the one before.
        for uar in 0..=WAITING as u32 {
            assert_eq!(halves.join(uar, 0x800, first(uar)), None);
        }
        assert_eq!(halves.join(0, 0x800, second), None);
        assert_eq!(halves.join(1, 0x800, Part::First([7; 4])), None);
        assert_eq!(
            halves.join(1, 0x800, second),
            Some([7, 7, 7, 7, 9, 9, 9, 9])
        );
        // A whole one leaves no half behind.
        assert_eq!(halves.join(2, 0x800, Part::Whole([5; 8])), Some([5; 8]));
        assert_eq!(halves.join(2, 0x800, second), None);
    }
}
