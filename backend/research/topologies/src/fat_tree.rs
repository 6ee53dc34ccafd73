//! Fat-trees: XGFT, PGFT, RLFT, k-ary n-trees and m-port n-trees.

use std::fmt;
use std::str::FromStr;

use fabric::Topology;

use crate::hosts::{Builder, Hosts, MAX_HOSTS, MAX_NODES};

/// The levels of switches that OpenSM's fat-tree routing takes, too.
const MAX_LEVELS: usize = 8;

/// A parallel-ports generalized fat-tree, PGFT(n; m1..mn; w1..wn; p1..pn), written from the roots
/// down as in "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
/// vSwitch-enabled Lossless Networks": a switch of level i - 1 has m_i children, each of which has
/// w_i parents and p_i cables to each; roots are level 0, hosts level n. With all p_i = 1 it is an
/// XGFT(n; m1..mn; w1..wn).
///
/// A switch's ports count its children first, then its parents.
///
/// ```
/// use ibvswitch_topologies::{FatTree, Hosts};
/// let tree: FatTree = "XGFT(2;18,18;18,1)".parse().unwrap();
/// assert_eq!((tree.hosts(), tree.switches()), (324, 36));
/// assert_eq!(tree.topology(Hosts::Adapters).check(), Ok(()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatTree {
    /// From the roots down: children, parents, cables.
    levels: Vec<Level>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    children: u32,
    parents: u32,
    cables: u32,
}

/// Why parameters make no fat-tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FatTreeError {
    /// The text is no fat-tree.
    #[error(
        "{0:?} is no fat-tree; write XGFT(n;m1,..,mn;w1,..,wn) or PGFT(n;m1,..,mn;w1,..,wn;p1,..,pn), with the levels from the roots down"
    )]
    Syntax(String),
    /// Too few levels, or too many.
    #[error("{0} levels; a fat-tree has 1 to 8")]
    Levels(usize),
    /// A list is longer or shorter than the number of levels.
    #[error("{list} has {found} numbers for {levels} levels; give one per level")]
    Length {
        /// `m`, `w` or `p`.
        list: char,
        /// Numbers in it.
        found: usize,
        /// Levels.
        levels: usize,
    },
    /// Zero children, parents or cables.
    #[error("{list}{level} is 0; give at least 1")]
    Zero {
        /// `m`, `w` or `p`.
        list: char,
        /// From 1.
        level: usize,
    },
    /// Hosts with several uplinks.
    #[error(
        "w{level} and p{level} must be 1: a host has one uplink; levels are written from the roots down, \
         so turn lists round that go from the hosts up"
    )]
    HostUplinks {
        /// The last level.
        level: usize,
    },
    /// A switch with more ports than there can be.
    #[error(
        "a switch of level {level} would have {ports} ports; a switch has 1 to 254 (level 0 are the \
         roots, with m1 and w1, as lists go from the roots down)"
    )]
    Ports {
        /// Roots are level 0.
        level: usize,
        /// Number of ports that it would have.
        ports: u64,
    },
    /// A tree larger than a generator makes.
    #[error("{hosts} hosts and {switches} switches; up to 65535 hosts and 1048576 nodes are made")]
    TooLarge {
        /// Hosts.
        hosts: u64,
        /// Switches.
        switches: u64,
    },
    /// A radix of which no tree is made.
    #[error("switches of {0} ports; a fat-tree takes an even number from 2 to 254")]
    Radix(u32),
}

impl FatTree {
    /// XGFT(n; m1..mn; w1..wn), n being the length of the lists.
    ///
    /// # Errors
    /// [`FatTreeError`].
    pub fn xgft(children: &[u32], parents: &[u32]) -> Result<Self, FatTreeError> {
        Self::pgft(children, parents, &vec![1; children.len()])
    }

