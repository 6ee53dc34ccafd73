//! A served dummy device, and a socket to talk to it in bytes.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use ibvswitch_vfio_user::client::Client;
use ibvswitch_vfio_user::testing::{Dummy, Events};
use ibvswitch_vfio_user::{Device, DmaTable, End, Header, Interrupts, SharedMemory, Stop, serve};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

type Table = Arc<parking_lot::Mutex<DmaTable>>;

/// QEMU 11.1's proposal, from the wire.
pub const QEMU_VERSION: &str = r#"{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}"#;

/// A dummy device, served to one client over a socket pair.
pub struct Served {
    pub socket: UnixStream,
    pub dma: Table,
    pub events: Arc<Events>,
    pub interrupts: Interrupts,
    server: Option<JoinHandle<End>>,
}

impl Served {
    /// Without a version negotiated.
    pub fn fresh() -> Self {
        Self::of(Dummy::new().unwrap())
    }

    /// Connects a client with this device, without a negotiated version.
    pub fn of(mut device: Dummy) -> Self {
        let (dma, events, interrupts) = (device.dma(), device.events(), device.interrupts());
        let (socket, theirs) = UnixStream::pair().unwrap();
        let stop = Stop::new().unwrap();
        let server = Some(std::thread::spawn(move || {
            serve(theirs, &mut device, &stop)
        }));
        Self {
            socket,
            dma,
            events,
            interrupts,
            server,
        }
    }

    /// As QEMU begins.
    pub fn negotiated() -> Self {
        Self::fresh().negotiate()
    }

    /// The same, after the negotiation that QEMU begins with.
    pub fn negotiate(self) -> Self {
        let mut served = self;
        let mut payload = vec![0, 0, 0, 0];
        payload.extend_from_slice(QEMU_VERSION.as_bytes());
        payload.push(0);
        assert_eq!(served.ask(1, &payload, &[]).error, 0);
        served
    }

    /// A client of the crate's own on the same connection, negotiated.
    pub fn client() -> (Client, Self) {
        let served = Self::fresh();
        let mut client = Client::unnegotiated(served.socket.try_clone().unwrap());
        client.negotiate().unwrap();
        (client, served)
    }

    /// Sends a command and returns the reply.
    pub fn ask(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        self.send(&message(0x4242, command, 0, payload), fds);
        let answer = self.receive();
        assert_eq!((answer.id, answer.command), (0x4242, command));
        answer
    }

    /// Sends bytes as they are, the descriptors with them.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[] } else { &rights[..] };
        let fd = self.socket.as_raw_fd();
        let sent = sendmsg::<()>(
            fd,
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )
        .unwrap();
        self.socket.write_all(&bytes[sent..]).unwrap();
    }

    /// The next reply.
    pub fn receive(&mut self) -> Answer {
        let mut client = Client::unnegotiated(self.socket.try_clone().unwrap());
        let reply = client.receive().unwrap();
        let Header {
            id,
            command,
            size,
            flags,
            error,
        } = reply.header;
        assert_eq!(size as usize, 16 + reply.payload.len());
        // "If an error occurs, the reply message must only include the reply header."
        match flags {
            0x1 => assert_eq!(error, 0),
            0x21 => assert!(error != 0 && reply.payload.is_empty() && reply.fds.is_empty()),
            _ => panic!("flags of a reply: {flags:#x}"),
        }
        Answer {
            id,
            command,
            error: error as i32,
            payload: reply.payload,
            fds: reply.fds,
        }
    }

    /// The server still answers, and to what it is asked.
    pub fn assert_in_step(&mut self) {
        let answer = self.ask(7, &words(&[16, 0, 2, 0]), &[]);
        assert_eq!(answer.payload, words(&[16, 1, 2, 40]));
    }

    /// Hangs up and waits for the server's side to end.
    pub fn end(mut self) -> End {
        self.socket.shutdown(std::net::Shutdown::Write).unwrap();
        self.join()
    }

    /// Waits for the server's side to end by itself.
    pub fn join(&mut self) -> End {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest);
        self.server.take().unwrap().join().unwrap()
    }
}

/// A reply.
pub struct Answer {
    pub id: u16,
    pub command: u16,
    /// 0 for success.
    pub error: i32,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// A message with a correct size.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&(16 + payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Fields of 4 bytes.
pub fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// argsz and flags, then fields of 8 bytes, as DMA_MAP and DMA_UNMAP have.
pub fn dma(argsz: u32, flags: u32, values: &[u64]) -> Vec<u8> {
    let mut bytes = words(&[argsz, flags]);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// Shared memory of a client, one byte repeated.
pub fn memory(size: usize, byte: u8) -> SharedMemory {
    let memory = SharedMemory::new("client", size).unwrap();
    memory.slice(0, size).unwrap().copy_from(&vec![byte; size]);
    memory
}

/// The content of a client's memory.
pub fn content(memory: &SharedMemory, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.slice(offset, len).unwrap().copy_to(&mut bytes);
    bytes
}

/// Returns the bytes that the device reads at a DMA address.
pub fn dma_read(table: &Table, addr: u64, len: usize) -> Option<Vec<u8>> {
    let table = table.lock();
    let window = table.read_window(addr, len)?;
    let mut bytes = vec![0; window.len()];
    window.copy_to(&mut bytes);
    Some(bytes)
}

pub fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
}

pub fn borrow(eventfds: &[EventFd]) -> Vec<BorrowedFd<'_>> {
    eventfds.iter().map(AsFd::as_fd).collect()
}

/// Returns the number of signals of the eventfd since the last call.
pub fn signals(eventfd: &EventFd) -> u64 {
    eventfd.read().unwrap_or(0)
}

/// Number of this process's file descriptors that refer to the same file.
pub fn references(memory: &SharedMemory) -> usize {
    let same = |fd: &str| {
        let target = std::fs::metadata(fd).ok()?;
        use std::os::unix::fs::MetadataExt;
        Some((target.dev(), target.ino()))
    };
    let wanted = same(&format!("/proc/self/fd/{}", memory.fd().as_raw_fd()));
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| same(entry.as_ref().unwrap().path().to_str().unwrap()) == wanted)
        .count()
}
