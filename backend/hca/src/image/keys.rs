//! Memory keys and lists of pages.

use serde::{Deserialize, Serialize};
use wire::Qpn;

use super::{ImageError, Object};
use crate::memory::klm::{Klm, KlmList};
use crate::memory::mr::{Access, MAX_KLMS, MemoryKey, PAGE_SIZES, Translation};
use crate::memory::page_image::{BlockImageV1, PagesImageV1};
use crate::memory::pages::{MAX_PAGES, PageList};
use crate::memory::signature::format::{Format, LONGEST};
use crate::memory::signature::key::Signed;
use crate::memory::uniform::{MAX_STRETCHES, Stretches};

/// A memory key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyImageV1 {
    pub(crate) index: u32,
    pub(crate) variant: u8,
    pub(crate) free: bool,
    pub(crate) pd: u32,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) remote_invalidate: bool,
    pub(crate) updatable: bool,
    pub(crate) qpn: Option<Qpn>,
    pub(crate) translation: TranslationImageV1,
    pub(crate) capacity: u64,
}

/// Where a key's bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TranslationImageV1 {
    /// The address is the DMA address.
    Physical,
    /// A table of pages.
    Pages {
        /// Page size as a power of two.
        log_size: u8,
        /// Addresses.
        pages: PagesImageV1,
    },
    /// Stretches of other keys.
    Indirect(Vec<Klm>),
    /// Bytes side by side.
    Stretch {
        /// DMA address of the first.
        first: u64,
    },
    /// Stretches of other keys, all of one size.
    Uniform {
        /// Their size as a power of two.
        log_size: u8,
        /// Keys that are there: number, key, address.
        list: Vec<(u32, u32, u64)>,
    },
    /// Stretches of other keys, whose bytes have signatures or may get them.
    Signed(Box<SignedImageV1>),
}

/// Signatures of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedImageV1 {
    list: Vec<Klm>,
    format: Option<Format>,
    /// Bytes in memory.
    len: u64,
    expected: bool,
    errors: bool,
    seen: [u8; LONGEST],
}

impl KeyImageV1 {
    pub(crate) fn save(index: u32, key: &MemoryKey) -> Self {
        Self {
            index,
            variant: key.variant,
            free: key.free,
            pd: key.pd,
            start: key.start,
            len: key.len,
            access: key.access,
            remote_invalidate: key.remote_invalidate,
            updatable: key.updatable,
            qpn: key.qpn,
            translation: match &key.translation {
                Translation::Physical => TranslationImageV1::Physical,
                Translation::Pages { log_size, pages } => TranslationImageV1::Pages {
                    log_size: *log_size,
                    pages: pages.save(),
                },
                Translation::Indirect(list) => {
                    TranslationImageV1::Indirect(list.entries().to_vec())
                }
                Translation::Stretch { first } => TranslationImageV1::Stretch { first: *first },
                Translation::Uniform { log_size, list } => TranslationImageV1::Uniform {
                    log_size: *log_size,
                    list: { list.present() }
                        .map(|(at, (key, addr))| (at as u32, key, addr))
                        .collect(),
                },
                Translation::Signed(signed) => {
                    TranslationImageV1::Signed(Box::new(SignedImageV1 {
                        list: signed.list.entries().to_vec(),
                        format: signed.format,
                        len: signed.len,
                        expected: signed.expected,
                        errors: signed.errors.get(),
                        seen: signed.seen.get(),
                    }))
                }
            },
            capacity: key.capacity as u64,
        }
    }

    /// Additional cost to make it: pages and stretches are copied.
    pub(crate) fn cost(&self) -> usize {
        match &self.translation {
            TranslationImageV1::Pages {
                pages: PagesImageV1::Short(BlockImageV1::List(pages)),
                ..
            } => pages.len() / 16,
            TranslationImageV1::Indirect(list) => list.len() / 8,
            TranslationImageV1::Uniform { list, .. } => list.len() / 8,
            TranslationImageV1::Signed(signed) => signed.list.len() / 8,
            _ => 0,
        }
    }

