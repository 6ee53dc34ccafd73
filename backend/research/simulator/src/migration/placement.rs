//! Where machines are, and where they go.

use std::fmt;

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

/// Where machines are at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// As many on every hypervisor, but for one.
    Uniform,
    /// Anywhere that there is room.
    Random,
}

/// Where machines move to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Twice as many moves as hypervisors, of any machine to any other hypervisor with room.
    Random,
    /// Machines on the last hypervisors move to free places on the first ones, until as few hypervisors as possible
    /// hold all of them.
    Consolidate,
    /// Two random groups, half of all each, together from the first and from the middle hypervisor on. A VM that is
    /// there already stays; the others come in the order of their places. A VM that is in the way goes where it
    /// belongs, or to the first free place.
    Grouping,
    /// From the fullest hypervisor to the emptiest, until their numbers differ by one at most.
    ToUniform,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Uniform => "uniform",
            Self::Random => "random",
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Random => "random",
            Self::Consolidate => "consolidate",
            Self::Grouping => "grouping",
            Self::ToUniform => "to-uniform",
        })
    }
}

/// A machine's move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) machine: usize,
    /// The hypervisor that it leaves.
    pub(super) from: usize,
    /// The destination hypervisor.
    pub(super) to: usize,
}

/// Machines on hypervisors.
#[derive(Debug, Clone)]
pub(super) struct Placement {
    /// By machine: its hypervisor.
    pub(super) host: Vec<usize>,
    /// By hypervisor: its machines.
    on: Vec<Vec<usize>>,
    /// Machines that a hypervisor has room for.
    capacity: usize,
}

impl Placement {
    pub(super) fn new(
        start: Start,
        machines: usize,
        hosts: usize,
        capacity: usize,
        random: &mut Pcg64Mcg,
    ) -> Self {
        let host: Vec<usize> = match start {
            Start::Uniform => (0..machines).map(|machine| machine % hosts).collect(),
            Start::Random => {
                let mut slots: Vec<usize> = (0..hosts * capacity).map(|at| at / capacity).collect();
                slots.shuffle(random);
                slots.truncate(machines);
                slots
            }
        };
        let mut on = vec![Vec::new(); hosts];
        for (machine, &host) in host.iter().enumerate() {
            on[host].push(machine);
        }
        Self { host, on, capacity }
    }

    /// The moves of a pattern, one after the other; afterwards machines are where these lead.
    pub(super) fn follow(&mut self, pattern: Pattern, random: &mut Pcg64Mcg) -> Vec<Move> {
        let mut moves = Vec::new();
        match pattern {
            Pattern::Random => {
                for _ in 0..2 * self.on.len() {
                    let machine = random.random_range(0..self.host.len());
                    let others = (0..self.on.len()).filter(|&host| host != self.host[machine]);
                    let open: Vec<usize> = others.filter(|&host| self.has_room(host)).collect();
                    if !open.is_empty() {
                        let to = open[random.random_range(0..open.len())];
                        self.go(machine, to, &mut moves);
                    }
                }
            }
            Pattern::Consolidate => loop {
                let last = self.on.iter().rposition(|on| !on.is_empty());
                let open = (0..self.on.len()).find(|&host| self.has_room(host));
                match (last, open) {
                    (Some(last), Some(to)) if to < last => {
                        let machine = self.on[last][self.on[last].len() - 1];
                        self.go(machine, to, &mut moves);
                    }
                    _ => break,
                }
            },
            Pattern::ToUniform => loop {
                let hosts = 0..self.on.len();
                let full = hosts.clone().max_by_key(|&host| self.on[host].len());
                let empty = hosts.min_by_key(|&host| self.on[host].len());
                match (full, empty) {
                    (Some(full), Some(to)) if self.on[full].len() > self.on[to].len() + 1 => {
                        let machine = self.on[full][self.on[full].len() - 1];
                        self.go(machine, to, &mut moves);
                    }
                    _ => break,
                }
            },
            Pattern::Grouping => self.group(random, &mut moves),
        }
        moves
    }

