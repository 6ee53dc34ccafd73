//! The messages: a 16-byte header, then a payload of fixed fields and data.
//!
//! Everything is in the byte order of the host, as the protocol says. Sizes
//! are in bytes.

pub(crate) mod version;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

/// Length of the header of every message.
pub const HEADER_LEN: usize = 16;
/// The most data a REGION_READ or REGION_WRITE moves (`max_data_xfer_size`).
pub const MAX_DATA_XFER_SIZE: u32 = 1 << 20;
/// The most file descriptors that this side takes with one message
/// (`max_msg_fds`).
pub const MAX_MSG_FDS: usize = vmm_socket::MAX_FDS;
/// Number of VFIO PCI region indexes.
pub const NUM_REGIONS: u32 = vfio::VFIO_PCI_NUM_REGIONS;
/// Number of VFIO PCI interrupt indexes.
pub const NUM_IRQS: u32 = vfio::VFIO_PCI_NUM_IRQS;

/// The longest payload: the fixed fields of a region access and its data.
pub const MAX_PAYLOAD: usize = RegionAccess::LEN + MAX_DATA_XFER_SIZE as usize;

/// Commands of the protocol, by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Version and capability negotiation, first of all.
    Version = 1,
    /// Guest memory appears.
    DmaMap = 2,
    /// Guest memory goes.
    DmaUnmap = 3,
    /// Number of regions and interrupt types.
    DeviceGetInfo = 4,
    /// One region.
    DeviceGetRegionInfo = 5,
    /// File descriptors for direct access to a region.
    DeviceGetRegionIoFds = 6,
    /// One interrupt type.
    DeviceGetIrqInfo = 7,
    /// Eventfds, masks and triggers of one interrupt type.
    DeviceSetIrqs = 8,
    /// Read of a region.
    RegionRead = 9,
    /// Write of a region.
    RegionWrite = 10,
    /// Server to client: read of guest memory.
    DmaRead = 11,
    /// Server to client: write of guest memory.
    DmaWrite = 12,
    /// Reset of the device.
    DeviceReset = 13,
    /// Several small writes in one message.
    RegionWriteMulti = 15,
    /// VFIO device features, migration above all.
    DeviceFeature = 16,
    /// Read of migration data.
    MigDataRead = 17,
    /// Write of migration data.
    MigDataWrite = 18,
}

impl Command {
    const ALL: [Self; 17] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceGetInfo,
        Self::DeviceGetRegionInfo,
        Self::DeviceGetRegionIoFds,
        Self::DeviceGetIrqInfo,
        Self::DeviceSetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::DmaRead,
        Self::DmaWrite,
        Self::DeviceReset,
        Self::RegionWriteMulti,
        Self::DeviceFeature,
        Self::MigDataRead,
        Self::MigDataWrite,
    ];

    /// The command with this number, if there is one.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|&command| command as u16 == number)
    }
}

/// Type bits of [`Header::flags`]: command or reply.
pub const FLAG_TYPE: u32 = 0xf;
/// [`Header::flags`] of a command.
pub const FLAG_COMMAND: u32 = 0x0;
/// [`Header::flags`] of a reply.
pub const FLAG_REPLY: u32 = 0x1;
/// In a command: nobody waits for the reply, none is sent.
pub const FLAG_NO_REPLY: u32 = 0x10;
/// In a reply: the command failed, [`Header::error`] says why.
pub const FLAG_ERROR: u32 = 0x20;

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of the command, echoed in the reply.
    pub id: u16,
    /// Number of the [`Command`].
    pub command: u16,
    /// Length of the message, header included.
    pub size: u32,
    /// Type in bits 0 to 3 (0 command, 1 reply), bit 4 no reply, bit 5 error.
    pub flags: u32,
    /// errno of an error reply.
    pub error: u32,
}

impl Header {
    /// The header in these bytes.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let [
            i0,
            i1,
            c0,
            c1,
            s0,
            s1,
            s2,
            s3,
            f0,
            f1,
            f2,
            f3,
            e0,
            e1,
            e2,
            e3,
        ] = *bytes;
        Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
            error: u32::from_ne_bytes([e0, e1, e2, e3]),
        }
    }

    /// The bytes of this header.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.error.to_ne_bytes());
        bytes
    }
}

/// Reads fields one after the other; `EINVAL` where the payload ends early.
#[derive(Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Errno::EINVAL)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Returns the bytes behind the fields read so far.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Ends a payload that has nothing but its fixed fields.
    fn end(self) -> Result<(), Errno> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

/// Writes fields one after the other.
pub(crate) trait PutFields {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
}

impl PutFields for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_ne_bytes());
    }
}

/// Payload of DMA_MAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMap {
    /// VFIO_DMA_MAP_FLAG_*.
    pub flags: u32,
    /// Where the memory begins in its file, in bytes.
    pub offset: u64,
    /// First DMA address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

