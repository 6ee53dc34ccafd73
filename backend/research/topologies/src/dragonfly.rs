//! Dragonflies.

use fabric::Topology;

use crate::hosts::{Builder, Hosts, MAX_HOSTS};

/// Groups of switches that are all cabled to each other, and as many cables between every two groups.
///
/// Port 1 and those after it lead to the other switches of the group, by rising number; the next ones to other groups, and
/// hosts are at the ports after these. The ports of a group that lead to others, counted through its switches, go to the
/// next group, the one after that and so on, and then once more round for the second cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dragonfly {
    groups: u32,
    switches: u32,
    cables: u32,
    hosts: u8,
}

/// Why parameters make no dragonfly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DragonflyError {
    /// Fewer than two groups or two switches in one.
    #[error("{groups} groups of {switches} switches; give at least 2 of each")]
    Small {
        /// Groups.
        groups: u32,
        /// Switches of a group.
        switches: u32,
    },
    /// Not every group can have a cable to every other.
    #[error(
        "{ports} ports of a group for {others} other groups; give fewer groups, or more cables at a switch"
    )]
    Groups {
        /// Ports of a group to others.
        ports: u32,
        /// Other groups.
        others: u32,
    },
    /// More ports than a switch has, or more switches or hosts than a generator makes.
    #[error("too large: a switch has up to 254 ports, and up to 65535 switches and hosts are made")]
    TooLarge,
}

impl Dragonfly {
    /// So many groups of so many switches, each with so many cables to other groups and so many hosts.
    ///
    /// # Errors
    /// [`DragonflyError`].
    pub fn new(groups: u32, switches: u32, cables: u32, hosts: u8) -> Result<Self, DragonflyError> {
        if groups < 2 || switches < 2 {
            return Err(DragonflyError::Small { groups, switches });
        }
        let ports = u64::from(switches) - 1 + u64::from(cables) + u64::from(hosts);
        let all = u64::from(groups) * u64::from(switches);
        if ports > 254 || all.saturating_mul(u64::from(hosts).max(1)) > MAX_HOSTS {
            return Err(DragonflyError::TooLarge);
        }
        let (ports, others) = (switches * cables, groups - 1);
        if ports < others {
            return Err(DragonflyError::Groups { ports, others });
        }
        Ok(Self {
            groups,
            switches,
            cables,
            hosts,
        })
    }

    /// The nodes and cables: switches by their groups, then hosts.
    #[must_use]
    pub fn topology(&self, hosts: Hosts) -> Topology {
        let mut builder = Builder::new(hosts);
        let Self {
            groups,
            switches,
            cables,
            hosts,
        } = *self;
        let trunks = (switches - 1 + cables) as u8;
        let mut nodes = Vec::new();
        for group in 0..groups {
            for switch in 0..switches {
                nodes.push(builder.switch(trunks + hosts, &format!("switch {group}.{switch}")));
            }
        }
        for group in nodes.chunks(switches as usize) {
            for one in 0..switches {
                for other in one + 1..switches {
                    let ends = (group[one as usize], group[other as usize]);
                    builder.cable((ends.0, other as u8), (ends.1, one as u8 + 1));
                }
            }
        }
        // Whole rounds of the other groups.
        let rounds = switches * cables / (groups - 1);
        let port = |group: u32, step: u32, round: u32| {
            let number = round * (groups - 1) + step - 1;
            let node = nodes[(group * switches + number / cables) as usize];
            (node, (switches + number % cables) as u8)
        };
        for group in 0..groups {
            for step in 1..groups {
                let other = (group + step) % groups;
                for round in (0..rounds).filter(|_| group < other) {
                    builder.cable(port(group, step, round), port(other, groups - step, round));
                }
            }
        }
        for &node in &nodes {
            for port in 1..=hosts {
                builder.host((node, trunks + port));
            }
        }
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cables_within_and_between() {
        for (parameters, within, between) in [
            ((9, 4, 2, 2), 9 * 6, 36),
            ((3, 4, 1, 1), 3 * 6, 3 * 2),
            ((2, 2, 3, 0), 2, 6),
        ] {
            let (groups, switches, cables, hosts) = parameters;
            let dragonfly = Dragonfly::new(groups, switches, cables, hosts).unwrap();
            let topology = dragonfly.topology(Hosts::Adapters);
            assert_eq!(topology.check(), Ok(()));
            assert_eq!(crate::trunks(&topology), within + between);
        }
        let error = Dragonfly::new(10, 4, 2, 1).unwrap_err().to_string();
        assert!(
            error.starts_with("8 ports of a group for 9 other groups"),
            "{error}"
        );
        assert!(Dragonfly::new(1, 4, 2, 1).is_err());
        assert!(Dragonfly::new(9, 200, 60, 1).is_err());
    }
}
