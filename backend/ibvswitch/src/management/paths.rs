//! What the data plane moves, counted at the ports of the switches that it would have crossed.
//!
//! The engine counts by path; a path is the ports by which its packets leave the nodes on it. Paths
//! are numbered as they are asked for, and a path that changes is another path, so what was counted
//! stays with the ports that it passed.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Fabric, PortCounters, PortRef};
use hca::{PathId, PathTraffic};
use wire::Vl;

/// The paths in use, and which ports count what takes them.
#[derive(Debug, Default)]
pub(super) struct Paths {
    traffic: Arc<PathTraffic>,
    numbers: HashMap<(bool, Box<[PortRef]>), PathId>,
    crossed: Vec<Crossed>,
}

#[derive(Debug)]
struct Crossed {
    path: PathId,
    multicast: bool,
    sent: Vec<Arc<PortCounters>>,
    received: Vec<Arc<PortCounters>>,
    told: (u64, u64),
}

impl Paths {
    /// Where the engine counts.
    pub(super) fn traffic(&self) -> Arc<PathTraffic> {
        Arc::clone(&self.traffic)
    }

    /// The number of the path whose packets leave nodes by these ports. `counts` says of a port
    /// that the data plane counts there itself.
    pub(super) fn number(
        &mut self,
        fabric: &Fabric,
        multicast: bool,
        left_by: &[(PortRef, Vl)],
        counts: impl Fn(PortRef) -> bool,
    ) -> PathId {
        let ports: Box<[PortRef]> = left_by.iter().map(|&(port, _)| port).collect();
        if let Some(&path) = self.numbers.get(&(multicast, ports.clone())) {
            return path;
        }
        let counters = |ports: &mut dyn Iterator<Item = PortRef>| -> Vec<_> {
            ports
                .filter(|&port| !counts(port))
                .filter_map(|port| fabric.counters(port).cloned())
                .collect()
        };
        let sent = counters(&mut ports.iter().copied());
        let received = counters(&mut ports.iter().filter_map(|&port| fabric.peer(port)));
        if sent.is_empty() && received.is_empty() {
            return PathId::NONE;
        }
        let path = PathId::new(self.crossed.len() + 1);
        if path != PathId::NONE {
            self.traffic.open(path);
            self.numbers.insert((multicast, ports), path);
            self.crossed.push(Crossed {
                path,
                multicast,
                sent,
                received,
                told: (0, 0),
            });
        }
        path
    }

    /// Counts at the ports what has passed since the last time.
    pub(super) fn tell(&mut self) {
        for crossed in &mut self.crossed {
            let now = self.traffic.read(crossed.path);
            let (packets, words) = (
                now.0.wrapping_sub(crossed.told.0),
                now.1.wrapping_sub(crossed.told.1),
            );
            if packets == 0 {
                continue;
            }
            crossed.told = now;
            for port in &crossed.sent {
                match crossed.multicast {
                    true => port.sent_multicast(packets, words),
                    false => port.sent(packets, words),
                }
            }
            for port in &crossed.received {
                match crossed.multicast {
                    true => port.received_multicast(packets, words),
                    false => port.received(packets, words),
                }
            }
        }
    }
}
