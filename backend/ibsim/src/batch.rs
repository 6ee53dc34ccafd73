//! Datagrams of a socket, many per system call.

use std::cell::RefCell;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, UnixAddr, recvmmsg, sendmmsg};

use super::protocol::DATAGRAM_SIZE;

/// Datagrams per system call. A socket's queue holds `net.unix.max_dgram_qlen` of them and one more:
/// 11 where nobody has raised it.
pub const BATCH: usize = 16;

/// One byte more than a datagram has, so that a longer one shows.
const SPACE: usize = DATAGRAM_SIZE + 1;

/// Datagrams that were received together.
pub struct Batch {
    space: Box<[[u8; SPACE]]>,
    headers: MultiHeaders<UnixAddr>,
    lengths: [usize; BATCH],
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.datagrams()).finish()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            space: vec![[0; SPACE]; BATCH].into_boxed_slice(),
            headers: MultiHeaders::preallocate(BATCH, None),
            lengths: [0; BATCH],
        }
    }
}

impl Batch {
    /// Takes all that wait at the socket. When there are none it waits for one, unless `flags` say
    /// otherwise ([`MsgFlags::MSG_DONTWAIT`]).
    ///
    /// # Errors
    /// Those of `recvmmsg`.
    pub fn receive(&mut self, socket: impl AsFd, flags: MsgFlags) -> Result<(), Errno> {
        self.lengths = [0; BATCH];
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] = {
            let mut space = self.space.iter_mut();
            std::array::from_fn(|_| [IoSliceMut::new(space.next().map_or(&mut [], |it| it))])
        };
        let flags = flags | MsgFlags::MSG_WAITFORONE;
        let fd = socket.as_fd().as_raw_fd();
        let received = recvmmsg(fd, &mut self.headers, slices.iter_mut(), flags, None)?;
        for (length, message) in self.lengths.iter_mut().zip(received) {
            *length = message.bytes;
        }
        Ok(())
    }

    /// Returns the messages that are as long as the protocol's datagrams.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8; DATAGRAM_SIZE]> {
        let all = self.space.iter().zip(self.lengths);
        all.filter(|&(_, length)| length == DATAGRAM_SIZE)
            .filter_map(|(bytes, _)| bytes.first_chunk())
    }
}

thread_local! {
    /// The kernel's view of what is sent, which is not worth being made anew each time.
    static HEADERS: RefCell<MultiHeaders<UnixAddr>> =
        RefCell::new(MultiHeaders::preallocate(BATCH, None));
}

/// Sends the first of `datagrams` by a connected socket, [`BATCH`] at most; returns how many were
/// sent, which is not zero if there are any.
///
/// # Errors
/// Those of `sendmmsg`, where not even one could be sent.
pub fn send<'a>(
    socket: impl AsFd,
    datagrams: impl Iterator<Item = &'a [u8; DATAGRAM_SIZE]>,
    flags: MsgFlags,
) -> Result<usize, Errno> {
    let mut slices = [[IoSlice::new(&[])]; BATCH];
    let mut count = 0;
    for (slice, bytes) in slices.iter_mut().zip(datagrams) {
        *slice = [IoSlice::new(bytes)];
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    let fd = socket.as_fd().as_raw_fd();
    HEADERS.with_borrow_mut(|headers| {
        let slices = &slices[..count];
        sendmmsg(fd, headers, slices, [None; BATCH], [], flags).map(Iterator::count)
    })
}
