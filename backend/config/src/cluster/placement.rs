//! The hosts for the VMs of a cluster: near each other, within what hosts and cables have room for.
//!
//! Exact placement is a quadratic program. The heuristic begins at each switch in turn, takes the host that adds the fewest
//! cables between pairs of VMs, then moves single VMs while that helps; the best of all is the placement.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{Cable, Network};

/// The most clusters on a cable: data lanes that a link can have.
pub const CLUSTERS_PER_CABLE_MAX: usize = 15;
/// The most switches at which the heuristic begins.
const SEEDS_MAX: usize = 128;
/// The most hosts times VMs for which single VMs are moved.
const IMPROVED_MAX: usize = 100_000;

/// The wish of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Number of VMs.
    pub vms: u64,
    /// Processors of each.
    pub processors: Option<u64>,
    /// Bytes of memory of each.
    pub memory: Option<u64>,
    /// The most of them on one host.
    pub per_host: Option<u64>,
    /// Whether the switches of its hosts are to have no VMs of others.
    pub exclusive_switches: bool,
    /// The most clusters on a cable.
    pub per_cable: usize,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            vms: 0,
            processors: None,
            memory: None,
            per_host: None,
            exclusive_switches: false,
            per_cable: CLUSTERS_PER_CABLE_MAX,
        }
    }
}

/// A cluster that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// The host of each of its VMs.
    pub hosts: Vec<usize>,
    /// Whether its switches are its own.
    pub exclusive_switches: bool,
}

/// VMs by host.
pub type Counts = BTreeMap<usize, u64>;

/// A constraint of a placement, in the order in which they are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constraint {
    /// VFs of an adapter port.
    Vfs,
    /// Processors of hosts.
    Processors,
    /// Memory of hosts.
    Memory,
    /// VMs of one cluster on a host.
    PerHost,
    /// Switches of other clusters, or with other clusters.
    Switches,
    /// Clusters on a cable.
    Cables,
}

/// Why there is no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{asked} more VMs were asked for, and there is room for {room}: {}; {}", reason(self), remedy(self.constraint))]
pub struct Refusal {
    /// The first constraint that leaves too little room.
    pub constraint: Constraint,
    /// VMs to be placed.
    pub asked: u64,
    /// VMs for which there is room.
    pub room: u64,
    /// The places that refuse, with their numbers.
    pub places: Vec<String>,
}

fn reason(refusal: &Refusal) -> String {
    let what = match refusal.constraint {
        Constraint::Vfs => "VFs that hypervisors may still have",
        Constraint::Processors => "free processors of hypervisors",
        Constraint::Memory => "free memory of hypervisors",
        Constraint::PerHost => "VMs of this cluster that one hypervisor may have",
        Constraint::Switches => "switches that belong to one cluster",
        Constraint::Cables => "clusters that a cable may carry",
    };
    let places = refusal.places.iter().take(4).map(String::as_str);
    let mut text = format!("{what} ({}", places.collect::<Vec<_>>().join(", "));
    if let Some(more @ 1..) = refusal.places.len().checked_sub(4) {
        text += &format!(", {more} more");
    }
    text + ")"
}

const fn remedy(constraint: Constraint) -> &'static str {
    match constraint {
        Constraint::Vfs => "add a hypervisor, or lower its spare_vfs",
        Constraint::Processors => "ask for fewer processors for each VM, or add a hypervisor",
        Constraint::Memory => "ask for less memory for each VM, or add a hypervisor",
        Constraint::PerHost => "raise --per-host, or add a hypervisor",
        Constraint::Switches => {
            "leave out exclusive switches, or move VMs of other clusters to other switches"
        }
        Constraint::Cables => {
            "delete a cluster, or ask for fewer VMs: those that fit have no such cable"
        }
    }
}

