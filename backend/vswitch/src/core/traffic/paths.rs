//! Data on paths, counted at the ports of the switches that it would have crossed.
//!
//! The engine counts by path; a path is a service level and the ports by which its packets leave the
//! nodes on it. Paths are numbered as they are asked for, and a path that changes is another path, so
//! what was counted stays with the ports that it passed.
//!
//! A path may end on its way, at a port that drops what comes: there it is counted, too.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Fabric, LostHeader, NoRoute, PortCounters, PortRef};
use hca::{PathId, PathTraffic};
use wire::Sl;

/// News for [`PathCounters`].
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) crossed: Vec<Crossed>,
    /// Losses on paths that they know.
    pub(crate) lost: HashMap<PathId, Lost>,
}

/// The paths that are new, and the counters of all engines.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) news: News,
    pub(crate) traffic: Vec<Arc<PathTraffic>>,
}

/// The ports that count the packets on each path.
#[derive(Debug, Default)]
pub(crate) struct PathCounters {
    crossed: Vec<Crossed>,
    /// Where in `crossed` a path is.
    places: HashMap<PathId, usize>,
}

/// A loss at the end of a path.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The last port that it has reached.
    pub(crate) at: PortRef,
    pub(crate) reason: NoRoute,
    /// Header of the last packets on this path.
    pub(crate) header: LostHeader,
    /// Such packets are on their way, and are not reported yet.
    pub(crate) unreported: bool,
}

#[derive(Debug)]
pub(crate) struct Crossed {
    pub(crate) path: PathId,
    pub(crate) multicast: bool,
    pub(crate) sl: Sl,
    pub(crate) left_by: Box<[PortRef]>,
    /// Counters, each with the service level that it counts.
    pub(crate) sent: Vec<(Sl, Arc<PortCounters>)>,
    pub(crate) received: Vec<(Sl, Arc<PortCounters>)>,
    pub(crate) lost: Option<Lost>,
    /// Packets and words that the ports have counted already.
    pub(crate) reported: (u64, u64),
}

/// The sum of all engines' counters of a path.
fn passed(traffic: &[Arc<PathTraffic>], path: PathId) -> (u64, u64) {
    let read = traffic.iter().map(|traffic| traffic.read(path));
    read.fold((0, 0), |(packets, words), (more, long)| {
        (packets.wrapping_add(more), words.wrapping_add(long))
    })
}

impl PathCounters {
    /// Learns the paths that have been asked for since the last time.
    pub(crate) fn learn(&mut self, news: News) {
        for crossed in news.crossed {
            self.places.insert(crossed.path, self.crossed.len());
            self.crossed.push(crossed);
        }
        for (path, lost) in news.lost {
            if let Some(&place) = self.places.get(&path) {
                self.crossed[place].lost = Some(lost);
            }
        }
    }

    /// The ports by which a path's packets leave nodes, and their service level.
    pub(crate) fn left_by(&self, path: PathId) -> (&[PortRef], Sl) {
        let crossed = self.places.get(&path).map(|&place| &self.crossed[place]);
        crossed.map_or((&[], Sl::default()), |crossed| {
            (&crossed.left_by, crossed.sl)
        })
    }

    /// Counts at the ports what has passed since the last time.
    pub(crate) fn report(&mut self, counted: Counted, fabric: &mut Fabric) {
        let Counted { news, traffic } = counted;
        self.learn(news);
        for crossed in &mut self.crossed {
            let now = passed(&traffic, crossed.path);
            let (packets, words) = (
                now.0.wrapping_sub(crossed.reported.0),
                now.1.wrapping_sub(crossed.reported.1),
            );
            if let Some(lost) = &mut crossed.lost
                && (packets > 0 || std::mem::take(&mut lost.unreported))
            {
                fabric.count_lost(lost.at, lost.reason, packets, &lost.header);
            }
            if packets == 0 {
                continue;
            }
            crossed.reported = now;
            for (sl, port) in &crossed.sent {
                if crossed.multicast {
                    port.sent_multicast(*sl, packets, words)
                } else {
                    port.sent(*sl, packets, words)
                }
            }
            for (sl, port) in &crossed.received {
                if crossed.multicast {
                    port.received_multicast(*sl, packets, words)
                } else {
                    port.received(*sl, packets, words)
                }
            }
        }
    }
}
