//! A user-space virtio-net driver that is a vhost-user front end: for tests and benches. Its messages are
//! those of the `vhost` crate, its numbers those of `virtio-bindings`; it shares no code with the port.

#![forbid(unsafe_code)]

mod header;
mod queue;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{MsgFlags, recv};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MRG_RXBUF,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

pub use header::{Checksum, NetHeader, Segments};
pub use queue::{BUFFER, Queue, SIZE};

/// Bytes of the guest's memory.
pub const MEMORY: usize = 8 << 20;
/// Where it begins, in the guest's addresses.
pub const BASE: u64 = 0x1000_0000;
/// Bytes of the header of each frame.
pub const HEADER: usize = 12;
/// The ring of receive buffers.
pub const RECEIVE: usize = 0;
/// The ring of frames to send.
pub const TRANSMIT: usize = 1;

/// Time limit of all waits.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Features that a driver uses when nobody says otherwise.
pub const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_NET_F_MRG_RXBUF
    | 1 << VIRTIO_NET_F_CSUM
    | 1 << VIRTIO_NET_F_HOST_TSO4
    | 1 << VIRTIO_NET_F_HOST_TSO6
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Features of a driver that takes long TCP segments.
pub const TRAINS: u64 =
    1 << VIRTIO_NET_F_GUEST_CSUM | 1 << VIRTIO_NET_F_GUEST_TSO4 | 1 << VIRTIO_NET_F_GUEST_TSO6;

/// Why a driver cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message was not answered as it should be.
    #[error("vhost-user: {0}")]
    Protocol(#[from] vhost::Error),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Nothing has come.
    #[error("nothing has come in {TIMEOUT:?}")]
    Nothing,
}

/// A guest's memory, rings and driver.
pub struct Driver {
    /// The front end, to send messages by.
    pub frontend: Frontend,
    /// The guest's memory.
    pub memory: Arc<GuestMemoryMmap>,
    /// Its rings.
    pub queues: [Queue; 2],
    /// Its features.
    pub features: u64,
    /// Frames by which it was asked for the groups that it listens to.
    pub queries: Vec<Vec<u8>>,
    /// Work on the frame received last that is left to the guest.
    pub header: NetHeader,
    stream: UnixStream,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// A guest's memory: a memfd.
///
/// # Errors
/// Where the system has none.
pub fn memory() -> io::Result<GuestMemoryMmap> {
    let file = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(MEMORY as u64)?;
    let range = (GuestAddress(BASE), MEMORY, Some(FileOffset::new(file, 0)));
    GuestMemoryMmap::from_ranges_with_files([range]).map_err(io::Error::other)
}

impl Driver {
    /// Connects, and does all that a driver does before frames pass.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::start_with(socket, FEATURES)
    }