impl DmaMap {
    const LEN: u32 = 32;

    /// The fields of a payload.
    ///
    /// # Errors
    /// `EINVAL` where it is none.
    pub fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(payload);
        let argsz = fields.u32()?;
        let request = Self {
            flags: fields.u32()?,
            offset: fields.u64()?,
            addr: fields.u64()?,
            size: fields.u64()?,
        };
        fields.end()?;
        if argsz < Self::LEN {
            return Err(Errno::EINVAL);
        }
        Ok(request)
    }

    /// Appends the payload.
    pub fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u32(Self::LEN);
        payload.put_u32(self.flags);
        payload.put_u64(self.offset);
        payload.put_u64(self.addr);
        payload.put_u64(self.size);
    }
}

/// Payload of DMA_UNMAP, request and reply; the shape of a bitmap may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaUnmap {
    /// Room for the reply, in bytes.
    pub argsz: u32,
    /// VFIO_DMA_UNMAP_FLAG_*.
    pub flags: u32,
    /// First DMA address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

impl DmaUnmap {
    /// Bytes of the fixed fields.
    pub const LEN: u32 = 24;

    /// The fields, and what follows them.
    ///
    /// # Errors
    /// `EINVAL` where the payload ends early.
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Errno> {
        let mut fields = Fields::new(payload);
        let request = Self {
            argsz: fields.u32()?,
            flags: fields.u32()?,
            addr: fields.u64()?,
            size: fields.u64()?,
        };
        if request.argsz < Self::LEN {
            return Err(Errno::EINVAL);
        }
        Ok((request, fields.rest()))
    }

    /// Appends the payload.
    pub fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u32(self.argsz);
        payload.put_u32(self.flags);
        payload.put_u64(self.addr);
        payload.put_u64(self.size);
    }
}

/// Request for a bitmap of the pages that a client unmaps ("VFIO Bitmap"). In the reply the bitmap follows:
/// `size` bytes, a bit for each page of `page_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitmapShape {
    pub(crate) page_size: u64,
    pub(crate) size: u64,
}

impl BitmapShape {
    pub(crate) const LEN: u32 = 16;

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(payload);
        let shape = Self {
            page_size: fields.u64()?,
            size: fields.u64()?,
        };
        fields.end()?;
        Ok(shape)
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u64(self.page_size);
        payload.put_u64(self.size);
    }
}

/// Payload of DEVICE_GET_INFO, request and reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceInfo {
    pub(crate) flags: u32,
    pub(crate) num_regions: u32,
    pub(crate) num_irqs: u32,
}

impl DeviceInfo {
    const LEN: u32 = 16;

    /// Checks a request, whose fields but `argsz` say nothing. It may be
    /// longer than today's 16 bytes: `struct vfio_device_info` has grown.
    pub(crate) fn parse_request(payload: &[u8]) -> Result<(), Errno> {
        let argsz = Fields::new(payload).u32()?;
        if argsz < Self::LEN || payload.len() < Self::LEN as usize {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(payload);
        fields.u32()?;
        Ok(Self {
            flags: fields.u32()?,
            num_regions: fields.u32()?,
            num_irqs: fields.u32()?,
        })
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u32(Self::LEN);
        payload.put_u32(self.flags);
        payload.put_u32(self.num_regions);
        payload.put_u32(self.num_irqs);
    }
}

/// Payload of DEVICE_GET_IRQ_INFO, request and reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IrqInfoFields {
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

impl IrqInfoFields {
    const LEN: u32 = 16;

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(payload);
        let argsz = fields.u32()?;
        let info = Self {
            flags: fields.u32()?,
            index: fields.u32()?,
            count: fields.u32()?,
        };
        if argsz < Self::LEN {
            return Err(Errno::EINVAL);
        }
        Ok(info)
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u32(Self::LEN);
        payload.put_u32(self.flags);
        payload.put_u32(self.index);
        payload.put_u32(self.count);
    }
}

/// Fixed fields of DEVICE_SET_IRQS; booleans may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IrqSet {
    /// VFIO_IRQ_SET_*.
    pub flags: u32,
    /// VFIO PCI interrupt index.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors.
    pub count: u32,
}

impl IrqSet {
    const LEN: u32 = 20;

    /// The fields and the booleans after them.
    ///
    /// # Errors
    /// `EINVAL` where the payload ends early.
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Errno> {
        let mut fields = Fields::new(payload);
        let argsz = fields.u32()?;
        let set = Self {
            flags: fields.u32()?,
            index: fields.u32()?,
            start: fields.u32()?,
            count: fields.u32()?,
        };
        // A request has no reply payload, so here argsz is the request's length.
        if argsz < Self::LEN || u64::from(argsz) > payload.len() as u64 {
            return Err(Errno::EINVAL);
        }
        Ok((set, fields.rest()))
    }

