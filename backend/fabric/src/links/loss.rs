//! Packets on links that lose packets or are slow.

use std::collections::HashSet;
use std::time::Duration;

use wire::Sl;

use super::fault::{Arrival, Draws, LinkFault};
use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::counters::Counter;
use crate::nodes::ledger::PortLedger;
use crate::nodes::topology::{NodeId, PortRef};

/// Outcome of a packet on a link.
pub(crate) enum Passage {
    Lost,
    At(Duration),
}

impl Nodes {
    /// Whether links lose packets that leave nodes by these ports.
    pub fn is_lossy(&self, left_by: &[PortRef]) -> bool {
        left_by.iter().any(|&port| {
            let fault = self.link_fault(port);
            fault.is_some_and(|fault| fault.loss_ppm > 0 || fault.overrun_every > 0)
        })
    }

    /// Fault of the link at a port.
    pub fn link_fault(&self, port: PortRef) -> Option<LinkFault> {
        self.port(port)?.fault
    }
}

impl Fabric {
    /// Breaks the link at a port in some way; `None` mends it.
    ///
    /// Returns whether there is a cable at all.
    pub fn set_link_fault(&mut self, port: PortRef, fault: Option<LinkFault>) -> bool {
        let Some(peer) = self.port(port).and_then(|port| port.peer) else {
            return false;
        };
        let turned = fault.map(|fault| LinkFault {
            stalled: fault.stalled.turned(),
            ..fault
        });
        // The two directions lose packets independently of each other.
        for (at, fault, seed) in [(port, fault, 0), (peer, turned, 1)] {
            if let Some(end) = self.nodes.port_mut(at) {
                end.fault = fault;
            }
            if let (Some(fault), Some(ledger)) = (fault, self.ledgers.port_mut(at)) {
                ledger.draws = Draws::new(fault.seed.wrapping_mul(2).wrapping_add(seed));
            }
            self.set_starved(at, fault.is_some_and(|fault| fault.stalled.outbound()));
        }
        self.nodes.path_changed();
        true
    }

    /// Sends packets of the data plane, each of `words` words, by these ports until one gets lost, which
    /// is counted there. How many have arrived before it; `None`: all. Its own port is for the sender to
    /// count.
    pub fn lose(&mut self, left_by: &[PortRef], sl: Sl, packets: u64, words: u64) -> Option<u64> {
        for packet in 0..packets {
            for (hop, &out) in left_by.iter().enumerate() {
                let (Some(arrival), Some(peer)) = (self.draw(out, true), self.peer(out)) else {
                    continue;
                };
                self.receive(peer, arrival);
                if arrival != Arrival::Sound {
                    self.count_crossed(&left_by[..=hop], sl, words);
                    return Some(packet);
                }
            }
        }
        None
    }

    /// Counts a packet that has left nodes by these ports and arrived everywhere but at the end.
    fn count_crossed(&mut self, left_by: &[PortRef], sl: Sl, words: u64) {
        for (&out, &next) in left_by.iter().zip(&left_by[1..]) {
            if let Some(peer) = self.peer(out) {
                self.count_packet(peer, Counter::UnicastRcv, sl, words);
            }
            self.count_packet(next, Counter::UnicastXmit, sl, words);
        }
    }

