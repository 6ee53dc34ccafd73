//! One client: its commands, carried out on the device.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tracing::{debug, info};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ,
    VFIO_DMA_MAP_FLAG_WRITE, VFIO_DMA_UNMAP_FLAG_ALL, VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP,
    VFIO_DMA_UNMAP_FLAG_VADDR, VFIO_IRQ_SET_DATA_EVENTFD,
};

use crate::end::End;
use crate::message::version::{Capabilities, Version};
use crate::message::{
    BitmapShape, Command, DeviceInfo, DmaMap, DmaUnmap, FLAG_COMMAND, FLAG_ERROR, FLAG_NO_REPLY,
    FLAG_REPLY, FLAG_TYPE, HEADER_LEN, Header, IrqInfoFields, IrqSet, MAX_DATA_XFER_SIZE,
    MAX_PAYLOAD, NUM_IRQS, NUM_REGIONS, PutFields, RegionAccess,
};
use crate::message_log::{Message, MessageLog, Nobody, Resumed, StandIn};
use crate::migration::{MAX_BITMAP_SIZE, Progress, Written, is_logging};
use crate::region::RegionInfo;
use crate::{Device, Effect, Interrupts, IrqInfo, Mapping, Protection, Region, Stop};
use vmm_socket::Journal;
use vmm_socket::memory::{Files, MapError};
use vmm_socket::socket::{Lost, ReceivedFds, Socket};

/// Serves one client on a connected socket until it goes, misbehaves beyond
/// repair, or `stop` is signalled.
///
/// Then all its interrupts are disconnected, and the device hears
/// [`Device::disconnected`] if the client had negotiated a version.
pub fn serve(stream: UnixStream, device: &mut dyn Device, stop: &Stop) -> End {
    serve_before(
        None,
        Arrival::New(stream),
        device,
        stop,
        &mut Journal::default(),
        &mut Nobody,
    )
}

/// Origin of a client's connection.
pub(crate) enum Arrival {
    /// By connecting.
    New(UnixStream),
    /// From another server.
    Resumed(Resumed),
}

/// As [`serve`], while others may wait at the socket `next`.
pub(crate) fn serve_before(
    next: Option<BorrowedFd<'_>>,
    arrival: Arrival,
    device: &mut dyn Device,
    stop: &Stop,
    journal: &mut Journal,
    message_log: &mut dyn MessageLog,
) -> End {
    let (stream, resumed) = match arrival {
        Arrival::New(stream) => {
            message_log.connected(&stream);
            (stream, None)
        }
        Arrival::Resumed(client) => (client.stream, Some((client.messages, client.shown))),
    };
    let mut connection = Connection::new(stream, device, stop, journal, message_log);
    connection.next = next;
    if let Some((messages, shown)) = resumed {
        connection.resume(messages, &shown);
    }
    let end = loop {
        if let Err(end) = connection.next_message() {
            break end;
        }
    };
    let end = match end {
        // The handler of the fault has hung up.
        End::Closed | End::Truncated | End::Failed(_) if connection.files.have_lost() => {
            End::MemoryLost
        }
        end => end,
    };
    let Connection {
        peer,
        interrupts,
        mut progress,
        message_log,
        ..
    } = connection;
    // A server that stops leaves its client to whoever comes next.
    if end != End::Stopped {
        message_log.gone();
    }
    interrupts.disconnect();
    if peer.is_some() {
        device.disconnected();
        progress.reset(device);
    }
    end
}

struct Connection<'a> {
    socket: Socket,
    device: &'a mut dyn Device,
    stop: BorrowedFd<'a>,
    interrupts: Interrupts,
    /// Where another client may wait, until the log tells of one.
    next: Option<BorrowedFd<'a>>,
    journal: &'a mut Journal,
    message_log: &'a mut dyn MessageLog,
    /// By index, all of them.
    regions: Vec<Region>,
    /// By index, all of them.
    irqs: Vec<IrqInfo>,
    files: Files,
    /// The log tells of RAM that is not shared.
    unshared: bool,
    /// Why the last command's memory cannot be used.
    unusable: Option<MapError>,
    /// Progress of the client in moving the device.
    progress: Progress,
    /// Capabilities of the client, once it has negotiated.
    peer: Option<Capabilities>,
    message: Vec<u8>,
    reply: Vec<u8>,
    /// When the last message came, and how long after the one before.
    received: Instant,
    gap: Duration,
    /// Messages since the stop signal was looked at.
    unchecked: u32,
}

