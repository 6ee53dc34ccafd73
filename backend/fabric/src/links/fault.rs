//! Faults of a link: it loses packets, is slow, or carries no credits.

use std::time::Duration;

/// Faults of a link, both ways. The data plane, whose payload does not travel packet by packet, asks which of its
/// packets get lost ([`Fabric::lose`](crate::Fabric::lose)), and at which ports they are stuck
/// ([`NoRoute::Stalled`](crate::NoRoute::Stalled)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkFault {
    /// Packets of a million that arrive damaged, and are dropped by the port that receives them.
    pub loss_ppm: u32,
    /// Time that a packet spends on the link.
    pub delay: Duration,
    /// Where the random numbers begin that choose the packets to lose.
    pub seed: u64,
    /// One packet of so many finds the receiver's buffers full and is dropped there; 0 for none.
    /// Lane 15 has buffers of its own, so subnet management packets are not among them.
    pub overrun_every: u32,
    /// The end that gets no credits.
    pub stalled: Stalled,
}

/// In which direction of a link no credits arrive, seen from the port that is named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stalled {
    /// They do, both ways.
    #[default]
    No,
    /// Packets that this port would send.
    Outbound,
    /// Packets that the port at the other end would send.
    Inbound,
    /// Both.
    Both,
}

impl Stalled {
    pub(crate) fn outbound(self) -> bool {
        matches!(self, Self::Outbound | Self::Both)
    }

    /// The stalled direction, seen from the other end of the cable.
    pub(super) fn turned(self) -> Self {
        match self {
            Self::Outbound => Self::Inbound,
            Self::Inbound => Self::Outbound,
            same => same,
        }
    }
}

impl LinkFault {
    /// Whether there is nothing wrong.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        let seed = self.seed;
        *self
            == Self {
                seed,
                ..Self::default()
            }
    }
}

/// Random draws for the loss of packets on a faulty link, one way.
#[derive(Debug, Default)]
pub(crate) struct Draws {
    random: u64,
    /// Packets on data lanes since the last one that overran the receiver's buffers.
    arrived: u32,
}

/// Outcome of a packet on a faulty link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Sound,
    Damaged,
    Overrun,
}

impl Draws {
    pub(super) fn new(random: u64) -> Self {
        Self { random, arrived: 0 }
    }

    /// Draws the outcome of the next packet on the link, one under flow control or not.
    pub(super) fn next(&mut self, fault: &LinkFault, flow_controlled: bool) -> Arrival {
        if self.damages(fault.loss_ppm) {
            return Arrival::Damaged;
        }
        if !flow_controlled || fault.overrun_every == 0 {
            return Arrival::Sound;
        }
        self.arrived += 1;
        if self.arrived < fault.overrun_every {
            return Arrival::Sound;
        }
        self.arrived = 0;
        Arrival::Overrun
    }

    /// Whether the next packet is damaged.
    fn damages(&mut self, loss_ppm: u32) -> bool {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
        value % 1_000_000 < u64::from(loss_ppm)
    }
}
