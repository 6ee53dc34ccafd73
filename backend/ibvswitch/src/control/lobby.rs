//! Clients of the control socket that the daemon waits for. They take no thread and no place, however many they are.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tracing::debug;

use super::REQUEST_MAX;

/// Time that a client may take for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients that have sent no whole request. Where one more connects, the eldest is hung up on.
const CLIENTS: usize = 256;
/// Bytes that are read from a client at a time.
const CHUNK: usize = 4096;

/// A client and the bytes of its next request.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) stream: UnixStream,
    bytes: Vec<u8>,
    since: Instant,
}

impl Caller {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
            since: Instant::now(),
        }
    }

    fn line_len(&self) -> Option<usize> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        end.map(|end| end + 1)
    }

    /// A whole line is there, or more than a line may have.
    pub(super) fn is_heard(&self) -> bool {
        self.line_len().is_some() || self.bytes.len() >= REQUEST_MAX
    }

    /// Takes the next line, without its end where it is too long.
    fn line(&mut self) -> Vec<u8> {
        let len = self.line_len().unwrap_or(self.bytes.len());
        let rest = self.bytes.split_off(len);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// Reads what is there, or waits for it; whether the client is there yet.
    fn read(&mut self, flags: MsgFlags) -> io::Result<bool> {
        let mut chunk = [0; CHUNK];
        let room = CHUNK.min(REQUEST_MAX - self.bytes.len());
        match recv(self.stream.as_raw_fd(), &mut chunk[..room], flags) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.bytes.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(Errno::EAGAIN) if flags.contains(MsgFlags::MSG_DONTWAIT) => Ok(true),
            Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the next line. `None` where the client is gone.
    ///
    /// # Errors
    /// Those of the socket, with the time limit that it has.
    pub(super) fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        while !self.is_heard() {
            if !self.read(MsgFlags::empty())? {
                return Ok(None);
            }
        }
        Ok(Some(self.line()))
    }
}

/// Clients without a whole request, the eldest first, and those that are to be served.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    unheard: VecDeque<Caller>,
    heard: VecDeque<Caller>,
}

impl Lobby {
    /// Takes a client in.
    pub(super) fn enter(&mut self, mut caller: Caller) {
        caller.since = Instant::now();
        if caller.is_heard() {
            self.heard.push_back(caller);
            return;
        }
        if self.unheard.len() >= CLIENTS {
            debug!("the eldest silent control client is disconnected: another one connects");
            self.unheard.pop_front();
        }
        self.unheard.push_back(caller);
    }

    /// Whether more clients can be taken in: those that wait for a place are not too many.
    pub(super) fn has_room(&self) -> bool {
        self.heard.len() < CLIENTS
    }

    /// The next client to be served.
    pub(super) fn next(&mut self) -> Option<Caller> {
        self.heard.pop_front()
    }

    /// Whether a client is to be served.
    pub(super) fn is_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    /// The descriptors of the clients that have to say something.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.unheard.iter().map(|caller| caller.stream.as_fd())
    }

    /// Reads what clients have sent. `ready` says of each of [`Lobby::waits_for`] whether it has.
    pub(super) fn hear(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let unheard = std::mem::take(&mut self.unheard);
        for (mut caller, ready) in unheard.into_iter().zip(ready) {
            let there = !ready || caller.read(MsgFlags::MSG_DONTWAIT).unwrap_or(false);
            if caller.is_heard() {
                self.heard.push_back(caller);
            } else if there && now < caller.since + REQUEST_TIMEOUT {
                self.unheard.push_back(caller);
            }
        }
    }

    /// Time until the eldest client has been silent for too long.
    pub(super) fn patience(&self) -> Option<Duration> {
        let end = self.unheard.front()?.since + REQUEST_TIMEOUT;
        Some(end.saturating_duration_since(Instant::now()))
    }
}