/// Cables on the shortest paths between all pairs of VMs, together.
#[must_use]
pub fn cost(network: &Network, counts: &Counts) -> u64 {
    let each: Vec<(usize, u64)> = counts.iter().map(|(&host, &vms)| (host, vms)).collect();
    let pairs = each.iter().enumerate().flat_map(|(at, &(a, of_a))| {
        { each[at + 1..].iter() }.map(move |&(b, of_b)| (a, b, of_a * of_b))
    });
    pairs
        .map(|(a, b, count)| u64::from(network.between(a, b).unwrap_or_default()) * count)
        .sum()
}

/// Places VMs besides those of the cluster that are there (`fixed`), among other clusters. Returns the new VMs by host.
///
/// # Errors
/// [`Refusal`].
pub fn place(
    network: &Network,
    demand: &Demand,
    fixed: &Counts,
    others: &[Present],
) -> Result<Counts, Refusal> {
    let limits = Limits::new(network, demand, fixed, others)?;
    if demand.vms == 0 {
        return Ok(Counts::new());
    }
    let candidates = limits.seeds().into_iter().map(|seed| limits.grow(seed));
    let mut best: Option<(u64, Counts)> = None;
    let mut most = 0;
    for new in candidates {
        let placed: u64 = new.values().sum();
        most = most.max(placed);
        if placed < demand.vms {
            continue;
        }
        let cost = cost(network, &joined(fixed, &new));
        if best.as_ref().is_none_or(|(known, _)| cost < *known) {
            best = Some((cost, new));
        }
    }
    let Some((cost, new)) = best else {
        return Err(Refusal {
            constraint: Constraint::Cables,
            asked: demand.vms,
            room: most,
            places: limits.full_names(demand.per_cable),
        });
    };
    Ok(limits.improve(cost, new))
}

/// The VMs to give up so that `left` remain: one after the other the most distant from all others. VMs of `kept` hosts are
/// given up last.
#[must_use]
pub fn give_up(network: &Network, hosts: &[usize], busy: &[bool], left: usize) -> Vec<usize> {
    let mut here: Vec<usize> = (0..hosts.len()).collect();
    let mut given = Vec::new();
    while here.len() > left {
        let distance = |vm: usize| -> u64 {
            let others = here
                .iter()
                .map(|&other| network.between(hosts[vm], hosts[other]));
            others.map(|far| u64::from(far.unwrap_or(u32::MAX))).sum()
        };
        let farthest = { here.iter().copied() }.max_by_key(|&vm| (!busy[vm], distance(vm), vm));
        let Some(farthest) = farthest else { break };
        here.retain(|&vm| vm != farthest);
        given.push(farthest);
    }
    given
}

/// A move of a VM of a cluster that brings it nearer to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Number of the VM in its cluster.
    pub vm: usize,
    /// The host that it goes to.
    pub to: usize,
    /// [`cost`] after it.
    pub cost: u64,
}

/// Moves that compact a cluster, each the best there is after the last, as long as `places` (free places by host) last.
#[must_use]
pub fn compact(network: &Network, hosts: &[usize], places: &Counts) -> Vec<Step> {
    let (mut hosts, mut places) = (hosts.to_vec(), places.clone());
    let mut steps = Vec::new();
    let of = |hosts: &[usize]| cost(network, &counted(hosts));
    let mut now = of(&hosts);
    while steps.len() < hosts.len() {
        let mut best: Option<Step> = None;
        for vm in 0..hosts.len() {
            let from = hosts[vm];
            let free = places
                .iter()
                .filter(|(at, left)| **left > 0 && **at != from);
            for (&to, _) in free {
                if network.between(from, to).is_none() {
                    continue;
                }
                hosts[vm] = to;
                let cost = of(&hosts);
                if cost < best.map_or(now, |best| best.cost) {
                    best = Some(Step { vm, to, cost });
                }
            }
            hosts[vm] = from;
        }
        let Some(step) = best else { break };
        if let Some(left) = places.get_mut(&step.to) {
            *left -= 1;
        }
        *places.entry(hosts[step.vm]).or_default() += 1;
        hosts[step.vm] = step.to;
        now = step.cost;
        steps.push(step);
    }
    steps
}

