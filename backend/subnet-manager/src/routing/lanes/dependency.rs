//! Channel dependency graphs: whether packets can wait for each other in a circle.
//!
//! A channel is one direction of a cable on one virtual lane. A packet that sits in the buffer
//! behind channel a and is to leave by channel b holds a while it waits for b: b depends on a. No
//! deadlock is possible on a lane whose dependencies make no circle (Dally and Seitz, "Deadlock-Free
//! Message Routing in Multiprocessor Interconnection Networks").

use std::collections::VecDeque;
use std::iter;

use crate::routing::Graph;

/// Numbers for channels and for dependencies between them. Channel numbers rise with the vertex at
/// which they begin.
#[derive(Debug)]
pub(in crate::routing) struct Channels {
    /// Where the channels that begin at each vertex begin, and where the last ones end.
    first: Vec<u32>,
    /// Where each channel leads to.
    to: Vec<u32>,
    /// Its other direction.
    back: Vec<u32>,
    /// By channel: what added to the number of a channel that can follow is the number of that
    /// dependency, modulo 2^32.
    row: Vec<u32>,
    dependencies: usize,
}

impl Channels {
    /// `first[v]..first[v + 1]` are the channels that begin at vertex v; `to` says where each leads
    /// to and `back` which one is its other direction.
    pub(in crate::routing) fn new(
        first: Vec<u32>,
        to: Vec<u32>,
        back: impl Fn(usize) -> usize,
    ) -> Self {
        let back: Vec<u32> = (0..to.len()).map(|channel| back(channel) as u32).collect();
        let mut base = vec![0u32];
        for pair in first.windows(2) {
            let degree = pair[1] - pair[0];
            base.push(base.last().copied().unwrap_or(0) + degree * degree);
        }
        let rows = back.iter().zip(&to).map(|(&back, &to)| {
            let at = to as usize;
            let degree = first[at + 1] - first[at];
            let arrival = back - first[at];
            (base[at] + arrival * degree).wrapping_sub(first[at])
        });
        Self {
            row: rows.collect(),
            dependencies: base.last().copied().unwrap_or(0) as usize,
            first,
            to,
            back,
        }
    }

    pub(in crate::routing) fn channels(&self) -> usize {
        self.to.len()
    }

    /// Number of possible dependencies.
    pub(in crate::routing) fn dependencies(&self) -> usize {
        self.dependencies
    }

    /// The number of the dependency of `after` on `before`, which leads to where `after` begins.
    pub(in crate::routing) fn dependency(&self, before: usize, after: usize) -> usize {
        self.row[before].wrapping_add(after as u32) as usize
    }

    /// The channels that a packet behind `channel` could wait for.
    pub(in crate::routing) fn onward(&self, channel: usize) -> std::ops::Range<usize> {
        let at = self.to[channel] as usize;
        self.first[at] as usize..self.first[at + 1] as usize
    }

    /// The channels whose packets could wait for `channel`.
    pub(in crate::routing) fn behind(&self, channel: usize) -> impl Iterator<Item = usize> {
        let at = self.to[self.back[channel] as usize] as usize;
        self.onward_of(at).map(|onward| self.back[onward] as usize)
    }

    /// The channels that begin at a vertex.
    pub(in crate::routing) fn onward_of(&self, vertex: usize) -> std::ops::Range<usize> {
        self.first[vertex] as usize..self.first[vertex + 1] as usize
    }

    /// Channels that wait for each other in a circle, given which dependencies there are.
    pub(in crate::routing) fn circle(&self, holds: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        self.circle_from(0..self.channels(), holds)
    }

    /// Channels that wait for each other in a circle and that one of `starts` can wait for.
    pub(in crate::routing) fn circle_from(
        &self,
        starts: impl IntoIterator<Item = usize>,
        holds: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.channels()];
        let mut path: Vec<(usize, usize)> = Vec::new();
        for start in starts {
            if state[start] != NEW {
                continue;
            }
            state[start] = OPEN;
            path.push((start, self.onward(start).start));
            while let Some((channel, next)) = path.last_mut() {
                let onward = self.onward(*channel);
                let base = self.dependency(*channel, onward.start.min(self.channels()));
                let found = (*next..onward.end)
                    .find(|&after| state[after] != DONE && holds(base + (after - onward.start)));
                let Some(after) = found else {
                    state[*channel] = DONE;
                    path.pop();
                    continue;
                };
                *next = after + 1;
                if state[after] == OPEN {
                    let from = path.iter().position(|&(channel, _)| channel == after);
                    let circle = path[from.unwrap_or(0)..].iter();
                    return Some(circle.map(|&(channel, _)| channel).collect());
                }
                state[after] = OPEN;
                path.push((after, self.onward(after).start));
            }
        }
        None
    }

    /// Channels by which one can wait for another, both included, given which dependencies there are.
    pub(in crate::routing) fn way(
        &self,
        from: usize,
        to: usize,
        holds: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        let mut before = vec![usize::MAX; self.channels()];
        before[from] = from;
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let back = |&at: &usize| (at != from).then(|| before[at]);
                let mut way: Vec<usize> = iter::successors(Some(to), back).collect();
                way.reverse();
                return Some(way);
            }
            for after in self.onward(at) {
                if before[after] == usize::MAX && holds(self.dependency(at, after)) {
                    before[after] = at;
                    queue.push_back(after);
                }
            }
        }
        None
    }
}

