//! Service levels of clusters: those that meet on a link have different ones (Hillenbrand, *Towards Virtual InfiniBand Clusters
//! with Network and Performance Isolation*, section 3.3.4).
//!
//! Clusters that never meet may share a level. Levels that are left over go to clusters that divide their own share among
//! levels. Level n takes lane n, and a port's arbitration table gives each cluster on the link its share.

use std::collections::{BTreeMap, BTreeSet};

use wire::attribute::VlWeight;
use wire::{Lid, Vl};

use crate::routing::{Endpoint, ForwardingTable, Graph};

/// One direction of a link: a switch, as an index of [`Graph::switches`], its port, and whether packets leave the switch by
/// it.
pub(crate) type Direction = (usize, u8, bool);

/// The directions of links that packets between these LIDs use.
pub(crate) fn used(
    graph: &Graph,
    tables: &[ForwardingTable],
    lids: &BTreeSet<Lid>,
) -> BTreeSet<Direction> {
    let ends = graph.endpoints.iter().filter(|end| lids.contains(&end.lid));
    let ends: Vec<&Endpoint> = ends.collect();
    let mut used = BTreeSet::new();
    for to in &ends {
        let mut seen = BTreeSet::new();
        for from in ends.iter().filter(|from| from.lid != to.lid) {
            used.insert((from.switch, from.port, false));
            let mut at = from.switch;
            while seen.insert(at) {
                let port = tables[at].port(to.lid);
                let next = graph.neighbour(at, port);
                if next.is_some() || (at, port) == (to.switch, to.port) {
                    used.insert((at, port, true));
                }
                match next {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
    }
    used
}

/// For each cluster, the others that it meets, each with a link where it does.
pub(crate) fn meetings(uses: &[BTreeSet<Direction>]) -> Vec<BTreeMap<usize, Direction>> {
    let mut on_link: BTreeMap<Direction, Vec<usize>> = BTreeMap::new();
    for (cluster, used) in uses.iter().enumerate() {
        for &direction in used {
            on_link.entry(direction).or_default().push(cluster);
        }
    }
    let mut meetings = vec![BTreeMap::new(); uses.len()];
    for (direction, clusters) in on_link {
        for &one in &clusters {
            for &other in clusters.iter().filter(|&&other| other != one) {
                meetings[one].entry(other).or_insert(direction);
            }
        }
    }
    meetings
}

/// Attempts of the search for levels for all.
const ATTEMPTS_MAX: u32 = 2_000;

/// A level from `levels` for each cluster, so that clusters that meet have different ones. Those that a cluster has are kept
/// where they can be, the first clusters' first. `None` for a cluster for which none is left: then the first clusters have
/// precedence.
pub(crate) fn color(
    meetings: &[BTreeMap<usize, Direction>],
    kept: &[Option<u8>],
    levels: std::ops::Range<u8>,
) -> Vec<Option<u8>> {
    let mut found: Vec<Option<u8>> = vec![None; meetings.len()];
    let is_free = |found: &[Option<u8>], cluster: usize, level: u8| {
        let mut others = meetings[cluster].keys();
        others.all(|&other| found[other] != Some(level))
    };
    for (cluster, &kept) in kept.iter().enumerate() {
        let kept = kept.filter(|level| levels.contains(level));
        found[cluster] = kept.filter(|&level| is_free(&found, cluster, level));
    }
    let mut searched = found.clone();
    let mut attempts = ATTEMPTS_MAX;
    if search(meetings, &levels, &mut searched, &mut attempts) {
        return searched;
    }
    for cluster in 0..found.len() {
        if found[cluster].is_none() {
            let mut levels = levels.clone();
            found[cluster] = levels.find(|&level| is_free(&found, cluster, level));
        }
    }
    found
}

/// Gives a level to all that have none, the one with the fewest left first; false, with nothing changed, if that was not
/// found.
fn search(
    meetings: &[BTreeMap<usize, Direction>],
    levels: &std::ops::Range<u8>,
    found: &mut [Option<u8>],
    attempts: &mut u32,
) -> bool {
    let open = |cluster: usize| -> Vec<u8> {
        let taken: BTreeSet<u8> = { meetings[cluster].keys() }
            .filter_map(|&other| found[other])
            .collect();
        let open = levels.clone();
        open.filter(|level| !taken.contains(level)).collect()
    };
    let waiting = (0..found.len()).filter(|&cluster| found[cluster].is_none());
    let next = { waiting }
        .map(|cluster| (cluster, open(cluster)))
        .min_by_key(|(cluster, open)| (open.len(), usize::MAX - meetings[*cluster].len()));
    let Some((cluster, open)) = next else {
        return true;
    };
    // Levels that nobody has are all alike.
    let mut has_new = false;
    for level in open {
        let is_new = !found.contains(&Some(level));
        if *attempts == 0 || is_new && has_new {
            break;
        }
        has_new |= is_new;
        *attempts -= 1;
        found[cluster] = Some(level);
        if search(meetings, levels, found, attempts) {
            return true;
        }
    }
    found[cluster] = None;
    false
}

/// The levels of each cluster: the one that it has, and as many of those that nobody has whom it meets as it wants in all.
/// They are given out in turns, the first cluster's first.
pub(crate) fn spread(
    meetings: &[BTreeMap<usize, Direction>],
    colors: &[Option<u8>],
    wanted: &[usize],
    levels: std::ops::Range<u8>,
) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = { colors.iter() }
        .map(|color| color.iter().copied().collect())
        .collect();
    for round in 1..wanted.iter().copied().max().unwrap_or(0) {
        for cluster in 0..all.len() {
            if all[cluster].len() != round || wanted[cluster] <= round {
                continue;
            }
            let is_free = |level: &u8| {
                let mut near = meetings[cluster].keys().copied().chain([cluster]);
                near.all(|other| !all[other].contains(level))
            };
            if let Some(level) = levels.clone().find(is_free) {
                all[cluster].push(level);
            }
        }
    }
    all
}

/// The place among `levels` levels of each of `count` levels that a tenant has in order: neighbours share one where there are
/// not enough.
pub(crate) fn compress(count: usize, levels: usize) -> impl Iterator<Item = usize> {
    let last = levels.clamp(1, count.max(1)) - 1;
    let own_last = count.saturating_sub(1).max(1);
    (0..count).map(move |own| (2 * own * last + own_last) / (2 * own_last))
}

/// Units of weight that are worth one packet of 4096 bytes.
const PACKET_WEIGHT: f64 = 64.0;

/// Entries of an arbitration table that divide a link by these shares of lanes. Where shares differ by less than four times,
/// each weight is a number of longest packets or close to it.
pub(crate) fn weights(shares: &BTreeMap<u8, f64>) -> Vec<VlWeight> {
    let most = shares.values().copied().fold(0.0, f64::max);
    let least = shares.values().copied().fold(most, f64::min);
    let unit = if most * PACKET_WEIGHT <= least * 255.0 {
        PACKET_WEIGHT / least
    } else {
        255.0 / most
    };
    let entry = |(&lane, &share): (&u8, &f64)| VlWeight {
        vl: Vl::new(lane),
        weight: (share * unit).round().clamp(1.0, 255.0) as u8,
    };
    shares.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::routing::tests::fat_tree;
    use crate::routing::{MinHop, RoutingEngine};

    fn lids(lids: &[u16]) -> BTreeSet<Lid> {
        lids.iter().copied().map(Lid::new).collect()
    }

    /// Meetings by pairs.
    fn graph(clusters: usize, pairs: &[(usize, usize)]) -> Vec<BTreeMap<usize, Direction>> {
        let mut meetings = vec![BTreeMap::new(); clusters];
        for &(one, other) in pairs {
            meetings[one].insert(other, (0, 1, true));
            meetings[other].insert(one, (0, 1, true));
        }
        meetings
    }

    #[test]
    fn links_of_a_cluster() {
        let graph = fat_tree();
        let tables = MinHop.route(&graph).unwrap().tables;
        // Hosts 5 and 6 of one leaf need nobody else's link.
        let near = used(&graph, &tables, &lids(&[5, 6]));
        let expected = [(0, 1, false), (0, 1, true), (0, 2, false), (0, 2, true)];
        assert_eq!(near, expected.into());
        let far = [
            used(&graph, &tables, &lids(&[5, 7])),
            used(&graph, &tables, &lids(&[6, 8])),
        ];
        assert!(far.iter().all(|links| links.len() == 8), "{far:?}");
        // MinHop has 5 and 6 come down by different spines, and so 7 and 8.
        let met = meetings(&far);
        assert_eq!(met, vec![BTreeMap::new(); 2]);
        // One cluster over both meets all others.
        let all = used(&graph, &tables, &lids(&[5, 6, 7, 8]));
        let met = meetings(&[near, all, far[0].clone()]);
        let who = |of: &BTreeMap<usize, Direction>| of.keys().copied().collect::<Vec<_>>();
        assert_eq!(
            met.iter().map(who).collect::<Vec<_>>(),
            [[1, 2], [0, 2], [0, 1]]
        );
    }

    /// Clusters that do not meet share a level; a ring of five needs three.
    #[test]
    fn levels_by_meetings() {
        let ring = graph(5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]);
        let none = [None; 5];
        let found = color(&ring, &none, 1..4);
        assert!(found.iter().all(Option::is_some), "{found:?}");
        // With two of them one goes without, and it is none of the first.
        let found = color(&ring, &none, 1..3);
        assert_eq!(found[..4], [Some(1), Some(2), Some(1), Some(2)]);
        assert_eq!(found[4], None);
        // What a cluster has it keeps, unless one that was there before has it.
        let kept = [Some(3), Some(3), None, Some(9), None];
        let found = color(&ring, &kept, 1..4);
        assert_eq!(found[0], Some(3));
        assert!(found[1] != Some(3) && found.iter().all(Option::is_some));
        // A crown, on which levels in order fail: 0-3 do not meet 4-7 of the same place.
        let pairs = (0..4).flat_map(|one| (4..8).map(move |other| (one, other)));
        let crown: Vec<_> = pairs.filter(|(one, other)| one + 4 != *other).collect();
        let found = color(&graph(8, &crown), &[None; 8], 1..3);
        assert!(found.iter().all(Option::is_some), "{found:?}");
    }

    /// The thesis' figure 3.5: a tenant's four levels on three, the middle ones on one.
    #[test]
    fn spare_levels_and_compression() {
        assert_eq!(compress(4, 3).collect::<Vec<_>>(), [0, 1, 1, 2]);
        assert_eq!(compress(4, 1).collect::<Vec<_>>(), [0; 4]);
        assert_eq!(compress(2, 3).collect::<Vec<_>>(), [0, 1]);
        // A meets B and C, which do not meet; lanes 1 to 7. A and B want four, C two.
        let met = graph(3, &[(0, 1), (0, 2)]);
        let levels = spread(&met, &[Some(1), Some(2), Some(2)], &[4, 4, 2], 1..8);
        assert_eq!(levels, [vec![1, 3, 5, 7], vec![2, 4, 6], vec![2, 4]]);
    }

    #[test]
    fn shares_of_a_link() {
        let of = |shares: &[(u8, f64)]| {
            let entries = weights(&shares.iter().copied().collect());
            entries
                .iter()
                .map(|entry| (entry.vl.value(), entry.weight))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[(0, 1.0), (1, 1.0)]), [(0, 64), (1, 64)]);
        assert_eq!(
            of(&[(0, 1.0), (1, 3.0), (2, 2.0)]),
            [(0, 64), (1, 192), (2, 128)]
        );
        assert_eq!(of(&[(0, 1.0), (1, 255.0)]), [(0, 1), (1, 255)]);
        assert_eq!(of(&[(4, 0.001), (5, 1e9)]), [(4, 1), (5, 255)]);
    }

    proptest! {
        /// Nobody has a level of somebody whom it meets, and nobody goes without who meets fewer than there are.
        #[test]
        fn levels_are_apart(
            pairs in vec((0..12usize, 0..12usize), 0..50),
            kept in vec(proptest::option::of(0..9u8), 12),
            count in 1..8u8,
            wanted in vec(1..4usize, 12),
        ) {
            let pairs: Vec<_> = pairs.into_iter().filter(|(one, other)| one != other).collect();
            let met = graph(12, &pairs);
            let found = color(&met, &kept, 1..1 + count);
            for &(one, other) in &pairs {
                prop_assert!(found[one].is_none() || found[one] != found[other]);
            }
            for cluster in 0..12 {
                prop_assert!(found[cluster].is_some() || met[cluster].len() >= usize::from(count));
                prop_assert!(found[cluster].is_none_or(|level| (1..=count).contains(&level)));
            }
            let levels = spread(&met, &found, &wanted, 1..1 + count);
            for &(one, other) in &pairs {
                prop_assert!(levels[one].iter().all(|level| !levels[other].contains(level)));
            }
        }
    }
}