/// Hosts of VMs, by host.
#[must_use]
pub fn counted(hosts: &[usize]) -> Counts {
    let mut counts = Counts::new();
    for &host in hosts {
        *counts.entry(host).or_default() += 1;
    }
    counts
}

/// The sum of two.
#[must_use]
pub fn joined(a: &Counts, b: &Counts) -> Counts {
    let mut both = a.clone();
    for (&host, &vms) in b {
        *both.entry(host).or_default() += vms;
    }
    both
}

/// Room for VMs of one cluster.
#[derive(Debug)]
pub struct Limits<'a> {
    network: &'a Network,
    demand: &'a Demand,
    fixed: &'a Counts,
    /// By host.
    room: Vec<u64>,
    /// Cables between switches that carry as many clusters as they may.
    full: Vec<(usize, usize)>,
    full_hosts: BTreeSet<usize>,
}

impl<'a> Limits<'a> {
    /// The limits of a cluster that is there (`fixed`) or new, among others.
    ///
    /// # Errors
    /// [`Refusal`], by the first constraint of hosts that leaves too little room.
    pub fn new(
        network: &'a Network,
        demand: &'a Demand,
        fixed: &'a Counts,
        others: &[Present],
    ) -> Result<Self, Refusal> {
        let hosts = &network.hosts;
        let mut room: Vec<u64> = vec![u64::MAX; hosts.len()];
        let mut apply = |constraint, limit: &dyn Fn(usize) -> (u64, String)| {
            let mut places = Vec::new();
            for (host, left) in room.iter_mut().enumerate() {
                let (most, told) = limit(host);
                if most < *left {
                    *left = most;
                    places.push(told);
                }
            }
            let sum = room
                .iter()
                .fold(0, |sum: u64, left| sum.saturating_add(*left));
            if sum < demand.vms {
                return Err(Refusal {
                    constraint,
                    asked: demand.vms,
                    room: sum,
                    places,
                });
            }
            Ok(())
        };
        let by = |have: Option<u64>, each: Option<u64>, name: &str| match (have, each) {
            (Some(have), Some(each @ 1..)) => (have / each, format!("{name}: {have}")),
            _ => (u64::MAX, String::new()),
        };
        apply(Constraint::Vfs, &|at| {
            (
                hosts[at].vfs,
                format!("{}: {}", hosts[at].name, hosts[at].vfs),
            )
        })?;
        apply(Constraint::Processors, &|at| {
            by(hosts[at].processors, demand.processors, &hosts[at].name)
        })?;
        apply(Constraint::Memory, &|at| {
            by(hosts[at].memory, demand.memory, &hosts[at].name)
        })?;
        apply(Constraint::PerHost, &|at| {
            let here = fixed.get(&at).copied().unwrap_or(0);
            let most = demand
                .per_host
                .map_or(u64::MAX, |most| most.saturating_sub(here));
            (most, format!("{}: {most}", hosts[at].name))
        })?;
        let mut closed: BTreeMap<usize, usize> = BTreeMap::new();
        for other in others {
            if demand.exclusive_switches || other.exclusive_switches {
                for &host in &other.hosts {
                    *closed.entry(hosts[host].switch).or_default() += 1;
                }
            }
        }
        apply(Constraint::Switches, &|at| {
            let switch = hosts[at].switch;
            match closed.get(&switch) {
                Some(vms) => {
                    let name = &network.switches[switch];
                    (
                        0,
                        format!("{} at {name} with {vms} VMs of others", hosts[at].name),
                    )
                }
                None => (u64::MAX, String::new()),
            }
        })?;
        let load = network.load(others.iter().map(|other| &other.hosts[..]));
        let full = load.iter().filter(|(_, count)| **count >= demand.per_cable);
        let (mut full_hosts, mut links) = (BTreeSet::new(), Vec::new());
        for (&cable, _) in full {
            match cable {
                Cable::Host(host) => drop(full_hosts.insert(host)),
                Cable::Switches(a, b) => links.push((a, b)),
            }
        }
        Ok(Self {
            network,
            demand,
            fixed,
            room,
            full: links,
            full_hosts,
        })
    }

