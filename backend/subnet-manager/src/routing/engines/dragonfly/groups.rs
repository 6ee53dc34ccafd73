//! The groups of a dragonfly, found in its cables.

use std::collections::HashMap;

use crate::routing::skeleton::Skeleton;

/// Part of the cables within groups, or between pairs of groups, that may be missing: one of so many.
const MISSING: usize = 4;
/// Times that clusters are put together.
const ROUNDS: usize = 8;

/// The group of every vertex, from 0, and the number of groups.
///
/// Two switches of a group have all others of it for common neighbours, and two that a cable between groups joins have few.
/// So cables are taken for those of groups whose ends have at least so many common neighbours, for each number that
/// occurs. The resulting parts are put together where cables are missing, and of the divisions the one is taken that lacks
/// the fewest cables to be a dragonfly.
pub(super) fn find(skeleton: &Skeleton) -> Result<(Vec<u32>, usize), String> {
    let count = skeleton.len();
    let neighbours: Vec<Vec<u32>> = (0..count)
        .map(|at| {
            let to = skeleton.heads()[skeleton.arcs_of(at)].iter().copied();
            let mut to: Vec<u32> = to.collect();
            to.sort_unstable();
            to.dedup();
            to
        })
        .collect();
    let mut edges = Vec::new();
    for (one, of) in neighbours.iter().enumerate() {
        for &other in of.iter().filter(|&&other| (other as usize) > one) {
            edges.push((one, other as usize, common(of, &neighbours[other as usize])));
        }
    }
    let mut thresholds: Vec<usize> = edges.iter().map(|&(.., common)| common).collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    let divisions = thresholds.into_iter().filter(|&least| least > 0);
    let best = divisions.filter_map(|least| {
        let within = edges.iter().filter(|edge| edge.2 >= least);
        let mut groups = Groups::new(count);
        within.for_each(|&(one, other, _)| groups.join(one, other));
        for _ in 0..ROUNDS {
            if !groups.complete(&neighbours) {
                break;
            }
        }
        let (group, of) = groups.numbered();
        Some((missing(&group, of, &edges)?, group, of))
    });
    let best = best.min_by_key(|&(missing, ..)| missing);
    best.map(|(_, group, of)| (group, of)).ok_or_else(|| {
        "its switches do not divide into groups that are cabled within, nearly every one to every other, and each \
         group to every other; use nue, or minhop"
            .to_owned()
    })
}

/// Numbers that are in both lists, which rise.
fn common(one: &[u32], other: &[u32]) -> usize {
    let (mut left, mut right, mut count) = (0, 0, 0);
    while let (Some(a), Some(b)) = (one.get(left), other.get(right)) {
        count += usize::from(a == b);
        left += usize::from(a <= b);
        right += usize::from(b <= a);
    }
    count
}

/// Cables, each once for a pair, that the groups lack; `None` if that are too many for a dragonfly.
fn missing(group: &[u32], groups: usize, edges: &[(usize, usize, usize)]) -> Option<usize> {
    let mut sizes = vec![0usize; groups];
    for &of in group {
        sizes[of as usize] += 1;
    }
    let mut within = 0;
    let mut between: Vec<(u32, u32)> = Vec::new();
    for &(one, other, _) in edges {
        let (one, other) = (group[one], group[other]);
        if one == other {
            within += 1;
        } else {
            between.push((one.min(other), one.max(other)));
        }
    }
    between.sort_unstable();
    between.dedup();
    let whole: usize = sizes.iter().map(|size| size * (size - 1) / 2).sum();
    let pairs = groups * (groups - 1) / 2;
    let lacks = [whole - within, pairs - between.len()];
    let few = lacks[0] * MISSING <= whole && lacks[1] * MISSING <= pairs;
    (few && groups > 1).then_some(lacks[0] + lacks[1])
}

/// Clusters of vertices that grow.
struct Groups {
    /// By vertex: another one of the cluster, or itself.
    leader: Vec<usize>,
    /// By leader.
    sizes: Vec<usize>,
}

impl Groups {
    fn new(count: usize) -> Self {
        Self {
            leader: (0..count).collect(),
            sizes: vec![1; count],
        }
    }

    fn of(&mut self, vertex: usize) -> usize {
        let mut at = vertex;
        while self.leader[at] != at {
            self.leader[at] = self.leader[self.leader[at]];
            at = self.leader[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        if one != other {
            let (first, second) = (one.min(other), one.max(other));
            self.leader[second] = first;
            self.sizes[first] += self.sizes[second];
        }
    }

    /// Puts clusters that are smaller than the largest to those that most of their cables lead to, if these join more than
    /// half of the pairs; whether any was.
    fn complete(&mut self, neighbours: &[Vec<u32>]) -> bool {
        let count = neighbours.len();
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        let mut cables: HashMap<(usize, usize), usize> = HashMap::new();
        for (one, of) in neighbours.iter().enumerate() {
            let own = self.of(one);
            if self.sizes[own] < largest {
                for &other in of {
                    let other = self.of(other as usize);
                    *cables.entry((own, other)).or_default() += usize::from(other != own);
                }
            }
        }
        let mut best = vec![(0, usize::MAX); count];
        for ((own, other), cables) in cables {
            let pairs = self.sizes[own] * self.sizes[other];
            let fits = self.sizes[own] + self.sizes[other] <= largest;
            if fits && 2 * cables > pairs {
                let share = 1000 * cables / pairs;
                let found = &mut best[own];
                if (share, usize::MAX - other) > (found.0, usize::MAX - found.1) {
                    *found = (share, other);
                }
            }
        }
        let mut any = false;
        for (own, &(_, other)) in best.iter().enumerate() {
            if other == usize::MAX || self.of(own) != own {
                continue;
            }
            let other = self.of(other);
            if other != own && self.sizes[own] + self.sizes[other] <= largest {
                self.join(own, other);
                any = true;
            }
        }
        any
    }

    /// The cluster of every vertex, numbered from 0, and their number.
    fn numbered(mut self) -> (Vec<u32>, usize) {
        let mut numbers = HashMap::new();
        let group = (0..self.leader.len()).map(|vertex| {
            let next = numbers.len() as u32;
            *numbers.entry(self.of(vertex)).or_insert(next)
        });
        let group: Vec<u32> = group.collect();
        let of = group.iter().max().map_or(0, |&last| last as usize + 1);
        (group, of)
    }
}
