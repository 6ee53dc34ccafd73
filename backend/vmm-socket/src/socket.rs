//! The socket: whole messages with their file descriptors.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use thiserror::Error;

/// The most descriptors that one message may bring: more are closed.
pub const MAX_FDS: usize = 16;

/// The most descriptors that Linux passes with one sendmsg (SCM_MAX_FD).
const SCM_MAX_FD: usize = 253;

/// Why no message can be exchanged any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Lost {
    /// The peer closed the socket between two messages, or reset it.
    #[error("the peer closed the socket")]
    Closed,
    /// The peer closed the socket in the middle of a message.
    #[error("the peer closed the socket in the middle of a message")]
    Truncated,
    /// Somebody asked to stop.
    #[error("stopped")]
    Stopped,
    /// A system call failed.
    #[error("{0}")]
    System(Errno),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ECONNRESET | Errno::EPIPE => Self::Closed,
            errno => Self::System(errno),
        }
    }
}

/// Descriptors that came with one message.
#[derive(Debug, Default)]
pub struct ReceivedFds {
    /// The descriptors, in their order.
    pub fds: Vec<OwnedFd>,
    /// There were more than [`MAX_FDS`], or some were lost.
    pub surplus: bool,
}

/// Waits until `fd` is ready for `events`, or `stop` is signalled.
///
/// # Errors
/// [`Lost::Stopped`], or what the system says.
pub fn wait(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    stop: Option<BorrowedFd<'_>>,
) -> Result<(), Lost> {
    wait_beside(fd, events, stop, [None; 2]).map(drop)
}

