//! Messages between the three processes: packets with descriptors, over a pair of sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use vmm_socket::socket::{Lost, ReceivedFds, Socket};

/// The longest packet, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;

/// Kind of a packet. A number, since the other side may be another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Supervisor to keeper: a daemon was started; the descriptor leads to it.
    Started = 1,
    /// Daemon to keeper: a device of this name; the descriptor leads to whoever serves it.
    Open = 2,
    /// Daemon to keeper, and from there to the supervisor: it serves; what it has not opened is in use no
    /// more.
    Ready = 3,
    /// Both ways: a descriptor of the device under a name.
    Hold = 4,
    /// Both ways: a client. The descriptor is its connection.
    Client = 5,
    /// Both ways: a message of the client, with its descriptors.
    Message = 6,
    /// Daemon to keeper: the last message was refused.
    Refused = 7,
    /// Both ways: how the device is shown while nobody serves it, as JSON.
    Shown = 8,
    /// Daemon to keeper: the client is gone.
    Gone = 9,
    /// Daemon to keeper: give me the client.
    Resume = 10,
    /// Keeper to daemon: that is all.
    Done = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Started,
        Self::Open,
        Self::Ready,
        Self::Hold,
        Self::Client,
        Self::Message,
        Self::Refused,
        Self::Shown,
        Self::Gone,
        Self::Resume,
        Self::Done,
    ];
}

/// One packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// All descriptors that it was sent with are there; this process may have had no room for more.
    pub(crate) whole: bool,
}

impl Packet {
    /// The one descriptor that came with it.
    pub(crate) fn fd(self) -> Option<OwnedFd> {
        self.fds.into_iter().next()
    }

    /// Its body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(Socket);

impl Channel {
    /// Two ends; the first is to be given away.
    pub(crate) fn pair() -> io::Result<(OwnedFd, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((one, Self::new(other)))
    }

    pub(crate) fn new(end: OwnedFd) -> Self {
        Self(Socket::new(UnixStream::from(end)))
    }

    /// Sends a packet, for which the other side makes room as long as it lives.
    pub(crate) fn send(&self, kind: Kind, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        self.0.send(&[kind as u8], body, fds, None)
    }

    /// The same, where the other side may be one that lives and does nothing any more: it has this long
    /// to make room.
    pub(crate) fn send_within(
        &self,
        patience: Duration,
        kind: Kind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Lost> {
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        loop {
            let sent = self.0.send_at_once(&[kind as u8], body, fds);
            if sent != Err(Lost::System(Errno::EAGAIN)) {
                return sent;
            }
            match poll(
                &mut [PollFd::new(self.as_fd(), PollFlags::POLLOUT)],
                patience,
            ) {
                Ok(0) => return Err(Lost::System(Errno::ETIMEDOUT)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next packet, if there is one.
    pub(crate) fn try_receive(&self) -> Result<Option<Packet>, Lost> {
        let mut received = ReceivedFds::default();
        let mut bytes = vec![0; LONGEST];
        let count = loop {
            match self.0.receive_some(&mut bytes, &mut received) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => break count,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[0]);
        let kind = kind.ok_or(Lost::System(Errno::EPROTO))?;
        bytes.truncate(count);
        bytes.remove(0);
        Ok(Some(Packet {
            kind,
            body: bytes,
            fds: received.fds,
            whole: !received.surplus,
        }))
    }

    /// Waits for the next packet, or `stop`.
    pub(crate) fn receive(&self, stop: Option<BorrowedFd<'_>>) -> Result<Packet, Lost> {
        loop {
            if let Some(packet) = self.try_receive()? {
                return Ok(packet);
            }
            self.0.wait(stop)?;
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.stream().as_fd()
    }
}