    /// Draws where a multicast packet of the data plane gets lost whose copies leave nodes by these
    /// ports, those nearer to the sender first. The ports that copies reach; `None`: all, which are for
    /// the caller to count. The rest is counted as with [`Fabric::lose`], and adapters count for
    /// themselves what they receive.
    pub fn lose_multicast(
        &mut self,
        left_by: &[PortRef],
        sl: Sl,
        words: u64,
    ) -> Option<Vec<PortRef>> {
        let mut nodes: HashSet<NodeId> = left_by.iter().map(|port| port.node).take(1).collect();
        let (mut copies, mut reached) = (Vec::new(), Vec::new());
        for &out in left_by {
            let Some(peer) = self.peer(out).filter(|_| nodes.contains(&out.node)) else {
                continue;
            };
            let arrival = self.draw(out, true).unwrap_or(Arrival::Sound);
            self.receive(peer, arrival);
            copies.push(out);
            if arrival == Arrival::Sound {
                nodes.insert(peer.node);
                reached.push(peer);
            }
        }
        if reached.len() == left_by.len() {
            return None;
        }
        for &out in copies.iter().skip(1) {
            self.count_packet(out, Counter::MulticastXmit, sl, words);
        }
        for &peer in &reached {
            if self.switch(peer.node).is_some() {
                self.count_packet(peer, Counter::MulticastRcv, sl, words);
            }
        }
        Some(reached)
    }

    /// Outcome of a packet that leaves by `out` on a faulty link, one under flow control or not.
    pub(crate) fn passage(&mut self, out: PortRef, flow_controlled: bool) -> Passage {
        let now = self.timers.now();
        let Some(fault) = self.link_fault(out) else {
            return Passage::At(now);
        };
        let arrival = self.draw(out, flow_controlled).unwrap_or(Arrival::Sound);
        match (arrival, self.peer(out)) {
            (Arrival::Sound, _) => return Passage::At(now + fault.delay),
            (_, Some(peer)) => self.receive(peer, arrival),
            (_, None) => {}
        }
        Passage::Lost
    }

    /// Outcome of the next packet on the link at a port; `None` where the link has no fault.
    fn draw(&mut self, out: PortRef, flow_controlled: bool) -> Option<Arrival> {
        let fault = self.nodes.port(out)?.fault.as_ref()?;
        let ledger = self.ledgers.port_mut(out)?;
        Some(ledger.draws.next(fault, flow_controlled))
    }

    fn receive(&mut self, at: PortRef, arrival: Arrival) {
        match arrival {
            Arrival::Damaged => self.receive_damaged(at),
            Arrival::Overrun => self.receive_overrun(at),
            Arrival::Sound => {
                if let Some(ledger) = self.ledgers.port_mut(at) {
                    ledger.receive_sound();
                }
            }
        }
    }

    /// A port has no room for a packet: it drops and counts it, and too many periods in a row in
    /// which that happens are told to the manager (IBA 7.12.2, 16.1.3.5). The periods between two
    /// updates of flow control are not imitated: each overrun stands for one, and they follow on
    /// one another.
    fn receive_overrun(&mut self, at: PortRef) {
        let (Some(port), Some(ledger)) = (self.nodes.port(at), self.ledgers.port_mut(at)) else {
            return;
        };
        ledger.management.add(Counter::BufferOverrunErrors, 1);
        ledger.overruns += 1;
        if ledger.overruns > port.info.overrun_errors {
            ledger.overruns = 0;
            let errors = Counter::ExcessiveBufferOverrunErrors;
            ledger.management.add(errors, 1);
            self.buffer_overrun(at);
        }
    }

    /// A port has received a damaged packet: it drops and counts it, and too many of them in too
    /// few packets are told to the manager (IBA 7.12.2).
    fn receive_damaged(&mut self, at: PortRef) {
        let (Some(port), Some(ledger)) = (self.nodes.port(at), self.ledgers.port_mut(at)) else {
            return;
        };
        ledger.management.add(Counter::SymbolErrors, 1);
        ledger.management.add(Counter::LocalPhysicalErrors, 1);
        ledger.physical_errors += 1;
        if ledger.physical_errors > port.info.local_phy_errors {
            ledger.physical_errors = 0;
            ledger.management.add(Counter::LocalLinkIntegrityErrors, 1);
            self.integrity_lost(at);
        }
    }
}

impl PortLedger {
    /// A sound packet makes up for a damaged one.
    pub(crate) fn receive_sound(&mut self) {
        if self.physical_errors > 0 {
            self.physical_errors -= 1;
        }
    }
}
