//! Links that lose packets, or are slow.

use std::time::Duration;

use crate::counters::Counter;
use crate::fabric::Fabric;
use crate::node::Port;
use crate::topology::PortRef;

/// What is wrong with a link, both ways. The data plane, whose payload does not travel packet by
/// packet, asks which of its packets get lost ([`Fabric::lose`]) and waits for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkFault {
    /// Packets of a million that arrive damaged, and are dropped by the port that receives them.
    pub loss_ppm: u32,
    /// Time that a packet spends on the link.
    pub delay: Duration,
    /// Where the random numbers begin that choose the packets to lose.
    pub seed: u64,
}

/// A fault at one end of a link.
#[derive(Debug)]
pub(crate) struct Fault {
    what: LinkFault,
    random: u64,
}

impl Fault {
    /// Whether the next packet is lost.
    fn loses(&mut self) -> bool {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
        value % 1_000_000 < u64::from(self.what.loss_ppm)
    }
}

/// What becomes of a packet on a link.
pub(crate) enum Passage {
    Lost,
    At(Duration),
}

impl Fabric {
    /// Has the link at a port lose or delay packets; `None` mends it.
    ///
    /// Returns whether there is a cable at all.
    pub fn set_link_fault(&mut self, port: PortRef, fault: Option<LinkFault>) -> bool {
        let Some(peer) = self.port(port).and_then(|port| port.peer) else {
            return false;
        };
        // The two directions lose packets independently of each other.
        for (end, seed) in [(port, 0), (peer, 1)] {
            if let Some(end) = self.port_mut(end) {
                end.fault = fault.map(|fault| {
                    Box::new(Fault {
                        what: fault,
                        random: fault.seed.wrapping_mul(2).wrapping_add(seed),
                    })
                });
            }
        }
        self.path_changed();
        true
    }

    /// Whether links lose packets that leave nodes by these ports.
    pub fn is_lossy(&self, left_by: &[PortRef]) -> bool {
        left_by.iter().any(|&port| {
            let fault = self.link_fault(port);
            fault.is_some_and(|fault| fault.loss_ppm > 0)
        })
    }

    /// Draws how many packets of the data plane get lost that leave nodes by these ports, and counts
    /// them there, each of `words` words. Its own port is for the sender to count.
    pub fn lose(&mut self, left_by: &[PortRef], packets: u64, words: u64) -> u64 {
        let mut lost_at = vec![0_u64; left_by.len()];
        for _ in 0..packets {
            for (&out, lost) in left_by.iter().zip(&mut lost_at) {
                let fault = self
                    .port_mut(out)
                    .and_then(|port| port.fault.as_deref_mut());
                let (Some(loses), Some(peer)) = (fault.map(Fault::loses), self.peer(out)) else {
                    continue;
                };
                if loses {
                    *lost += 1;
                    self.receive_damaged(peer);
                    break;
                }
                if let Some(port) = self.port_mut(peer) {
                    port.receive_sound();
                }
            }
        }
        let mut beyond: u64 = lost_at.iter().sum();
        let lost = beyond;
        for (hop, (&out, &lost_here)) in left_by.iter().zip(&lost_at).enumerate() {
            if hop > 0 {
                self.count(out, Counter::UnicastXmit, beyond);
                self.count(out, Counter::XmitData, beyond * words);
            }
            beyond -= lost_here;
            if let Some(peer) = self.peer(out) {
                self.count(peer, Counter::UnicastRcv, beyond);
                self.count(peer, Counter::RcvData, beyond * words);
            }
        }
        lost
    }

    /// What is wrong with the link at a port.
    pub fn link_fault(&self, port: PortRef) -> Option<LinkFault> {
        let fault = self.port(port)?.fault.as_deref()?;
        Some(fault.what)
    }

    /// What a faulty link does with a packet that leaves by `out`.
    pub(crate) fn passage(&mut self, out: PortRef) -> Passage {
        let now = self.timers.now();
        let Some(fault) = self
            .port_mut(out)
            .and_then(|port| port.fault.as_deref_mut())
        else {
            return Passage::At(now);
        };
        match fault.loses() {
            true => Passage::Lost,
            false => Passage::At(now + fault.what.delay),
        }
    }

    /// A port has received a damaged packet: it drops and counts it, and too many of them in too
    /// few packets are told to the manager (IBA 7.12.2).
    pub(crate) fn receive_damaged(&mut self, at: PortRef) {
        let Some(port) = self.port_mut(at) else {
            return;
        };
        port.management.add(Counter::SymbolErrors, 1);
        port.management.add(Counter::RcvErrors, 1);
        port.physical_errors += 1;
        if port.physical_errors > port.info.local_phy_errors {
            port.physical_errors = 0;
            port.management.add(Counter::LocalLinkIntegrityErrors, 1);
            self.integrity_lost(at);
        }
    }
}

impl Port {
    /// A sound packet makes up for a damaged one.
    pub(crate) fn receive_sound(&mut self) {
        self.physical_errors = self.physical_errors.saturating_sub(1);
    }
}
