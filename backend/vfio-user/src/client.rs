//! The client's side: for whoever drives a device that another process serves.
//!
//! One command at a time; it waits for every reply, as long as
//! [`Client::set_time_limit`] says. The server is not trusted: what it sends
//! is bounded, and what is no answer to the command ends the exchange with an
//! error. For a look at how a server copes with what no good client sends,
//! [`Client::send`] and [`Client::receive`] exchange messages as they are.

mod migration;
mod time_limit;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;
use vfio_bindings::bindings::vfio::{
    VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_DMA_UNMAP_FLAG_ALL,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
};

use crate::client::time_limit::TimeLimit;
use crate::dma::{MAX_DMA_MAPS, PAGE_SIZE};
use crate::message::version::{Capabilities, MAJOR, MINOR, Version};
use crate::message::{
    DeviceFeature, DeviceInfo, DmaMap, DmaUnmap, FLAG_COMMAND, FLAG_ERROR, FLAG_NO_REPLY,
    FLAG_REPLY, FLAG_TYPE, HEADER_LEN, IrqInfoFields, IrqSet, MAX_PAYLOAD, RegionAccess,
};
use crate::{
    Command, Header, IrqInfo, MAX_DATA_XFER_SIZE, MAX_MSG_FDS, Protection, SparseArea, region,
};
use vmm_socket::memory::{MapError, MappedFile};
use vmm_socket::socket::{Lost, ReceivedFds, Socket};

/// Why a command did not succeed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server cannot be reached.
    #[error("cannot connect to {path}: {source}; start the server first")]
    Connect {
        /// The socket's path.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server answered with an error.
    #[error("the server refused {command:?}: {errno}")]
    Refused {
        /// The command that was sent.
        command: Command,
        /// The answer.
        errno: Errno,
    },
    /// The server answered with something that is no answer.
    #[error("the server's reply to {0:?} is malformed")]
    Malformed(Command),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(Errno),
    /// The server took longer than the time limit. A late answer would be taken for the answer to another
    /// command: the connection is unusable.
    #[error("the server did not answer in time")]
    TimedOut,
    /// A region cannot be mapped.
    #[error("cannot map the region: {0}")]
    Map(#[from] MapError),
}

impl From<Lost> for ClientError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Closed | Lost::Truncated => Self::Closed,
            Lost::System(errno) => Self::Socket(errno),
            Lost::Stopped => Self::TimedOut,
        }
    }
}

impl ClientError {
    /// The errno of the server's error reply, if that is what this is.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// A reply as it came.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// Bytes behind the header.
    pub payload: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Reply {
    /// The errno of an error reply.
    pub fn error(&self) -> Option<Errno> {
        (self.header.flags & FLAG_ERROR != 0).then(|| Errno::from_raw(self.header.error as i32))
    }
}

/// Number of regions and interrupt types of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNumbers {
    /// `VFIO_DEVICE_FLAGS_*`.
    pub flags: u32,
    /// Number of region indexes.
    pub regions: u32,
    /// Number of interrupt indexes.
    pub irqs: u32,
}

/// A region, as the server describes it.
#[derive(Debug)]
pub struct RegionInfo {
    /// VFIO PCI region index.
    pub index: u32,
    /// Size in bytes; 0 where there is no such region.
    pub size: u64,
    /// It may be read by message.
    pub read: bool,
    /// It may be written by message.
    pub write: bool,
    /// It may be mapped: `areas` of it, or all of it where there are none.
    pub mmap: bool,
    /// The parts of it that may be mapped.
    pub areas: Vec<SparseArea>,
    /// Where the region's start lies in `fd`, in bytes.
    pub fd_offset: u64,
    /// The file to map.
    pub fd: Option<Arc<OwnedFd>>,
}

impl RegionInfo {
    /// Maps the region's file. A region's byte `offset` within one of
    /// [`RegionInfo::areas`] is the mapping's byte
    /// [`RegionInfo::fd_offset`]` + offset`.
    ///
    /// # Errors
    /// [`ClientError::Map`], also for a region that cannot be mapped.
    pub fn map(&self) -> Result<MappedFile, ClientError> {
        let fd = self.fd.as_ref().ok_or(MapError::NotAFile)?;
        let fd = fd.try_clone().map_err(|_| MapError::NotAFile)?;
        Ok(MappedFile::new(fd.into())?)
    }
}

