//! Counters of traffic: per port for the performance agent, per node and attribute for the papers' tables.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use wire::Sl;
use wire::mad::{AttributeId, Method};

/// Service levels.
pub(crate) const LEVELS: usize = 16;

/// Traffic of the data plane through a port.
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
    levels: Levels,
}

/// Data on service levels from 1 on, in units of 4 bytes: sent, received. There is room for it once it is needed.
/// The rest of a port's traffic was on service level 0.
#[derive(Debug, Default)]
pub(crate) struct Levels(OnceLock<Box<[[AtomicU64; 2]; LEVELS - 1]>>);

/// Data by service level, in units of 4 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DataBySl {
    pub(crate) xmit: [u64; LEVELS],
    pub(crate) rcv: [u64; LEVELS],
}

impl DataBySl {
    /// Data sent and received on service level 0, 1 and so on.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.xmit.into_iter().zip(self.rcv)
    }

    /// The reverse; levels that are not there have nothing.
    pub(crate) fn of(pairs: &[(u64, u64)]) -> Self {
        let at = |sl: usize| pairs.get(sl).copied().unwrap_or_default();
        Self {
            xmit: std::array::from_fn(|sl| at(sl).0),
            rcv: std::array::from_fn(|sl| at(sl).1),
        }
    }
}

impl Levels {
    fn add(&self, sl: Sl, xmit: u64, rcv: u64) {
        if let Some(level) = usize::from(sl.value()).checked_sub(1) {
            let [sent, received] = &self.0.get_or_init(Box::default)[level];
            add(sent, xmit);
            add(received, rcv);
        }
    }

    /// All levels of a port with these totals.
    fn with(&self, xmit: u64, rcv: u64) -> DataBySl {
        let mut data = DataBySl::default();
        (data.xmit[0], data.rcv[0]) = (xmit, rcv);
        for (i, level) in self
            .0
            .get()
            .into_iter()
            .flat_map(|levels| levels.iter())
            .enumerate()
        {
            let [xmit, rcv] = level.each_ref().map(|data| data.load(Ordering::Relaxed));
            (data.xmit[i + 1], data.rcv[i + 1]) = (xmit, rcv);
            data.xmit[0] = data.xmit[0].wrapping_sub(xmit);
            data.rcv[0] = data.rcv[0].wrapping_sub(rcv);
        }
        data
    }
}

fn add(counter: &AtomicU64, value: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(value);
    counter.store(sum, Ordering::Relaxed);
}

impl PortCounters {
    /// Unicast packets sent on a service level, and their length in units of 4 bytes from the local
    /// route header to the invariant CRC.
    #[inline]
    pub fn sent(&self, sl: Sl, packets: u64, words: u64) {
        add(&self.unicast_xmit, packets);
        add(&self.xmit_words, words);
        self.levels.add(sl, words, 0);
    }

    /// Unicast packets received, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn received(&self, sl: Sl, packets: u64, words: u64) {
        add(&self.unicast_rcv, packets);
        add(&self.rcv_words, words);
        self.levels.add(sl, 0, words);
    }

    /// Multicast packets sent, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn sent_multicast(&self, sl: Sl, packets: u64, words: u64) {
        add(&self.multicast_xmit, packets);
        add(&self.xmit_words, words);
        self.levels.add(sl, words, 0);
    }

    /// Multicast packets received, lengths as with [`PortCounters::sent`].
    #[inline]
    pub fn received_multicast(&self, sl: Sl, packets: u64, words: u64) {
        add(&self.multicast_rcv, packets);
        add(&self.rcv_words, words);
        self.levels.add(sl, 0, words);
    }

    /// Packets that were to be sent and had nowhere to go.
    #[inline]
    pub fn discarded(&self, packets: u64) {
        add(&self.xmit_discards, packets);
    }

    /// Counts the service level of data that the ledger counts.
    pub(crate) fn on_level(&self, sl: Sl, xmit: u64, rcv: u64) {
        self.levels.add(sl, xmit, rcv);
    }

    /// Has data by service level be what is wanted, but for level 0, which has the rest of the totals.
    pub(crate) fn make_up_levels(&self, wanted: &[(u64, u64)]) {
        let now = self.levels.with(0, 0);
        for (sl, (xmit, rcv)) in wanted.iter().enumerate().take(LEVELS).skip(1) {
            let (xmit, rcv) = (
                xmit.wrapping_sub(now.xmit[sl]),
                rcv.wrapping_sub(now.rcv[sl]),
            );
            if (xmit, rcv) != (0, 0) {
                self.levels.add(Sl::new(sl as u8), xmit, rcv);
            }
        }
    }

    /// Data by service level, where these are all quantities of the port.
    fn data_by_sl(&self, totals: &Totals) -> DataBySl {
        let [xmit, rcv] = [Counter::XmitData, Counter::RcvData].map(|of| totals.get(of));
        self.levels.with(xmit, rcv)
    }

    fn totals(&self) -> Totals {
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

/// Traffic of a port that copies of the port count together. There is room for it once the data plane asks for it: most ports
/// of a large subnet never see data.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedCounters(Arc<OnceLock<Arc<PortCounters>>>);

impl From<Arc<PortCounters>> for SharedCounters {
    fn from(counters: Arc<PortCounters>) -> Self {
        Self(Arc::new(counters.into()))
    }
}

impl SharedCounters {
    pub(crate) fn get(&self) -> &Arc<PortCounters> {
        self.0.get_or_init(Arc::default)
    }

    /// As [`PortCounters::data_by_sl`].
    pub(crate) fn data_by_sl(&self, totals: &Totals) -> DataBySl {
        let unused = || PortCounters::default().data_by_sl(totals);
        self.0.get().map_or_else(unused, |it| it.data_by_sl(totals))
    }

    pub(crate) fn totals(&self) -> Totals {
        self.0.get().map(|it| it.totals()).unwrap_or_default()
    }
}

/// A quantity counted at a port. Images have them in this order: new ones come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    // Those of every management packet that passes.
    XmitData,
    RcvData,
    UnicastXmit,
    UnicastRcv,
    // The others.
    MulticastXmit,
    MulticastRcv,
    SymbolErrors,
    LinkDowned,
    // Summands of PortRcvErrors.
    LocalPhysicalErrors,
    BufferOverrunErrors,
    OtherRcvErrors,
    // Summands of PortRcvSwitchRelayErrors.
    DlidMappingErrors,
    VlMappingErrors,
    LoopingErrors,
    // Summands of PortXmitDiscards.
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

    /// Adds to the first quantities.
    pub(crate) fn add_first(&mut self, values: &[u64]) {
        for (total, value) in self.0.iter_mut().zip(values) {
            *total = total.wrapping_add(*value);
        }
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.add_first(&other.0);
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
