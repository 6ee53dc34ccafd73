//! Frames that have come for a queue pair. A frame that takes longer than a turn is carried out in several, and those
//! behind it wait in line.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::endpoint::InFlight;
use super::frame::{Content, Frame, MAX_PAYLOAD};
use crate::budget::Budget;

/// Frames that wait in line for one queue pair at most. More get lost.
const MAX_LINE: usize = 64;

/// Least time of a step of a frame: payload in one piece is copied in one step.
pub(crate) const STEP: Budget = Budget::of_bytes(MAX_PAYLOAD as i64);

/// A frame that has come, as far as it is not carried out yet.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub frame: Frame,
    /// Slots of its sender's share that it holds.
    pub in_flight: Option<Arc<InFlight>>,
    /// Bytes of its payload that have been copied, or of the answer to it.
    pub done: u32,
    /// The answer to a READ, of which so many bytes are there.
    pub answer: Vec<u8>,
}

/// Frames that wait for turns of their queue pair. No image has them here: they are among those that wait for a
/// function at rest.
#[derive(Debug, Default)]
pub(crate) struct Line(VecDeque<Arrived>);

impl Line {
    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The frames, in their order.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.0.iter().map(|arrived| &arrived.frame)
    }

    /// A frame comes; it is returned if it may be carried out at once. Else it waits, and counts in this share: its
    /// sender may not count it any more. It gets lost where there is no room.
    pub fn admit(
        &mut self,
        mut arrived: Arrived,
        share: &Arc<AtomicU32>,
        share_is_full: bool,
    ) -> Option<Arrived> {
        if self.0.is_empty() {
            return Some(arrived);
        }
        let counted = arrived.in_flight.is_some();
        if self.0.len() < MAX_LINE && (counted || !share_is_full) {
            arrived
                .in_flight
                .get_or_insert_with(|| InFlight::new(share, 1));
            self.0.push_back(arrived);
        }
        None
    }

    pub fn push_front(&mut self, arrived: Arrived) {
        self.0.push_front(arrived);
    }

    pub fn pop(&mut self) -> Option<Arrived> {
        self.0.pop_front()
    }
}

impl Arrived {
    pub const fn new(frame: Frame, in_flight: Option<Arc<InFlight>>) -> Self {
        Self {
            frame,
            in_flight,
            done: 0,
            answer: Vec::new(),
        }
    }

    /// Whether some of it has been carried out, and not all.
    pub const fn is_begun(&self) -> bool {
        self.done > 0
    }

    /// Bytes that are to be copied.
    fn total(&self) -> u32 {
        match self.frame.content {
            Content::Read(target) => target.length,
            _ => self.frame.len(),
        }
    }

    /// Whether all of it has been carried out.
    pub fn is_complete(&self) -> bool {
        self.done == self.total()
    }

    /// Packets of it that have been carried out: some, or all that it takes numbers for.
    pub fn packets_done(&self) -> u32 {
        if self.is_complete() {
            self.frame.span()
        } else {
            self.done / self.frame.mtu.bytes()
        }
    }

    /// Takes leave of its first packets, which are carried out, and returns the answer that has come of them.
    pub fn advance(&mut self, packets: u32) -> Vec<u8> {
        let bytes = (packets * self.frame.mtu.bytes()).min(self.done);
        if let Content::Read(target) = &mut self.frame.content {
            target.addr = target.addr.wrapping_add(bytes.into());
            target.length -= bytes;
            self.frame.psn = self.frame.psn.plus(packets);
        } else {
            self.frame = self.frame.part(packets..self.frame.packets());
        }
        self.done -= bytes;
        let left = self
            .answer
            .split_off((bytes as usize).min(self.answer.len()));
        std::mem::replace(&mut self.answer, left)
    }

    /// It is to be carried out from its beginning, or from this packet on.
    pub fn begin_anew(&mut self, packet: u32) {
        (self.done, self.answer) = (0, Vec::new());
        if packet > 0 {
            self.frame = self.frame.part(packet..self.frame.packets());
        }
    }
}