    /// PGFT(n; m1..mn; w1..wn; p1..pn), n being the length of the lists.
    ///
    /// # Errors
    /// [`FatTreeError`].
    pub fn pgft(children: &[u32], parents: &[u32], cables: &[u32]) -> Result<Self, FatTreeError> {
        let levels = children.len();
        if !(1..=MAX_LEVELS).contains(&levels) {
            return Err(FatTreeError::Levels(levels));
        }
        for (list, numbers) in [('m', children), ('w', parents), ('p', cables)] {
            let found = numbers.len();
            if found != levels {
                return Err(FatTreeError::Length {
                    list,
                    found,
                    levels,
                });
            }
            if let Some(level) = numbers.iter().position(|&number| number == 0) {
                let level = level + 1;
                return Err(FatTreeError::Zero { list, level });
            }
        }
        if parents[levels - 1] != 1 || cables[levels - 1] != 1 {
            return Err(FatTreeError::HostUplinks { level: levels });
        }
        let lists = children.iter().zip(parents).zip(cables);
        let tree = Self {
            levels: lists
                .map(|((&children, &parents), &cables)| Level {
                    children,
                    parents,
                    cables,
                })
                .collect(),
        };
        tree.checked()
    }

    /// A real-life fat-tree of switches with `radix` ports: constant bisection bandwidth, as few
    /// levels as `hosts` need and as few roots as carry them, several cables to each if need be.
    ///
    /// Up to a multiple of the hosts of a subtree of the roots, so that there may be more hosts than
    /// asked for.
    ///
    /// # Errors
    /// [`FatTreeError`].
    pub fn rlft(radix: u32, hosts: u32) -> Result<Self, FatTreeError> {
        if !(2..=254).contains(&radix) || !radix.is_multiple_of(2) {
            return Err(FatTreeError::Radix(radix));
        }
        let half = radix / 2;
        if hosts <= radix {
            return Self::xgft(&[hosts], &[1]);
        }
        let too_large = FatTreeError::TooLarge {
            hosts: hosts.into(),
            switches: 0,
        };
        let mut below = half;
        let mut levels = 2;
        while u64::from(below) * u64::from(radix) < u64::from(hosts) {
            below = below.checked_mul(half).ok_or(too_large.clone())?;
            levels += 1;
            if half == 1 || levels > MAX_LEVELS {
                return Err(too_large);
            }
        }
        let trees = hosts.div_ceil(below);
        // Fewest roots whose cables to every subtree are equally many and fit the radix.
        let roots = (1..=half)
            .find(|roots| half.is_multiple_of(*roots) && trees * (half / roots) <= radix)
            .unwrap_or(half);
        let mut children = vec![half; levels];
        let mut parents = vec![half; levels];
        let mut cables = vec![1; levels];
        children[0] = trees;
        parents[0] = roots;
        cables[0] = half / roots;
        parents[levels - 1] = 1;
        Self::pgft(&children, &parents, &cables)
    }

    /// A k-ary n-tree: k^n hosts, n levels of k^(n-1) switches.
    ///
    /// # Errors
    /// [`FatTreeError`].
    pub fn k_ary_n_tree(k: u32, n: usize) -> Result<Self, FatTreeError> {
        if !(1..=MAX_LEVELS).contains(&n) {
            return Err(FatTreeError::Levels(n));
        }
        let mut parents = vec![k; n];
        parents[n - 1] = 1;
        Self::xgft(&vec![k; n], &parents)
    }

    /// An m-port n-tree: 2 (m/2)^n hosts, (2n - 1) (m/2)^(n-1) switches of m ports.
    ///
    /// # Errors
    /// [`FatTreeError`].
    pub fn m_port_n_tree(m: u32, n: usize) -> Result<Self, FatTreeError> {
        if !(1..=MAX_LEVELS).contains(&n) {
            return Err(FatTreeError::Levels(n));
        }
        if !(2..=254).contains(&m) || !m.is_multiple_of(2) {
            return Err(FatTreeError::Radix(m));
        }
        let mut children = vec![m / 2; n];
        children[0] = m;
        let mut parents = vec![m / 2; n];
        parents[n - 1] = 1;
        Self::xgft(&children, &parents)
    }

    fn checked(self) -> Result<Self, FatTreeError> {
        for level in 0..self.levels.len() {
            let ports = self.down_ports(level) + self.up_ports(level);
            if ports > 254 {
                return Err(FatTreeError::Ports { level, ports });
            }
        }
        let product = |count: Option<u64>| count.unwrap_or(u64::MAX);
        let hosts = product(self.nodes_at(self.levels.len()));
        let switches = (0..self.levels.len())
            .try_fold(0u64, |sum, level| sum.checked_add(self.nodes_at(level)?));
        let switches = product(switches);
        if hosts > MAX_HOSTS || switches.saturating_add(hosts) > MAX_NODES {
            return Err(FatTreeError::TooLarge { hosts, switches });
        }
        Ok(self)
    }

