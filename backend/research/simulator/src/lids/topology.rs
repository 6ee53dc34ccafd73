//! Networks for experiments with LIDs.

use lid_assignment::paths::UpDown;
use lid_assignment::{Kind, LinkId, Network, NodeIndex, Path};
use rand::{Rng, RngExt as _};

/// Why there is no such network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Fewer than two machines have no paths.
    #[error("{machines} machines: take at least 2")]
    Machines {
        /// Asked for.
        machines: usize,
    },
    /// Fewer than two switches, or none.
    #[error("{switches} switches: take at least {least}")]
    Switches {
        /// Asked for.
        switches: usize,
        /// Needed.
        least: usize,
    },
    /// More cables than pairs of switches, or too few to connect them.
    #[error(
        "degree {degree} among {switches} switches: take at least 1 and less than {switches}, and enough for random cables to connect all (about the logarithm of the number of switches)"
    )]
    Degree {
        /// Asked for.
        degree: usize,
        /// Switches.
        switches: usize,
    },
    /// An m-port n-tree needs an even number of ports.
    #[error(
        "a tree of {ports}-port switches in {levels} levels: ports must be even and at least 2, levels at least 1, and switches and machines fit in memory"
    )]
    Tree {
        /// Ports of a switch.
        ports: usize,
        /// Levels.
        levels: usize,
    },
    /// A torus without an extent.
    #[error("a torus of extents {0:?}: every extent must be at least 1")]
    Torus(Vec<usize>),
}

/// Draws of a random graph before it is given up: with a degree near the logarithm of the number of
/// switches or above, the first few are connected.
const DRAWS: usize = 1000;

/// A connected random graph of switches, each pair of which has a cable with the same chance, so that
/// a switch has `degree` of them on average, and machines at switches chosen uniformly. Graphs in
/// parts are drawn anew.
///
/// This is what the pure random method of the generator GT-ITM draws ("How to Model an
/// Internetwork", Zegura, Calvert, Bhattacharjee): some switches have few cables, and these bound
/// what any routing can do.
///
/// # Errors
/// [`TopologyError`] when there is no such graph, or none is found.
pub fn irregular(
    machines: usize,
    switches: usize,
    degree: usize,
    random: &mut impl Rng,
) -> Result<Network, TopologyError> {
    if machines < 2 {
        return Err(TopologyError::Machines { machines });
    }
    if switches < 2 {
        let least = 2;
        return Err(TopologyError::Switches { switches, least });
    }
    let wrong = TopologyError::Degree { degree, switches };
    if degree >= switches || degree == 0 {
        return Err(wrong);
    }
    let chance = degree as f64 / (switches - 1) as f64;
    for _ in 0..DRAWS {
        let mut network = Network::default();
        let nodes: Vec<NodeIndex> = (0..switches).map(|_| network.add_switch()).collect();
        for (at, &a) in nodes.iter().enumerate() {
            for &b in &nodes[at + 1..] {
                if random.random_bool(chance) {
                    network.cable(a, b);
                }
            }
        }
        if UpDown::new(&network, nodes[0]).is_err() {
            continue;
        }
        for _ in 0..machines {
            let machine = network.add_machine();
            network.cable(machine, nodes[random.random_range(0..switches)]);
        }
        return Ok(network);
    }
    Err(wrong)
}

/// A regular topology with its own routing.
#[derive(Debug, Clone)]
pub struct Regular {
    /// Name of the structure.
    pub name: &'static str,
    /// The network.
    pub network: Network,
    /// A path for every pair of machines.
    pub paths: Vec<Path>,
}

impl Regular {
    /// Whether a link joins two switches.
    #[must_use]
    pub fn is_trunk(&self, link: LinkId) -> bool {
        let link = self.network.link(link);
        [link.from, link.to]
            .into_iter()
            .all(|node| self.network.kind(node) == Kind::Switch)
    }
}

/// A torus of switches with a machine at each; the switch at coordinates `c` is node
/// `((c0 * e1) + c1) * e2 + ...`, its machine has the same number plus the number of switches.
///
/// # Errors
/// [`TopologyError::Torus`] for an extent of 0.
pub fn torus(extents: &[usize]) -> Result<Network, TopologyError> {
    if extents.is_empty() || extents.contains(&0) {
        return Err(TopologyError::Torus(extents.to_vec()));
    }
    let mut network = Network::default();
    let switches: usize = extents.iter().product();
    let nodes: Vec<NodeIndex> = (0..switches).map(|_| network.add_switch()).collect();
    for at in 0..switches {
        for dimension in 0..extents.len() {
            // A ring of two is one cable; a ring of one is none.
            let next = step(extents, at, dimension, 1);
            let once = extents[dimension] > 2 || at < next;
            if next != at && once {
                network.cable(nodes[at], nodes[next]);
            }
        }
    }
    for &switch in &nodes {
        let machine = network.add_machine();
        network.cable(machine, switch);
    }
    Ok(network)
}

