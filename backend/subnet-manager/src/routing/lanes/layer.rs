//! A virtual lane with channels that never depend on each other in a circle.

use fixedbitset::FixedBitSet;

use super::dependency::Channels;

/// The channels of one lane in an order in which all dependencies lead forward, kept up to date as
/// dependencies are added (Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed
/// Acyclic Graphs").
#[derive(Debug, Clone)]
pub(in crate::routing) struct Layer {
    /// By channel: its place.
    place: Vec<u32>,
    pub(super) held: FixedBitSet,
    /// Dependencies that would close a circle: dependencies are only ever taken back along with the
    /// path that brought them, so that they would do so at any later time, too.
    pub(super) refused: FixedBitSet,
    seen: FixedBitSet,
}

impl Layer {
    /// A lane without dependencies, its channels in this order to begin with.
    pub(in crate::routing) fn new(channels: &Channels, order: &[u32]) -> Self {
        let mut place = vec![0; order.len()];
        for (at, &channel) in (0..).zip(order) {
            place[channel as usize] = at;
        }
        Self {
            place,
            seen: FixedBitSet::with_capacity(order.len()),
            held: FixedBitSet::with_capacity(channels.dependencies()),
            refused: FixedBitSet::with_capacity(channels.dependencies()),
        }
    }

    /// The dependencies that are held, or those that are refused.
    pub(super) fn noted(&mut self, is_held: bool) -> &mut FixedBitSet {
        if is_held {
            &mut self.held
        } else {
            &mut self.refused
        }
    }

    /// Adds what paths there and the paths back make of the lane, or nothing: false if that would
    /// close a circle.
    pub(in crate::routing) fn add(&mut self, channels: &Channels, paths: &[Vec<usize>]) -> bool {
        let mut added = Vec::new();
        for pair in paths.iter().flat_map(|path| path.windows(2)) {
            let dependency = channels.dependency(pair[0], pair[1]);
            if self.held.contains(dependency) {
                continue;
            }
            let refused = self.refused.contains(dependency);
            if refused || !self.arrange(channels, pair[0], pair[1]) {
                // A circle closed by these paths' own dependencies is one that other paths with
                // the same dependencies close, but not one that every path does.
                if !refused && added.is_empty() {
                    self.refused.insert(dependency);
                }
                for dependency in added {
                    self.held.remove(dependency);
                }
                return false;
            }
            self.held.insert(dependency);
            added.push(dependency);
        }
        true
    }

    /// Makes the order one in which `before` comes before `after`; false if `after` leads to
    /// `before`.
    pub(super) fn arrange(&mut self, channels: &Channels, before: usize, after: usize) -> bool {
        let (low, high) = (self.place[after], self.place[before]);
        if low > high {
            return true;
        }
        self.seen.clear();
        let mut forward = vec![after as u32];
        self.seen.insert(after);
        let mut next = 0;
        while let Some(&at) = forward.get(next) {
            next += 1;
            for onward in channels.onward(at as usize) {
                let dependency = channels.dependency(at as usize, onward);
                if self.place[onward] > high
                    || !self.held.contains(dependency)
                    || self.seen.contains(onward)
                {
                    continue;
                }
                if onward == before {
                    return false;
                }
                self.seen.insert(onward);
                forward.push(onward as u32);
            }
        }
        if after == before {
            return false;
        }
        let mut backward = vec![before as u32];
        self.seen.insert(before);
        let mut next = 0;
        while let Some(&at) = backward.get(next) {
            next += 1;
            for behind in channels.behind(at as usize) {
                let dependency = channels.dependency(behind, at as usize);
                if self.place[behind] >= low
                    && self.held.contains(dependency)
                    && !self.seen.contains(behind)
                {
                    self.seen.insert(behind);
                    backward.push(behind as u32);
                }
            }
        }
        // Those that lead to `before` take the first of the places, those after `after` the rest.
        let place = &self.place;
        backward.sort_unstable_by_key(|&channel| place[channel as usize]);
        forward.sort_unstable_by_key(|&channel| place[channel as usize]);
        backward.append(&mut forward);
        let mut places: Vec<u32> = backward
            .iter()
            .map(|&channel| place[channel as usize])
            .collect();
        places.sort_unstable();
        for (channel, at) in backward.into_iter().zip(places) {
            self.place[channel as usize] = at;
        }
        true
    }
}
