//! Messages of the vhost-user protocol (QEMU, docs/interop/vhost-user.rst). Numbers are in the host's byte
//! order, which is little endian here.

use thiserror::Error;

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;
/// The longest payload that any request has: a full table of regions.
pub const MAX_PAYLOAD: usize = 8 + MAX_REGIONS * REGION_LEN;
/// Regions of a full table.
const MAX_REGIONS: usize = 8;
/// Bytes of a region in a table.
const REGION_LEN: usize = 32;

/// The version, in the lowest bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
/// It answers a request.
const REPLY: u32 = 4;
/// The sender wants to know how it went.
const NEED_REPLY: u32 = 8;

/// Features of the device, by bits (virtio 1.3, 5.1.3 and 6; vhost-user).
pub mod feature {
    /// The device fills in checksums (VIRTIO_NET_F_CSUM).
    pub const CHECKSUM: u64 = 1;
    /// The guest takes frames with checksums that are not filled in (VIRTIO_NET_F_GUEST_CSUM).
    pub const GUEST_CHECKSUM: u64 = 1 << 1;
    /// The device tells its MTU (VIRTIO_NET_F_MTU).
    pub const MTU: u64 = 1 << 3;
    /// The guest takes long TCP segments over IPv4 (VIRTIO_NET_F_GUEST_TSO4).
    pub const GUEST_SEGMENTS_IPV4: u64 = 1 << 7;
    /// The same over IPv6 (VIRTIO_NET_F_GUEST_TSO6).
    pub const GUEST_SEGMENTS_IPV6: u64 = 1 << 8;
    /// The device cuts TCP segments over IPv4 (VIRTIO_NET_F_HOST_TSO4).
    pub const SEGMENTS_IPV4: u64 = 1 << 11;
    /// The same over IPv6 (VIRTIO_NET_F_HOST_TSO6).
    pub const SEGMENTS_IPV6: u64 = 1 << 12;
    /// A frame may take several receive buffers (VIRTIO_NET_F_MRG_RXBUF).
    pub const MERGEABLE: u64 = 1 << 15;
    /// The guest itself tells others where it is after it has moved (VIRTIO_NET_F_GUEST_ANNOUNCE).
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// The device logs its writes (VHOST_F_LOG_ALL).
    pub const LOG_ALL: u64 = 1 << 26;
    /// Descriptors in tables (VIRTIO_F_INDIRECT_DESC).
    pub const INDIRECT: u64 = 1 << 28;
    /// Indexes from which on each side wants to hear (VIRTIO_F_EVENT_IDX).
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// There are protocol features (VHOST_USER_F_PROTOCOL_FEATURES).
    pub const PROTOCOL: u64 = 1 << 30;
    /// Version 1 of virtio (VIRTIO_F_VERSION_1).
    pub const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol, by bits.
pub mod protocol_feature {
    /// The dirty log is a file that the client shares.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Any request may ask how it went.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The client says the MTU.
    pub const NET_MTU: u64 = 1 << 4;
}

/// Why a message makes no sense. The connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Another version, or an answer to nothing.
    #[error("flags {0:#x} in a header")]
    Flags(u32),
    /// More than any request has.
    #[error("{0} bytes of payload")]
    TooLong(u32),
    /// Not as long as this request is.
    #[error("{1} bytes of payload in request {0}")]
    Length(u32, u32),
    /// A request that is unknown, or was not offered.
    #[error("request {0} is unknown, or was not offered")]
    Unknown(u32),
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// Version and what is to be done about an answer.
    pub flags: u32,
    /// Bytes of payload.
    pub size: u32,
}

impl Header {
    /// Reads a request's header.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: [u8; HEADER_LEN]) -> Result<Self, MessageError> {
        let header = Self {
            request: u32_at(&bytes, 0),
            flags: u32_at(&bytes, 4),
            size: u32_at(&bytes, 8),
        };
        if header.flags & VERSION_MASK != VERSION || header.flags & REPLY != 0 {
            return Err(MessageError::Flags(header.flags));
        }
        if header.size as usize > MAX_PAYLOAD {
            return Err(MessageError::TooLong(header.size));
        }
        Ok(header)
    }

    /// The header of an answer with this many bytes of payload.
    #[must_use]
    pub fn answer(self, size: usize) -> [u8; HEADER_LEN] {
        let fields = [self.request, VERSION | REPLY, size as u32];
        let mut bytes = [0; HEADER_LEN];
        for (to, field) in bytes.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Whether the sender wants to know how it went.
    #[must_use]
    pub const fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// A region of the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionDescription {
    /// Where the guest has it.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Where the client has it.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Where a ring is, in the client's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingAddresses {
    /// The descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// Where the used ring is in the dirty log, where writes to it are logged: a guest address.
    pub log: Option<u64>,
}

