//! Where a function has its MSI-X structures, which nobody but the kernel may write.

use vfio_user::{PAGE_SIZE, SparseArea};

/// Number of the capability.
const MSIX: u8 = 0x11;
/// Offset of the pointer to the first capability in configuration space.
const CAPABILITIES: usize = 0x34;
/// Bytes of an entry of the table.
const ENTRY: u64 = 16;

/// BAR, offset and length in bytes of the table and of the pending bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tables([(u8, u64, u64); 2]);

impl Tables {
    /// Returns the tables that configuration space tells of.
    pub fn of(space: &[u8]) -> Option<Self> {
        let mut at = usize::from(*space.get(CAPABILITIES)?) & !3;
        // As many as there is room for: a list may be a circle.
        for _ in 0..space.len() / 4 {
            let cap: &[u8; 12] = space.get(at..)?.first_chunk()?;
            if cap[0] != MSIX {
                at = usize::from(cap[1]) & !3;
                if at == 0 {
                    return None;
                }
                continue;
            }
            let entries = u64::from(u16::from_le_bytes([cap[2], cap[3]]) & 0x7ff) + 1;
            let place = |at: usize| {
                let word = u32::from_le_bytes([cap[at], cap[at + 1], cap[at + 2], cap[at + 3]]);
                ((word & 7) as u8, u64::from(word & !7))
            };
            let ((table_bar, table), (pending_bar, pending)) = (place(4), place(8));
            return Some(Self([
                (table_bar, table, entries * ENTRY),
                (pending_bar, pending, entries.div_ceil(64) * 8),
            ]));
        }
        None
    }

    /// The pages of a BAR that they lie in.
    pub fn in_bar(&self, bar: u8) -> Vec<SparseArea> {
        let here = self.0.iter().filter(|(of, ..)| *of == bar);
        here.map(|&(_, offset, len)| {
            let begin = offset / PAGE_SIZE * PAGE_SIZE;
            let end = (offset + len).next_multiple_of(PAGE_SIZE);
            SparseArea {
                offset: begin,
                size: end - begin,
            }
        })
        .collect()
    }
}

/// Returns `areas` without `holes`.
pub(crate) fn without(areas: &[SparseArea], holes: &[SparseArea]) -> Vec<SparseArea> {
    let mut left = areas.to_vec();
    for hole in holes {
        let hole_end = hole.offset + hole.size;
        left = left
            .iter()
            .flat_map(|area| {
                let end = area.offset.saturating_add(area.size);
                let parts = [
                    (area.offset, end.min(hole.offset)),
                    (area.offset.max(hole_end), end),
                ];
                parts.into_iter().filter(|(from, to)| from < to)
            })
            .map(|(from, to)| SparseArea {
                offset: from,
                size: to - from,
            })
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(offset: u64, size: u64) -> SparseArea {
        SparseArea { offset, size }
    }

    #[test]
    fn structures_are_found_and_left_out() {
        let mut space = [0; 256];
        space[CAPABILITIES] = 0x60;
        // PCI Express first, then MSI-X with 12 vectors: the table at 0x2000, pending bits at 0x3000.
        space[0x60..0x62].copy_from_slice(&[0x10, 0x9c]);
        space[0x9c..0xa8].copy_from_slice(&[0x11, 0, 11, 0, 0, 0x20, 0, 0, 0, 0x30, 0, 0]);
        let tables = Tables::of(&space).expect("are there");
        let pages = tables.in_bar(0);
        assert_eq!(pages, [area(0x2000, 0x1000), area(0x3000, 0x1000)]);
        assert_eq!(tables.in_bar(2), []);
        let left = without(&[area(0, 1 << 20)], &pages);
        assert_eq!(left, [area(0, 0x2000), area(0x4000, (1 << 20) - 0x4000)]);
        // Nothing that is no part of an area is in the way, and an area may go altogether.
        assert_eq!(without(&[area(0, 0x1000)], &pages), [area(0, 0x1000)]);
        assert_eq!(without(&[area(0x2000, 0x1000)], &pages), []);
        // A list that is a circle has an end.
        space[0x9c] = 5;
        space[0x9d] = 0x60;
        assert_eq!(Tables::of(&space), None);
        assert_eq!(Tables::of(&space[..40]), None);
    }
}