/// Bytes of a message that a message log notes: all of a short write.
const NOTED: usize = 48;

/// Whether another server of the client has to know of such a command.
const fn is_kept(command: Command) -> bool {
    matches!(
        command,
        Command::Version
            | Command::DmaMap
            | Command::DmaUnmap
            | Command::DeviceSetIrqs
            | Command::DeviceReset
    )
}

/// Messages closer together than this are waited for awake.
const DENSE: Duration = Duration::from_micros(25);
/// Messages after which the stop signal is looked at, however dense they are.
const CHECK_EVERY: u32 = 256;

impl<'a> Connection<'a> {
    fn new(
        stream: UnixStream,
        device: &'a mut dyn Device,
        stop: &'a Stop,
        journal: &'a mut Journal,
        message_log: &'a mut dyn MessageLog,
    ) -> Self {
        let (mut regions, irqs) = (device.regions(), device.irqs());
        let regions = (0..NUM_REGIONS)
            .map(
                |index| match regions.iter().position(|region| region.index == index) {
                    Some(at) => regions.swap_remove(at),
                    None => Region::absent(index),
                },
            )
            .collect();
        let irqs = (0..NUM_IRQS)
            .map(|index| {
                let known = irqs.iter().find(|info| info.index == index);
                known.copied().unwrap_or(IrqInfo::absent(index))
            })
            .collect();
        let socket = Socket::new(stream);
        Self {
            interrupts: device.interrupts(),
            files: Files::new(device.memory_limits(), Some(Arc::clone(socket.stream()))),
            socket,
            device,
            stop: stop.as_fd(),
            next: None,
            journal,
            message_log,
            regions,
            irqs,
            unshared: false,
            unusable: None,
            progress: Progress::default(),
            peer: None,
            message: Vec::new(),
            reply: Vec::new(),
            received: Instant::now(),
            gap: Duration::MAX,
            unchecked: 0,
        }
    }

    /// Waits for the next message, awake where the client sends one after the
    /// other: to wake a thread that sleeps costs the sender more than all that
    /// the message asks for.
    fn await_message(&mut self) -> Result<(), End> {
        let dense = self.gap < DENSE;
        self.unchecked += 1;
        if !dense || self.unchecked >= CHECK_EVERY || !self.socket.watch(DENSE) {
            // Sees the stop signal as well.
            self.unchecked = 0;
            loop {
                let besides = [self.next, self.device.ready()];
                match self.socket.wait_beside(self.stop, besides)? {
                    [true, _] => {
                        let what = format_args!("another client waits until this one is gone");
                        self.journal.warn("waiting", what);
                        self.next = None;
                    }
                    [_, true] => self.device.poll(),
                    [false, false] => break,
                }
            }
        }
        self.gap = self.received.elapsed();
        Ok(())
    }

    /// Carries out the messages of a client that another server had, and has it see the device as it was
    /// left.
    fn resume(&mut self, messages: Vec<Message>, shown: &StandIn) {
        for (message, fds) in messages {
            let Some((header, payload)) = message.split_first_chunk() else {
                continue;
            };
            let header = Header::parse(header);
            if let Err(errno) = self.execute(header.command, payload, fds) {
                self.log_failure(&header, errno);
            }
        }
        for part in shown.shown.iter().filter(|part| !part.writable.is_empty()) {
            // Registers that the client may not write stay as they are.
            if let Err(errno) = self
                .device
                .write(part.region, part.offset, &part.bytes)
                .map(drop)
            {
                debug!(part.region, "cannot be written again: {errno}");
            }
        }
        self.show();
    }

    /// Tells the message log how the device is to be seen where nobody serves it.
    fn show(&mut self) {
        if let Some(stand_in) = self.device.stand_in() {
            self.message_log.shows(&stand_in);
        }
    }

    /// Receives one message and answers it.
    fn next_message(&mut self) -> Result<(), End> {
        let mut message = std::mem::take(&mut self.message);
        let done = self.next_message_in(&mut message);
        self.message = message;
        done
    }

