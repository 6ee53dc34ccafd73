//! Doorbells that a guest rings in a page that traps.

use connectx::bits::initialization::{PAGE_SIZE, UAR_CQ, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_SEND};

/// A doorbell that there is. Other writes of a guest reach no VF: a write across two registers could ring for
/// an event queue that is not the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// For a queue pair or a completion queue, of which the VF knows the page.
    Queue,
    /// For the event queue whose number is in the upper byte of `word`.
    Events { word: u32, arm: bool },
}

impl Doorbell {
    /// The doorbell at byte `offset` of a page.
    pub fn new(offset: usize, data: &[u8]) -> Option<Self> {
        let end = offset.checked_add(data.len())?;
        match (offset, data) {
            (UAR_CQ, [_, _, _, _, _, _, _, _]) => Some(Self::Queue),
            (UAR_EQ_ARM | UAR_EQ_UPDATE, [a, b, c, d]) => Some(Self::Events {
                word: u32::from_be_bytes([*a, *b, *c, *d]),
                arm: offset == UAR_EQ_ARM,
            }),
            // A guest without accesses of eight bytes makes two of them.
            (UAR_SEND.., data) if matches!(data.len(), 4 | 8) && end as u64 <= PAGE_SIZE => {
                offset.is_multiple_of(4).then_some(Self::Queue)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_doorbell_is_dropped() {
        let of = |offset, len: usize| Doorbell::new(offset, &[7; 4096][..len]);
        assert_eq!(
            (of(0x20, 8), of(0x800, 8)),
            (Some(Doorbell::Queue), Some(Doorbell::Queue))
        );
        let word = 0x0707_0707;
        assert_eq!(of(0x40, 4), Some(Doorbell::Events { word, arm: true }));
        assert_eq!(of(0x48, 4), Some(Doorbell::Events { word, arm: false }));
        for (offset, len) in [
            // Across the registers of event queues, and across pages.
            (0x3c, 8),
            (0x20, 64),
            (0x40, 8),
            (0x44, 4),
            (0x0, 4),
            (0xffc, 8),
            (0x801, 8),
            (0x800, 2048),
            (0x800, 0),
            (usize::MAX, 8),
        ] {
            assert_eq!(of(offset, len), None, "{offset:#x} {len}");
        }
    }
}