    /// The same with these features.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start_with(socket: impl AsRef<Path>, features: u64) -> Result<Self, Error> {
        let mut driver = Self::connect(socket, features)?;
        driver.share_memory()?;
        (0..2).try_for_each(|ring| driver.start_ring(ring, 0))?;
        driver.queues[RECEIVE].fill();
        driver.kick(RECEIVE)?;
        Ok(driver)
    }

    /// Connects and agrees on features, those that the port has of `features`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect(socket: impl AsRef<Path>, features: u64) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut frontend = Frontend::from_stream(stream.try_clone()?, 2);
        let offered = frontend.get_features()?;
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol & VhostUserProtocolFeatures::REPLY_ACK)?;
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_owner()?;
        let features = features & offered;
        frontend.set_features(features)?;
        let memory = Arc::new(memory()?);
        let event_index = features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let queue = |ring| Queue::new(Arc::clone(&memory), ring, event_index);
        let queues = [queue(RECEIVE)?, queue(TRANSMIT)?];
        Ok(Self {
            frontend,
            memory,
            queues,
            features,
            queries: Vec::new(),
            header: NetHeader::default(),
            stream,
        })
    }

    /// The regions of the memory, as the port is to be told.
    ///
    /// # Errors
    /// [`Error`].
    pub fn regions(&self) -> Result<Vec<VhostUserMemoryRegionInfo>, Error> {
        let regions = self.memory.iter();
        let regions = regions.map(VhostUserMemoryRegionInfo::from_guest_region);
        Ok(regions.collect::<Result<_, _>>()?)
    }

    /// Tells the port where the memory is.
    ///
    /// # Errors
    /// [`Error`].
    pub fn share_memory(&self) -> Result<(), Error> {
        self.frontend.set_mem_table(&self.regions()?)?;
        Ok(())
    }

    /// The address of the guest's in this process, which stands for it in messages.
    #[must_use]
    pub fn user_address(&self, guest: u64) -> u64 {
        let base = self.memory.iter().next();
        let base = base.map_or(0, |region| region.as_ptr() as u64);
        guest - BASE + base
    }

    /// Starts and enables a ring.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start_ring(&mut self, ring: usize, base: u16) -> Result<(), Error> {
        self.frontend.set_vring_num(ring, SIZE)?;
        self.place_ring(ring)?;
        self.frontend.set_vring_base(ring, base)?;
        self.frontend
            .set_vring_call(ring, &self.queues[ring].call)?;
        self.frontend
            .set_vring_kick(ring, &self.queues[ring].kick)?;
        if self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0 {
            self.frontend.set_vring_enable(ring, true)?;
        }
        Ok(())
    }

    /// Tells the port where a ring is.
    ///
    /// # Errors
    /// [`Error`].
    pub fn place_ring(&self, ring: usize) -> Result<(), Error> {
        let [descriptors, available, used] = self.queues[ring].places();
        let place = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: self.user_address(descriptors),
            used_ring_addr: self.user_address(used),
            avail_ring_addr: self.user_address(available),
            log_addr: None,
        };
        self.frontend.set_vring_addr(ring, &place)?;
        Ok(())
    }

    /// Kicks a ring.
    ///
    /// # Errors
    /// [`Error`].
    pub fn kick(&self, ring: usize) -> Result<(), Error> {
        Ok(self.queues[ring].kick.write(1)?)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// [`Error::Nothing`] where the port takes no more.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.send_with(NetHeader::default(), frame)
    }

    /// Sends a frame that the port is to do something for.
    ///
    /// # Errors
    /// [`Error::Nothing`] where the port takes no more.
    pub fn send_with(&mut self, header: NetHeader, frame: &[u8]) -> Result<(), Error> {
        self.send_copies(header, frame, 1)
    }

    /// Sends a frame so many times, and kicks once, as drivers do that have several frames in hand.
    ///
    /// # Errors
    /// [`Error::Nothing`] where the port takes no more.
    pub fn send_copies(
        &mut self,
        header: NetHeader,
        frame: &[u8],
        count: usize,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        for _ in 0..count {
            while !self.queues[TRANSMIT].post(&header.to_bytes(), frame) {
                self.kick_if_wanted(TRANSMIT)?;
                self.wait(TRANSMIT, begun)?;
            }
        }
        self.kick_if_wanted(TRANSMIT)
    }

    /// Kicks where the port asks for it.
    fn kick_if_wanted(&mut self, ring: usize) -> Result<(), Error> {
        if self.queues[ring].wants_kick() {
            self.kick(ring)?;
        }
        Ok(())
    }

    /// Waits until the port has taken all frames.
    ///
    /// # Errors
    /// [`Error::Nothing`] where it does not.
    pub fn await_sent(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        while !self.queues[TRANSMIT].is_empty() {
            self.wait(TRANSMIT, begun)?;
        }
        Ok(())
    }

    /// The next frame but for queries.
    ///
    /// # Errors
    /// [`Error::Nothing`] where none comes.
    pub fn receive(&mut self) -> Result<Vec<u8>, Error> {
        let begun = Instant::now();
        loop {
            if let Some(frame) = self.try_receive() {
                return Ok(frame);
            }
            self.wait(RECEIVE, begun)?;
        }
    }

    /// The next frame but for queries, if there is one.
    pub fn try_receive(&mut self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        self.try_receive_into(&mut frame).then_some(frame)
    }

    /// Takes the next frame but for queries into `frame`, in place of what is there; whether there is one.
    pub fn try_receive_into(&mut self, frame: &mut Vec<u8>) -> bool {
        while self.take_frame(frame) {
            if !is_query(frame) {
                return true;
            }
            self.queries.push(frame.clone());
        }
        false
    }

    fn take_frame(&mut self, frame: &mut Vec<u8>) -> bool {
        let queue = &mut self.queues[RECEIVE];
        let mut header = [0; HEADER];
        frame.clear();
        if !queue.take_behind(&mut header, frame) {
            return false;
        }
        // num_buffers of the header.
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        self.header = NetHeader::parse(&header);
        for _ in 1..buffers {
            if !queue.take_into(frame) {
                return false;
            }
        }
        queue.fill();
        let _ = self.kick_if_wanted(RECEIVE);
        true
    }

    /// Sleeps until something has come, or for so long.
    ///
    /// # Errors
    /// Where the system refuses it.
    pub fn await_frame(&self, patience: Duration) -> Result<(), Error> {
        if !self.queues[RECEIVE].listen() {
            self.queues[RECEIVE].await_call(patience)?;
        }
        Ok(())
    }

    /// Waits until a ring has used something.
    fn wait(&self, ring: usize, begun: Instant) -> Result<(), Error> {
        if self.queues[ring].listen() {
            return Ok(());
        }
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(Error::Nothing);
        }
        self.queues[ring].await_call(left)?;
        Ok(())
    }

    /// Stops a ring; where it has stopped.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stop_ring(&self, ring: usize) -> Result<u32, Error> {
        Ok(self.frontend.get_vring_base(ring)?)
    }

    /// Waits until the port has closed the connection.
    ///
    /// # Errors
    /// [`Error::Nothing`] where it does not.
    pub fn await_end(&self) -> Result<(), Error> {
        let mut rest = [0; 256];
        loop {
            match (&self.stream).read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Error::Nothing);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the port has closed the connection.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut byte = [0];
        let fd = self.stream.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        !matches!(recv(fd, &mut byte, flags), Ok(1) | Err(Errno::EAGAIN))
    }

    /// The connection, to send what the front end would not.
    #[must_use]
    pub const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The descriptor of the memory.
    #[must_use]
    pub fn memory_fd(&self) -> i32 {
        let region = self.memory.iter().next();
        let file = region.and_then(|region| region.file_offset());
        file.map_or(-1, |offset| offset.file().as_raw_fd())
    }
}

/// Whether somebody asks all for the groups that they listen to, by IGMP or MLD.
fn is_query(frame: &[u8]) -> bool {
    matches!(
        frame.get(..6),
        Some([0x01, 0x00, 0x5e, 0, 0, 1] | [0x33, 0x33, 0, 0, 0, 1])
    ) && matches!(
        (frame.get(38), frame.get(62)),
        (Some(0x11), _) | (_, Some(130))
    )
}
