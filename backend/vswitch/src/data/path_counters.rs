//! What the data plane moves, counted at the ports of the switches that it would have crossed.
//!
//! The engine counts by path; a path is a service level and the ports by which its packets leave the
//! nodes on it. Paths are numbered as they are asked for, and a path that changes is another path, so
//! what was counted stays with the ports that it passed.
//!
//! A path may end on its way, at a port that drops what comes: there it is counted, too.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Fabric, LostHeader, NoRoute, Nodes, PortCounters, PortRef};
use hca::{PathId, PathTraffic};
use parking_lot::Mutex;
use wire::Sl;

/// How much memory all paths that have numbers may take, in units of a port on a path: some 32 bytes. Half a
/// gigabyte is enough for a million paths of six ports.
const MOST: usize = 16 << 20;
/// What a path takes besides its ports.
const PATH: usize = 8;

/// The numbers of the paths in use. Whoever has the engine asks for them, so that nothing here takes
/// long.
///
/// A number stays with its path: an engine may count there at any time. So each service level that a guest uses,
/// each new forwarding table, and each VM that joins or leaves a multicast group, may bring paths that stay. Their number is bounded
/// ([`PathId::new`]), and so is their memory: a path to a multicast group may have thousands of ports. Beyond the
/// bounds new paths have no number: data goes over them, uncounted at switches' ports and untouched by links that
/// are to lose packets.
#[derive(Debug)]
pub(crate) struct PathNumbers {
    /// Of each engine, which counts there alone.
    traffic: Vec<Arc<PathTraffic>>,
    numbers: HashMap<Way, PathId>,
    news: News,
    /// Of [`MOST`].
    left: usize,
}

impl Default for PathNumbers {
    fn default() -> Self {
        Self {
            traffic: Vec::new(),
            numbers: HashMap::new(),
            news: News::default(),
            left: MOST,
        }
    }
}

/// What [`PathCounters`] have not been told yet.
#[derive(Debug, Default)]
struct News {
    crossed: Vec<Crossed>,
    /// What gets lost on paths that they know.
    lost: HashMap<PathId, Lost>,
}

/// Which ports count what takes the paths.
#[derive(Debug, Default)]
pub(crate) struct PathCounters {
    crossed: Vec<Crossed>,
    /// Where in `crossed` a path is.
    places: HashMap<PathId, usize>,
}

/// What makes a path another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Way {
    multicast: bool,
    sl: Sl,
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
    sl: Sl,
    left_by: Box<[PortRef]>,
    sent: Vec<Arc<PortCounters>>,
    received: Vec<Arc<PortCounters>>,
    lost: Option<Lost>,
    told: (u64, u64),
}

impl PathNumbers {
    /// Where one more engine counts.
    pub(crate) fn traffic(&mut self) -> Arc<PathTraffic> {
        let traffic = Arc::<PathTraffic>::default();
        for &path in self.numbers.values() {
            traffic.open(path);
        }
        self.traffic.push(Arc::clone(&traffic));
        traffic
    }

    /// The number of the path that packets of a service level take, which leave nodes by these ports
    /// and get no further for a reason. `counts` says of a port that the data plane counts there itself.
    pub(crate) fn number(
        &mut self,
        nodes: &Nodes,
        multicast: bool,
        sl: Sl,
        left_by: &[PortRef],
        lost: Option<(NoRoute, LostHeader)>,
        counts: impl Fn(PortRef) -> bool,
    ) -> PathId {
        let way = Way {
            multicast,
            sl,
            left_by: left_by.into(),
            lost: lost.map(|(reason, _)| reason),
        };
        let end = match lost {
            Some((NoRoute::Stalled(port), _)) => Some(port),
            _ => left_by.last().and_then(|&port| nodes.peer(port)),
        };
        let lost = lost.zip(end).map(|((reason, header), at)| Lost {
            at,
            reason,
            header,
            untold: true,
        });
        if let Some(&path) = self.numbers.get(&way) {
            self.news.lost.extend(lost.map(|lost| (path, lost)));
            return path;
        }
        let counters = |ports: &mut dyn Iterator<Item = PortRef>| -> Vec<_> {
            ports
                .filter(|&port| !counts(port))
                .filter_map(|port| nodes.counters(port).cloned())
                .collect()
        };
        let sent = counters(&mut left_by.iter().copied());
        let received = counters(&mut left_by.iter().filter_map(|&port| nodes.peer(port)));
        if sent.is_empty() && received.is_empty() && lost.is_none() {
            return PathId::NONE;
        }
        let path = PathId::new(self.numbers.len() + 1);
        let takes = PATH + left_by.len();
        if takes > self.left {
            return PathId::NONE;
        }
        if path != PathId::NONE {
            self.left -= takes;
            self.traffic.iter().for_each(|traffic| traffic.open(path));
            self.numbers.insert(way, path);
            self.news.crossed.push(Crossed {
                path,
                multicast,
                sl,
                left_by: left_by.into(),
                sent,
                received,
                lost,
                told: (0, 0),
            });
        }
        path
    }
}

