//! Event queues.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};
use crate::function::opcode::codes;
use crate::memory::Buffer;
use crate::wait::LIMIT;

/// Size of an entry, in bytes.
pub(crate) const EQE: usize = 64;

codes! {
    /// Kind of an event.
    EventType: u8 {
        /// A completion queue that was armed has an entry.
        Completion = 0x00,
        /// The alternate path is in use.
        PathMigrated = 0x01,
        /// First message in state RTR.
        CommunicationEstablished = 0x02,
        /// The send queue has drained.
        SendQueueDrained = 0x03,
        /// A completion queue failed.
        CqError = 0x04,
        /// A work queue failed.
        WorkQueueCatastrophic = 0x05,
        /// The port changed.
        PortChange = 0x09,
        /// Commands were executed.
        Command = 0x0a,
        /// The device wants pages.
        PageRequest = 0x0b,
        /// A page that a queue pair needs is not there.
        PageFault = 0x0c,
        /// The peer sent an invalid request.
        InvalidRequest = 0x10,
        /// The peer violated access rights.
        AccessViolation = 0x11,
        /// A shared receive queue failed.
        SrqCatastrophic = 0x12,
        /// The last receive request of a QP in error was consumed.
        SrqLastWqe = 0x13,
        /// A shared receive queue fell below its limit.
        SrqLimit = 0x14,
        /// A target of dynamic connections has no initiators any more.
        DctDrained = 0x1c,
        /// An initiator did not have a target's key.
        DctKeyViolation = 0x1d,
    }
}

/// An event queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event([u8; EQE]);

impl Event {
    /// Returns the kind of the event.
    pub fn kind(&self) -> EventType {
        EventType::from_code(self.0[1])
    }

    /// More precisely what happened.
    pub fn subtype(&self) -> u8 {
        self.0[3]
    }

    pub(crate) fn dword(&self, offset: usize) -> u32 {
        crate::bits::dword(&self.0, offset)
    }

    /// The completion queue of a completion event.
    pub fn completion_cqn(&self) -> u32 {
        self.dword(0x38) & 0x00ff_ffff
    }

    /// The queue pair or shared receive queue of an event about one.
    pub fn queue_number(&self) -> u32 {
        self.dword(0x38) & 0x00ff_ffff
    }

    /// The kind of the work queue of an event about one: 6 is a target of dynamic connections.
    pub fn queue_type(&self) -> u8 {
        self.0[0x34]
    }

    /// The completion queue of a completion queue error, and its syndrome.
    pub fn cq_error(&self) -> (u32, u8) {
        (self.dword(0x20) & 0x00ff_ffff, self.0[0x2b])
    }

    /// The command queue entries that were executed.
    pub fn commands(&self) -> u32 {
        self.dword(0x20)
    }

    /// The port of a port change.
    pub fn port(&self) -> u8 {
        self.0[0x28] >> 4
    }
}

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    ring: Buffer,
    log_size: u32,
    pub(crate) number: u32,
    /// Entries consumed.
    taken: u32,
}

impl EventQueue {
    /// Prepares the ring: all entries belong to the device.
    pub(crate) fn new(ring: Buffer, log_size: u32) -> Self {
        for entry in 0..1 << log_size {
            ring.halves()[entry * EQE / 4 + 15].store(1u32.to_be(), Ordering::Relaxed);
        }
        Self {
            ring,
            log_size,
            number: 0,
            taken: 0,
        }
    }

    pub(crate) fn ring(&self) -> &Buffer {
        &self.ring
    }

    pub(crate) fn log_size(&self) -> u32 {
        self.log_size
    }

    /// Takes the next entry.
    pub(crate) fn take(&mut self) -> Option<Event> {
        let index = self.taken & ((1 << self.log_size) - 1);
        let words = &self.ring.words()[index as usize * 8..][..8];
        let owner = words[7].load(Ordering::Acquire).to_ne_bytes()[7];
        if u32::from(owner & 1) != self.taken >> self.log_size & 1 {
            return None;
        }
        let mut bytes = [0; EQE];
        for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        self.taken = self.taken.wrapping_add(1);
        Some(Event(bytes))
    }

    /// The doorbell's word: the queue's number and entries consumed.
    pub(crate) fn doorbell(&self) -> u32 {
        self.number << 24 | self.taken & 0x00ff_ffff
    }
}

/// An interrupt vector, as the device raises it.
#[derive(Debug, Clone)]
pub(crate) struct Vector(Arc<EventFd>);

impl Vector {
    pub(crate) fn new() -> Result<Self> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map(|eventfd| Self(Arc::new(eventfd)))
            .map_err(|errno| Error::System {
                what: "create an eventfd",
                source: errno.into(),
            })
    }

    /// Waits until the vector is raised, and takes that.
    pub(crate) fn wait(&self) -> Result<()> {
        let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, limit) {
                Ok(0) => return Err(Error::Timeout("an interrupt")),
                Ok(_) if self.0.read().is_ok() => return Ok(()),
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(errno) => {
                    return Err(Error::System {
                        what: "wait for an interrupt",
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// Whether the vector was raised since last asked.
    pub(crate) fn was_raised(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsFd for Vector {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