/// As [`wait`], or until one of `besides` can be read; which of them can. Of the first nobody hears while
/// `fd` is ready.
///
/// # Errors
/// [`Lost::Stopped`], or what the system says.
pub fn wait_beside(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    stop: Option<BorrowedFd<'_>>,
    besides: [Option<BorrowedFd<'_>>; 2],
) -> Result<[bool; 2], Lost> {
    // A descriptor that is not waited for is `fd` without flags.
    let nothing = (fd, PollFlags::empty());
    let [first, second] =
        besides.map(|beside| beside.map_or(nothing, |beside| (beside, PollFlags::POLLIN)));
    let mut polled = [
        (fd, events),
        stop.map_or(nothing, |stop| (stop, PollFlags::POLLIN)),
        first,
        second,
    ]
    .map(|(fd, events)| PollFd::new(fd, events));
    loop {
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let [fd, stop_polled, first, second] = polled.map(|polled| polled.any() == Some(true));
    if stop.is_some() && stop_polled {
        return Err(Lost::Stopped);
    }
    // One that is not waited for may have failed, as `fd` has.
    let [waits_first, waits_second] = besides.map(|beside| beside.is_some());
    Ok([!fd && waits_first && first, waits_second && second])
}

/// One end of a connection. Never blocks in the kernel but to wait for the
/// peer and the stop signal alike.
#[derive(Debug)]
pub struct Socket {
    stream: Arc<UnixStream>,
}

impl Socket {
    /// An end of this connection.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream: Arc::new(stream),
        }
    }

    /// Waits for the next message to begin.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait(&self, stop: Option<BorrowedFd<'_>>) -> Result<(), Lost> {
        wait(self.stream.as_fd(), PollFlags::POLLIN, stop)
    }

    /// As [`Socket::wait`], or until one of `besides` can be read; which of them can. Of the first nobody
    /// hears while there is a message.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait_beside(
        &self,
        stop: BorrowedFd<'_>,
        besides: [Option<BorrowedFd<'_>>; 2],
    ) -> Result<[bool; 2], Lost> {
        wait_beside(self.stream.as_fd(), PollFlags::POLLIN, Some(stop), besides)
    }

    /// Looks for the next message for this long without sleeping; whether it
    /// has begun, or the peer has gone.
    pub fn watch(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        let mut first = [0];
        loop {
            let peeked = recv(
                self.stream.as_raw_fd(),
                &mut first,
                MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT,
            );
            if peeked != Err(Errno::EAGAIN) {
                return true;
            }
            if begun.elapsed() >= patience {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Copies the first bytes of what is there to `buffer`, and leaves them there. How many, if there are
    /// any.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn peek(&self, buffer: &mut [u8]) -> Result<Option<usize>, Lost> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        loop {
            match recv(self.stream.as_raw_fd(), buffer, flags) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => return Ok(Some(count)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Fills `buffer`, and adds the descriptors that come with these bytes.
    ///
    /// Linux attaches descriptors to the bytes they were sent with, and does
    /// not return bytes of two such sends at once: since nothing is read
    /// beyond the end of a message, they are this message's.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive(
        &self,
        buffer: &mut [u8],
        fds: &mut ReceivedFds,
        stop: Option<BorrowedFd<'_>>,
    ) -> Result<(), Lost> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.receive_some(&mut buffer[filled..], fds) {
                Ok(0) if filled == 0 => return Err(Lost::Closed),
                Ok(0) => return Err(Lost::Truncated),
                Ok(count) => filled += count,
                Err(Errno::EAGAIN) => self.wait(stop)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads what is there into `buffer`, without waiting, and adds the descriptors that come with it.
    /// How many bytes; 0 where the peer has closed the socket.
    ///
    /// # Errors
    /// What the system says: `EAGAIN` where there is nothing.
    pub fn receive_some(
        &self,
        buffer: &mut [u8],
        received: &mut ReceivedFds,
    ) -> nix::Result<usize> {
        // Room for all that can come: the kernel would otherwise cut them off.
        #[repr(C, align(8))]
        struct Control([u8; 16 + SCM_MAX_FD * size_of::<RawFd>() + 4]);
        let mut control = Control([0; _]);
        let mut bytes = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: an all-zero msghdr is a valid value of this C structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut bytes;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `message` points to a buffer for bytes and one for control
        // messages, both valid for writes of the lengths given.
        let count = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, flags) };
        let count = Errno::result(count)?;

        // SAFETY: the kernel has filled in `message`; its control messages lie
        // in `control`, and these macros stay within msg_controllen.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
        while !header.is_null() {
            // SAFETY: not null, so a control message that the kernel wrote.
            let (level, kind, len) = unsafe {
                (
                    (*header).cmsg_level,
                    (*header).cmsg_type,
                    (*header).cmsg_len as usize,
                )
            };
            if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
                // SAFETY: CMSG_LEN only computes.
                let data_len = len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
                // SAFETY: `header` is valid; its data follow it.
                let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
                for index in 0..data_len / size_of::<RawFd>() {
                    // SAFETY: within the control message's data, which need
                    // not be aligned. The kernel has just made the descriptor
                    // for this process, and nobody else knows it.
                    let fd = unsafe { OwnedFd::from_raw_fd(data.add(index).read_unaligned()) };
                    if received.fds.len() < MAX_FDS {
                        received.fds.push(fd);
                    } else {
                        received.surplus = true;
                    }
                }
            }
            // SAFETY: as for CMSG_FIRSTHDR.
            header = unsafe { libc::CMSG_NXTHDR(&message, header) };
        }
        // Some could not be received, where this process has no room for more.
        received.surplus |= message.msg_flags & libc::MSG_CTRUNC != 0;
        Ok(count as usize)
    }

    /// Sends a message, its descriptors with the first bytes.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn send(
        &self,
        header: &[u8],
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        stop: Option<BorrowedFd<'_>>,
    ) -> Result<(), Lost> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let mut sent = 0;
        while sent < header.len() + payload.len() {
            let parts = [
                IoSlice::new(header.get(sent..).unwrap_or_default()),
                IoSlice::new(&payload[sent.saturating_sub(header.len())..]),
            ];
            let control = if sent == 0 && !raw.is_empty() {
                &rights[..]
            } else {
                &[]
            };
            match sendmsg::<()>(self.stream.as_raw_fd(), &parts, control, flags, None) {
                Ok(count) => sent += count,
                Err(Errno::EAGAIN) => wait(self.stream.as_fd(), PollFlags::POLLOUT, stop)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends a short message and its descriptors without waiting. A peer that does not read its answers gets no more.
    ///
    /// # Errors
    /// [`Lost`], where the socket has no room for all of it too.
    pub fn send_at_once(
        &self,
        header: &[u8],
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Lost> {
        let parts = [IoSlice::new(header), IoSlice::new(payload)];
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = sendmsg::<()>(self.stream.as_raw_fd(), &parts, control, flags, None)?;
        if sent < header.len() + payload.len() {
            return Err(Errno::EAGAIN.into());
        }
        Ok(())
    }

    /// The connection, to keep it open.
    #[must_use]
    pub fn stream(&self) -> &Arc<UnixStream> {
        &self.stream
    }
}
