//! The numbers of the paths that engines ask for.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{LostHeader, NoRoute, Nodes, PortCounters, PortRef};
use hca::{PathId, PathTraffic};
use wire::Sl;

use crate::core::traffic::paths::{Counted, Crossed, Lost, News};

/// Limit of the memory of all paths that have numbers, in units of a port on a path: some 32 bytes. Half a
/// gigabyte is enough for a million paths of six ports.
const MAX_PATH_PORTS: usize = 16 << 20;
/// Units that a path takes besides its ports.
const PORTS_PER_PATH: usize = 8;

/// The numbers of the paths in use. The engine's thread asks for them, so nothing here takes long.
///
/// A number stays with its path: an engine may count there at any time. So each service level that a guest uses,
/// each new forwarding table, and each VM that joins or leaves a multicast group, may bring paths that stay. Their number is bounded
/// ([`PathId::new`]), and so is their memory: a path to a multicast group may have thousands of ports. Beyond the
/// bounds new paths have no number: data goes over them, uncounted at switches' ports and untouched by links that
/// are to lose packets.
#[derive(Debug)]
pub(crate) struct PathNumbers {
    /// The counters of each engine, which counts there alone.
    traffic: Vec<Arc<PathTraffic>>,
    numbers: HashMap<Way, PathId>,
    news: News,
    /// Traffic of clusters that may see it apart from others', by port.
    of_clusters: HashMap<(usize, PortRef), Arc<PortCounters>>,
    /// Units left of [`MAX_PATH_PORTS`].
    left: usize,
}

impl Default for PathNumbers {
    fn default() -> Self {
        Self {
            traffic: Vec::new(),
            numbers: HashMap::new(),
            news: News::default(),
            of_clusters: HashMap::new(),
            left: MAX_PATH_PORTS,
        }
    }
}

/// The identity of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Way {
    multicast: bool,
    sl: Sl,
    /// The cluster whose traffic it is, and its service level there, if that is counted apart.
    cluster: Option<(usize, Sl)>,
    /// The ports by which its packets leave nodes.
    left_by: Box<[PortRef]>,
    /// Why they get no further.
    lost: Option<NoRoute>,
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

    /// The paths that have been asked for since the last time.
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// The same, and the counters of all engines.
    pub(crate) fn counted(&mut self) -> Counted {
        Counted {
            news: self.take_news(),
            traffic: self.traffic.clone(),
        }
    }

    /// Where the traffic of a cluster through a port is counted apart.
    pub(crate) fn of_cluster(&mut self, cluster: usize, port: PortRef) -> Arc<PortCounters> {
        Arc::clone(self.of_clusters.entry((cluster, port)).or_default())
    }

    /// The number of the path that packets of a service level take, which leave nodes by these ports
    /// and get no further for a reason. `counts` says of a port that the data plane counts there itself. Traffic of a cluster
    /// is counted apart, too, on its own service level.
    pub(crate) fn number(
        &mut self,
        nodes: &Nodes,
        (multicast, cluster): (bool, Option<(usize, Sl)>),
        sl: Sl,
        left_by: &[PortRef],
        lost: Option<(NoRoute, LostHeader)>,
        counts: impl Fn(PortRef) -> bool,
    ) -> PathId {
        let way = Way {
            multicast,
            sl,
            cluster,
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
            unreported: true,
        });
        if let Some(&path) = self.numbers.get(&way) {
            self.news.lost.extend(lost.map(|lost| (path, lost)));
            return path;
        }
        let of_clusters = &mut self.of_clusters;
        let mut counters = |ports: &mut dyn Iterator<Item = PortRef>| -> Vec<_> {
            let ports: Vec<PortRef> = ports.filter(|&port| !counts(port)).collect();
            let counters = |&port: &PortRef| Some((sl, Arc::clone(nodes.counters(port)?)));
            let mut all: Vec<_> = ports.iter().filter_map(counters).collect();
            if let Some((cluster, own)) = cluster {
                let apart = ports.iter().map(|&port| {
                    let counters = of_clusters.entry((cluster, port)).or_default();
                    (own, Arc::clone(counters))
                });
                all.extend(apart);
            }
            all
        };
        let sent = counters(&mut left_by.iter().copied());
        let received = counters(&mut left_by.iter().filter_map(|&port| nodes.peer(port)));
        if sent.is_empty() && received.is_empty() && lost.is_none() {
            return PathId::NONE;
        }
        let path = PathId::new(self.numbers.len() + 1);
        let takes = PORTS_PER_PATH + left_by.len() * (1 + usize::from(cluster.is_some()));
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
                reported: (0, 0),
            });
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use fabric::{Fabric, NodeSpec, Topology};
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
            numbers.number(
                &fabric,
                (true, None),
                Sl::default(),
                &tree(members),
                None,
                |_| false,
            )
        };
        let found: Vec<PathId> = (1..=u8::MAX).map(&mut number).collect();
        let counted = found.iter().filter(|&&path| path != PathId::NONE);
        assert!((6..=11).contains(&counted.count()), "{found:?}");
        // Whoever has a number keeps it.
        assert_eq!(number(1), found[0]);
        assert_ne!(found[0], PathId::NONE);
        let kept = numbers.news.crossed.iter();
        let kept: usize = kept
            .map(|crossed| PORTS_PER_PATH + crossed.left_by.len())
            .sum();
        assert!(kept <= 100, "{kept}");
    }
}
