//! Packets that switches mark: they have met congestion (IBA A10.2.1).

use std::collections::{HashMap, VecDeque};

use wire::congestion::SWITCH_EVENTS;
use wire::{Lid, Sl};

use crate::nodes::topology::{NodeId, PortRef};

/// Bytes that a switch has room for in a lane of a port, as far as its threshold goes. Packets wait there beyond that,
/// too: nobody is held back for want of credits.
pub const ROOM: u64 = 128 << 10;
/// Bytes of a credit.
const CREDIT: u32 = 64;

/// When a port of a switch marks packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marking {
    /// So many bytes have to wait in a lane.
    pub threshold: u64,
    /// Shorter packets are not marked, in bytes.
    pub packet_size: u32,
    /// So many packets that might be marked pass between two that are.
    pub rate: u16,
}

impl Marking {
    /// Marking with a threshold from 1, which marks late, to 15, which marks soon: parts of [`ROOM`] of the same
    /// size. `None`: 0, which never marks.
    pub(crate) fn new(threshold: u8, packet_size: u8, rate: u16) -> Option<Self> {
        let parts = u64::from(16 - threshold.clamp(1, 15));
        (threshold > 0).then_some(Self {
            threshold: ROOM / 16 * parts,
            packet_size: u32::from(packet_size) * CREDIT,
            rate,
        })
    }
}

/// A packet that was marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Source and destination LID, and service level.
    pub(crate) header: (Lid, Lid, Sl),
    /// When, in nanoseconds.
    pub(crate) at: u64,
}

/// Packets that a switch has marked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SwitchMarks {
    /// Number of packets.
    pub(crate) count: u64,
    /// At which ports: bit n of the 256 is port n, the upper 128 first.
    pub(crate) ports: [u128; 2],
    /// The last ones, the latest one last.
    pub(crate) last: VecDeque<Mark>,
}

impl SwitchMarks {
    fn push(&mut self, mark: Mark) {
        if self.last.len() == SWITCH_EVENTS {
            self.last.pop_front();
        }
        self.last.push_back(mark);
    }

    /// Appends the marks that another one has come to since.
    pub(crate) fn append(&mut self, later: Self) {
        self.count += later.count;
        (self.ports[0], self.ports[1]) = (
            self.ports[0] | later.ports[0],
            self.ports[1] | later.ports[1],
        );
        for mark in later.last {
            self.push(mark);
        }
    }
}

/// Packets that the switches of a subnet have marked.
#[derive(Debug, Default)]
pub struct Marks(pub(crate) HashMap<NodeId, SwitchMarks>);

impl Marks {
    pub(super) fn add(&mut self, at: PortRef, header: (Lid, Lid, Sl), now: u64) {
        let of = self.0.entry(at.node).or_default();
        of.count += 1;
        of.ports[usize::from(at.port < 128)] |= 1 << (at.port % 128);
        of.push(Mark { header, at: now });
    }
}