    /// Appends the payload.
    pub fn emit(&self, booleans: &[u8], payload: &mut Vec<u8>) {
        payload.put_u32(Self::LEN + booleans.len() as u32);
        payload.put_u32(self.flags);
        payload.put_u32(self.index);
        payload.put_u32(self.start);
        payload.put_u32(self.count);
        payload.extend_from_slice(booleans);
    }
}

/// Fixed fields of REGION_READ and REGION_WRITE, request and reply; data may
/// follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionAccess {
    /// Where in the region, in bytes.
    pub offset: u64,
    /// VFIO PCI region index.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

impl RegionAccess {
    /// Bytes of the fixed fields.
    pub const LEN: usize = 16;

    /// The fields and the data after them.
    ///
    /// # Errors
    /// `EINVAL` where the payload ends early.
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Errno> {
        let mut fields = Fields::new(payload);
        let access = Self {
            offset: fields.u64()?,
            region: fields.u32()?,
            count: fields.u32()?,
        };
        Ok((access, fields.rest()))
    }

    /// Appends the payload.
    pub fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u64(self.offset);
        payload.put_u32(self.region);
        payload.put_u32(self.count);
    }
}

/// Fixed fields of DEVICE_FEATURE, request and reply; the feature's data may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceFeature {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
}

impl DeviceFeature {
    pub(crate) const LEN: usize = 8;

    /// The fields and the data after them.
    pub(crate) fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Errno> {
        let mut fields = Fields::new(payload);
        let feature = Self {
            argsz: fields.u32()?,
            flags: fields.u32()?,
        };
        if feature.argsz < Self::LEN as u32 {
            return Err(Errno::EINVAL);
        }
        Ok((feature, fields.rest()))
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u32(self.argsz);
        payload.put_u32(self.flags);
    }
}

/// Data of the features VFIO_DEVICE_FEATURE_DMA_LOGGING_START and, with the size of the bitmap instead of
/// ranges, VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggingReport {
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) page_size: u64,
}

impl LoggingReport {
    pub(crate) const LEN: usize = 24;

    pub(crate) fn parse(data: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(data);
        Ok(Self {
            iova: fields.u64()?,
            length: fields.u64()?,
            page_size: fields.u64()?,
        })
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u64(self.iova);
        payload.put_u64(self.length);
        payload.put_u64(self.page_size);
    }
}

/// Data of the feature VFIO_DEVICE_FEATURE_DMA_LOGGING_START: `num_ranges` ranges follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggingControl {
    pub(crate) page_size: u64,
    pub(crate) num_ranges: u32,
}

impl LoggingControl {
    const RANGE: u64 = 16;

    /// The fields; `EINVAL` unless all ranges are there.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(data);
        let control = Self {
            page_size: fields.u64()?,
            num_ranges: fields.u32()?,
        };
        fields.u32()?;
        if fields.rest().len() as u64 != u64::from(control.num_ranges) * Self::RANGE {
            return Err(Errno::EINVAL);
        }
        Ok(control)
    }

    pub(crate) fn emit(&self, payload: &mut Vec<u8>) {
        payload.put_u64(self.page_size);
        payload.put_u32(self.num_ranges);
        payload.put_u32(0);
    }
}

/// Fixed fields of MIG_DATA_READ and MIG_DATA_WRITE, request and reply; data may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MigData {
    pub(crate) argsz: u32,
    pub(crate) size: u32,
}

impl MigData {
    pub(crate) const LEN: usize = 8;

    /// The fields and the data after them.
    pub(crate) fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Errno> {
        let mut fields = Fields::new(payload);
        let request = Self {
            argsz: fields.u32()?,
            size: fields.u32()?,
        };
        if u64::from(request.argsz) < Self::LEN as u64 + u64::from(request.size) {
            return Err(Errno::EINVAL);
        }
        Ok((request, fields.rest()))
    }

    /// With as much data as is to follow.
    pub(crate) fn emit(size: usize, payload: &mut Vec<u8>) {
        payload.put_u32((Self::LEN + size) as u32);
        payload.put_u32(size as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_the_specifications() {
        // "Commands" of the vfio-user specification; 14 is not assigned.
        let unassigned: Vec<u16> = (0..=64)
            .filter(|&number| Command::from_number(number).is_none())
            .collect();
        assert_eq!(unassigned[..2], [0, 14]);
        assert_eq!(unassigned[2], 19);
        assert_eq!(Command::from_number(16), Some(Command::DeviceFeature));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn header_of_a_request_and_back() {
        let bytes = [0x34, 0x12, 9, 0, 32, 0, 0, 0, 0x10, 0, 0, 0, 5, 0, 0, 0];
        let header = Header::parse(&bytes);
        assert_eq!(
            header,
            Header {
                id: 0x1234,
                command: 9,
                size: 32,
                flags: 0x10,
                error: 5
            }
        );
        assert_eq!(header.to_bytes(), bytes);
    }
}
