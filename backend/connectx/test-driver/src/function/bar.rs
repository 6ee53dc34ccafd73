//! BAR 0 as a driver reaches it: mapped, or by messages.

use std::sync::Arc;

use vfio_user::SparseArea;
use vfio_user::client::{ClientError, RegionInfo};
use vfio_user::memory::MapError;

use crate::error::{Error, Result};
use crate::memory::{DeviceMemory, Mapped, PAGE, Window};

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
    parts: Vec<Part>,
}

/// A part of it that is mapped.
#[derive(Debug)]
struct Part {
    area: SparseArea,
    memory: Mapped,
    /// Where the part begins in `memory`, in bytes.
    begin: u64,
}

impl Bar {
    pub(crate) fn new(info: &RegionInfo) -> Result<Self> {
        let mut areas = info.areas.clone();
        if areas.is_empty() {
            areas.push(SparseArea {
                offset: 0,
                size: info.size,
            });
        }
        areas.retain(|_| info.mmap);
        let mut parts = Vec::new();
        let file = info.mmap.then(|| info.map()).transpose();
        match file {
            Ok(None) => {}
            Ok(Some(file)) => {
                let memory = Mapped::File(Arc::new(file));
                parts.extend(areas.into_iter().map(|area| Part {
                    area,
                    memory: memory.clone(),
                    begin: info.fd_offset + area.offset,
                }));
            }
            // What the kernel's VFIO hands out: registers of a device, a mapping for each part.
            Err(ClientError::Map(MapError::NotAFile)) => {
                for area in areas {
                    let begin = info.fd_offset + area.offset;
                    let memory = DeviceMemory::new(info.fd.as_ref(), begin, area.size);
                    let memory = memory.map_err(|source| Error::System {
                        what: "map the doorbell pages",
                        source,
                    })?;
                    parts.push(Part {
                        area,
                        memory: Mapped::Device(Arc::new(memory)),
                        begin: 0,
                    });
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            size: info.size,
            parts,
        })
    }

    /// A page of it that is mapped.
    pub(crate) fn page(&self, offset: u64) -> Option<Window> {
        self.window(offset, PAGE)
    }

    /// Bytes of it that are mapped.
    pub(crate) fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let part = self.parts.iter().find(|part| {
            let area = part.area;
            area.offset <= offset && offset + len as u64 <= area.offset + area.size
        })?;
        let offset = usize::try_from(part.begin + offset - part.area.offset).ok()?;
        Window::new(&part.memory, offset, len)
    }
}
