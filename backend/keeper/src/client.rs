//! A client as the keeper knows it, and what it is answered while nobody serves its device.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;
use vfio_bindings::bindings::vfio::{
    VFIO_DMA_UNMAP_FLAG_ALL, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_IRQ_SET_DATA_TYPE_MASK,
};
use vfio_user::message::{
    DmaMap, DmaUnmap, FLAG_COMMAND, FLAG_ERROR, FLAG_NO_REPLY, FLAG_REPLY, FLAG_TYPE, HEADER_LEN,
    IrqSet, RegionAccess,
};
use vfio_user::{Command, Header, MAX_DMA_MAPS, Part, StandIn};
use vmm_socket::socket::{Lost, ReceivedFds, Socket};

use crate::daemon::LONGEST_MESSAGE;
use crate::mark::Left;

/// Time for which a device is shown as working after its driver has recovered it. The driver takes a failure
/// within 30 s of its last recovery for the last one; it counts from the end of the recovery, which comes some
/// seconds after the beginning, from which this counts.
const HOLD: Duration = Duration::from_secs(45);

/// A counter of a [`StandIn`] has this many bits.
const COUNTER: u32 = 0x00ff_ffff;

/// The most files of which a client's memory is kept.
const MAX_FILES: usize = 256;

/// The most eventfds that are kept.
const MAX_EVENTFDS: usize = 2048;

/// The files of a client's memory, of which one is shared in many parts.
#[derive(Debug, Default)]
struct Files(BTreeMap<(u64, u64, i32), Weak<OwnedFd>>);

impl Files {
    /// The file behind `fd`, once; `None` where there would be too many.
    fn take(&mut self, fd: OwnedFd) -> Option<Arc<OwnedFd>> {
        let stat = fstat(&fd).ok()?;
        let mode = fcntl(&fd, FcntlArg::F_GETFL).ok()?;
        let key = (stat.st_dev, stat.st_ino, mode);
        if let Some(known) = self.0.get(&key).and_then(Weak::upgrade) {
            return Some(known);
        }
        self.0.retain(|_, known| known.strong_count() > 0);
        if self.0.len() >= MAX_FILES {
            return None;
        }
        let fd = Arc::new(fd);
        self.0.insert(key, Arc::downgrade(&fd));
        Some(fd)
    }
}

/// A client and what it has said.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    version: Option<Vec<u8>>,
    /// Each DMA_MAP that holds, in their order, with the file that it is of.
    memory: Vec<(Vec<u8>, Option<Arc<OwnedFd>>)>,
    files: Files,
    /// By index and vector.
    eventfds: BTreeMap<(u32, u32), OwnedFd>,
    /// The header of the last message that was noted.
    last: Option<[u8; HEADER_LEN]>,
    shown: StandIn,
    count: u32,
    /// Number of times that the driver has begun to use the device since it was reset with its machine.
    begun: u32,
    recovered: Option<Instant>,
    /// Reason why it cannot be kept any more.
    forsaken: Option<&'static str>,
}

impl Client {
    /// One that has connected, and has said nothing yet.
    #[must_use]
    pub fn new(connection: OwnedFd) -> Self {
        Self {
            socket: Socket::new(UnixStream::from(connection)),
            version: None,
            memory: Vec::new(),
            files: Files::default(),
            eventfds: BTreeMap::new(),
            last: None,
            shown: StandIn::default(),
            count: 0,
            begun: 0,
            recovered: None,
            forsaken: None,
        }
    }

