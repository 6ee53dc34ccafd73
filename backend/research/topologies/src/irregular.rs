//! Random irregular networks.

use std::collections::HashSet;

use fabric::Topology;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::hosts::{Builder, Hosts, MAX_HOSTS};

/// Switches cabled at random, hosts placed at random: what "LID Assignment in InfiniBand Networks"
/// compares on (section VI), there with 16, 32 and 64 switches of degree 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Irregular {
    switches: u32,
    degree: u32,
    hosts: u32,
    seed: u64,
}

/// Why parameters make no irregular network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IrregularError {
    /// No switches, or more than are made.
    #[error("{0} switches; 1 to 65535 are made")]
    Switches(u32),
    /// More hosts than are made.
    #[error("{0} hosts; up to 65535 are made")]
    Hosts(u32),
    /// The degree does not connect the switches, or asks for more cables than there are pairs.
    #[error("degree {degree} with {switches} switches; give {least} to {most}")]
    Degree {
        /// The requested degree.
        degree: u32,
        /// Switches.
        switches: u32,
        /// The least that connects them.
        least: u32,
        /// The most that a cable per pair, and 128 ports, allow.
        most: u32,
    },
    /// A switch came out with more ports than there can be.
    #[error(
        "a switch would have {ports} ports; give fewer hosts, a smaller degree or another seed"
    )]
    Ports {
        /// Number of ports that it would have.
        ports: usize,
    },
}

impl Irregular {
    /// A network with this many switches that have `degree` neighbours on average, hosts not among
    /// them, and this many hosts on random switches.
    ///
    /// # Errors
    /// [`IrregularError`].
    pub fn new(switches: u32, degree: u32, hosts: u32, seed: u64) -> Result<Self, IrregularError> {
        if !(1..=MAX_HOSTS as u32).contains(&switches) {
            return Err(IrregularError::Switches(switches));
        }
        if u64::from(hosts) > MAX_HOSTS {
            return Err(IrregularError::Hosts(hosts));
        }
        let least = match switches {
            1 => 0,
            2 => 1,
            _ => 2,
        };
        let most = (switches - 1).min(128);
        if !(least..=most).contains(&degree) {
            return Err(IrregularError::Degree {
                degree,
                switches,
                least,
                most,
            });
        }
        let irregular = Self {
            switches,
            degree,
            hosts,
            seed,
        };
        let ports = irregular.draw().ports();
        match ports.iter().max() {
            Some(&ports) if ports > 254 => Err(IrregularError::Ports { ports }),
            _ => Ok(irregular),
        }
    }

    fn draw(&self) -> Drawn {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let switches = self.switches as usize;
        let mut order: Vec<usize> = (0..switches).collect();
        order.shuffle(&mut random);
        let mut pairs = HashSet::new();
        let mut cables = Vec::new();
        let mut add = |a: usize, b: usize| {
            if a != b && pairs.insert((a.min(b), a.max(b))) {
                cables.push((a, b));
            }
            cables.len()
        };
        // A random tree first, so that every switch is reached.
        for at in 1..switches {
            add(order[at], order[random.random_range(0..at)]);
        }
        let wanted = switches * self.degree as usize / 2;
        if switches > 1 {
            while add(
                random.random_range(0..switches),
                random.random_range(0..switches),
            ) < wanted
            {}
        }
        let hosts = (0..self.hosts)
            .map(|_| random.random_range(0..switches))
            .collect();
        Drawn {
            switches,
            cables,
            hosts,
        }
    }

    /// The nodes and cables: switches, then hosts. A switch's cables to switches come first.
    pub fn topology(&self, hosts: Hosts) -> Topology {
        let drawn = self.draw();
        let mut builder = Builder::new(hosts);
        let ports = drawn.ports();
        let nodes: Vec<_> = (0..drawn.switches)
            .map(|at| builder.switch(ports[at].clamp(1, 254) as u8, &format!("switch {at}")))
            .collect();
        let mut next = vec![1u8; drawn.switches];
        let mut port = |at: usize| {
            next[at] += 1;
            (nodes[at], next[at] - 1)
        };
        for &(a, b) in &drawn.cables {
            builder.cable(port(a), port(b));
        }
        for &at in &drawn.hosts {
            builder.host(port(at));
        }
        builder.finish()
    }
}

struct Drawn {
    switches: usize,
    cables: Vec<(usize, usize)>,
    /// The switch of every host.
    hosts: Vec<usize>,
}

impl Drawn {
    fn ports(&self) -> Vec<usize> {
        let mut ports = vec![0; self.switches];
        let ends = self.cables.iter().flat_map(|&(a, b)| [a, b]);
        for at in ends.chain(self.hosts.iter().copied()) {
            ports[at] += 1;
        }
        ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Parts;

    #[test]
    fn connected_and_of_its_degree() {
        for seed in 0..10 {
            let topology = Irregular::new(16, 8, 64, seed).unwrap();
            let topology = topology.topology(Hosts::Adapters);
            assert_eq!(topology.check(), Ok(()));
            assert_eq!(topology.nodes().len(), 16 + 64);
            assert_eq!(topology.links().len(), 64 + 64);
            let mut parts = Parts::new(80);
            let links = topology.links().iter();
            let joined = links.filter(|(a, b, _)| parts.join(a.node.index(), b.node.index()));
            assert_eq!(joined.count(), 79, "seed {seed}");
        }
        let same = |seed| {
            Irregular::new(16, 8, 64, seed)
                .unwrap()
                .topology(Hosts::Adapters)
        };
        assert_eq!(same(1), same(1));
        assert_ne!(same(1), same(2));
        for (switches, degree) in [(1, 0), (2, 1), (3, 2), (9, 8)] {
            let network = Irregular::new(switches, degree, 3, 0).unwrap();
            let topology = network.topology(Hosts::Hypervisors { functions: 2 });
            assert_eq!(topology.check(), Ok(()), "{switches}");
        }
    }

    #[test]
    fn impossible() {
        let error = |switches, degree, hosts| {
            let error = Irregular::new(switches, degree, hosts, 0).unwrap_err();
            error.to_string()
        };
        assert_eq!(error(0, 8, 1), "0 switches; 1 to 65535 are made");
        assert_eq!(error(16, 16, 1), "degree 16 with 16 switches; give 2 to 15");
        assert_eq!(error(16, 1, 1), "degree 1 with 16 switches; give 2 to 15");
        assert_eq!(
            error(1, 0, 300),
            "a switch would have 300 ports; give fewer hosts, a smaller degree or another seed"
        );
        assert_eq!(error(1, 0, 70_000), "70000 hosts; up to 65535 are made");
    }
}
