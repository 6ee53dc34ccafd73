//! Changes to memory keys by work requests (UMR).

use crate::bits::{mkc, put_dword, put_qword};
use crate::memory_key::region::{Access, Klm};
use crate::queue::segment::{Sge, Writer};

/// A change to a memory key by a work request (UMR).
#[derive(Debug, Clone, Copy)]
pub struct KeyUpdate<'a> {
    /// The key before the change.
    pub key: u32,
    /// New state of the key.
    pub change: KeyChange<'a>,
}

/// Change of a key.
#[derive(Debug, Clone, Copy)]
pub enum KeyChange<'a> {
    /// Unusable, as by IB_WR_LOCAL_INV.
    Free,
    /// A region of these pages, as by IB_WR_REG_MR.
    Region {
        /// New variant byte.
        variant: u8,
        /// Protection domain.
        pd: Option<u32>,
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// Page size as a power of two.
        log_page_size: u32,
        /// Rights on it.
        access: Access,
        /// The pages.
        list: PageList<'a>,
    },
    /// Other entries of its list from this pair of pages on, or this stretch; nothing else.
    Entries {
        /// The first octword.
        first: u32,
        /// New contents, in whole octwords.
        entries: &'a [u8],
    },
    /// A memory window over this stretch of a region, as by IBV_WR_BIND_MW.
    Window {
        /// New variant byte.
        variant: u8,
        /// The queue pair that it is bound to, of type 2.
        queue_pair: Option<u32>,
        /// Rights by it.
        access: Access,
        /// The stretch. The window has its addresses.
        stretch: Klm,
    },
    /// A memory window of type 2 that is bound to nothing, as by IBV_WR_LOCAL_INV.
    Unbound,
    /// A region whose bytes have signatures, from address 0 on.
    Signatures {
        /// Rights on it.
        access: Access,
        /// The form of its bytes (`mlx5_bsf`).
        form: &'a [u8; 64],
        /// Where they are, at most four stretches.
        stretches: &'a [Klm],
    },
}

/// Where the pages of a region are listed.
#[derive(Debug, Clone, Copy)]
pub enum PageList<'a> {
    /// In the request, at most 64 of them.
    Inline(&'a [u64]),
    /// In memory, 8 bytes each, with [`PRESENT`] in those that are there.
    Memory(Sge),
}

/// Flags of an entry in a list of pages: the page may be read and written.
pub const PRESENT: u64 = 3;

const UMR_INLINE: u8 = 1 << 7;
const UMR_CHECK_FREE: u8 = 1 << 5;
const UMR_TRANSLATION_OFFSET: u8 = 1 << 4;
const UMR_CHECK_QPN: u8 = 1 << 3;
const MASK_LEN: u64 = 1 << 0;
const MASK_PAGE_SIZE: u64 = 1 << 1;
const MASK_START: u64 = 1 << 6;
const MASK_PD: u64 = 1 << 7;
const MASK_REMOTE_INVALIDATE: u64 = 1 << 8;
const MASK_ERRORS: u64 = 1 << 9;
const MASK_SIGNATURES: u64 = 1 << 12;
const MASK_VARIANT: u64 = 1 << 13;
const MASK_QPN: u64 = 1 << 14;
const MASK_RIGHTS: u64 = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21;
const MASK_LOCAL_READ: u64 = 1 << 17;
const MASK_FREE: u64 = 1 << 29;
/// Queue pair number of a key that any queue pair may use.
const ANY_QPN: u32 = 0x00ff_ffff;

