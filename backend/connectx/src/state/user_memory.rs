//! User memory objects: memory that a driver names once, for queues and doorbell records that lie in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Largest page, as a power of two.
pub(crate) const LOG_MAX_PAGE: u32 = 31;
/// Smallest page, as a power of two; queues are told of in such pages.
pub(crate) const LOG_PAGE: u32 = 12;
/// Objects that a function may have, as a power of two.
pub(crate) const LOG_MAX: u32 = 12;
/// Objects that a function may have.
const MAX_OBJECTS: usize = 1 << LOG_MAX;
/// Bytes of the host's memory that an object takes beside its list.
const HEAD: usize = 64;

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserMemoryImageV1 {
    pub number: u32,
    pub log_page: u32,
    pub offset: u64,
    pub pages: Vec<u64>,
}

impl UserMemoryImageV1 {
    pub fn held(&self) -> usize {
        HEAD + 8 * self.pages.len()
    }

    pub fn end(&self) -> u64 {
        (self.pages.len() as u64) << self.log_page
    }

    /// Where byte `at` of the object is, in bytes from the first page's start, if `len` bytes are there.
    pub fn position(&self, at: u64, len: u64) -> Option<u64> {
        let begin = self.offset.checked_add(at)?;
        (begin.checked_add(len)? <= self.end()).then_some(begin)
    }

    /// DMA address of a byte from the first page's start.
    pub fn address(&self, position: u64) -> Option<u64> {
        let page = self.pages.get((position >> self.log_page) as usize)?;
        Some(page | position & ((1 << self.log_page) - 1))
    }
}

/// A function's objects, by number.
#[derive(Debug, Default)]
pub(crate) struct UserMemory(BTreeMap<u32, UserMemoryImageV1>);

impl UserMemory {
    pub fn get(&self, number: u32) -> Option<&UserMemoryImageV1> {
        self.0.get(&number)
    }

    /// A number for a further object; `None` where there are too many.
    pub fn free_number(&self) -> Option<u32> {
        if self.0.len() >= MAX_OBJECTS {
            return None;
        }
        let last = self.0.last_key_value().map_or(0, |(number, _)| *number);
        if last < u32::from(u16::MAX) {
            Some(last + 1)
        } else {
            (1..).find(|it| !self.0.contains_key(it))
        }
    }

    pub fn insert(&mut self, object: UserMemoryImageV1) {
        self.0.insert(object.number, object);
    }

    pub fn remove(&mut self, number: u32) -> Option<UserMemoryImageV1> {
        self.0.remove(&number)
    }

    /// Their part of an image.
    pub fn save(&self) -> Vec<UserMemoryImageV1> {
        self.0.values().cloned().collect()
    }

    /// Restores the objects of an image; their share of the host's memory is added to `held`.
    pub fn restore(
        images: &[UserMemoryImageV1],
        held: &mut Vec<usize>,
    ) -> Result<Self, &'static str> {
        let mut objects = BTreeMap::new();
        for image in images.iter().take(MAX_OBJECTS) {
            let sound = (LOG_PAGE..=LOG_MAX_PAGE).contains(&image.log_page)
                && image.offset < 1 << image.log_page
                && !image.pages.is_empty();
            if !sound || objects.insert(image.number, image.clone()).is_some() {
                return Err("a memory object is there twice, or cannot be");
            }
            held.push(image.held());
        }
        Ok(Self(objects))
    }
}