/// A descriptor of an event that comes with a message, or none, in which case somebody polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFor {
    /// The ring.
    pub ring: usize,
    /// A descriptor comes with the message.
    pub has_fd: bool,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Query of features.
    GetFeatures,
    /// These are used.
    SetFeatures(u64),
    /// The session begins.
    SetOwner,
    /// It ends. Deprecated: it does nothing.
    ResetOwner,
    /// The guest's memory.
    SetMemTable(Vec<RegionDescription>),
    /// Where the dirty log is in its file: bytes, and offset.
    SetLogBase(u64, u64),
    /// Eventfd to signal when the log was written.
    SetLogFd,
    /// Number of descriptors of a ring.
    SetRingSize(usize, u32),
    /// Where a ring is.
    SetRingAddresses(usize, RingAddresses),
    /// At which entry a ring begins.
    SetRingBase(usize, u32),
    /// Stop the ring, and tell at which entry.
    GetRingBase(usize),
    /// Eventfd that kicks a ring, which starts with it.
    SetRingKick(EventFor),
    /// Eventfd to signal when buffers were used.
    SetRingCall(EventFor),
    /// Eventfd to signal when a ring has failed.
    SetRingError(EventFor),
    /// Query of features of the protocol.
    GetProtocolFeatures,
    /// These are used.
    SetProtocolFeatures(u64),
    /// Let a ring pass frames, or not.
    SetRingEnable(usize, bool),
    /// The MTU that the guest is told.
    SetMtu(u64),
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(header: Header, payload: &[u8]) -> Result<Self, MessageError> {
        let wrong = MessageError::Length(header.request, payload.len() as u32);
        let number = || match payload.len() {
            8 => Ok(u64_at(payload, 0)),
            _ => Err(wrong),
        };
        // Ring and number of 32 bits each.
        let state = || number().map(|both| ((both as u32) as usize, (both >> 32) as u32));
        let event = || {
            number().map(|both| EventFor {
                ring: (both & 0xff) as usize,
                has_fd: both & 0x100 == 0,
            })
        };
        let nothing = |request| match payload.len() {
            0 => Ok(request),
            _ => Err(wrong),
        };
        match header.request {
            1 => nothing(Self::GetFeatures),
            2 => Ok(Self::SetFeatures(number()?)),
            3 => nothing(Self::SetOwner),
            4 => nothing(Self::ResetOwner),
            5 => table(payload).map(Self::SetMemTable).ok_or(wrong),
            6 if payload.len() == 16 => {
                Ok(Self::SetLogBase(u64_at(payload, 0), u64_at(payload, 8)))
            }
            6 => Err(wrong),
            7 => Ok(Self::SetLogFd),
            8 => state().map(|(ring, size)| Self::SetRingSize(ring, size)),
            9 if payload.len() == 40 => {
                let (ring, flags) = (u32_at(payload, 0) as usize, u32_at(payload, 4));
                let addresses = RingAddresses {
                    descriptors: u64_at(payload, 8),
                    used: u64_at(payload, 16),
                    available: u64_at(payload, 24),
                    log: (flags & 1 != 0).then(|| u64_at(payload, 32)),
                };
                Ok(Self::SetRingAddresses(ring, addresses))
            }
            9 => Err(wrong),
            10 => state().map(|(ring, base)| Self::SetRingBase(ring, base)),
            11 => state().map(|(ring, _)| Self::GetRingBase(ring)),
            12 => event().map(Self::SetRingKick),
            13 => event().map(Self::SetRingCall),
            14 => event().map(Self::SetRingError),
            15 => nothing(Self::GetProtocolFeatures),
            16 => Ok(Self::SetProtocolFeatures(number()?)),
            18 => state().map(|(ring, on)| Self::SetRingEnable(ring, on != 0)),
            20 => Ok(Self::SetMtu(number()?)),
            other => Err(MessageError::Unknown(other)),
        }
    }

    /// Returns the numbers of descriptors that may come with it: minimum and maximum.
    #[must_use]
    pub fn descriptors(&self) -> (usize, usize) {
        match self {
            Self::SetMemTable(regions) => (regions.len(), regions.len()),
            Self::SetLogBase(..) => (1, 1),
            Self::SetLogFd => (0, 1),
            Self::SetRingKick(event) | Self::SetRingCall(event) | Self::SetRingError(event) => {
                let some = usize::from(event.has_fd);
                (some, some)
            }
            _ => (0, 0),
        }
    }
}

fn table(payload: &[u8]) -> Option<Vec<RegionDescription>> {
    let (head, regions) = payload.split_at_checked(8)?;
    let count = u32_at(head, 0) as usize;
    let (regions, rest) = regions.as_chunks::<REGION_LEN>();
    if !rest.is_empty() || count != regions.len() || count == 0 {
        return None;
    }
    let region = |bytes: &[u8; REGION_LEN]| RegionDescription {
        guest: u64_at(bytes, 0),
        size: u64_at(bytes, 8),
        user: u64_at(bytes, 16),
        offset: u64_at(bytes, 24),
    };
    Some(regions.iter().map(region).collect())
}

/// The number at this place; 0 where there is none, which no caller lets be.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(found.copied().unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_le_bytes(found.copied().unwrap_or_default())
}