    fn group(&mut self, random: &mut Pcg64Mcg, moves: &mut Vec<Move>) {
        let (machines, hosts) = (self.host.len(), self.on.len());
        let mut order: Vec<usize> = (0..machines).collect();
        order.shuffle(random);
        let (first, second) = order.split_at_mut(machines / 2);
        let mut wanted = self.host.clone();
        for (from, group) in [(0, first), (hosts / 2, second)] {
            group.sort_unstable_by_key(|&machine| (self.host[machine], machine));
            let mut room = vec![0; hosts];
            for at in 0..group.len() {
                room[(from + at / self.capacity) % hosts] += 1;
            }
            let mut coming = Vec::new();
            for &machine in &*group {
                match &mut room[self.host[machine]] {
                    0 => coming.push(machine),
                    room => *room -= 1,
                }
            }
            let places = (0..hosts).map(|at| (from + at) % hosts);
            let places = places.flat_map(|host| std::iter::repeat_n(host, room[host]));
            for (machine, host) in coming.into_iter().zip(places) {
                wanted[machine] = host;
            }
        }
        for machine in order {
            let to = wanted[machine];
            if self.host[machine] == to {
                continue;
            }
            if !self.has_room(to) {
                // Groups that meet in a nearly full subnet may leave no room for all that belong here.
                let mut there = self.on[to].iter().copied();
                let stranger = there.find(|&other| wanted[other] != to);
                let room = |host: &usize| self.has_room(*host);
                let away = stranger.and_then(|stranger| {
                    let own = Some(wanted[stranger]).filter(room);
                    Some((stranger, own.or_else(|| (0..hosts).find(room))?))
                });
                let Some((stranger, away)) = away else {
                    continue;
                };
                self.go(stranger, away, moves);
            }
            self.go(machine, to, moves);
        }
    }

    fn has_room(&self, host: usize) -> bool {
        self.on[host].len() < self.capacity
    }

    fn go(&mut self, machine: usize, to: usize, moves: &mut Vec<Move>) {
        let from = self.host[machine];
        self.on[from].retain(|&other| other != machine);
        self.on[to].push(machine);
        self.host[machine] = to;
        moves.push(Move { machine, from, to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::generator;

    /// Nobody is lost or doubled, no hypervisor overfull, and all are where the pattern wants them.
    #[test]
    fn patterns() {
        for seed in 0..20 {
            let mut random = generator(seed, 0);
            for start in [Start::Uniform, Start::Random] {
                for machines in [8, 19, 24] {
                    let placement = Placement::new(start, machines, 8, 4, &mut random);
                    for pattern in [
                        Pattern::Random,
                        Pattern::Consolidate,
                        Pattern::Grouping,
                        Pattern::ToUniform,
                    ] {
                        let mut after = placement.clone();
                        let moves = after.follow(pattern, &mut random);
                        let what = format!("seed {seed} {start:?} {machines} {pattern:?}");
                        followed(&placement, &after, &moves, &what);
                        let counts: Vec<usize> = after.on.iter().map(Vec::len).collect();
                        let (most, least) = (counts.iter().max(), counts.iter().min());
                        match pattern {
                            Pattern::Random => assert_eq!(moves.len(), 16, "{what}"),
                            Pattern::Consolidate => {
                                let used = machines.div_ceil(4);
                                assert!(counts[..used - 1].iter().all(|&on| on == 4), "{what}");
                                assert!(counts[used..].iter().all(|&on| on == 0), "{what}");
                            }
                            Pattern::ToUniform => {
                                assert!(most.unwrap() - least.unwrap() <= 1, "{what}");
                                assert!(start != Start::Uniform || moves.is_empty(), "{what}");
                            }
                            Pattern::Grouping => {
                                let half = machines / 2;
                                let first: usize = counts[..4].iter().sum();
                                assert_eq!(first, half, "{what}");
                                let packed = half.div_ceil(4);
                                assert!(counts[..packed - 1].iter().all(|&on| on == 4), "{what}");
                            }
                        }
                    }
                }
            }
        }
    }

    fn followed(before: &Placement, after: &Placement, moves: &[Move], what: &str) {
        let mut host = before.host.clone();
        let mut used: Vec<usize> = before.on.iter().map(Vec::len).collect();
        for step in moves {
            assert_eq!(host[step.machine], step.from, "{what}");
            assert_ne!(step.from, step.to, "{what}");
            used[host[step.machine]] -= 1;
            used[step.to] += 1;
            assert!(used[step.to] <= before.capacity, "{what}");
            host[step.machine] = step.to;
        }
        assert_eq!(host, after.host, "{what}");
        for (host, on) in after.on.iter().enumerate() {
            assert!(on.iter().all(|&machine| after.host[machine] == host));
        }
        assert_eq!(after.on.iter().map(Vec::len).sum::<usize>(), host.len());
    }
}