impl KeyUpdate<'_> {
    /// Inline lists end at a block: 64 bytes, 8 pages.
    fn inline_segments(pages: &[u64]) -> usize {
        pages.len().div_ceil(8) * 4
    }

    pub(crate) fn segments(&self) -> usize {
        // The control segment of updates, and the key's context.
        3 + 4
            + match self.change {
                KeyChange::Region {
                    list: PageList::Inline(pages),
                    ..
                } => Self::inline_segments(pages),
                KeyChange::Region { .. } => 1,
                KeyChange::Entries { entries, .. } => entries.len().div_ceil(64) * 4,
                KeyChange::Window { .. } => 4,
                // Stretches, as many as fit a block, and the form.
                KeyChange::Signatures { .. } => 4 + 4,
                KeyChange::Free | KeyChange::Unbound => 0,
            }
    }

    pub(crate) fn emit(&self, put: &mut Writer<'_>) {
        let mut control = [0; 48];
        let mut context = [0; 64];
        match self.change {
            KeyChange::Free => {
                control[0] = UMR_INLINE;
                put_qword(&mut control, 8, MASK_FREE);
                mkc::FREE.set(&mut context, 1);
            }
            KeyChange::Entries { first, entries } => {
                control[0] = UMR_INLINE | UMR_TRANSLATION_OFFSET;
                let octwords = (entries.len() / 16) as u16;
                control[4..6].copy_from_slice(&octwords.to_be_bytes());
                control[6..8].copy_from_slice(&(first as u16).to_be_bytes());
                put_dword(&mut control, 16, first >> 16);
            }
            KeyChange::Unbound => {
                control[0] = UMR_INLINE | UMR_TRANSLATION_OFFSET | UMR_CHECK_QPN;
                put_qword(&mut control, 8, MASK_FREE | MASK_VARIANT | MASK_QPN);
                mkc::FREE.set(&mut context, 1);
                mkc::QPN.set(&mut context, ANY_QPN);
            }
            KeyChange::Window {
                variant,
                queue_pair,
                access,
                stretch,
            } => {
                control[0] = UMR_INLINE | UMR_TRANSLATION_OFFSET;
                let mut mask = MASK_FREE
                    | MASK_VARIANT
                    | MASK_LEN
                    | MASK_START
                    | (MASK_RIGHTS & !MASK_LOCAL_READ);
                if queue_pair.is_some() {
                    control[0] |= UMR_CHECK_FREE;
                    mask |= MASK_QPN;
                }
                control[4..6].copy_from_slice(&4_u16.to_be_bytes());
                put_qword(&mut control, 8, mask);
                access.set(&mut context);
                mkc::QPN.set(&mut context, queue_pair.unwrap_or(ANY_QPN));
                mkc::MKEY_7_0.set(&mut context, variant.into());
                put_qword(&mut context, mkc::START_ADDR, stretch.addr);
                put_qword(&mut context, mkc::LEN, stretch.len.into());
            }
            KeyChange::Signatures {
                access, stretches, ..
            } => {
                control[0] = UMR_INLINE;
                control[5] = stretches.len() as u8;
                control[7] = 4;
                let mask = MASK_FREE | MASK_LEN | MASK_RIGHTS | MASK_SIGNATURES | MASK_ERRORS;
                put_qword(&mut control, 8, mask);
                access.set(&mut context);
                mkc::BSF_EN.set(&mut context, 1);
                mkc::EXPECTED_SIGERR_COUNT.set(&mut context, 1);
                let len: u64 = stretches.iter().map(|klm| u64::from(klm.len)).sum();
                put_qword(&mut context, mkc::LEN, len);
            }
            KeyChange::Region {
                variant,
                pd,
                start,
                len,
                log_page_size,
                access,
                list,
            } => {
                let (flags, count) = match list {
                    PageList::Inline(pages) => (UMR_INLINE, pages.len()),
                    PageList::Memory(sge) => (0, sge.len as usize / 8),
                };
                control[0] = flags | UMR_CHECK_FREE;
                // Lists count in blocks of 64 bytes, each 4 octwords.
                let octwords = (count * 8).next_multiple_of(64) / 16;
                control[4..6].copy_from_slice(&(octwords as u16).to_be_bytes());
                let mut mask = MASK_LEN
                    | MASK_PAGE_SIZE
                    | MASK_START
                    | MASK_REMOTE_INVALIDATE
                    | MASK_VARIANT
                    | MASK_RIGHTS
                    | MASK_FREE;
                if let Some(pd) = pd {
                    mask |= MASK_PD;
                    mkc::PD.set(&mut context, pd);
                }
                put_qword(&mut control, 8, mask);
                access.set(&mut context);
                mkc::ACCESS_MODE.set(&mut context, 1);
                mkc::QPN.set(&mut context, ANY_QPN);
                mkc::MKEY_7_0.set(&mut context, variant.into());
                mkc::EN_RINVAL.set(&mut context, 1);
                put_qword(&mut context, mkc::START_ADDR, start);
                put_qword(&mut context, mkc::LEN, len);
                mkc::TRANSLATIONS_OCTWORD_SIZE.set(&mut context, octwords as u32);
                mkc::LOG_PAGE_SIZE.set(&mut context, log_page_size);
            }
        }
        put.bytes(&control);
        put.bytes(&context);
        match self.change {
            KeyChange::Region {
                list: PageList::Inline(pages),
                ..
            } => {
                for index in 0..Self::inline_segments(pages) * 2 {
                    put.word(pages.get(index).map_or(0, |page| page | PRESENT));
                }
            }
            KeyChange::Region {
                list: PageList::Memory(sge),
                ..
            } => sge.emit(put),
            KeyChange::Entries { entries, .. } => {
                put.bytes(entries);
                put.bytes(&vec![0; entries.len().next_multiple_of(64) - entries.len()]);
            }
            KeyChange::Window { stretch, .. } => {
                put.bytes(&stretch.to_bytes());
                put.bytes(&[0; 48]);
            }
            KeyChange::Signatures {
                form, stretches, ..
            } => {
                let mut list = [0; 64];
                for (to, klm) in list.chunks_exact_mut(16).zip(stretches) {
                    to.copy_from_slice(&klm.to_bytes());
                }
                put.bytes(&list);
                put.bytes(form);
            }
            KeyChange::Free | KeyChange::Unbound => {}
        }
    }
}