    fn next_message_in(&mut self, message: &mut Vec<u8>) -> Result<(), End> {
        let stop = Some(self.stop);
        let mut fds = ReceivedFds::default();
        self.await_message()?;
        // A message is taken at once, header and payload, so that a server that dies leaves the next
        // one a stream that is in step.
        let mut start = [0; NOTED];
        let there = self.socket.peek(&mut start)?.unwrap_or(0);
        let (start, there) = match start.get(..there).and_then(<[u8]>::first_chunk) {
            Some(header) => (Header::parse(header), &start[..there]),
            None => {
                // A client that sends its header in pieces, or is gone.
                let mut header = [0; HEADER_LEN];
                self.socket.receive(&mut header, &mut fds, stop)?;
                message.clear();
                message.extend_from_slice(&header);
                (Header::parse(&header), &[][..])
            }
        };
        let header = start;
        let taken = if there.is_empty() { HEADER_LEN } else { 0 };
        self.received = Instant::now();
        let answered = header.flags & (FLAG_TYPE | FLAG_NO_REPLY) == FLAG_COMMAND;
        let len = (header.size as usize)
            .checked_sub(HEADER_LEN)
            .filter(|&len| len <= MAX_PAYLOAD);
        let Some(len) = len else {
            if header.flags & FLAG_TYPE == FLAG_COMMAND {
                self.answer(&header, Err(Errno::EMSGSIZE))?;
            }
            return Err(End::BadLength(header.size));
        };
        if answered {
            self.message_log
                .takes(if taken == 0 { there } else { message });
        }
        message.resize(HEADER_LEN + len, 0);
        self.socket
            .receive(&mut message[taken..], &mut fds, stop)
            .map_err(|lost| match lost {
                Lost::Closed => End::Truncated,
                lost => lost.into(),
            })?;
        let payload = &message[HEADER_LEN..];

        let outcome = match header.flags & FLAG_TYPE {
            FLAG_COMMAND if fds.surplus => {
                // Gone before the client hears of it.
                drop(fds);
                Err(Errno::EMFILE)
            }
            FLAG_COMMAND => {
                let kept = Command::from_number(header.command).is_some_and(is_kept);
                if kept {
                    self.message_log.keeps(message, &fds.fds);
                }
                let outcome = self.execute(header.command, payload, fds.fds);
                if kept && outcome.is_err() {
                    self.message_log.refused();
                }
                outcome
            }
            FLAG_REPLY => {
                debug!(
                    command = header.command,
                    "reply to a command that was never sent"
                );
                return Ok(());
            }
            _ => Err(Errno::EINVAL),
        };
        if let Err(errno) = outcome {
            self.log_failure(&header, errno);
        }
        if answered {
            self.message_log.answers();
        }
        self.answer(&header, outcome)?;
        if answered {
            self.message_log.answered();
        }
        Ok(())
    }

    fn log_failure(&mut self, header: &Header, errno: Errno) {
        match (self.unusable.take(), Command::from_number(header.command)) {
            (Some(why), _) => self
                .journal
                .warn("memory", format_args!("guest memory cannot be used: {why}")),
            (None, Some(command)) => self.journal.warn(
                "commands",
                format_args!("command failed: {command:?}: {errno}"),
            ),
            (None, None) => self.journal.warn(
                "commands",
                format_args!(
                    "command failed: there is no command {}: {errno}",
                    header.command
                ),
            ),
        }
    }

    fn answer(
        &mut self,
        header: &Header,
        outcome: Result<Option<Arc<OwnedFd>>, Errno>,
    ) -> Result<(), End> {
        if header.flags & FLAG_NO_REPLY != 0 {
            return Ok(());
        }
        let (flags, error, fd) = match outcome {
            Ok(fd) => (FLAG_REPLY, 0, fd),
            Err(errno) => {
                // An error reply is its header.
                self.reply.clear();
                (FLAG_REPLY | FLAG_ERROR, errno as u32, None)
            }
        };
        let size = (HEADER_LEN + self.reply.len()) as u32;
        let header = Header {
            id: header.id,
            command: header.command,
            size,
            flags,
            error,
        };
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        Ok(self
            .socket
            .send(&header.to_bytes(), &self.reply, &fds, Some(self.stop))?)
    }