    fn nodes_at(&self, level: usize) -> Option<u64> {
        self.levels
            .iter()
            .enumerate()
            .map(|(at, entry)| {
                u64::from(if at < level {
                    entry.children
                } else {
                    entry.parents
                })
            })
            .try_fold(1u64, u64::checked_mul)
    }

    fn down_ports(&self, level: usize) -> u64 {
        let entry = &self.levels[level];
        u64::from(entry.children) * u64::from(entry.cables)
    }

    fn up_ports(&self, level: usize) -> u64 {
        match level.checked_sub(1) {
            Some(above) => {
                let entry = &self.levels[above];
                u64::from(entry.parents) * u64::from(entry.cables)
            }
            None => 0,
        }
    }

    /// Levels of switches.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Hosts.
    pub fn hosts(&self) -> usize {
        self.nodes_at(self.levels.len()).unwrap_or(0) as usize
    }

    /// Switches, vSwitches not among them.
    pub fn switches(&self) -> usize {
        (0..self.levels.len())
            .filter_map(|level| self.nodes_at(level))
            .sum::<u64>() as usize
    }

    /// Switches of the highest level, which come first among the nodes.
    pub fn roots(&self) -> usize {
        self.nodes_at(0).unwrap_or(0) as usize
    }

    /// The nodes and cables: switches from the roots down, then the hosts.
    pub fn topology(&self, hosts: Hosts) -> Topology {
        let mut builder = Builder::new(hosts);
        let height = self.levels.len();
        let mut nodes = Vec::with_capacity(height);
        for level in 0..height {
            let ports = (self.down_ports(level) + self.up_ports(level)) as u8;
            let count = self.nodes_at(level).unwrap_or(0) as usize;
            let row: Vec<_> = (0..count)
                .map(|index| {
                    let name = format!("{level}.{}", self.tuple(level, index));
                    builder.switch(ports, &name)
                })
                .collect();
            nodes.push(row);
        }
        for level in 1..height {
            let Level {
                children: _,
                parents,
                cables,
            } = self.levels[level - 1];
            let first_up = self.down_ports(level) as u32 + 1;
            for (index, &node) in nodes[level].iter().enumerate() {
                let (child, parent) = self.parent(level, index);
                for up in 0..parents {
                    for cable in 0..cables {
                        let above = nodes[level - 1][parent(up)];
                        let down = (child * cables + cable + 1) as u8;
                        let port = (first_up + up * cables + cable) as u8;
                        builder.cable((above, down), (node, port));
                    }
                }
            }
        }
        for &leaf in &nodes[height - 1] {
            for port in 1..=self.levels[height - 1].children {
                builder.host((leaf, port as u8));
            }
        }
        builder.finish()
    }

    /// The radices of the digits of a node's number, from x1.
    fn radices(&self, level: usize) -> impl DoubleEndedIterator<Item = u32> {
        let levels = self.levels.iter().enumerate();
        levels.map(move |(at, entry)| {
            if at < level {
                entry.children
            } else {
                entry.parents
            }
        })
    }

    /// x1.x2...: the digits of a switch that are not always 0.
    fn tuple(&self, level: usize, mut index: usize) -> String {
        let mut digits: Vec<String> = Vec::new();
        for radix in self.radices(level).rev() {
            digits.push((index % radix as usize).to_string());
            index /= radix as usize;
        }
        // A host has one uplink, so that the last digit of a switch is 0.
        digits.reverse();
        digits.pop();
        digits.join(".")
    }

    /// Returns the number of a switch among the children of its parents, and a function that gives the index of
    /// each parent.
    fn parent(&self, level: usize, index: usize) -> (u32, impl Fn(u32) -> usize) {
        // The digits below x_level, which parent and child share, weigh the same in both.
        let below: usize = self
            .radices(level)
            .skip(level)
            .map(|r| r as usize)
            .product();
        let Level {
            children, parents, ..
        } = self.levels[level - 1];
        let (low, rest) = (index % below, index / below);
        let (child, high) = (rest % children as usize, rest / children as usize);
        let parent = move |up: u32| (high * parents as usize + up as usize) * below + low;
        (child as u32, parent)
    }
}

