//! Regions: BARs, the ROM and configuration space.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};

use crate::message::{Fields, PutFields};

/// A page-aligned part of a region that the client may map, in bytes from the
/// region's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseArea {
    /// Where the area starts.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// One region of a device.
#[derive(Debug, Clone)]
pub struct Region {
    /// VFIO PCI region index.
    pub index: u32,
    /// Size in bytes.
    pub size: u64,
    /// The client may read it by message.
    pub read: bool,
    /// The client may write it by message.
    pub write: bool,
    /// The parts that the client may map; empty with [`Region::mmap`] set
    /// means all of it.
    pub areas: Vec<SparseArea>,
    /// The file to map. Messages still reach every part of the region.
    pub mmap: Option<Arc<OwnedFd>>,
    /// Where the region's start lies in [`Region::mmap`].
    pub fd_offset: u64,
}

impl Region {
    /// A region that is read and written by messages only.
    pub fn trapped(index: u32, size: u64) -> Self {
        Self {
            index,
            size,
            read: true,
            write: true,
            areas: Vec::new(),
            mmap: None,
            fd_offset: 0,
        }
    }

    /// Returns the description of an index without a region.
    pub(crate) fn absent(index: u32) -> Self {
        Self {
            read: false,
            write: false,
            ..Self::trapped(index, 0)
        }
    }

    /// Checks that `len` bytes at `offset` may be read or written.
    pub(crate) fn check(&self, offset: u64, len: u64, write: bool) -> Result<(), Errno> {
        let allowed = if write { self.write } else { self.read };
        match offset.checked_add(len) {
            Some(end) if allowed && end <= self.size => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The information about this region for a client that takes `argsz`
    /// bytes, without mapping where the client takes no file descriptors.
    pub(crate) fn info(&self, mappable: bool) -> RegionInfo {
        let mmap = mappable && self.mmap.is_some();
        RegionInfo {
            index: self.index,
            size: self.size,
            read: self.read,
            write: self.write,
            mmap,
            fd_offset: if mmap { self.fd_offset } else { 0 },
            areas: if mmap { self.areas.clone() } else { Vec::new() },
        }
    }
}

/// Payload of a DEVICE_GET_REGION_INFO reply: `struct vfio_region_info` and
/// the sparse mmap capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    pub(crate) index: u32,
    pub(crate) size: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) mmap: bool,
    pub(crate) fd_offset: u64,
    pub(crate) areas: Vec<SparseArea>,
}

/// Length of `struct vfio_region_info`.
const INFO_LEN: u32 = 32;
/// Length of `struct vfio_region_info_cap_sparse_mmap` without areas.
const SPARSE_LEN: u32 = 16;
const AREA_LEN: u32 = 16;

impl RegionInfo {
    /// The `argsz` and the index that a request names.
    pub(crate) fn parse_request(payload: &[u8]) -> Result<(u32, u32), Errno> {
        let mut fields = Fields::new(payload);
        let (argsz, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if argsz < INFO_LEN || payload.len() < INFO_LEN as usize {
            return Err(Errno::EINVAL);
        }
        Ok((argsz, index))
    }

    pub(crate) fn emit_request(argsz: u32, index: u32, payload: &mut Vec<u8>) {
        payload.put_u32(argsz);
        payload.put_u32(0);
        payload.put_u32(index);
        payload.resize(INFO_LEN as usize, 0);
    }

    /// Length of the whole payload.
    pub(crate) fn full_len(&self) -> u32 {
        match self.areas.len() as u32 {
            0 => INFO_LEN,
            areas => INFO_LEN + SPARSE_LEN + AREA_LEN * areas,
        }
    }

    /// Writes the payload, without the capability where the client has no room
    /// for it. The fixed part is the same both times: QEMU rejects a short
    /// reply that says FLAG_CAPS without a valid `cap_offset`.
    pub(crate) fn emit(&self, room: u32, payload: &mut Vec<u8>) {
        let mut flags = 0;
        for (set, flag) in [
            (self.read, VFIO_REGION_INFO_FLAG_READ),
            (self.write, VFIO_REGION_INFO_FLAG_WRITE),
            (self.mmap, VFIO_REGION_INFO_FLAG_MMAP),
            (!self.areas.is_empty(), VFIO_REGION_INFO_FLAG_CAPS),
        ] {
            if set {
                flags |= flag;
            }
        }
        payload.put_u32(self.full_len());
        payload.put_u32(flags);
        payload.put_u32(self.index);
        payload.put_u32(if self.areas.is_empty() { 0 } else { INFO_LEN });
        payload.put_u64(self.size);
        payload.put_u64(self.fd_offset);
        if self.areas.is_empty() || room < self.full_len() {
            return;
        }
        payload.put_u16(VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16);
        payload.put_u16(1);
        payload.put_u32(0);
        payload.put_u32(self.areas.len() as u32);
        payload.put_u32(0);
        for area in &self.areas {
            payload.put_u64(area.offset);
            payload.put_u64(area.size);
        }
    }

    /// The payload's content and the length of the full payload. Without room
    /// for the capability, `areas` is empty.
    pub(crate) fn parse(payload: &[u8]) -> Result<(Self, u32), Errno> {
        let mut fields = Fields::new(payload);
        let (argsz, flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let cap_offset = fields.u32()?;
        let mut info = Self {
            index,
            size: fields.u64()?,
            read: flags & VFIO_REGION_INFO_FLAG_READ != 0,
            write: flags & VFIO_REGION_INFO_FLAG_WRITE != 0,
            mmap: flags & VFIO_REGION_INFO_FLAG_MMAP != 0,
            fd_offset: fields.u64()?,
            areas: Vec::new(),
        };
        if flags & VFIO_REGION_INFO_FLAG_CAPS == 0 || argsz as usize > payload.len() {
            return Ok((info, argsz));
        }
        let mut at = cap_offset;
        while at != 0 {
            let mut capability = Fields::new(payload.get(at as usize..).ok_or(Errno::EINVAL)?);
            let (id, _version, next) = (capability.u16()?, capability.u16()?, capability.u32()?);
            if u32::from(id) == VFIO_REGION_INFO_CAP_SPARSE_MMAP {
                // One list: many that overlap would be longer than their message.
                if !info.areas.is_empty() {
                    return Err(Errno::EINVAL);
                }
                let (count, _reserved) = (capability.u32()?, capability.u32()?);
                for _ in 0..count {
                    info.areas.push(SparseArea {
                        offset: capability.u64()?,
                        size: capability.u64()?,
                    });
                }
            }
            if next != 0 && next <= at {
                return Err(Errno::EINVAL);
            }
            at = next;
        }
        Ok((info, argsz))
    }
}
