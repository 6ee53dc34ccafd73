//! What passes: per port for the performance agent, per node and attribute for the papers' tables.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::mad::{AttributeId, Method};

/// What the data plane moved through a port.
///
/// One thread at a time adds (the engine, under its lock); any thread reads. An addition is a load
/// and a store, not a locked instruction. Counters only rise: a reset by the performance agent moves
/// the agent's base line, so no addition is ever lost.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PortCounters {
    xmit_words: AtomicU64,
    rcv_words: AtomicU64,
    unicast_xmit: AtomicU64,
    unicast_rcv: AtomicU64,
    multicast_xmit: AtomicU64,
    multicast_rcv: AtomicU64,
    xmit_discards: AtomicU64,
}

fn add(counter: &AtomicU64, value: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(value);
    counter.store(sum, Ordering::Relaxed);
}

impl PortCounters {
    /// Unicast packets sent, and their length in units of 4 bytes from the local route header to
    /// the invariant CRC.
    #[inline]
    pub fn sent(&self, packets: u64, words: u64) {
        add(&self.unicast_xmit, packets);
        add(&self.xmit_words, words);
    }

    /// Unicast packets received, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn received(&self, packets: u64, words: u64) {
        add(&self.unicast_rcv, packets);
        add(&self.rcv_words, words);
    }

    /// Multicast packets sent, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn sent_multicast(&self, packets: u64, words: u64) {
        add(&self.multicast_xmit, packets);
        add(&self.xmit_words, words);
    }

    /// Multicast packets received, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn received_multicast(&self, packets: u64, words: u64) {
        add(&self.multicast_rcv, packets);
        add(&self.rcv_words, words);
    }

    /// Packets that were to be sent and had nowhere to go.
    #[inline]
    pub fn discarded(&self, packets: u64) {
        add(&self.xmit_discards, packets);
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (counter, atomic) in [
            (Counter::XmitData, &self.xmit_words),
            (Counter::RcvData, &self.rcv_words),
            (Counter::UnicastXmit, &self.unicast_xmit),
            (Counter::UnicastRcv, &self.unicast_rcv),
            (Counter::MulticastXmit, &self.multicast_xmit),
            (Counter::MulticastRcv, &self.multicast_rcv),
            (Counter::OtherDiscards, &self.xmit_discards),
        ] {
            totals.add(counter, atomic.load(Ordering::Relaxed));
        }
        totals
    }
}

/// A quantity counted at a port. Images have them in this order: new ones come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    XmitData,
    RcvData,
    UnicastXmit,
    UnicastRcv,
    MulticastXmit,
    MulticastRcv,
    SymbolErrors,
    LinkDowned,
    // What PortRcvErrors is the sum of.
    LocalPhysicalErrors,
    BufferOverrunErrors,
    OtherRcvErrors,
    // What PortRcvSwitchRelayErrors is the sum of.
    DlidMappingErrors,
    VlMappingErrors,
    LoopingErrors,
    // What PortXmitDiscards is the sum of.
    InactiveDiscards,
    HoqLifetimeDiscards,
    OtherDiscards,
    XmitConstraintErrors,
    RcvConstraintErrors,
    LocalLinkIntegrityErrors,
    ExcessiveBufferOverrunErrors,
    Vl15Dropped,
    XmitWait,
}

/// All quantities of a port since it exists.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals([u64; Counter::XmitWait as usize + 1]);

impl Totals {
    pub(crate) fn add(&mut self, counter: Counter, value: u64) {
        let total = &mut self.0[counter as usize];
        *total = total.wrapping_add(value);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub(crate) fn plus(mut self, other: &Self) -> Self {
        for (total, value) in self.0.iter_mut().zip(other.0) {
            *total = total.wrapping_add(value);
        }
        self
    }

    /// All quantities, in their order.
    pub(crate) const fn values(&self) -> &[u64] {
        &self.0
    }

    /// Adds what these totals lack of others, quantity by quantity.
    pub(crate) fn make_up(&mut self, now: &Self, wanted: &[u64]) {
        for (total, (now, wanted)) in self.0.iter_mut().zip(now.0.iter().zip(wanted)) {
            *total = total.wrapping_add(wanted.wrapping_sub(*now));
        }
    }

    fn sum(&self, counters: &[Counter]) -> u64 {
        let values = counters.iter().map(|&counter| self.get(counter));
        values.fold(0, u64::wrapping_add)
    }

    pub(crate) fn rcv_errors(&self) -> u64 {
        self.sum(&[
            Counter::LocalPhysicalErrors,
            Counter::BufferOverrunErrors,
            Counter::OtherRcvErrors,
        ])
    }

    pub(crate) fn rcv_switch_relay_errors(&self) -> u64 {
        self.sum(&[
            Counter::DlidMappingErrors,
            Counter::VlMappingErrors,
            Counter::LoopingErrors,
        ])
    }

    pub(crate) fn xmit_discards(&self) -> u64 {
        self.sum(&[
            Counter::InactiveDiscards,
            Counter::HoqLifetimeDiscards,
            Counter::OtherDiscards,
        ])
    }

    pub(crate) fn xmit_packets(&self) -> u64 {
        self.sum(&[Counter::UnicastXmit, Counter::MulticastXmit])
    }

    pub(crate) fn rcv_packets(&self) -> u64 {
        self.sum(&[Counter::UnicastRcv, Counter::MulticastRcv])
    }
}

/// Subnet management packets that a node has seen. Counts of packets, never estimates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmpCounts {
    pub(crate) answered: BTreeMap<(Method, AttributeId), u64>,
    pub(crate) forwarded: u64,
    pub(crate) dropped: u64,
}

impl SmpCounts {
    /// Requests that the node's own agent answered, by method and attribute.
    pub fn answered(&self) -> impl Iterator<Item = (Method, AttributeId, u64)> {
        self.answered
            .iter()
            .map(|(&(method, attribute), &count)| (method, attribute, count))
    }

    /// Requests of one kind that the node's own agent answered.
    pub fn answered_of(&self, method: Method, attribute: AttributeId) -> u64 {
        self.answered
            .get(&(method, attribute))
            .copied()
            .unwrap_or(0)
    }

    /// Packets passed on to a neighbour.
    pub const fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Packets dropped: no link, no route, against the rules of directed routing, or refused.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}
