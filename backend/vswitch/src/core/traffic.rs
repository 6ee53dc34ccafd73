//! The counters of the data plane at functions' ports, and the part that the fabric has counted already.

pub(crate) mod paths;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::{Fabric, Marks, PortRef};
use hca::{Envelope, Passed, TrafficCounters, VfId, WrongKey};
use wire::attribute::KeyViolation;
use wire::congestion::AdapterCongestionEvent;

use super::Core;
use paths::Counted;

/// The counters of a function.
#[derive(Debug)]
pub(crate) struct PortCounters {
    counters: Arc<TrafficCounters>,
    /// By service level.
    reported: [Passed; 16],
    /// Packets that went nowhere, and those with wrong keys.
    reported_besides: [u64; 3],
}

impl PortCounters {
    /// Nothing is told yet.
    pub(crate) fn new(counters: Arc<TrafficCounters>) -> Self {
        Self {
            counters,
            reported: Default::default(),
            reported_besides: [0; 3],
        }
    }

    /// Counts at the fabric's port what has passed since the last time.
    fn report(&mut self, fabric: &mut Fabric, port: PortRef) {
        let Some(counters) = fabric.counters(port) else {
            return;
        };
        for (sl, passed) in self.counters.levels() {
            let reported = &mut self.reported[usize::from(sl.value())];
            if passed == *reported {
                continue;
            }
            let new = passed.with(*reported, u64::wrapping_sub);
            *reported = passed;
            let (xmit, rcv) = (new.multicast_xmit_packets, new.multicast_rcv_packets);
            counters.sent(sl, new.xmit_packets.saturating_sub(xmit), new.xmit_words);
            counters.sent_multicast(sl, xmit, 0);
            counters.received(sl, new.rcv_packets.saturating_sub(rcv), new.rcv_words);
            counters.received_multicast(sl, rcv, 0);
        }
        let counted = [
            &self.counters.xmit_discards,
            &self.counters.pkey_violations,
            &self.counters.qkey_violations,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        let reported = std::mem::replace(&mut self.reported_besides, counted);
        let [discards, partitions, queues] =
            std::array::from_fn(|i| counted[i].wrapping_sub(reported[i]));
        counters.discarded(discards);
        fabric.count_wrong_keys(port, partitions, queues);
    }
}

impl Core {
    /// Counts a function's traffic at its port from now on.
    pub(crate) fn count_traffic(&mut self, vf: VfId, counters: Arc<TrafficCounters>) {
        if let Some(place) = self.traffic.get_mut(usize::from(vf.0)) {
            *place = Some(PortCounters::new(counters));
        }
    }

    /// Passes on what the data plane has counted since the last time, then lets the fabric do what is due: samples of
    /// counters end with the traffic until now. The waits of packets that could not be sent count until now.
    pub(crate) fn take_traffic(&mut self, paths: Counted, now: Duration) {
        self.fabric.set_clock(now);
        self.paths.report(paths, &mut self.fabric);
        for (traffic, &port) in self.traffic.iter_mut().zip(&self.layout.ports) {
            if let Some(traffic) = traffic {
                traffic.report(&mut self.fabric, port);
            }
        }
        self.fabric.advance(now);
    }

    /// Has ports tell of packets with wrong keys.
    pub(crate) fn take_wrong_keys(
        &mut self,
        wrong: impl IntoIterator<Item = (PortRef, (VfId, WrongKey, Envelope))>,
    ) {
        for (port, (at, key, packet)) in wrong {
            let on_the_wire = |lid| self.clusters.physical(at, lid).unwrap_or_default();
            let (partition, key) = match key {
                WrongKey::Partition(key) => (true, u32::from(key.value())),
                WrongKey::Queue(key) => (false, key.value()),
            };
            let violation = KeyViolation {
                source: on_the_wire(packet.slid),
                destination: on_the_wire(packet.dlid),
                key,
                sl: packet.sl,
                source_qp: packet.src_qp,
                destination_qp: packet.dest_qp,
                ..KeyViolation::default()
            };
            self.fabric.tell_wrong_key(port, partition, violation);
        }
    }

    /// Has the logs of nodes know of congestion until now: of packets that switches have marked, and of
    /// ports that have begun to hold back.
    pub(crate) fn take_congestion(
        &mut self,
        marks: Marks,
        held: Vec<(PortRef, AdapterCongestionEvent, u64)>,
    ) {
        self.fabric.tell_marks(marks);
        for (port, event, at) in held {
            self.fabric.tell_held_back(port, event, at);
        }
    }
}