/// What all engines together have counted on a path.
fn passed(traffic: &[Arc<PathTraffic>], path: PathId) -> (u64, u64) {
    let read = traffic.iter().map(|traffic| traffic.read(path));
    read.fold((0, 0), |(packets, words), (more, long)| {
        (packets.wrapping_add(more), words.wrapping_add(long))
    })
}

impl PathCounters {
    /// Hears of the paths that have been asked for since the last time.
    fn hear(&mut self, numbers: &Mutex<PathNumbers>) {
        let news = std::mem::take(&mut numbers.lock().news);
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
    pub(crate) fn left_by(
        &mut self,
        numbers: &Mutex<PathNumbers>,
        path: PathId,
    ) -> (&[PortRef], Sl) {
        self.hear(numbers);
        let crossed = self.places.get(&path).map(|&place| &self.crossed[place]);
        crossed.map_or((&[], Sl::default()), |crossed| {
            (&crossed.left_by, crossed.sl)
        })
    }

    /// Counts at the ports what has passed since the last time.
    pub(crate) fn tell(&mut self, numbers: &Mutex<PathNumbers>, fabric: &mut Fabric) {
        self.hear(numbers);
        let traffic = numbers.lock().traffic.clone();
        for crossed in &mut self.crossed {
            let now = passed(&traffic, crossed.path);
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
                    port.sent_multicast(crossed.sl, packets, words)
                } else {
                    port.sent(crossed.sl, packets, words)
                }
            }
            for port in &crossed.received {
                if crossed.multicast {
                    port.received_multicast(crossed.sl, packets, words)
                } else {
                    port.received(crossed.sl, packets, words)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fabric::{NodeSpec, Topology};
    use wire::Guid;

    use super::*;

    /// Trees of a multicast group that VMs join and leave are other paths each time.
    #[test]
    fn paths_take_no_more_than_their_share() {
        let mut topology = Topology::new();
        let switch = topology.add(NodeSpec::switch(Guid::from(1), 8, "switch"));
        let fabric = Fabric::new(&topology).expect("is one");
        let tree = |members: u8| -> Vec<PortRef> {
            let ports = (1..=8).filter(|port| members >> (port - 1) & 1 == 1);
            ports.map(|port| PortRef { node: switch, port }).collect()
        };
        let mut numbers = PathNumbers {
            left: 100,
            ..PathNumbers::default()
        };
        let mut number = |members| {
            numbers.number(&fabric, true, Sl::default(), &tree(members), None, |_| {
                false
            })
        };
        let found: Vec<PathId> = (1..=u8::MAX).map(&mut number).collect();
        let counted = found.iter().filter(|&&path| path != PathId::NONE);
        assert!((6..=11).contains(&counted.count()), "{found:?}");
        // Whoever has a number keeps it.
        assert_eq!(number(1), found[0]);
        assert_ne!(found[0], PathId::NONE);
        let kept = numbers.news.crossed.iter();
        let kept: usize = kept.map(|crossed| PATH + crossed.left_by.len()).sum();
        assert!(kept <= 100, "{kept}");
    }
}