    /// Carries out a command. Leaves the payload of the reply in
    /// [`Connection::reply`] and returns the descriptor to go with it.
    fn execute(
        &mut self,
        number: u16,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Arc<OwnedFd>>, Errno> {
        self.reply.clear();
        let command = Command::from_number(number).ok_or(Errno::EOPNOTSUPP)?;
        if (command == Command::Version) == self.peer.is_some() {
            return Err(Errno::EINVAL);
        }
        match command {
            Command::Version => self.version(payload)?,
            Command::DmaMap => self.dma_map(payload, fds)?,
            Command::DmaUnmap => self.dma_unmap(payload)?,
            Command::DeviceGetInfo => self.device_info(payload)?,
            Command::DeviceGetRegionInfo => return self.region_info(payload),
            Command::DeviceGetIrqInfo => self.irq_info(payload)?,
            Command::DeviceSetIrqs => self.set_irqs(payload, fds)?,
            Command::RegionRead => self.region_read(payload)?,
            Command::RegionWrite => self.region_write(payload)?,
            Command::DeviceReset => self.device_reset(payload)?,
            Command::DeviceFeature => {
                self.progress
                    .feature(self.device, payload, &mut self.reply)?;
            }
            Command::MigDataRead => self.progress.read_data(payload, &mut self.reply)?,
            Command::MigDataWrite => self.progress.write_data(self.device, payload)?,
            // Not offered in the negotiation, or not the client's to send.
            Command::RegionWriteMulti
            | Command::DeviceGetRegionIoFds
            | Command::DmaRead
            | Command::DmaWrite => return Err(Errno::EOPNOTSUPP),
        }
        Ok(None)
    }

    fn version(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let proposal = Version::parse(payload)?;
        proposal.answer()?.emit(&mut self.reply);
        self.peer = Some(proposal.capabilities);
        self.show();
        if let Some(omitted) = self.journal.arrival() {
            let (minor, capabilities) = (proposal.minor, proposal.capabilities);
            info!(minor, ?capabilities, "client connected{omitted}");
        }
        Ok(())
    }

    fn dma_map(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let DmaMap {
            flags,
            offset,
            addr,
            size,
        } = DmaMap::parse(payload)?;
        if flags & !(VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE) != 0 {
            return Err(Errno::EINVAL);
        }
        let protection = Protection {
            read: flags & VFIO_DMA_MAP_FLAG_READ != 0,
            write: flags & VFIO_DMA_MAP_FLAG_WRITE != 0,
        };
        let mut fds = fds.into_iter();
        let mapping = match (fds.next(), fds.next()) {
            (None, _) => Mapping::without_memory(addr, size, protection)?,
            (Some(fd), None) => {
                let end = offset.checked_add(size).ok_or(Errno::EINVAL)?;
                let memory = self
                    .files
                    .map(File::from(fd), end, protection.write)
                    .map_err(|error| {
                        let errno = error.errno();
                        self.unusable = Some(error);
                        errno
                    })?;
                Mapping::new(addr, size, protection, memory, offset)?
            }
            (Some(_), Some(_)) => return Err(Errno::EINVAL),
        };
        let (size, unshared) = (mapping.size(), mapping.is_unshared_ram());
        debug!(addr, size, shared = mapping.has_memory(), "guest memory");
        self.device.dma_map(mapping)?;
        if unshared && !std::mem::replace(&mut self.unshared, true) {
            self.journal.warn(
                "memory",
                format_args!(
                    "guest memory came without a file descriptor, {size} bytes at address 0: the device \
                     cannot reach it, and the guest's driver will give up; share it: \
                     memory-backend-memfd,share=on"
                ),
            );
        }
        Ok(())
    }

    fn dma_unmap(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let (request, shape) = DmaUnmap::parse(payload)?;
        if request.flags == VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP {
            return self.dma_unmap_telling(request, BitmapShape::parse(shape)?);
        }
        if !shape.is_empty() {
            return Err(Errno::EINVAL);
        }
        let (addr, size) = match (request.flags, request.addr, request.size) {
            // All of 2^64 bytes: by the flag, or as a size that wrapped to 0,
            // which is how it looks where it is computed from an address mask.
            (0 | VFIO_DMA_UNMAP_FLAG_ALL, 0, 0) => (0, u64::MAX),
            (0, _, 1..) => (request.addr, request.size),
            (VFIO_DMA_UNMAP_FLAG_VADDR, ..) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        self.device.dma_unmap(addr, size)?;
        request.emit(&mut self.reply);
        Ok(())
    }

    /// Unmaps a range, and tells what the device had written there since it was told last: the log of
    /// DMA_LOGGING_START is the one that there is.
    fn dma_unmap_telling(&mut self, request: DmaUnmap, shape: BitmapShape) -> Result<(), Errno> {
        let DmaUnmap {
            argsz, addr, size, ..
        } = request;
        let BitmapShape {
            page_size,
            size: room,
        } = shape;
        let asked = Written::new(addr, size, page_size)?;
        if room > MAX_BITMAP_SIZE {
            return Err(Errno::E2BIG);
        }
        let whole = u64::from(DmaUnmap::LEN + BitmapShape::LEN) + room;
        if room < asked.bitmap_size() || u64::from(argsz) < whole {
            return Err(Errno::EINVAL);
        }
        let device = self.device.migration().ok_or(Errno::EOPNOTSUPP)?;
        if !is_logging(device) {
            return Err(Errno::EINVAL);
        }
        self.device.dma_unmap(addr, size)?;
        // From now on nobody writes there.
        let device = self.device.migration().ok_or(Errno::EOPNOTSUPP)?;
        let bitmap = asked.take(device);
        request.emit(&mut self.reply);
        shape.emit(&mut self.reply);
        for word in bitmap {
            self.reply.put_u64(word);
        }
        self.reply.resize(whole as usize, 0);
        Ok(())
    }

    fn device_info(&mut self, payload: &[u8]) -> Result<(), Errno> {
        DeviceInfo::parse_request(payload)?;
        let flags = VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI;
        DeviceInfo {
            flags,
            num_regions: NUM_REGIONS,
            num_irqs: NUM_IRQS,
        }
        .emit(&mut self.reply);
        Ok(())
    }

    fn region_info(&mut self, payload: &[u8]) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let (argsz, index) = RegionInfo::parse_request(payload)?;
        let region = self.regions.get(index as usize).ok_or(Errno::EINVAL)?;
        // The specification's default is one descriptor.
        let takes_fds = self.peer.and_then(|peer| peer.max_msg_fds) != Some(0);
        let info = region.info(takes_fds);
        info.emit(argsz, &mut self.reply);
        // A reply cut short says how much room the whole takes, no more: the
        // descriptor goes with the whole.
        let complete = argsz >= info.full_len();
        Ok(region
            .mmap
            .as_ref()
            .filter(|_| complete && info.mmap)
            .map(Arc::clone))
    }

    fn irq_info(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let request = IrqInfoFields::parse(payload)?;
        let info = self.irqs.get(request.index as usize).ok_or(Errno::EINVAL)?;
        info.fields().emit(&mut self.reply);
        Ok(())
    }

    fn set_irqs(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (set, booleans) = IrqSet::parse(payload)?;
        let info = self.irqs.get(set.index as usize).ok_or(Errno::EINVAL)?;
        let connects = set.flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 || set.count == 0;
        self.interrupts.set(info, &set, booleans, fds)?;
        if connects {
            let all = set.count == 0;
            let count = if all { info.count } else { set.count };
            self.device
                .irqs_set(set.index, set.start..set.start.saturating_add(count));
        }
        Ok(())
    }

    fn region_read(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let (access, rest) = RegionAccess::parse(payload)?;
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.check(&access, false)?;
        access.emit(&mut self.reply);
        self.reply
            .resize(RegionAccess::LEN + access.count as usize, 0);
        match &mut self.reply[RegionAccess::LEN..] {
            [] => Ok(()),
            data => self.device.read(access.region, access.offset, data),
        }
    }

    fn region_write(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let (access, data) = RegionAccess::parse(payload)?;
        if data.len() != access.count as usize {
            return Err(Errno::EINVAL);
        }
        self.check(&access, true)?;
        if !data.is_empty() {
            let effect = self.device.write(access.region, access.offset, data)?;
            if effect == Effect::Reset {
                self.progress.reset(self.device);
            }
            if effect != Effect::None {
                self.show();
            }
        }
        access.emit(&mut self.reply);
        Ok(())
    }

    fn check(&self, access: &RegionAccess, write: bool) -> Result<(), Errno> {
        if access.count > MAX_DATA_XFER_SIZE {
            return Err(Errno::E2BIG);
        }
        let region = self
            .regions
            .get(access.region as usize)
            .ok_or(Errno::EINVAL)?;
        region.check(access.offset, access.count.into(), write)
    }

    fn device_reset(&mut self, payload: &[u8]) -> Result<(), Errno> {
        if !payload.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.device.reset();
        self.progress.reset(self.device);
        self.show();
        Ok(())
    }
}
