//! Shortest-widest paths.

use super::load::LinkLoads;
use super::up_down::{CLIMBING, Distances, Legality, NotConnected, Phase};
use crate::routing::multipath::{Link, LinkId, Network, NodeIndex, Path};

/// Pairs one after the other; of the shortest legal paths of a pair the one whose links carry the
/// fewest paths so far, in sum. One path for each pair of machines.
#[derive(Debug, Clone, Copy)]
pub struct ShortestWidest<'a> {
    /// Legal paths.
    pub legality: Legality<'a>,
}

/// A step of the search: a node reached in a phase, and how.
struct Reached {
    node: NodeIndex,
    phase: Phase,
    weight: u64,
    /// The link by which, and the index of where it comes from.
    by: Option<(LinkId, usize)>,
}

/// By node, the link on which packets leave that have a certain LID.
pub(in super::super) type Entries = [Option<LinkId>];

/// The lightest of the shortest paths. With `entries`, of those alone that do as the entries say.
pub(in super::super) fn lightest(
    network: &Network,
    legality: Legality<'_>,
    from: NodeIndex,
    distances: &Distances,
    loads: &LinkLoads,
    entries: Option<&Entries>,
) -> Option<Vec<LinkId>> {
    let length = distances[from.at()][CLIMBING];
    if length == u32::MAX {
        return None;
    }
    let mut reached = vec![Reached {
        node: from,
        phase: CLIMBING,
        weight: 0,
        by: None,
    }];
    let mut layer = 0..1;
    for left in (0..length).rev() {
        let begin = reached.len();
        for index in layer {
            let Reached {
                node,
                phase,
                weight,
                ..
            } = reached[index];
            let entry = entries.and_then(|entries| entries[node.at()]);
            for &link in network.outgoing(node) {
                if entry.is_some_and(|entry| entry != link) {
                    continue;
                }
                let Link { to, .. } = network.link(link);
                let Some(phase) = legality.after(network, phase, link) else {
                    continue;
                };
                if distances[to.at()][phase] != left {
                    continue;
                }
                let weight = weight + u64::from(loads.get(link)) + 1;
                let by = Some((link, index));
                let other = reached[begin..]
                    .iter_mut()
                    .find(|other| (other.node, other.phase) == (to, phase));
                match other {
                    Some(other) if other.weight > weight => {
                        other.weight = weight;
                        other.by = by;
                    }
                    Some(_) => {}
                    None => reached.push(Reached {
                        node: to,
                        phase,
                        weight,
                        by,
                    }),
                }
            }
        }
        layer = begin..reached.len();
    }
    let mut at = layer.min_by_key(|&index| reached[index].weight)?;
    let mut links = Vec::with_capacity(length as usize);
    while let Some((link, before)) = reached[at].by {
        links.push(link);
        at = before;
    }
    links.reverse();
    Some(links)
}

impl ShortestWidest<'_> {
    /// The paths of all pairs, by rising source and then rising destination, which is also the order
    /// in which they are chosen.
    ///
    /// # Errors
    /// [`NotConnected`] names a pair without a legal path.
    pub fn paths(&self, network: &Network) -> Result<Vec<Path>, NotConnected> {
        let machines: Vec<NodeIndex> = network.machines().collect();
        let distances: Vec<Distances> = machines
            .iter()
            .map(|&to| self.legality.distances(network, to))
            .collect();
        let mut loads = LinkLoads::new(network);
        let mut paths = Vec::with_capacity(machines.len() * machines.len());
        for &from in &machines {
            for (&to, distances) in machines.iter().zip(&distances) {
                if from != to {
                    let path = choose(network, self.legality, from, to, distances, &mut loads)?;
                    paths.push(path);
                }
            }
        }
        Ok(paths)
    }
}

fn choose(
    network: &Network,
    legality: Legality<'_>,
    from: NodeIndex,
    to: NodeIndex,
    distances: &Distances,
    loads: &mut LinkLoads,
) -> Result<Path, NotConnected> {
    let links = lightest(network, legality, from, distances, loads, None);
    let links = links.ok_or(NotConnected { from, to })?;
    loads.add(&links);
    let path = network.path_of_links(links);
    Ok(path.expect("a shortest path between machines meets no node twice"))
}

/// Mends the paths of a regular topology as the paper's section VI does. A path that avoids the
/// `broken` links stays. A shortest-widest path, which up*/down* does not restrict, takes the place of
/// each other path. A cable is broken in both directions.
///
/// # Errors
/// [`NotConnected`] names a pair that no path is left for.
pub fn repair(
    network: &Network,
    paths: &[Path],
    broken: &[LinkId],
) -> Result<Vec<Path>, NotConnected> {
    let legality = Legality::Avoiding(broken);
    let whole = |path: &Path| legality.allows(network, path.links());
    let mut loads = LinkLoads::new(network);
    for path in paths.iter().filter(|path| whole(path)) {
        loads.add(path.links());
    }
    let mend = |path: &Path| {
        if whole(path) {
            return Ok(path.clone());
        }
        let (from, to) = (network.source(path), network.destination(path));
        let distances = legality.distances(network, to);
        choose(network, legality, from, to, &distances, &mut loads)
    };
    paths.iter().map(mend).collect()
}