    /// Where to begin: at the VMs that are there, or at switches with room, and at hosts with a full cable, since a cluster on
    /// one host uses none.
    fn seeds(&self) -> Vec<Option<usize>> {
        if !self.fixed.is_empty() {
            return vec![None];
        }
        let hosts = &self.network.hosts;
        let mut firsts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut alone = Vec::new();
        for host in (0..hosts.len()).filter(|&host| self.room[host] > 0) {
            if self.full_hosts.contains(&host) {
                alone.push(host);
                continue;
            }
            let first = firsts.entry(hosts[host].switch).or_insert(host);
            let use_of = |host: usize| self.room[host].min(self.demand.vms);
            if use_of(host) > use_of(*first) {
                *first = host;
            }
        }
        let all: Vec<usize> = firsts.into_values().chain(alone).collect();
        let step = all.len().div_ceil(SEEDS_MAX).max(1);
        all.into_iter().step_by(step).map(Some).collect()
    }

    /// New VMs for which each host has room.
    #[must_use]
    pub fn room(&self) -> &[u64] {
        &self.room
    }

    /// Whether VMs on two hosts of one cluster load no cable beyond its limit.
    #[must_use]
    pub fn fits(&self, a: usize, b: usize) -> bool {
        if a == b {
            return true;
        }
        if self.full_hosts.contains(&a) || self.full_hosts.contains(&b) {
            return false;
        }
        let hosts = &self.network.hosts;
        let pair = (hosts[a].switch, hosts[b].switch);
        self.network.between(a, b).is_some()
            && !{ self.full.iter() }.any(|&cable| self.network.is_on_path(cable, pair))
    }

    /// New VMs around the present ones, or around a host.
    fn grow(&self, seed: Option<usize>) -> Counts {
        let network = self.network;
        let mut new = Counts::new();
        let mut left = self.demand.vms;
        // By switch: cables from there to all VMs so far.
        let mut far = vec![0_u64; network.switches.len()];
        let mut around = self.fixed.clone();
        let add = |far: &mut Vec<u64>, host: usize, vms: u64| {
            for (switch, far) in far.iter_mut().enumerate() {
                let between = network.between_switches(switch, network.hosts[host].switch);
                *far += vms * u64::from(between.map_or(0, |cables| cables + 2));
            }
        };
        for (&host, &vms) in self.fixed {
            add(&mut far, host, vms);
        }
        let mut next = seed;
        let mut closed: BTreeSet<usize> = BTreeSet::new();
        while left > 0 {
            let host = next.take().or_else(|| {
                let candidates = (0..network.hosts.len()).filter(|host| {
                    let taken = new.get(host).copied().unwrap_or(0);
                    self.room[*host] > taken && !closed.contains(host)
                });
                candidates.min_by_key(|&host| {
                    let here = around.get(&host).copied().unwrap_or(0);
                    let room = self.room[host].min(left);
                    let cables = far[network.hosts[host].switch].saturating_sub(2 * here);
                    (cables, std::cmp::Reverse(room), host)
                })
            });
            let Some(host) = host else { break };
            if !{ around.keys() }.all(|&other| self.fits(host, other)) {
                closed.insert(host);
                continue;
            }
            let vms = self.room[host].min(left);
            left -= vms;
            add(&mut far, host, vms);
            *new.entry(host).or_default() += vms;
            *around.entry(host).or_default() += vms;
            closed.insert(host);
        }
        new
    }

