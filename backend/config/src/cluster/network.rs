//! The network as placement needs it: hosts, distances between their switches, and clusters on cables.
//!
//! A cluster counts on each cable that lies on a shortest path between two of its hosts, whichever of these paths the subnet
//! manager chooses: so a limit of clusters on a cable holds before and after its choice. Parallel cables are one here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{Address, Config, Kind, VFS_PER_HYPERVISOR_MAX};

/// Distance between switches without a path.
const NO_PATH: u32 = u32::MAX / 4;

/// A host for VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name of the hypervisor.
    pub name: String,
    /// Its switch.
    pub switch: usize,
    /// VFs that it may still have.
    pub vfs: u64,
    /// Processors that no VM has; `None`: not counted.
    pub processors: Option<u64>,
    /// Bytes of memory that no VM has; `None`: not counted.
    pub memory: Option<u64>,
}

/// Hosts and switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Neighbours of each switch.
    neighbours: Vec<BTreeSet<usize>>,
    /// Cables on a shortest path from one switch to another.
    distances: Vec<Vec<u32>>,
}

/// A cable, or several parallel ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cable {
    /// Cable of a host.
    Host(usize),
    /// Between two switches, the lower first.
    Switches(usize, usize),
}

impl Network {
    /// Hosts on switches that these cables join. A host's switch is one of the names.
    #[must_use]
    pub fn new(
        switches: Vec<String>,
        cables: impl IntoIterator<Item = (usize, usize)>,
        hosts: Vec<Host>,
    ) -> Self {
        let mut neighbours = vec![BTreeSet::new(); switches.len()];
        for (a, b) in cables {
            neighbours[a].insert(b);
            neighbours[b].insert(a);
        }
        let from = |start| distances(&neighbours, start);
        let distances = (0..switches.len()).map(from).collect();
        Self {
            hosts,
            switches,
            neighbours,
            distances,
        }
    }

    /// The network of a configuration, with what its VFs leave of the hosts.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let wiring = &config.wiring;
        let switches: Vec<String> = wiring.switches.iter().map(|it| it.name.clone()).collect();
        let cables: Vec<(usize, usize)> = match &wiring.file {
            None => wiring.cables.clone(),
            Some(file) => {
                let switch = |node| file.switches.iter().position(|&it| it == node);
                let links = file.topology.links().iter();
                links
                    .filter_map(|(a, b, _)| Some((switch(a.node)?, switch(b.node)?)))
                    .collect()
            }
        };
        let range = (1_u64 << config.manager.lmc) - 1;
        let hosts = config.hypervisors.iter().map(|hypervisor| {
            let vms = || hypervisor.vfs.iter().filter(|vf| !vf.model.spare);
            let processors = vms()
                .map(|vf| vf.needs.processors.unwrap_or(0) as u64)
                .sum();
            let memory = vms().filter_map(|vf| vf.guest_memory);
            let memory = memory.fold(0, u64::saturating_add);
            let taken = hypervisor.vfs.len() + hypervisor.hardware.len();
            let mut vfs = VFS_PER_HYPERVISOR_MAX.saturating_sub(taken) as u64;
            let is_shared = hypervisor
                .vfs
                .iter()
                .any(|vf| vf.kind == Kind::Hca && vf.model.address == Address::Shared);
            if (is_shared || !config.fabric.model.has_vswitch())
                && config.fabric.model != crate::AddressModel::Virtualized
            {
                // Each needs one of the port's LIDs.
                let clustered = vms().filter(|vf| vf.model.is_clustered()).count();
                vfs = vfs.min(range.saturating_sub(clustered as u64));
            }
            Host {
                name: hypervisor.name.clone(),
                switch: hypervisor.switch,
                vfs,
                processors: { hypervisor.processors }.map(|all| all.saturating_sub(processors)),
                memory: hypervisor.memory.map(|all| all.saturating_sub(memory)),
            }
        });
        let hosts = hosts.collect();
        Self::new(switches, cables, hosts)
    }

    /// The host of this name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// Cables on a shortest path between switches; `None` without a path.
    #[must_use]
    pub fn between_switches(&self, a: usize, b: usize) -> Option<u32> {
        let distance = self.distances[a][b];
        (distance < NO_PATH).then_some(distance)
    }

    /// Cables on a shortest path between hosts; `None` without a path.
    #[must_use]
    pub fn between(&self, a: usize, b: usize) -> Option<u32> {
        if a == b {
            return Some(0);
        }
        let (a, b) = (self.hosts[a].switch, self.hosts[b].switch);
        Some(2 + self.between_switches(a, b)?)
    }

    /// Whether a cable lies on a shortest path between two switches.
    #[must_use]
    pub fn is_on_path(&self, cable: (usize, usize), (from, to): (usize, usize)) -> bool {
        let d = &self.distances;
        let whole = d[from][to];
        let by = |a: usize, b: usize| d[from][a] + 1 + d[b][to] == whole;
        whole < NO_PATH && (by(cable.0, cable.1) || by(cable.1, cable.0))
    }

    /// Cables that VMs on these hosts may use to reach each other.
    #[must_use]
    pub fn cables(&self, hosts: &[usize]) -> BTreeSet<Cable> {
        let hosts: BTreeSet<usize> = hosts.iter().copied().collect();
        if hosts.len() < 2 {
            return BTreeSet::new();
        }
        let switches: BTreeSet<usize> = hosts.iter().map(|&it| self.hosts[it].switch).collect();
        let mut cables: BTreeSet<Cable> = hosts.into_iter().map(Cable::Host).collect();
        for (a, b) in self.links() {
            let pairs = switches
                .iter()
                .flat_map(|&from| switches.range(from + 1..).map(move |&to| (from, to)));
            if { pairs }.any(|pair| self.is_on_path((a, b), pair)) {
                cables.insert(Cable::Switches(a, b));
            }
        }
        cables
    }

    /// Pairs of switches with a cable, the lower first.
    pub fn links(&self) -> impl Iterator<Item = (usize, usize)> {
        let each = self.neighbours.iter().enumerate();
        each.flat_map(|(a, others)| others.range(a + 1..).map(move |&b| (a, b)))
    }

    /// The number of clusters on each cable, where `hosts` has those of each cluster.
    #[must_use]
    pub fn load<'a>(
        &self,
        clusters: impl IntoIterator<Item = &'a [usize]>,
    ) -> BTreeMap<Cable, usize> {
        let mut load = BTreeMap::new();
        for hosts in clusters {
            for cable in self.cables(hosts) {
                *load.entry(cable).or_default() += 1;
            }
        }
        load
    }

    /// A cable by the names of its ends.
    #[must_use]
    pub fn name(&self, cable: Cable) -> String {
        match cable {
            Cable::Host(host) => {
                let host = &self.hosts[host];
                format!("{} - {}", host.name, self.switches[host.switch])
            }
            Cable::Switches(a, b) => format!("{} - {}", self.switches[a], self.switches[b]),
        }
    }
}

fn distances(neighbours: &[BTreeSet<usize>], start: usize) -> Vec<u32> {
    let mut distances = vec![NO_PATH; neighbours.len()];
    let mut queue = VecDeque::from([start]);
    distances[start] = 0;
    while let Some(at) = queue.pop_front() {
        for &next in &neighbours[at] {
            if distances[next] == NO_PATH {
                distances[next] = distances[at] + 1;
                queue.push_back(next);
            }
        }
    }
    distances
}