    /// Whether the blocks of its pages are to be added.
    pub(crate) const fn is_long(&self) -> bool {
        matches!(
            &self.translation,
            TranslationImageV1::Pages {
                pages: PagesImageV1::Long { .. },
                ..
            }
        )
    }

    /// Adds a block of its pages.
    pub(crate) fn add_block(&mut self, block: Option<BlockImageV1>) {
        if let TranslationImageV1::Pages {
            pages: PagesImageV1::Long { blocks, .. },
            ..
        } = &mut self.translation
        {
            blocks.push(block);
        }
    }

    /// The key. Its domain and the keys behind it are looked at where they are used.
    pub(crate) fn restore(self) -> Result<MemoryKey, ImageError> {
        let of = Object::new("memory key", self.index);
        let invalid = |what: String| ImageError::Invalid { of, what };
        let translation = match self.translation {
            TranslationImageV1::Physical => Translation::Physical,
            TranslationImageV1::Pages { log_size, pages } if PAGE_SIZES.contains(&log_size) => {
                Translation::Pages {
                    log_size,
                    pages: PageList::restore(pages).map_err(|bad| invalid(bad.to_string()))?,
                }
            }
            TranslationImageV1::Pages { log_size, .. } => {
                return Err(invalid(format!("invalid page size 2^{log_size}")));
            }
            TranslationImageV1::Indirect(klms) if klms.len() <= MAX_KLMS => {
                Translation::Indirect(KlmList::new(klms))
            }
            TranslationImageV1::Uniform { log_size, list }
                if PAGE_SIZES.contains(&log_size) && list.len() <= MAX_STRETCHES =>
            {
                let mut restored = Stretches::default();
                for (at, key, addr) in list {
                    restored.replace(at as usize, std::iter::once((key, addr)));
                }
                let list = restored;
                Translation::Uniform { log_size, list }
            }
            TranslationImageV1::Uniform { .. } => {
                return Err(invalid("its stretches are of no size, or too many".into()));
            }
            TranslationImageV1::Indirect(klms) => {
                let (count, most) = (klms.len(), MAX_KLMS);
                return Err(invalid(format!("{count} stretches are more than {most}")));
            }
            TranslationImageV1::Stretch { first } => Translation::Stretch { first },
            TranslationImageV1::Signed(signed) => {
                let SignedImageV1 {
                    list, format, len, ..
                } = *signed;
                if list.len() > MAX_KLMS || format.is_some_and(|format| !format.is_valid()) {
                    return Err(invalid("its stretches or its signatures cannot be".into()));
                }
                let signed = Signed {
                    list: KlmList::new(list),
                    format,
                    len,
                    expected: signed.expected,
                    errors: signed.errors.into(),
                    seen: signed.seen.into(),
                    seen_of: None.into(),
                };
                if self.len != signed.wire_len() {
                    return Err(invalid("it has another length on the wire".into()));
                }
                Translation::Signed(Box::new(signed))
            }
        };
        let access = self.access.checked();
        let access = access.ok_or_else(|| invalid("it has rights that there are not".into()))?;
        if self.capacity > MAX_PAGES {
            let most = MAX_PAGES;
            return Err(invalid(format!("room for more than {most} entries")));
        }
        Ok(MemoryKey {
            variant: self.variant,
            free: self.free,
            pd: self.pd,
            start: self.start,
            len: self.len,
            access,
            remote_invalidate: self.remote_invalidate,
            updatable: self.updatable,
            qpn: self.qpn,
            translation,
            capacity: self.capacity as usize,
        })
    }
}

impl MemoryKey {
    /// A block of its pages, where they are in several, and how many there are in it.
    pub(crate) fn save_block(&self, at: usize) -> Option<(Option<BlockImageV1>, usize)> {
        match &self.translation {
            Translation::Pages { pages, .. } => pages.save_block(at),
            _ => None,
        }
    }
}