/// The cables of a graph, and the channels that their directions are: one for each, or one for each lane, side by side.
#[derive(Debug)]
pub(in crate::routing) struct Cables {
    pub(in crate::routing) channels: Channels,
    /// By switch and port: the channel that begins there, the first of them, or [`NOWHERE`].
    pub(in crate::routing) begins: Vec<[u32; 256]>,
    /// By channel: the switch where it begins, and where it ends.
    pub(in crate::routing) ends: Vec<(u32, u32)>,
    /// By channel: the port where it begins.
    ports: Vec<u8>,
}

/// No channel.
pub(in crate::routing) const NOWHERE: u32 = u32::MAX;

impl Cables {
    pub(in crate::routing) fn new(graph: &Graph) -> Self {
        Self::with_lanes(graph, 1)
    }

    /// With so many channels in each direction of a cable.
    pub(in crate::routing) fn with_lanes(graph: &Graph, lanes: u8) -> Self {
        let lanes = usize::from(lanes);
        let mut first = vec![0u32];
        let mut ends = Vec::new();
        let mut ports = Vec::new();
        let mut begins = vec![[NOWHERE; 256]; graph.switches.len()];
        for (at, vertex) in graph.switches.iter().enumerate() {
            for trunk in &vertex.trunks {
                begins[at][usize::from(trunk.port)] = ends.len() as u32;
                ends.extend(iter::repeat_n((at as u32, trunk.to as u32), lanes));
                ports.extend(iter::repeat_n(trunk.port, lanes));
            }
            first.push(ends.len() as u32);
        }
        let trunks = graph.switches.iter().flat_map(|vertex| &vertex.trunks);
        let back: Vec<usize> = trunks
            .flat_map(|trunk| {
                let back = begins[trunk.to][usize::from(trunk.to_port)] as usize;
                back..back + lanes
            })
            .collect();
        let to = ends.iter().map(|&(_, to)| to).collect();
        Self {
            channels: Channels::new(first, to, |channel| back[channel]),
            begins,
            ends,
            ports,
        }
    }

    /// The switch and the port where a channel begins.
    pub(in crate::routing) fn port(&self, channel: usize) -> (usize, u8) {
        (self.ends[channel].0 as usize, self.ports[channel])
    }

    /// The port where a channel ends.
    pub(in crate::routing) fn arrival(&self, channel: usize) -> u8 {
        self.ports[self.channels.back[channel] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of switches; channels 2v to the next one and 2v + 1 to the one before.
    fn ring(size: u32) -> Channels {
        let first = (0..=size).map(|vertex| 2 * vertex).collect();
        let to = (0..size)
            .flat_map(|vertex| [(vertex + 1) % size, (vertex + size - 1) % size])
            .collect();
        let back = move |channel: usize| {
            let (vertex, side) = (channel as u32 / 2, channel as u32 % 2);
            let other = if side == 0 {
                vertex + 1
            } else {
                vertex + size - 1
            };
            (2 * (other % size) + (1 - side)) as usize
        };
        Channels::new(first, to, back)
    }

    #[test]
    fn a_ring_deadlocks_when_all_turn_the_same_way() {
        let ring = ring(4);
        let mut held = vec![false; ring.dependencies()];
        assert_eq!(ring.circle(|at| held[at]), None);
        for (before, after) in [(0, 2), (2, 4), (4, 6)] {
            held[ring.dependency(before, after)] = true;
        }
        assert_eq!(ring.circle(|at| held[at]), None);
        held[ring.dependency(6, 0)] = true;
        let mut circle = ring.circle(|at| held[at]).unwrap();
        circle.sort_unstable();
        assert_eq!(circle, [0, 2, 4, 6]);
        let way = ring.way(4, 2, |at| held[at]);
        assert_eq!(way, Some(vec![4, 6, 0, 2]));
        assert_eq!(ring.way(2, 1, |at| held[at]), None);
    }

    #[test]
    fn dependencies_have_numbers_of_their_own() {
        let ring = ring(5);
        let mut seen = std::collections::HashSet::new();
        for channel in 0..ring.channels() {
            for after in ring.onward(channel) {
                assert!(seen.insert(ring.dependency(channel, after)));
            }
        }
        assert_eq!(seen.len(), ring.dependencies());
    }
}