/// The switch so many steps further along a dimension.
fn step(extents: &[usize], at: usize, dimension: usize, by: usize) -> usize {
    let stride: usize = extents[dimension + 1..].iter().product();
    let extent = extents[dimension];
    let coordinate = at / stride % extent;
    at - coordinate * stride + (coordinate + by) % extent * stride
}

/// A torus routed in dimension order: along the first dimension the shorter way round until the
/// coordinate agrees, then along the next one. Half way round, upwards.
///
/// # Errors
/// As [`torus`].
pub fn dimension_order(name: &'static str, extents: &[usize]) -> Result<Regular, TopologyError> {
    let network = torus(extents)?;
    let switches: usize = extents.iter().product();
    let mut paths = Vec::with_capacity(switches * switches);
    let nodes: Vec<NodeIndex> = network.nodes().collect();
    for from in 0..switches {
        for to in (0..switches).filter(|&to| to != from) {
            let mut along = vec![nodes[switches + from], nodes[from]];
            let mut at = from;
            for (dimension, &extent) in extents.iter().enumerate() {
                let stride: usize = extents[dimension + 1..].iter().product();
                let ahead = (to / stride % extent + extent - at / stride % extent) % extent;
                let (count, by) = if ahead * 2 <= extent {
                    (ahead, 1)
                } else {
                    (extent - ahead, extent - 1)
                };
                for _ in 0..count {
                    at = step(extents, at, dimension, by);
                    along.push(nodes[at]);
                }
            }
            along.push(nodes[switches + to]);
            let path = network.path(&along, &[]);
            paths.push(path.expect("each step of dimension order is a cable"));
        }
    }
    Ok(Regular {
        name,
        network,
        paths,
    })
}

/// The m-port n-tree: n levels of m-port switches, `2 (m/2)^n` machines, `(2n - 1) (m/2)^(n-1)`
/// switches, with the deterministic routing in which the destination's number chooses the way up
/// (Gomez, Gilabert, Gomez, Lopez, Duato, "Deterministic versus adaptive routing in fat-trees").
///
/// Level 0 is the top. A machine is digits `p0 p1 .. p(n-1)`, the first below m and the others below
/// m/2; a switch of level l is n-1 digits, of which only a top switch's are all below m/2, and is
/// joined to the one a level below when their digits agree but for the l-th.
///
/// # Errors
/// [`TopologyError::Tree`].
pub fn m_port_n_tree(
    name: &'static str,
    ports: usize,
    levels: usize,
) -> Result<Regular, TopologyError> {
    let wrong = TopologyError::Tree { ports, levels };
    let half = ports / 2;
    let fits = u32::try_from(levels)
        .ok()
        .and_then(|levels| half.checked_pow(levels))
        .is_some_and(|size| size <= 1 << 16);
    if ports < 2 || !ports.is_multiple_of(2) || levels == 0 || !fits {
        return Err(wrong);
    }
    let low = half.pow(levels as u32 - 1);
    let mut network = Network::default();
    // Switches of level l: the top has `low`, the others twice that, since their first digit goes up
    // to m.
    let count = |level: usize| if level == 0 { low } else { 2 * low };
    let switches: Vec<Vec<NodeIndex>> = (0..levels)
        .map(|level| (0..count(level)).map(|_| network.add_switch()).collect())
        .collect();
    let stride = |digit: usize| half.pow((levels - 2 - digit) as u32);
    // Of a switch's n-1 digits, with that digit set to another value.
    let with = |number: usize, digit: usize, value: usize| {
        let radix = if digit == 0 { ports } else { half };
        let stride = stride(digit);
        number - number / stride % radix * stride + value * stride
    };
    for level in 0..levels - 1 {
        for (number, &upper) in switches[level].iter().enumerate() {
            // A top switch reaches all values of the first digit below, others m/2 of theirs.
            let values = if level == 0 { ports } else { half };
            for value in 0..values {
                network.cable(upper, switches[level + 1][with(number, level, value)]);
            }
        }
    }
    let machines: Vec<NodeIndex> = (0..2 * low * half)
        .map(|number| {
            let machine = network.add_machine();
            let leaf = switches[levels - 1].get(number / half);
            let leaf = leaf.copied().unwrap_or(switches[levels - 1][0]);
            network.cable(machine, leaf);
            machine
        })
        .collect();
    let mut paths = Vec::with_capacity(machines.len() * machines.len());
    for (from, &source) in machines.iter().enumerate() {
        for (to, &sink) in machines.iter().enumerate().filter(|&(to, _)| to != from) {
            let (mut at, target) = (from / half, to / half);
            let mut along = vec![source];
            if levels == 1 {
                along.extend([switches[0][0], sink]);
            } else {
                // Up until the digits above agree; digit l of the switch a level up is free.
                let mut level = levels - 1;
                along.push(switches[level][at]);
                let agree = |at: usize, level: usize| {
                    (0..level).all(|digit| {
                        let radix = if digit == 0 { ports } else { half };
                        at / stride(digit) % radix == target / stride(digit) % radix
                    })
                };
                while !agree(at, level) {
                    level -= 1;
                    // The destination's own digits choose: its leaf port first.
                    let choice = to / half.pow((levels - 1 - level - 1) as u32) % half;
                    at = with(at, level, choice);
                    along.push(switches[level][at]);
                }
                while level < levels - 1 {
                    let radix = if level == 0 { ports } else { half };
                    at = with(at, level, target / stride(level) % radix);
                    level += 1;
                    along.push(switches[level][at]);
                }
                along.push(sink);
            }
            let path = network.path(&along, &[]);
            paths.push(path.expect("up and down along cables of the tree"));
        }
    }
    Ok(Regular {
        name,
        network,
        paths,
    })
}