impl fmt::Display for FatTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |number: fn(&Level) -> u32| {
            let numbers: Vec<_> = self.levels.iter().map(|l| number(l).to_string()).collect();
            numbers.join(",")
        };
        let plain = self.levels.iter().all(|level| level.cables == 1);
        let name = if plain { "XGFT" } else { "PGFT" };
        let (m, w) = (list(|l| l.children), list(|l| l.parents));
        write!(f, "{name}({};{m};{w}", self.levels.len())?;
        if !plain {
            write!(f, ";{}", list(|l| l.cables))?;
        }
        f.write_str(")")
    }
}

impl FromStr for FatTree {
    type Err = FatTreeError;

    fn from_str(text: &str) -> Result<Self, FatTreeError> {
        let syntax = || FatTreeError::Syntax(text.chars().take(80).collect());
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let upper = compact.to_ascii_uppercase();
        let inner = |name: &str| upper.strip_prefix(name)?.strip_suffix(')');
        let (fields, lists) = match (inner("XGFT("), inner("PGFT(")) {
            (Some(fields), _) => (fields, 2),
            (_, Some(fields)) => (fields, 3),
            _ => return Err(syntax()),
        };
        let mut fields = fields.split(';');
        let mut numbers = || -> Option<Vec<u32>> {
            let list = fields.next()?.split(',').take(2 * MAX_LEVELS);
            list.map(|number| number.parse().ok()).collect()
        };
        let height = numbers().ok_or_else(syntax)?;
        let (children, parents) = (numbers(), numbers());
        let (children, parents) = (children.ok_or_else(syntax)?, parents.ok_or_else(syntax)?);
        let cables = match lists {
            2 => vec![1; children.len()],
            _ => numbers().ok_or_else(syntax)?,
        };
        if fields.next().is_some() || height.len() != 1 {
            return Err(syntax());
        }
        let levels = height[0] as usize;
        if children.len() != levels {
            return Err(FatTreeError::Length {
                list: 'm',
                found: children.len(),
                levels,
            });
        }
        Self::pgft(&children, &parents, &cables)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use wire::attribute::NodeType;

    use super::*;

    /// Nodes and switches of the trees that the paper names (section 7 and its tables).
    #[test]
    fn published_sizes() {
        for (text, hosts, switches) in [
            ("XGFT(2;8,4;4,1)", 32, 12),
            ("XGFT(2;8,8;8,1)", 64, 16),
            ("XGFT(3;8,4,4;4,4,1)", 128, 80),
            ("XGFT(2;16,16;16,1)", 256, 32),
            ("XGFT(3;8,8,8;8,8,1)", 512, 192),
            ("XGFT(3;16,8,8;8,8,1)", 1024, 320),
            ("XGFT(2;18,18;18,1)", 324, 36),
            ("XGFT(2;36,18;18,1)", 648, 54),
            ("XGFT(3;18,18,18;18,18,1)", 5832, 972),
            ("XGFT(3;36,18,18;18,18,1)", 11664, 1620),
            ("XGFT(4;12,12,12,12;12,12,12,1)", 20736, 6912),
        ] {
            let tree: FatTree = text.parse().unwrap();
            assert_eq!((tree.hosts(), tree.switches()), (hosts, switches), "{text}");
            assert_eq!(tree.to_string(), text);
        }
        // "LID Assignment in InfiniBand Networks", section VI.
        let tree = FatTree::m_port_n_tree(8, 3).unwrap();
        assert_eq!((tree.hosts(), tree.switches()), (128, 80));
        let tree = FatTree::k_ary_n_tree(4, 3).unwrap();
        assert_eq!((tree.hosts(), tree.switches()), (64, 48));
    }

    /// Every pair of levels is cabled as the tuples say: names differ in one place only.
    #[test]
    fn cables_follow_the_tuples() {
        let tree: FatTree = "PGFT(3;3,2,4;2,3,1;2,1,1)".parse().unwrap();
        let topology = tree.topology(Hosts::Adapters);
        assert_eq!(topology.check(), Ok(()));
        let name = |port: fabric::PortRef| {
            let node = &topology.nodes()[port.node.index()];
            (node.kind == NodeType::Switch).then(|| node.description.to_string())
        };
        let mut between = HashMap::new();
        for &(a, b, _) in topology.links() {
            let (Some(upper), Some(lower)) = (name(a), name(b)) else {
                continue;
            };
            let digits = |name: &str| -> Vec<u32> {
                name.split('.')
                    .map(|digit| digit.parse().unwrap())
                    .collect()
            };
            let (upper, lower) = (digits(&upper), digits(&lower));
            let level = upper[0] as usize;
            assert_eq!(lower[0] as usize, level + 1);
            for at in 1..upper.len() {
                assert!(
                    upper[at] == lower[at] || at == level + 1,
                    "{upper:?} {lower:?}"
                );
            }
            *between.entry((upper, lower)).or_insert(0) += 1;
        }
        for ((upper, _), cables) in &between {
            assert_eq!(*cables, if upper[0] == 0 { 2 } else { 1 });
        }
        // Roots 2 x 3 with 3 children, 3 x 3 switches with 2 children.
        assert_eq!(between.len(), 6 * 3 + 9 * 2);
    }

    #[test]
    fn hypervisors() {
        let tree: FatTree = "XGFT(2;2,2;2,1)".parse().unwrap();
        let topology = tree.topology(Hosts::Hypervisors { functions: 3 });
        assert_eq!(topology.check(), Ok(()));
        assert_eq!(topology.nodes().len(), 4 + 4 * (1 + 3));
        assert_eq!(topology.links().len(), 4 + 4 * (1 + 3));
    }

    #[test]
    fn real_life() {
        let text = |radix, hosts| FatTree::rlft(radix, hosts).unwrap().to_string();
        assert_eq!(text(36, 36), "XGFT(1;36;1)");
        assert_eq!(text(36, 324), "PGFT(2;18,18;9,1;2,1)");
        assert_eq!(text(36, 648), "XGFT(2;36,18;18,1)");
        assert_eq!(text(36, 11664), "XGFT(3;36,18,18;18,18,1)");
        assert_eq!(text(36, 100), "PGFT(2;6,18;3,1;6,1)");
        for hosts in [37, 649, 5832, 7000] {
            let tree = FatTree::rlft(36, hosts).unwrap();
            assert!(tree.hosts() >= hosts as usize);
            assert_eq!(tree.topology(Hosts::Adapters).check(), Ok(()), "{tree}");
        }
    }

    #[test]
    fn impossible() {
        let error = |text: &str| text.parse::<FatTree>().unwrap_err().to_string();
        assert_eq!(error("XGFT(2;0,4;4,1)"), "m1 is 0; give at least 1");
        assert_eq!(
            error("XGFT(2;8,4;4)"),
            "w has 1 numbers for 2 levels; give one per level"
        );
        assert_eq!(
            error("XGFT(3;8,4;4,1)"),
            "m has 2 numbers for 3 levels; give one per level"
        );
        assert_eq!(
            error("XGFT(2;300,4;4,1)"),
            "a switch of level 0 would have 300 ports; a switch has 1 to 254 (level 0 are the roots, \
             with m1 and w1, as lists go from the roots down)"
        );
        assert_eq!(
            error("XGFT(2;8,4;4,2)"),
            "w2 and p2 must be 1: a host has one uplink; levels are written from the roots down, so \
             turn lists round that go from the hosts up"
        );
        assert_eq!(
            error("XGFT(4;200,200,200,200;1,1,1,1)"),
            "1600000000 hosts and 8040201 switches; up to 65535 hosts and 1048576 nodes are made"
        );
        assert!(error("XGFT(2;8,x;4,1)").contains("is no fat-tree"));
        assert!(error("").contains("is no fat-tree"));
        assert_eq!(FatTree::rlft(7, 9), Err(FatTreeError::Radix(7)));
        assert!(FatTree::rlft(4, u32::MAX).is_err());
        assert!(FatTree::rlft(2, 9).is_err());
        assert!(FatTree::rlft(36, 0).is_err());
        assert_eq!(FatTree::k_ary_n_tree(2, 0), Err(FatTreeError::Levels(0)));
        assert_eq!(
            FatTree::m_port_n_tree(300, 2),
            Err(FatTreeError::Radix(300))
        );
    }
}
