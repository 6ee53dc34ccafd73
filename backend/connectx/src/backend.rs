//! The backend behind the registers of a function.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use hca::Dma;

use crate::configuration::Configuration;

/// The state that a device shows in its initialization segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Version of the firmware: major, minor, sub-minor.
    pub firmware: (u16, u16, u16),
    /// Whether it is yet to come up.
    pub initializing: bool,
    /// The free-running timer, in ticks of the frequency that the capabilities tell.
    pub timer: u64,
    /// Changes as long as the device is alive. Drivers look at it every two seconds. 24 bits.
    pub health_counter: u32,
    /// The health buffer: zeros as long as the device is well, then what is wrong, big-endian.
    pub health: [u8; 64],
}

/// Doorbell pages that are memory, which a guest may map, and the device's memory behind them, or that alone.
#[derive(Debug, Clone)]
pub struct DoorbellPages {
    /// The file to map.
    pub fd: Arc<OwnedFd>,
    /// Where BAR 0 begins in it, in bytes.
    pub fd_offset: u64,
    /// Offset of the pages in BAR 0, in bytes.
    pub offset: u64,
    /// Their length in bytes.
    pub len: u64,
}

/// Whatever executes the commands and doorbells of a function: software, or a real device.
///
/// It is called by the one thread that serves the function's guest, which never waits for long: what
/// takes long goes on behind, and [`Backend::ready`] tells of it.
pub trait Backend: Send {
    /// Guest memory, as commands are fetched from it.
    type Dma: Dma;
    /// Memory that the guest's monitor maps.
    type Mapping;
    /// Why it cannot be mapped or unmapped.
    type Error;

    /// The configuration of the function.
    fn configuration(&self) -> Configuration;

    /// The contents of its initialization segment now.
    fn registers(&self) -> Registers;

    /// The part of BAR 0 that the guest may write without a call to the backend; `None` where each
    /// write comes by [`Backend::doorbell`].
    fn doorbell_pages(&self) -> Option<DoorbellPages> {
        None
    }

    /// The guest's monitor wants interrupt `vector` to be signalled by this descriptor, an eventfd, or
    /// not at all. Where the interrupts are raised by software, nothing is to be done.
    fn connect(&mut self, _vector: u16, _eventfd: Option<BorrowedFd<'_>>) {}

    /// The guest's memory, from which commands are fetched.
    fn dma(&self) -> &Self::Dma;

    /// Memory appears.
    ///
    /// # Errors
    /// The device cannot reach it, or there is some at its address.
    fn map(&mut self, mapping: Self::Mapping) -> Result<(), Self::Error>;

    /// The memory in `addr..addr + size` (saturating) goes away: when this returns, nobody touches it.
    ///
    /// # Errors
    /// A mapping ends within it.
    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), Self::Error>;

    /// All memory goes away: the guest is gone, and the function was reset before.
    fn unmap_all(&mut self);

    /// Begins to execute the command from entry `slot` of the queue, whose reply is to have `reply_len` bytes (16 at
    /// least). No other from this entry is begun before [`Backend::poll_reply`] has returned its reply. The backend
    /// may take the request; the vector that it leaves there is reused for the next request.
    fn submit(&mut self, slot: u32, request: &mut Vec<u8>, reply_len: usize);

    /// The next command that has been executed: its entry; `reply` becomes its reply, zeros where it
    /// says nothing. `None` when there is none now.
    fn poll_reply(&mut self, reply: &mut Vec<u8>) -> Option<u32>;

    /// Becomes readable when [`Backend::poll_reply`] has something to return that was not there at the
    /// end of [`Backend::submit`]. `None` where that does not happen.
    fn ready(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the driver has an event queue for the completion of commands.
    fn has_command_events(&self) -> bool;

    /// Tells the driver, by an event, that the commands in these entries of the
    /// queue (a bit each) are complete.
    fn command_event(&mut self, entries: u32);

    /// The guest wrote to doorbell page `uar`, at byte `offset`.
    fn doorbell(&mut self, uar: u32, offset: usize, data: &[u8]);

    /// Drops all objects, and the commands that have not been answered: the function was reset, or its
    /// guest is gone.
    fn reset(&mut self);
}
