//! Mark of the client's message in hand: written by the daemon to memory that outlives it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, VolatileSlice};
use vmm_socket::SharedMemory;

/// Bytes of the memory.
const SIZE: usize = 4096;
/// Bytes of a message that are noted.
pub(crate) const NOTED: usize = 48;

/// Where in the memory: which phase, how many bytes, the bytes.
const PHASE: usize = 0;
const LEN: usize = 4;
const START: usize = 8;

const IDLE: u32 = 0;
const IN_HAND: u32 = 1;
const ANSWERING: u32 = 2;

/// Activity of the daemon when it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// A message that begins so: it may be in the socket yet, and has no reply.
    InHand(Vec<u8>),
    /// A message that begins so: its reply may have been sent.
    Answering(Vec<u8>),
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Mark(SharedMemory);

impl Mark {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(SharedMemory::new("message in hand", SIZE)?))
    }

    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(SharedMemory::adopt(fd, SIZE)?))
    }

    fn memory(&self) -> VolatileSlice<'_> {
        self.0.slice(0, SIZE).expect("it has this size")
    }

    fn set(&self, phase: u32) {
        let stored = self.memory().store(phase, PHASE, Ordering::Release);
        stored.expect("it lies within");
    }

    pub(crate) fn take(&self, start: &[u8]) {
        let start = &start[..start.len().min(NOTED)];
        let memory = self.memory();
        let noted = memory.write_slice(start, START);
        let noted = noted.and_then(|()| memory.store(start.len() as u32, LEN, Ordering::Relaxed));
        noted.expect("it lies within");
        self.set(IN_HAND);
    }

    pub(crate) fn answer(&self) {
        self.set(ANSWERING);
    }

    pub(crate) fn idle(&self) {
        self.set(IDLE);
    }

    pub(crate) fn left(&self) -> Left {
        let memory = self.memory();
        let read = |at| memory.load::<u32>(at, Ordering::Acquire);
        let (phase, len) = (read(PHASE).unwrap_or(IDLE), read(LEN).unwrap_or(0));
        let mut start = vec![0; NOTED.min(len as usize)];
        if memory.read_slice(&mut start, START).is_err() {
            return Left::Nothing;
        }
        match phase {
            IN_HAND => Left::InHand(start),
            ANSWERING => Left::Answering(start),
            _ => Left::Nothing,
        }
    }
}

impl AsFd for Mark {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd().as_fd()
    }
}
