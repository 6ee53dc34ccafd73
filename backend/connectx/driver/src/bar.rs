//! BAR 0 as a driver reaches it: mapped, or by messages.

use std::sync::Arc;

use vfio_user::client::RegionInfo;
use vfio_user::{MappedFile, SparseArea};

use crate::error::Result;
use crate::memory::{PAGE, Window};

/// Registers of a doorbell page, in bytes.
pub(crate) mod doorbell {
    pub(crate) const CQ: u64 = 0x20;
    pub(crate) const EQ_ARM: u64 = 0x40;
    pub(crate) const SEND: u64 = 0x800;
}

/// BAR 0, mapped where the device allows it.
#[derive(Debug)]
pub(crate) struct Bar {
    /// Bytes.
    pub(crate) size: u64,
    mapped: Option<Arc<MappedFile>>,
    areas: Vec<SparseArea>,
    fd_offset: u64,
}

impl Bar {
    pub(crate) fn new(info: &RegionInfo) -> Result<Self> {
        Ok(Self {
            size: info.size,
            mapped: if info.mmap {
                Some(Arc::new(info.map()?))
            } else {
                None
            },
            areas: info.areas.clone(),
            fd_offset: info.fd_offset,
        })
    }

    /// A page of it that is mapped.
    pub(crate) fn page(&self, offset: u64) -> Option<Window> {
        let within = |area: &SparseArea| {
            area.offset <= offset && offset + PAGE as u64 <= area.offset + area.size
        };
        if !self.areas.is_empty() && !self.areas.iter().any(within) {
            return None;
        }
        let offset = usize::try_from(self.fd_offset + offset).ok()?;
        Window::new(self.mapped.as_ref()?, offset, PAGE)
    }
}