    /// Whether it has come far enough that another server can go on with it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.version.is_some()
    }

    /// Until when its driver is to believe that the device works, if that is not over.
    pub(crate) fn hold(&self, now: Instant) -> Option<Instant> {
        let end = self.recovered?.checked_add(HOLD)?;
        (now < end).then_some(end)
    }

    /// The device is shown so from now on.
    pub fn show(&mut self, shown: StandIn, now: Instant) {
        if shown.at_work && !self.shown.at_work {
            // The first time, the driver has been loaded. Then it has recovered.
            self.begun = self.begun.saturating_add(1);
            self.recovered = (self.begun > 1).then_some(now);
        }
        self.shown = shown;
    }

    /// Returns the device as it is shown.
    #[must_use]
    pub const fn shown(&self) -> &StandIn {
        &self.shown
    }

    /// Notes what the client says in a message.
    pub fn note(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) {
        let Some((header, payload)) = message.split_first_chunk::<HEADER_LEN>() else {
            return;
        };
        self.last = Some(*header);
        match Command::from_number(Header::parse(header).command) {
            Some(Command::Version) => self.version = Some(message),
            Some(Command::DmaMap) => self.map(message, fds),
            Some(Command::DmaUnmap) => self.unmap(payload),
            Some(Command::DeviceSetIrqs) => self.set_irqs(payload, fds),
            Some(Command::DeviceReset) => self.reset(),
            _ => {}
        }
    }

    /// The daemon has refused what was noted last.
    pub fn refuse(&mut self) {
        let is_last = |message: &Vec<u8>| {
            let last = self.last.as_ref();
            last.is_some_and(|last| message.starts_with(last))
        };
        let map = self.memory.last();
        if map.is_some_and(|(message, _)| is_last(message)) {
            self.memory.pop();
        } else if self.version.as_ref().is_some_and(is_last) {
            self.version = None;
        }
    }

    fn map(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) {
        let file = fds.into_iter().next().map(|fd| self.files.take(fd));
        if self.memory.len() >= MAX_DMA_MAPS || matches!(file, Some(None)) {
            // Without all of its memory nobody could go on with it.
            self.forsake("has shared more memory than is kept");
            return;
        }
        self.memory.push((message, file.flatten()));
    }

    /// The reason why it cannot be kept any more, once.
    pub(crate) const fn take_forsaken(&mut self) -> Option<&'static str> {
        self.forsaken.take()
    }

    /// It cannot be kept any more; the daemon that it has goes on with it.
    pub(crate) fn forsake(&mut self, reason: &'static str) {
        if self.version.take().is_some() {
            self.forsaken = Some(reason);
        }
        self.memory.clear();
        self.eventfds.clear();
    }

    fn unmap(&mut self, payload: &[u8]) {
        let Ok((request, _)) = DmaUnmap::parse(payload) else {
            return;
        };
        let all = request.flags & VFIO_DMA_UNMAP_FLAG_ALL != 0 || request.size == 0;
        let size = if all { u64::MAX } else { request.size };
        let end = request.addr.saturating_add(size);
        self.memory.retain(|(message, _)| {
            let map = message.get(HEADER_LEN..).map(DmaMap::parse);
            let Some(Ok(map)) = map else { return false };
            map.addr < request.addr || map.addr.saturating_add(map.size) > end
        });
    }

    fn set_irqs(&mut self, payload: &[u8], fds: Vec<OwnedFd>) {
        let Ok((set, _)) = IrqSet::parse(payload) else {
            return;
        };
        if set.flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return;
        }
        let vectors = set.start..set.start.saturating_add(set.count);
        match set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK {
            VFIO_IRQ_SET_DATA_NONE if set.count == 0 => {
                self.eventfds.retain(|&(index, _), _| index != set.index);
            }
            VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => self
                .eventfds
                .retain(|&(index, vector), _| index != set.index || !vectors.contains(&vector)),
            VFIO_IRQ_SET_DATA_EVENTFD if self.eventfds.len() + fds.len() > MAX_EVENTFDS => {
                self.forsake("has more interrupts than are kept");
            }
            VFIO_IRQ_SET_DATA_EVENTFD => {
                let vectors = vectors.map(|vector| (set.index, vector));
                self.eventfds.extend(vectors.zip(fds));
            }
            _ => {}
        }
    }

    /// The machine was reset, and the device with it: its driver begins anew and remembers nothing.
    fn reset(&mut self) {
        for part in &mut self.shown.shown {
            for (byte, mask) in part.bytes.iter_mut().zip(&part.writable) {
                *byte &= !mask;
            }
        }
        self.shown.at_work = false;
        self.begun = 0;
        self.recovered = None;
    }

    /// All that a server has to carry out to know the client, in this order.
    pub fn messages(&self) -> impl Iterator<Item = (Vec<u8>, Vec<BorrowedFd<'_>>)> {
        let version = self
            .version
            .iter()
            .map(|message| (message.clone(), Vec::new()));
        let memory = self.memory.iter().map(|(message, file)| {
            let file = file.iter().map(|file| file.as_fd()).collect();
            (message.clone(), file)
        });
        let eventfds = self.eventfds.iter().map(|(&(index, vector), fd)| {
            let mut payload = Vec::new();
            let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
            let (start, count) = (vector, 1);
            let set = IrqSet {
                flags,
                index,
                start,
                count,
            };
            set.emit(&[], &mut payload);
            (message(Command::DeviceSetIrqs, &payload), vec![fd.as_fd()])
        });
        version.chain(memory).chain(eventfds)
    }

    /// Answers what the daemon that died has left without an answer.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn take_over(&mut self, left: Left, failed: bool) -> Result<(), Lost> {
        let (start, sent) = match left {
            Left::Nothing => return Ok(()),
            Left::InHand(start) => (start, false),
            Left::Answering(start) => (start, true),
        };
        let Some((bytes, payload)) = start.split_first_chunk::<HEADER_LEN>() else {
            return Ok(());
        };
        // The noted part goes on with the message behind it.
        let len = (Header::parse(bytes).size as usize).saturating_sub(HEADER_LEN);
        let payload = &payload[..payload.len().min(len)];
        let mut next = [0; HEADER_LEN];
        if self.socket.peek(&mut next)? == Some(HEADER_LEN) && next == *bytes {
            // It is in the socket yet.
            return Ok(());
        }
        let header = Header::parse(bytes);
        // To a client that has its reply, another with nothing in it is one to ignore.
        let outcome = if sent {
            Err(Errno::EIO)
        } else if self.last == Some(*bytes) {
            self.reply_to(&header, payload)
        } else {
            // Descriptors that came with it are lost.
            match Command::from_number(header.command) {
                Some(Command::DmaMap | Command::DeviceSetIrqs) => Err(Errno::EIO),
                _ => {
                    let payload = payload.to_vec();
                    self.carry_out(&header, &[bytes, &payload[..]].concat(), Vec::new(), failed)
                }
            }
        };
        self.answer(&header, outcome)
    }

    /// Answers the next message, if there is one.
    ///
    /// # Errors
    /// The client is gone, or has sent what no monitor sends.
    pub(crate) fn serve(&mut self, failed: bool) -> Result<(), Lost> {
        let mut bytes = [0; HEADER_LEN];
        let Some(there) = self.socket.peek(&mut bytes)? else {
            return Ok(());
        };
        let header = Header::parse(&bytes);
        let len = header.size as usize;
        // All of it is there, or nobody waits for the rest.
        if there < HEADER_LEN || !(HEADER_LEN..=LONGEST_MESSAGE).contains(&len) {
            return Err(Lost::Closed);
        }
        let mut message = vec![0; len];
        if self.socket.peek(&mut message)? != Some(len) {
            return Err(Lost::Truncated);
        }
        let mut fds = ReceivedFds::default();
        self.socket.receive(&mut message, &mut fds, None)?;
        if header.flags & FLAG_TYPE != FLAG_COMMAND {
            return Ok(());
        }
        let outcome = if fds.surplus {
            Err(Errno::EMFILE)
        } else {
            self.carry_out(&header, &message, fds.fds, failed)
        };
        self.answer(&header, outcome)
    }

    /// Carries out a message as far as that is possible without the device: its reply.
    fn carry_out(
        &mut self,
        header: &Header,
        message: &[u8],
        fds: Vec<OwnedFd>,
        failed: bool,
    ) -> Result<Vec<u8>, Errno> {
        let payload = message.get(HEADER_LEN..).unwrap_or_default();
        match Command::from_number(header.command).ok_or(Errno::EOPNOTSUPP)? {
            Command::DmaMap => drop(DmaMap::parse(payload)?),
            Command::DmaUnmap if DmaUnmap::parse(payload)?.1.is_empty() => {}
            Command::DeviceSetIrqs => drop(IrqSet::parse(payload)?),
            Command::DeviceReset => {}
            Command::RegionRead => return self.read(payload, failed),
            Command::RegionWrite => return self.write(payload),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.note(message.to_vec(), fds);
        self.reply_to(header, payload)
    }

    /// The reply to a message that was noted.
    fn reply_to(&self, header: &Header, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut reply = Vec::new();
        if Command::from_number(header.command) == Some(Command::DmaUnmap) {
            DmaUnmap::parse(payload)?.0.emit(&mut reply);
        }
        Ok(reply)
    }

    fn read(&mut self, payload: &[u8], failed: bool) -> Result<Vec<u8>, Errno> {
        let (access, _) = RegionAccess::parse(payload)?;
        if access.count as usize > LONGEST_MESSAGE {
            return Err(Errno::E2BIG);
        }
        let mut reply = Vec::new();
        access.emit(&mut reply);
        self.count = self.count.wrapping_add(1) & COUNTER;
        let counter = self.shown.counter.map(|(region, offset)| Part {
            region,
            offset,
            bytes: self.count.to_be_bytes().into(),
            writable: Vec::new(),
        });
        let in_front = self.shown.failed.iter().filter(|_| failed);
        let parts: Vec<&Part> = counter
            .iter()
            .chain(in_front)
            .chain(&self.shown.shown)
            .filter(|part| part.region == access.region)
            .collect();
        for at in 0..u64::from(access.count) {
            let at = access.offset.wrapping_add(at);
            let byte = parts.iter().find_map(|part| {
                let within = usize::try_from(at.checked_sub(part.offset)?).ok()?;
                part.bytes.get(within)
            });
            reply.push(byte.copied().unwrap_or(0));
        }
        Ok(reply)
    }

    /// Records a write, for the next server of the device.
    fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (access, data) = RegionAccess::parse(payload)?;
        let parts = self.shown.shown.iter_mut();
        for part in parts.filter(|part| part.region == access.region) {
            for (at, new) in (access.offset..=u64::MAX).zip(data) {
                let within = at.checked_sub(part.offset).map(usize::try_from);
                let Some(Ok(within)) = within else { continue };
                let places = part.bytes.get_mut(within).zip(part.writable.get(within));
                if let Some((byte, mask)) = places {
                    *byte = *byte & !mask | new & mask;
                }
            }
        }
        let mut reply = Vec::new();
        access.emit(&mut reply);
        Ok(reply)
    }

    fn answer(&self, header: &Header, outcome: Result<Vec<u8>, Errno>) -> Result<(), Lost> {
        if header.flags & FLAG_NO_REPLY != 0 {
            return Ok(());
        }
        let (flags, error, payload) = match outcome {
            Ok(payload) => (FLAG_REPLY, 0, payload),
            Err(errno) => (FLAG_REPLY | FLAG_ERROR, errno as u32, Vec::new()),
        };
        let reply = Header {
            size: (HEADER_LEN + payload.len()) as u32,
            flags,
            error,
            ..*header
        };
        self.socket.send_at_once(&reply.to_bytes(), &payload, &[])
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.stream().as_fd()
    }
}

pub(crate) fn message(command: Command, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        id: 0,
        command: command as u16,
        size: (HEADER_LEN + payload.len()) as u32,
        flags: FLAG_COMMAND,
        error: 0,
    };
    [&header.to_bytes()[..], payload].concat()
}
