//! A function that is quiesced, and packets held for it.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::Gid;
use wire::header::Service;

use crate::queue_format::PortChange;
use crate::transport::{Frame, InFlight};

/// In place of the time when a function came back: it rests.
pub(crate) const QUIESCED: u64 = u64::MAX;

/// Bytes that wait for a function at most. More gets lost on its way.
pub(crate) const MAX_HELD_BYTES: usize = 16 << 20;

/// Datagrams among what waits, which their senders do not wait with.
const MAX_HELD_DATAGRAMS: usize = 4096;

/// Host memory of a frame besides its payload, in bytes.
const FRAME: usize = 256;

/// Times of quiescence that a function remembers for timers: several may fall within one timer.
pub(crate) const QUIESCE_HISTORY: usize = 4;

/// Recipient of a held packet. The format of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum For {
    /// The queue pair that the frame names.
    QueuePair,
    /// The members of a group.
    Group(Gid),
    /// The queue pair that it names. The subnet has counted it at the port.
    Agent,
}

/// Something that waits for a function.
#[derive(Debug)]
pub(crate) struct Held {
    pub to: For,
    pub frame: Frame,
    /// Slots of its sender's share that it holds until it is delivered.
    pub in_flight: Option<Arc<InFlight>>,
}

/// A function at rest.
#[derive(Debug, Default)]
pub(crate) struct Quiesced {
    /// Whether management says that its port is Active.
    pub active: bool,
    /// Since when, in the clock's nanoseconds.
    pub since: u64,
    /// It goes on when it has got what waits.
    pub returns: bool,
    /// Held packets, in the order in which they came.
    pub held: VecDeque<Held>,
    pub bytes: usize,
    pub datagrams: usize,
    /// Changes of its port that its face has yet to hear of, each once.
    pub changes: Vec<PortChange>,
}

/// Bytes of the host's memory that a frame takes while it is held.
pub(crate) fn held_bytes(frame: &Frame) -> usize {
    FRAME + frame.len() as usize
}

impl Quiesced {
    /// Has something wait; false where there is no room for it.
    pub fn hold(&mut self, held: Held) -> bool {
        let bytes = held_bytes(&held.frame);
        let datagram = held.frame.address.service == Service::Ud;
        if self.bytes + bytes > MAX_HELD_BYTES || datagram && self.datagrams >= MAX_HELD_DATAGRAMS {
            return false;
        }
        self.bytes += bytes;
        self.datagrams += usize::from(datagram);
        self.held.push_back(held);
        true
    }

    pub fn next(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.bytes -= held_bytes(&held.frame);
        self.datagrams -= usize::from(held.frame.address.service == Service::Ud);
        Some(held)
    }

    /// Its face hears of this when the function goes on: its memory may be a guest's who goes on elsewhere.
    pub fn note(&mut self, change: PortChange) {
        self.changes.retain(|&it| it != change);
        self.changes.push(change);
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) -> VecDeque<Held> {
        (self.bytes, self.datagrams) = (0, 0);
        std::mem::take(&mut self.held)
    }
}
