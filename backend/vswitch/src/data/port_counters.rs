//! What the data plane counts at functions' ports, and what of it the fabric has been told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::PortRef;
use hca::{Passed, TrafficCounters};
use parking_lot::Mutex;

use super::PathNumbers;
use crate::vswitch::SubnetState;

/// What a function has counted.
#[derive(Debug)]
pub(crate) struct PortCounters {
    counters: Arc<TrafficCounters>,
    /// By service level.
    told: [Passed; 16],
    /// Packets that went nowhere, and those with wrong keys.
    told_besides: [u64; 3],
}

impl PortCounters {
    /// Nothing is told yet.
    pub(crate) fn new(counters: Arc<TrafficCounters>) -> Self {
        Self {
            counters,
            told: Default::default(),
            told_besides: [0; 3],
        }
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
            for (sl, passed) in from.levels() {
                let told = &mut traffic.told[usize::from(sl.value())];
                if passed == *told {
                    continue;
                }
                let new = passed.with(*told, u64::wrapping_sub);
                *told = passed;
                let (xmit, rcv) = (new.multicast_xmit_packets, new.multicast_rcv_packets);
                counters.sent(sl, new.xmit_packets.saturating_sub(xmit), new.xmit_words);
                counters.sent_multicast(sl, xmit, 0);
                counters.received(sl, new.rcv_packets.saturating_sub(rcv), new.rcv_words);
                counters.received_multicast(sl, rcv, 0);
            }
            let counted = [
                &from.xmit_discards,
                &from.pkey_violations,
                &from.qkey_violations,
            ]
            .map(|counter| counter.load(Ordering::Relaxed));
            let told = std::mem::replace(&mut traffic.told_besides, counted);
            let [discards, partitions, queues] =
                std::array::from_fn(|i| counted[i].wrapping_sub(told[i]));
            counters.discarded(discards);
            self.fabric.count_wrong_keys(port, partitions, queues);
        }
        self.fabric.advance(now);
    }
}