#[cfg(test)]
mod tests {
    use lid_assignment::Heuristic;
    use lid_assignment::paths::maximum_load;

    use super::*;
    use crate::generator;

    fn one_lid_each(regular: &Regular) {
        let network = &regular.network;
        for to in network.machines() {
            let paths: Vec<Path> = regular
                .paths
                .iter()
                .filter(|path| network.destination(path) == to)
                .cloned()
                .collect();
            assert_eq!(paths.len(), network.machines().count() - 1);
            assert_eq!(
                Heuristic::Greedy.assign(network, &paths).configurations(),
                1
            );
        }
    }

    #[test]
    fn irregular_networks_are_as_asked() {
        let mut cables = 0;
        for seed in 0..20 {
            let network = irregular(64, 16, 8, &mut generator(seed, 0)).unwrap();
            assert_eq!(network.machines().count(), 64);
            assert_eq!(network.switches().count(), 16);
            cables += network.links().len() / 2 - 64;
            let root = network.switches().next().unwrap();
            assert!(UpDown::new(&network, root).is_ok(), "seed {seed}");
        }
        // 64 cables of 120 possible on average, deviation 5.5: of 20 graphs 25 in all.
        assert!(cables.abs_diff(20 * 64) < 100, "{cables} cables");
        assert!(irregular(1, 8, 4, &mut generator(0, 0)).is_err());
        assert!(irregular(2, 1, 0, &mut generator(0, 0)).is_err());
        assert!(irregular(2, 8, 8, &mut generator(0, 0)).is_err());
        assert!(irregular(2, 8, 0, &mut generator(0, 0)).is_err());
        assert!(irregular(2, 60, 1, &mut generator(0, 0)).is_err());
    }

    #[test]
    fn whole_tori_need_one_lid_each() {
        let two = dimension_order("2-D torus", &[16, 8]).unwrap();
        assert_eq!(two.network.switches().count(), 128);
        // Four cables at each switch, and its machine's.
        assert_eq!(two.network.links().len() / 2, 256 + 128);
        one_lid_each(&two);
        let three = dimension_order("3-D torus", &[8, 4, 4]).unwrap();
        assert_eq!(three.network.links().len() / 2, 3 * 128 + 128);
        one_lid_each(&three);
        assert!(torus(&[4, 0]).is_err());
        assert_eq!(torus(&[2, 1]).unwrap().links().len() / 2, 1 + 2);
    }

    #[test]
    fn the_8_port_3_tree() {
        let tree = m_port_n_tree("8-port 3-tree", 8, 3).unwrap();
        let network = &tree.network;
        let counts = (network.machines().count(), network.switches().count());
        assert_eq!(counts, (128, 80));
        assert!(
            network
                .switches()
                .all(|switch| network.outgoing(switch).len() == 8)
        );
        one_lid_each(&tree);
        // A machine's own link carries all that is for it, and no link carries more.
        assert!((maximum_load(network, &tree.paths) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn small_and_impossible_trees() {
        assert_eq!(m_port_n_tree("star", 4, 1).unwrap().paths.len(), 4 * 3);
        assert!(m_port_n_tree("odd", 5, 2).is_err());
        assert!(m_port_n_tree("none", 8, 0).is_err());
        assert!(m_port_n_tree("huge", 254, 40).is_err());
    }
}
