//! BAR 0 as a driver reaches it: mapped, or by messages; and the doorbell pages in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfio_user::client::RegionInfo;
use vfio_user::{MappedFile, SparseArea};

use crate::command::Opcode;
use crate::device::{BAR0, Device, Object};
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

    fn page(&self, offset: u64) -> Option<Window> {
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

/// A doorbell page.
#[derive(Debug)]
pub struct Uar {
    object: Object,
    window: Option<Window>,
}

impl Uar {
    /// Allocates a doorbell page, as every process does.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(device: &Device) -> Result<Arc<Self>> {
        let number = device.allocate(Opcode::AllocUar)?;
        Ok(Arc::new(Self {
            window: device.0.bar.page(u64::from(number) * PAGE as u64),
            object: Object::new(device, Opcode::DeallocUar, number),
        }))
    }

    /// Its number, which is its page in BAR 0.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// Writes 8 bytes at `offset`; `value` is in the order of the interface,
    /// its most significant byte first.
    #[inline]
    pub fn ring(&self, offset: u64, value: u64) -> Result<()> {
        match &self.window {
            Some(window) => {
                // After everything that the doorbell is about.
                window.words()[offset as usize / 8].store(value.to_be(), Ordering::Release);
                Ok(())
            }
            None => self.ring_trapped(offset, value),
        }
    }

    #[cold]
    fn ring_trapped(&self, offset: u64, value: u64) -> Result<()> {
        let device = &self.object.device;
        let offset = u64::from(self.object.number) * PAGE as u64 + offset;
        let mut client = device.0.client.lock();
        if device.0.synchronous_doorbells {
            Ok(client.region_write(BAR0, offset, &value.to_be_bytes())?)
        } else {
            Ok(client.region_post(BAR0, offset, &value.to_be_bytes())?)
        }
    }
}
