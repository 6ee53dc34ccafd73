//! Channel dependencies on several lanes, admitted only as long as they make no circle.

use crate::routing::lanes::dependency::Channels;
use crate::routing::lanes::layer::Layer;

/// A change, so that it can be undone.
#[derive(Debug, Clone, Copy)]
struct Change {
    dependency: usize,
    lane: u8,
    /// Whether the dependency was added, not refused.
    is_added: bool,
}

/// Channel dependencies by lane.
#[derive(Debug)]
pub(in crate::routing) struct AcyclicLanes {
    channels: Channels,
    layers: Vec<Layer>,
    changes: Vec<Change>,
}

impl AcyclicLanes {
    /// Lanes without dependencies, their channels in this order to begin with.
    pub(in crate::routing) fn new(channels: Channels, order: &[u32], lanes: u8) -> Self {
        Self {
            layers: vec![Layer::new(&channels, order); lanes.into()],
            changes: Vec::new(),
            channels,
        }
    }

    /// Number of lanes.
    pub(in crate::routing) fn count(&self) -> u8 {
        self.layers.len() as u8
    }

    /// Adds a dependency to a lane; false if it would make a circle.
    pub(in crate::routing) fn add(&mut self, lane: u8, before: usize, after: usize) -> bool {
        let dependency = self.channels.dependency(before, after);
        let layer = &mut self.layers[usize::from(lane)];
        if layer.held.contains(dependency) {
            return true;
        }
        if layer.refused.contains(dependency) {
            return false;
        }
        let is_added = layer.arrange(&self.channels, before, after);
        layer.noted(is_added).insert(dependency);
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
            let layer = &mut self.layers[usize::from(change.lane)];
            layer.noted(change.is_added).remove(change.dependency);
        }
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
            order in Just((0..20u32).collect::<Vec<_>>()).prop_shuffle(),
            steps in vec((0..2u8, 0..20usize, 0..4usize, 0..8u8), 1..200),
        ) {
            let mut lanes = AcyclicLanes::new(complete(5), &order, 2);
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
