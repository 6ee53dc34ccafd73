//! Channel dependencies on several lanes, admitted only as long as they make no circle.

use crate::routing::lanes::dependency::Channels;

/// A change, so that it can be undone.
#[derive(Debug, Clone, Copy)]
struct Change {
    dependency: usize,
    lane: u8,
    /// Whether the dependency was added, not refused.
    is_added: bool,
}

/// Channel dependencies by lane.
///
/// Each lane has all channels in an order in which none comes before one that depends on it, and
/// corrects it when a dependency asks for that ("A Dynamic Topological Sort Algorithm for Directed
/// Acyclic Graphs", Pearce and Kelly). Only channels between both ends of the new dependency are
/// looked at, and only these change their place. An order stays right when dependencies vanish.
#[derive(Debug)]
pub(in crate::routing) struct AcyclicLanes {
    channels: Channels,
    /// By dependency: the lanes that have it.
    held: Vec<u16>,
    /// By dependency: the lanes on which it would make a circle.
    refused: Vec<u16>,
    /// By lane, then by channel: its place in the order.
    places: Vec<Vec<u32>>,
    changes: Vec<Change>,
    /// By channel: the last search that found it.
    found: Vec<u32>,
    searches: u32,
    /// Channels after the new dependency, and before it.
    after: Vec<u32>,
    before: Vec<u32>,
}

impl AcyclicLanes {
    /// Lanes without dependencies. `places` has the place of each channel in the order to begin with.
    pub(in crate::routing) fn new(channels: Channels, places: Vec<u32>, lanes: u8) -> Self {
        Self {
            held: vec![0; channels.dependencies()],
            refused: vec![0; channels.dependencies()],
            found: vec![0; channels.channels()],
            places: vec![places; lanes.into()],
            changes: Vec::new(),
            searches: 0,
            after: Vec::new(),
            before: Vec::new(),
            channels,
        }
    }

    /// Number of lanes.
    pub(in crate::routing) fn count(&self) -> u8 {
        self.places.len() as u8
    }

    /// Adds a dependency to a lane; false if it would make a circle.
    pub(in crate::routing) fn add(&mut self, lane: u8, before: usize, after: usize) -> bool {
        let dependency = self.channels.dependency(before, after);
        let bit = 1 << lane;
        if self.held[dependency] & bit != 0 {
            return true;
        }
        if self.refused[dependency] & bit != 0 {
            return false;
        }
        let is_added = self.make_room(lane, before, after);
        let lanes = if is_added {
            &mut self.held
        } else {
            &mut self.refused
        };
        lanes[dependency] |= bit;
        self.changes.push(Change {
            dependency,
            lane,
            is_added,
        });
        is_added
    }

    /// Whatever was added stays.
    pub(in crate::routing) fn commit(&mut self) {
        self.changes.clear();
    }

    /// The changes so far, to go back to.
    pub(in crate::routing) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Goes back to when there were so many changes.
    pub(in crate::routing) fn undo(&mut self, changes: usize) {
        let added = self.changes[changes..]
            .iter()
            .position(|change| change.is_added);
        // Refusals before the first addition are still true.
        let Some(first) = added else {
            return;
        };
        for change in self.changes.drain(changes + first..) {
            let lanes = if change.is_added {
                &mut self.held
            } else {
                &mut self.refused
            };
            lanes[change.dependency] &= !(1 << change.lane);
        }
    }

    /// Orders the channels of a lane so that `before` precedes `after`; false if it depends on it.
    fn make_room(&mut self, lane: u8, before: usize, after: usize) -> bool {
        if before == after {
            return false;
        }
        let places = &mut self.places[usize::from(lane)];
        let (low, high) = (places[after], places[before]);
        if high < low {
            return true;
        }
        let bit = 1u16 << lane;
        self.searches += 1;
        let searches = self.searches;
        self.after.clear();
        self.after.push(after as u32);
        self.found[after] = searches;
        let mut reached = 0;
        while let Some(&at) = self.after.get(reached) {
            reached += 1;
            let onward = self.channels.onward(at as usize);
            let base = self.channels.dependency(at as usize, onward.start);
            for (dependency, next) in (base..).zip(onward) {
                if self.held[dependency] & bit == 0
                    || places[next] > high
                    || self.found[next] == searches
                {
                    continue;
                }
                if next == before {
                    return false;
                }
                self.found[next] = searches;
                self.after.push(next as u32);
            }
        }
        self.before.clear();
        self.before.push(before as u32);
        self.found[before] = searches;
        let mut reached = 0;
        while let Some(&at) = self.before.get(reached) {
            reached += 1;
            for previous in self.channels.behind(at as usize) {
                let dependency = self.channels.dependency(previous, at as usize);
                if self.held[dependency] & bit != 0
                    && places[previous] >= low
                    && self.found[previous] != searches
                {
                    self.found[previous] = searches;
                    self.before.push(previous as u32);
                }
            }
        }
        for side in [&mut self.before, &mut self.after] {
            side.sort_unstable_by_key(|&channel| places[channel as usize]);
        }
        let moved = self.before.iter().chain(&self.after);
        let mut free: Vec<u32> = moved
            .clone()
            .map(|&channel| places[channel as usize])
            .collect();
        free.sort_unstable();
        for (&channel, place) in moved.zip(free) {
            places[channel as usize] = place;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Channels of switches that are all cabled to each other.
    fn complete(size: u32) -> Channels {
        let first = (0..=size).map(|vertex| vertex * (size - 1)).collect();
        let others = |vertex| (0..size).filter(move |&other| other != vertex);
        let to: Vec<u32> = (0..size).flat_map(others).collect();
        let ends = to.clone();
        let back = move |channel: usize| {
            let (from, to) = (channel as u32 / (size - 1), ends[channel]);
            (to * (size - 1) + from - u32::from(from > to)) as usize
        };
        Channels::new(first, to, back)
    }

    proptest! {
        /// A dependency is refused exactly if it makes a circle with those that are held.
        #[test]
        fn circles_alone_are_refused(
            places in Just((0..20u32).collect::<Vec<_>>()).prop_shuffle(),
            steps in vec((0..2u8, 0..20usize, 0..4usize, 0..8u8), 1..200),
        ) {
            let mut lanes = AcyclicLanes::new(complete(5), places, 2);
            let mut held = [vec![false; 80], vec![false; 80]];
            let mut mark = (0, held.clone());
            for (lane, before, turn, what) in steps {
                match what {
                    0 => mark = (lanes.changes(), held.clone()),
                    1 => {
                        lanes.undo(mark.0);
                        held.clone_from(&mark.1);
                        // Some refusals may be left.
                        mark.0 = lanes.changes();
                    }
                    _ => {
                        let after = lanes.channels.onward(before).start + turn;
                        let dependency = lanes.channels.dependency(before, after);
                        let held = &mut held[usize::from(lane)];
                        let was = std::mem::replace(&mut held[dependency], true);
                        let is_free = lanes.channels.circle(|at| held[at]).is_none();
                        held[dependency] = was || is_free;
                        prop_assert_eq!(lanes.add(lane, before, after), is_free);
                    }
                }
            }
        }
    }
}
