//! Congestion on links that share their bandwidth: what the subnet tells engines of it, and they the subnet.

use std::sync::Arc;

use fabric::{AdapterCongestion, PortRef};
use hca::transport::Injection;
use parking_lot::Mutex;
use wire::congestion::AdapterCongestionEvent;

/// Events that nobody has asked for yet are kept up to so many: a log shows fewer.
const MAX_EVENTS: usize = 1024;

/// Events of ports that have begun to hold back, with their times in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Vec<(PortRef, AdapterCongestionEvent, u64)>>);

impl Held {
    /// One more.
    pub(crate) fn add(&self, port: PortRef, event: AdapterCongestionEvent, at: u64) {
        let mut events = self.0.lock();
        if events.len() < MAX_EVENTS {
            events.push((port, event, at));
        }
    }

    /// All that were added since the last time.
    pub(super) fn take(&self) -> Vec<(PortRef, AdapterCongestionEvent, u64)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The rules by which an engine holds back packets that leave a port; `None`: it does not.
pub(crate) fn injection(of: &AdapterCongestion) -> Option<Arc<Injection>> {
    let idle = { of.levels.iter() }.all(|level| level.increase == 0 && level.min == 0);
    let delays = &of.delays[..=usize::from(of.limit)];
    if idle && delays[0].multiplier == 0 {
        return None;
    }
    Some(Arc::new(Injection {
        by_level: of.by_level,
        levels: of.levels,
        delays: delays.to_vec(),
    }))
}
