//! What the data plane counts at functions' ports, and what of it the fabric has been told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::PortRef;
use hca::TrafficCounters;
use parking_lot::Mutex;

use super::PathNumbers;
use crate::vswitch::SubnetState;

/// What a function has counted.
#[derive(Debug)]
pub(crate) struct PortCounters {
    counters: Arc<TrafficCounters>,
    told: [u64; 9],
}

impl PortCounters {
    /// Nothing is told yet.
    pub(crate) fn new(counters: Arc<TrafficCounters>) -> Self {
        let told = [0; 9];
        Self { counters, told }
    }
}

impl SubnetState {
    /// Passes on what the data plane has counted since the last time, then lets the fabric do what is
    /// due: samples of counters end with what has passed until now. What could not be sent has waited
    /// until now.
    pub(crate) fn tell_traffic(
        &mut self,
        paths: &Mutex<PathNumbers>,
        ports: &[PortRef],
        now: Duration,
    ) {
        self.fabric.set_clock(now);
        self.paths.tell(paths, &mut self.fabric);
        for (traffic, &port) in self.traffic.iter_mut().zip(ports) {
            let (Some(traffic), Some(counters)) = (traffic, self.fabric.counters(port)) else {
                continue;
            };
            let from = &traffic.counters;
            let counted = [
                &from.xmit_words,
                &from.xmit_packets,
                &from.rcv_words,
                &from.rcv_packets,
                &from.multicast_xmit_packets,
                &from.multicast_rcv_packets,
                &from.xmit_discards,
                &from.pkey_violations,
                &from.qkey_violations,
            ]
            .map(|counter| counter.load(Ordering::Relaxed));
            let mut new = [0; 9];
            for (new, (counted, told)) in new.iter_mut().zip(counted.iter().zip(&traffic.told)) {
                *new = counted.wrapping_sub(*told);
            }
            traffic.told = counted;
            let [
                xmit_words,
                xmit,
                rcv_words,
                rcv,
                multicast_xmit,
                multicast_rcv,
                discards,
                partitions,
                queues,
            ] = new;
            counters.sent(xmit.saturating_sub(multicast_xmit), xmit_words);
            counters.sent_multicast(multicast_xmit, 0);
            counters.received(rcv.saturating_sub(multicast_rcv), rcv_words);
            counters.received_multicast(multicast_rcv, 0);
            counters.discarded(discards);
            self.fabric.count_wrong_keys(port, partitions, queues);
        }
        self.fabric.advance(now);
    }
}