    /// Moves single new VMs as long as that helps.
    fn improve(&self, mut now: u64, mut new: Counts) -> Counts {
        let hosts = self.network.hosts.len();
        if hosts.saturating_mul(new.len()) > IMPROVED_MAX / 10 {
            return new;
        }
        for _ in 0..self.demand.vms.min(64) {
            let mut best: Option<(u64, Counts)> = None;
            for &from in new.keys() {
                for to in (0..hosts).filter(|&to| to != from) {
                    let there = new.get(&to).copied().unwrap_or(0);
                    if there >= self.room[to] {
                        continue;
                    }
                    let mut moved = new.clone();
                    if let Some(left) = moved.get_mut(&from) {
                        *left -= 1;
                    }
                    moved.retain(|_, vms| *vms > 0);
                    *moved.entry(to).or_default() += 1;
                    let all = joined(self.fixed, &moved);
                    let cost = cost(self.network, &all);
                    if cost < best.as_ref().map_or(now, |(known, _)| *known) && { all.keys() }
                        .all(|&other| self.fits(to, other))
                    {
                        best = Some((cost, moved));
                    }
                }
            }
            let Some((cost, moved)) = best else { break };
            (now, new) = (cost, moved);
        }
        new
    }

    fn full_names(&self, limit: usize) -> Vec<String> {
        let hosts = self.full_hosts.iter().map(|&host| Cable::Host(host));
        let links = self.full.iter().map(|&(a, b)| Cable::Switches(a, b));
        let names = links.chain(hosts).map(|cable| self.network.name(cable));
        names.map(|name| format!("{name}: {limit}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::network::Host;
    use super::*;

    /// Leaves with so many hosts each under one spine, with room for `vfs` VMs on each host.
    fn tree(leaves: usize, hosts: usize, vfs: u64) -> Network {
        let switches = (0..=leaves).map(|at| format!("sw{at}")).collect();
        let cables = (0..leaves).map(|leaf| (leaf, leaves));
        let hosts = (0..leaves * hosts).map(|at| Host {
            name: format!("hv{at}"),
            switch: at / hosts,
            vfs,
            processors: Some(8),
            memory: None,
        });
        Network::new(switches, cables, hosts.collect())
    }

    fn demand(vms: u64) -> Demand {
        Demand {
            vms,
            ..Demand::default()
        }
    }

    fn present(hosts: &[usize], exclusive_switches: bool) -> Present {
        Present {
            hosts: hosts.to_vec(),
            exclusive_switches,
        }
    }

    #[test]
    fn vms_are_near_each_other() {
        let network = tree(3, 2, 4);
        let new = place(&network, &demand(8), &Counts::new(), &[]).unwrap();
        assert_eq!(new, Counts::from([(0, 4), (1, 4)]));
        // Four more go to the leaf beside, all of them to one host.
        let mut rest = network.clone();
        for (at, host) in rest.hosts.iter_mut().enumerate() {
            host.vfs -= new.get(&at).copied().unwrap_or(0);
        }
        let more = place(&rest, &demand(4), &new, &[]).unwrap();
        assert_eq!(more, Counts::from([(2, 4)]));
        assert_eq!(cost(&network, &joined(&new, &more)), 16 * 2 + 32 * 4);
    }

    #[test]
    fn a_refusal_names_the_constraint() {
        let network = tree(2, 2, 4);
        let refused = |demand: &Demand, others: &[Present]| {
            let refusal = place(&network, demand, &Counts::new(), others).unwrap_err();
            (refusal.constraint, refusal.asked, refusal.room)
        };
        assert_eq!(refused(&demand(17), &[]), (Constraint::Vfs, 17, 16));
        let processors = Demand {
            processors: Some(3),
            ..demand(9)
        };
        assert_eq!(refused(&processors, &[]), (Constraint::Processors, 9, 8));
        let spread = Demand {
            per_host: Some(1),
            ..demand(5)
        };
        assert_eq!(refused(&spread, &[]), (Constraint::PerHost, 5, 4));
        let other = present(&[0], true);
        assert_eq!(refused(&demand(9), &[other]), (Constraint::Switches, 9, 8));
        // Fifteen clusters over both leaves: a new one has room at one leaf's host alone, where no cable is used.
        let others = vec![present(&[0, 1, 2, 3], false); 15];
        assert_eq!(refused(&demand(5), &others), (Constraint::Cables, 5, 4));
        let text = place(&network, &demand(5), &Counts::new(), &others)
            .unwrap_err()
            .to_string();
        assert!(text.contains("sw0 - sw2: 15"), "{text}");
        let few = place(&network, &demand(4), &Counts::new(), &others).unwrap();
        assert_eq!(few.len(), 1);
    }

    #[test]
    fn the_most_distant_vm_goes_first() {
        let network = tree(2, 2, 4);
        let hosts = [0, 0, 3, 1];
        assert_eq!(give_up(&network, &hosts, &[false; 4], 3), [2]);
        assert_eq!(give_up(&network, &hosts, &[false; 4], 2), [2, 3]);
        // One that runs stays as long as another one can go.
        let busy = [false, false, true, false];
        assert_eq!(give_up(&network, &hosts, &busy, 3), [3]);
    }

    #[test]
    fn moves_compact_a_cluster() {
        let network = tree(2, 2, 4);
        let places = Counts::from([(0, 1), (1, 1), (3, 1)]);
        let steps = compact(&network, &[0, 3, 2], &places);
        let step = Step {
            vm: 0,
            to: 3,
            cost: 4,
        };
        assert_eq!(steps, [step]);
        let places = Counts::from([(3, 2)]);
        let steps = compact(&network, &[0, 3, 2], &places);
        assert_eq!(
            steps,
            [
                step,
                Step {
                    vm: 2,
                    to: 3,
                    cost: 0
                }
            ]
        );
    }

    proptest! {
        /// Any placement has the VMs that were asked for, within every limit; what is refused has no room by the count of hosts.
        #[test]
        fn placements_keep_all_limits(
            leaves in 1_usize..5,
            hosts in 1_usize..4,
            vms in 1_u64..20,
            processors in prop::option::of(1_u64..6),
            per_host in prop::option::of(1_u64..4),
            per_cable in 1_usize..4,
            others in prop::collection::vec((prop::collection::vec(0_usize..12, 1..4), any::<bool>()), 0..5),
        ) {
            let network = tree(leaves, hosts, 3);
            let others: Vec<Present> = { others.into_iter() }
                .map(|(at, exclusive)| present(&at.into_iter().map(|at| at % (leaves * hosts)).collect::<Vec<_>>(), exclusive))
                .collect();
            let demand = Demand { vms, processors, per_host, per_cable, ..Demand::default() };
            match place(&network, &demand, &Counts::new(), &others) {
                Ok(new) => {
                    prop_assert_eq!(new.values().sum::<u64>(), vms);
                    for (&host, &count) in &new {
                        prop_assert!(count <= 3 && count * processors.unwrap_or(0) <= 8);
                        prop_assert!(per_host.is_none_or(|most| count <= most));
                        let switch = network.hosts[host].switch;
                        let here = |&at: &usize| network.hosts[at].switch == switch;
                        let mut exclusive = others.iter().filter(|other| other.exclusive_switches);
                        let closed = exclusive.any(|other| other.hosts.iter().any(here));
                        prop_assert!(!closed);
                    }
                    let own: Vec<usize> = new.keys().copied().collect();
                    let load = network.load(others.iter().map(|other| &other.hosts[..]));
                    for cable in network.cables(&own) {
                        prop_assert!(load.get(&cable).copied().unwrap_or(0) < per_cable);
                    }
                }
                Err(refusal) => prop_assert!(refusal.room < vms),
            }
        }
    }
}
