//! The daemon's event queue in the window.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use connectx::bits::event::{EQE_DATA, EQE_DATA_SIZE, EQE_SIZE, EQE_SUBTYPE, EQE_TYPE};
use vm_memory::Bytes;

use crate::driver::window::{EVENTS, LOG_EVENTS, Window};

/// An event, as the VF wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub kind: u8,
    pub subtype: u8,
    pub data: [u8; EQE_DATA_SIZE],
}

/// The driver's side of the queue.
#[derive(Debug)]
pub(crate) struct Events {
    window: Arc<Window>,
    consumer: u32,
}

impl Events {
    /// An empty queue, for a VF that begins to use it.
    pub fn new(window: Arc<Window>) -> Self {
        let events = Self {
            window,
            consumer: 0,
        };
        for index in 0..1 << LOG_EVENTS {
            // As if it had been taken: in the first round the VF writes 0.
            let last = events
                .slot(index)
                .store(1_u8, EQE_SIZE - 1, Ordering::Relaxed);
            last.expect("within the entry");
        }
        events
    }

    fn slot(&self, counter: u32) -> vm_memory::VolatileSlice<'_> {
        let index = (counter & ((1 << LOG_EVENTS) - 1)) as usize;
        self.window.slice(EVENTS + index * EQE_SIZE, EQE_SIZE)
    }

    /// The next event.
    pub fn take(&mut self) -> Option<Event> {
        let slot = self.slot(self.consumer);
        let owner: u8 = slot
            .load(EQE_SIZE - 1, Ordering::Acquire)
            .expect("within the entry");
        if u32::from(owner & 1) != self.consumer >> LOG_EVENTS & 1 {
            return None;
        }
        let mut bytes = [0; EQE_SIZE];
        slot.copy_to(&mut bytes[..]);
        self.consumer = (self.consumer + 1) & 0x00ff_ffff;
        let mut data = [0; EQE_DATA_SIZE];
        data.copy_from_slice(&bytes[EQE_DATA..EQE_DATA + EQE_DATA_SIZE]);
        Some(Event {
            kind: bytes[EQE_TYPE],
            subtype: bytes[EQE_SUBTYPE],
            data,
        })
    }

    /// Returns the number of events that were taken, in 24 bits.
    pub const fn consumer(&self) -> u32 {
        self.consumer
    }
}