/// A connection to a vfio-user server.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    next_id: u16,
    /// The last command that has had its answer.
    answered: Option<u16>,
    limit: Option<TimeLimit>,
}

impl Client {
    /// Connects to the server at `path` and negotiates a version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let mut client = Self::unnegotiated(connect(path.as_ref())?);
        client.negotiate()?;
        Ok(client)
    }

    /// The same, with a limit to the time that the server may take for anything:
    /// [`Client::set_time_limit`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_within(path: impl AsRef<Path>, time: Duration) -> Result<Self, ClientError> {
        let mut client = Self::unnegotiated(connect(path.as_ref())?);
        client.set_time_limit(time)?;
        client.negotiate()?;
        Ok(client)
    }

    /// A client on a connected socket that has not negotiated a version.
    pub fn unnegotiated(stream: UnixStream) -> Self {
        Self {
            socket: Socket::new(stream),
            next_id: 0,
            answered: None,
            limit: None,
        }
    }

    /// From now on the server has this much time for each answer, and to take
    /// a message: [`ClientError::TimedOut`].
    ///
    /// # Errors
    /// [`ClientError::Socket`] where the process has no file descriptors left.
    pub fn set_time_limit(&mut self, time: Duration) -> Result<(), ClientError> {
        self.limit = Some(TimeLimit::new(time).map_err(ClientError::Socket)?);
        Ok(())
    }

    /// Returns the descriptor that is readable when the server's time is up.
    fn late(&self) -> Option<BorrowedFd<'_>> {
        self.limit.as_ref().map(TimeLimit::as_fd)
    }

    /// Negotiates a version, once.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn negotiate(&mut self) -> Result<(), ClientError> {
        let mut payload = Vec::new();
        let capabilities = Capabilities {
            max_msg_fds: Some(MAX_MSG_FDS as u32),
            max_data_xfer_size: Some(MAX_DATA_XFER_SIZE.into()),
            max_dma_maps: Some(MAX_DMA_MAPS as u64),
            pgsizes: Some(PAGE_SIZE),
        };
        Version {
            major: MAJOR,
            minor: MINOR,
            capabilities,
        }
        .emit(&mut payload);
        let reply = self.command(Command::Version, &payload, &[])?;
        match Version::parse(&reply.payload) {
            Ok(Version {
                major: MAJOR,
                minor: MINOR,
                ..
            }) => Ok(()),
            _ => Err(ClientError::Malformed(Command::Version)),
        }
    }

    /// The connection's socket.
    pub fn stream(&self) -> &UnixStream {
        self.socket.stream()
    }

    /// Sends a header and whatever is to follow it; the header's `size` is
    /// what it says, not what is sent.
    ///
    /// # Errors
    /// [`ClientError::Closed`] or [`ClientError::Socket`].
    pub fn send(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let late = self.late();
        Ok(self.socket.send(&header.to_bytes(), payload, fds, late)?)
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
        let mut header = [0; HEADER_LEN];
        let mut fds = ReceivedFds::default();
        self.socket.receive(&mut header, &mut fds, self.late())?;
        let header = Header::parse(&header);
        let len = (header.size as usize)
            .checked_sub(HEADER_LEN)
            .filter(|&len| len <= MAX_PAYLOAD)
            .ok_or(ClientError::Socket(Errno::EMSGSIZE))?;
        let mut payload = vec![0; len];
        self.socket.receive(&mut payload, &mut fds, self.late())?;
        Ok(Reply {
            header,
            payload,
            fds: fds.fds,
        })
    }

    fn begin(
        &mut self,
        command: Command,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<u16, ClientError> {
        if let Some(limit) = &self.limit {
            limit.begin().map_err(ClientError::Socket)?;
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let size = (HEADER_LEN + payload.len()) as u32;
        self.send(
            Header {
                id,
                command: command as u16,
                size,
                flags,
                error: 0,
            },
            payload,
            fds,
        )?;
        Ok(id)
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn command(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, ClientError> {
        let id = self.begin(command, FLAG_COMMAND, payload, fds)?;
        let mut reply = self.receive()?;
        if self.answered == Some(reply.header.id) && reply.error().is_some() {
            // A server that took over from one that died did not know that the command before had its answer.
            reply = self.receive()?;
        }
        self.answered = Some(id);
        let Header {
            id: reply_id,
            command: reply_command,
            flags,
            ..
        } = reply.header;
        if flags & FLAG_TYPE != FLAG_REPLY || reply_id != id || reply_command != command as u16 {
            return Err(ClientError::Malformed(command));
        }
        match reply.error() {
            Some(errno) => Err(ClientError::Refused { command, errno }),
            None => Ok(reply),
        }
    }

    /// DEVICE_GET_INFO.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn device_info(&mut self) -> Result<DeviceNumbers, ClientError> {
        let command = Command::DeviceGetInfo;
        let mut payload = Vec::new();
        DeviceInfo::default().emit(&mut payload);
        let reply = self.command(command, &payload, &[])?;
        let DeviceInfo {
            flags,
            num_regions: regions,
            num_irqs: irqs,
        } = DeviceInfo::parse(&reply.payload).map_err(|_| ClientError::Malformed(command))?;
        Ok(DeviceNumbers {
            flags,
            regions,
            irqs,
        })
    }

    /// DEVICE_GET_REGION_INFO, twice where the description is long.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_info(&mut self, index: u32) -> Result<RegionInfo, ClientError> {
        let command = Command::DeviceGetRegionInfo;
        let mut argsz = 32;
        // The second answer has room for all of the description.
        for _ in 0..2 {
            let mut payload = Vec::new();
            region::RegionInfo::emit_request(argsz, index, &mut payload);
            let mut reply = self.command(command, &payload, &[])?;
            let (info, full) = region::RegionInfo::parse(&reply.payload)
                .map_err(|_| ClientError::Malformed(command))?;
            if info.index != index {
                return Err(ClientError::Malformed(command));
            }
            if full > argsz {
                argsz = full.min(MAX_PAYLOAD as u32);
                continue;
            }
            return Ok(RegionInfo {
                index: info.index,
                size: info.size,
                read: info.read,
                write: info.write,
                mmap: info.mmap,
                areas: info.areas,
                fd_offset: info.fd_offset,
                fd: reply.fds.pop().map(Arc::new),
            });
        }
        Err(ClientError::Malformed(command))
    }

    /// DEVICE_GET_IRQ_INFO.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let command = Command::DeviceGetIrqInfo;
        let mut payload = Vec::new();
        IrqInfoFields {
            flags: 0,
            index,
            count: 0,
        }
        .emit(&mut payload);
        let reply = self.command(command, &payload, &[])?;
        let fields =
            IrqInfoFields::parse(&reply.payload).map_err(|_| ClientError::Malformed(command))?;
        Ok(IrqInfo::from_fields(&fields))
    }

    /// DMA_MAP: shares `size` bytes of `fd` from `offset` on at DMA address
    /// `addr`, or without `fd` only announces the range.
    ///
    /// # Errors
    /// [`ClientError`]; `EEXIST` where part of the range is mapped.
    pub fn dma_map(
        &mut self,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        addr: u64,
        size: u64,
        protection: Protection,
    ) -> Result<(), ClientError> {
        let read = if protection.read {
            VFIO_DMA_MAP_FLAG_READ
        } else {
            0
        };
        let write = if protection.write {
            VFIO_DMA_MAP_FLAG_WRITE
        } else {
            0
        };
        let mut payload = Vec::new();
        DmaMap {
            flags: read | write,
            offset,
            addr,
            size,
        }
        .emit(&mut payload);
        self.command(Command::DmaMap, &payload, fd.as_slice())
            .map(drop)
    }

    /// DMA_UNMAP of all mappings within a range.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), ClientError> {
        self.unmap(DmaUnmap {
            argsz: DmaUnmap::LEN,
            flags: 0,
            addr,
            size,
        })
    }

    /// DMA_UNMAP of everything.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap_all(&mut self) -> Result<(), ClientError> {
        self.unmap(DmaUnmap {
            argsz: DmaUnmap::LEN,
            flags: VFIO_DMA_UNMAP_FLAG_ALL,
            addr: 0,
            size: 0,
        })
    }

    fn unmap(&mut self, request: DmaUnmap) -> Result<(), ClientError> {
        let command = Command::DmaUnmap;
        let mut payload = Vec::new();
        request.emit(&mut payload);
        let reply = self.command(command, &payload, &[])?;
        match DmaUnmap::parse(&reply.payload) {
            Ok((echo, [])) if echo == request => Ok(()),
            _ => Err(ClientError::Malformed(command)),
        }
    }

    /// REGION_READ of `data.len()` bytes, 1 MiB at most.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_read(
        &mut self,
        region: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), ClientError> {
        let command = Command::RegionRead;
        let request = RegionAccess {
            offset,
            region,
            count: data.len() as u32,
        };
        let mut payload = Vec::new();
        request.emit(&mut payload);
        let reply = self.command(command, &payload, &[])?;
        match RegionAccess::parse(&reply.payload) {
            Ok((echo, read)) if echo == request && read.len() == data.len() => {
                data.copy_from_slice(read);
                Ok(())
            }
            _ => Err(ClientError::Malformed(command)),
        }
    }

    /// REGION_WRITE of `data.len()` bytes, 1 MiB at most.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn region_write(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        let payload = write_payload(region, offset, data);
        self.command(Command::RegionWrite, &payload, &[]).map(drop)
    }

    /// REGION_WRITE without waiting: nobody tells whether it succeeded.
    ///
    /// # Errors
    /// [`ClientError::Closed`] or [`ClientError::Socket`].
    pub fn region_post(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        let payload = write_payload(region, offset, data);
        self.begin(
            Command::RegionWrite,
            FLAG_COMMAND | FLAG_NO_REPLY,
            &payload,
            &[],
        )
        .map(drop)
    }

    /// DEVICE_SET_IRQS: connects vectors from `start` on to eventfds, 16 to a
    /// message.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        eventfds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        for (chunk, eventfds) in eventfds.chunks(MAX_MSG_FDS).enumerate() {
            let start = start + (chunk * MAX_MSG_FDS) as u32;
            self.set(
                IrqSet {
                    flags,
                    index,
                    start,
                    count: eventfds.len() as u32,
                },
                eventfds,
            )?;
        }
        Ok(())
    }

    /// DEVICE_SET_IRQS: disconnects one vector.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn disconnect_irq(&mut self, index: u32, vector: u32) -> Result<(), ClientError> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        self.set(
            IrqSet {
                flags,
                index,
                start: vector,
                count: 1,
            },
            &[],
        )
    }

    /// DEVICE_SET_IRQS: disconnects all vectors of an index.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn disable_irqs(&mut self, index: u32) -> Result<(), ClientError> {
        let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
        self.set(
            IrqSet {
                flags,
                index,
                start: 0,
                count: 0,
            },
            &[],
        )
    }

    fn set(&mut self, set: IrqSet, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let mut payload = Vec::new();
        set.emit(&[], &mut payload);
        self.command(Command::DeviceSetIrqs, &payload, fds)
            .map(drop)
    }

    /// DEVICE_RESET.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn device_reset(&mut self) -> Result<(), ClientError> {
        self.command(Command::DeviceReset, &[], &[]).map(drop)
    }

    /// DEVICE_FEATURE with these flags and this data, with room for an answer of `room` bytes of data.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn device_feature(
        &mut self,
        flags: u32,
        data: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let command = Command::DeviceFeature;
        let mut payload = Vec::new();
        let argsz = (DeviceFeature::LEN + room.max(data.len())) as u32;
        DeviceFeature { argsz, flags }.emit(&mut payload);
        payload.extend_from_slice(data);
        let reply = self.command(command, &payload, &[])?;
        match DeviceFeature::parse(&reply.payload) {
            Ok((echo, data)) if echo.flags == flags => Ok(data.to_vec()),
            _ => Err(ClientError::Malformed(command)),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.stream().as_fd()
    }
}

fn connect(path: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(path).map_err(|source| ClientError::Connect {
        path: path.to_owned(),
        source,
    })
}

fn write_payload(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(RegionAccess::LEN + data.len());
    RegionAccess {
        offset,
        region,
        count: data.len() as u32,
    }
    .emit(&mut payload);
    payload.extend_from_slice(data);
    payload
}
