//! What the data plane moves, counted at the ports of the switches that it would have crossed.
//!
//! The engine counts by path; a path is the ports by which its packets leave the nodes on it. Paths
//! are numbered as they are asked for, and a path that changes is another path, so what was counted
//! stays with the ports that it passed.
//!
//! A path may end on its way, at a port that drops what comes: there it is counted, too.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Fabric, LostHeader, NoRoute, PortCounters, PortRef};
use hca::{PathId, PathTraffic};

/// The paths in use, and which ports count what takes them.
#[derive(Debug, Default)]
pub(crate) struct PathCounters {
    traffic: Arc<PathTraffic>,
    numbers: HashMap<Way, PathId>,
    crossed: Vec<Crossed>,
    /// Where in `crossed` a path is.
    places: HashMap<PathId, usize>,
}

/// What makes a path another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Way {
    multicast: bool,
    /// The ports by which its packets leave nodes.
    left_by: Box<[PortRef]>,
    /// Why they get no further.
    lost: Option<NoRoute>,
}

/// What gets lost at the end of a path.
#[derive(Debug)]
struct Lost {
    /// The last port that it has reached.
    at: PortRef,
    reason: NoRoute,
    /// Of the packets that were last on this path.
    header: LostHeader,
    /// Such packets are on their way, which nobody has been told of.
    untold: bool,
}

#[derive(Debug)]
struct Crossed {
    path: PathId,
    multicast: bool,
    left_by: Box<[PortRef]>,
    sent: Vec<Arc<PortCounters>>,
    received: Vec<Arc<PortCounters>>,
    lost: Option<Lost>,
    told: (u64, u64),
}

impl PathCounters {
    /// Where the engine counts.
    pub(crate) fn traffic(&self) -> Arc<PathTraffic> {
        Arc::clone(&self.traffic)
    }

    /// The number of the path whose packets leave nodes by these ports, and get no further for a
    /// reason. `counts` says of a port that the data plane counts there itself.
    pub(crate) fn number(
        &mut self,
        fabric: &Fabric,
        multicast: bool,
        left_by: &[PortRef],
        lost: Option<(NoRoute, LostHeader)>,
        counts: impl Fn(PortRef) -> bool,
    ) -> PathId {
        let way = Way {
            multicast,
            left_by: left_by.into(),
            lost: lost.map(|(reason, _)| reason),
        };
        let end = match lost {
            Some((NoRoute::Stalled(port), _)) => Some(port),
            _ => left_by.last().and_then(|&port| fabric.peer(port)),
        };
        let lost = lost.zip(end).map(|((reason, header), at)| Lost {
            at,
            reason,
            header,
            untold: true,
        });
        if let Some(&path) = self.numbers.get(&way) {
            if let (Some(lost), Some(&place)) = (lost, self.places.get(&path)) {
                self.crossed[place].lost = Some(lost);
            }
            return path;
        }
        let counters = |ports: &mut dyn Iterator<Item = PortRef>| -> Vec<_> {
            ports
                .filter(|&port| !counts(port))
                .filter_map(|port| fabric.counters(port).cloned())
                .collect()
        };
        let sent = counters(&mut left_by.iter().copied());
        let received = counters(&mut left_by.iter().filter_map(|&port| fabric.peer(port)));
        if sent.is_empty() && received.is_empty() && lost.is_none() {
            return PathId::NONE;
        }
        let path = PathId::new(self.crossed.len() + 1);
        if path != PathId::NONE {
            self.traffic.open(path);
            self.numbers.insert(way, path);
            self.places.insert(path, self.crossed.len());
            self.crossed.push(Crossed {
                path,
                multicast,
                left_by: left_by.into(),
                sent,
                received,
                lost,
                told: (0, 0),
            });
        }
        path
    }

    /// The ports by which a path's packets leave nodes.
    pub(crate) fn left_by(&self, path: PathId) -> &[PortRef] {
        let place = self.places.get(&path);
        place.map_or(&[], |&place| &self.crossed[place].left_by)
    }

    /// Counts at the ports what has passed since the last time.
    pub(crate) fn tell(&mut self, fabric: &mut Fabric) {
        for crossed in &mut self.crossed {
            let now = self.traffic.read(crossed.path);
            let (packets, words) = (
                now.0.wrapping_sub(crossed.told.0),
                now.1.wrapping_sub(crossed.told.1),
            );
            if let Some(lost) = &mut crossed.lost
                && (packets > 0 || std::mem::take(&mut lost.untold))
            {
                fabric.count_lost(lost.at, lost.reason, packets, &lost.header);
            }
            if packets == 0 {
                continue;
            }
            crossed.told = now;
            for port in &crossed.sent {
                if crossed.multicast {
                    port.sent_multicast(packets, words)
                } else {
                    port.sent(packets, words)
                }
            }
            for port in &crossed.received {
                if crossed.multicast {
                    port.received_multicast(packets, words)
                } else {
                    port.received(packets, words)
                }
            }
        }
    }
}
