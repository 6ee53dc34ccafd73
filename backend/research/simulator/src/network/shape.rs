//! Topologies by name: what a command line calls them.

use std::fmt;
use std::str::FromStr;

use fabric::{NodeId, Topology};
use topologies::{
    Dragonfly, DragonflyError, FatTree, FatTreeError, Hosts, Irregular, IrregularError,
    TooManyBroken, Torus, TorusError, break_cables,
};
use wire::attribute::NodeType;

/// A topology that is generated, as it is written on a command line:
///
/// ```text
/// XGFT(3;18,18,36;1,18,18) PGFT(2;4,4;2,1;2,1)   children, parents and cables of every level
/// RLFT(36,2891)                                  switches of 36 ports, at least 2891 hosts
/// k-ary-n-tree(4,3) m-port-n-tree(8,3)
/// torus(8x4x4,1) mesh(4x4,2)                     shape, hosts per switch
/// torus(16x8,1,4)                                the same with four cables broken
/// dragonfly(9,4,2,2)                             groups, switches of one, cables of these to others, hosts
/// dragonfly(9,4,2,2,3)                           the same with three cables broken
/// irregular(16,8,128)                            switches, cables of a switch on average, hosts
/// ```
///
/// ```
/// use ibvswitch_simulator::Shape;
/// let shape: Shape = "torus(4x4,2)".parse().unwrap();
/// let topology = shape.topology(topologies::Hosts::Adapters, 1).unwrap();
/// assert_eq!(topology.nodes().len(), 16 + 32);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A fat-tree of any kind.
    FatTree(FatTree),
    /// A torus, and cables of it that are broken.
    Torus(Torus, usize),
    /// A dragonfly, and cables of it that are broken.
    Dragonfly(Dragonfly, usize),
    /// Switches, their degree, hosts.
    Irregular(u32, u32, u32),
}

/// Why a text is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Nothing of this form.
    #[error("{0:?} is no topology; the generators are {FORMS}")]
    Syntax(String),
    /// The parameters make no fat-tree.
    #[error(transparent)]
    FatTree(#[from] FatTreeError),
    /// The parameters make no torus.
    #[error(transparent)]
    Torus(#[from] TorusError),
    /// The parameters make no dragonfly.
    #[error(transparent)]
    Dragonfly(#[from] DragonflyError),
    /// More broken cables than the switches can do without.
    #[error(transparent)]
    Broken(#[from] TooManyBroken),
    /// The parameters make no irregular network.
    #[error(transparent)]
    Irregular(#[from] IrregularError),
}

const FORMS: &str = "XGFT(n;m1,..,mn;w1,..,wn), PGFT(n;m..;w..;p..), RLFT(ports,hosts), \
    k-ary-n-tree(k,n), m-port-n-tree(m,n), torus(AxB,hosts[,broken]), mesh(AxB,hosts[,broken]), \
    dragonfly(groups,switches,cables,hosts[,broken]) and irregular(switches,degree,hosts)";

impl Shape {
    /// Whether a text is meant to be a generator's and not the name of a file.
    #[must_use]
    pub fn is_meant_by(text: &str) -> bool {
        text.trim_end().ends_with(')') && text.contains('(')
    }

    /// The nodes and cables. The seed decides what is random: the cables of an irregular network and
    /// those that are broken.
    ///
    /// # Errors
    /// [`ShapeError`] when parameters make no such topology.
    pub fn topology(&self, hosts: Hosts, seed: u64) -> Result<Topology, ShapeError> {
        Ok(match *self {
            Self::FatTree(ref tree) => tree.topology(hosts),
            Self::Torus(ref torus, broken) => break_cables(torus.topology(hosts), broken, seed)?,
            Self::Dragonfly(dragonfly, broken) => {
                break_cables(dragonfly.topology(hosts), broken, seed)?
            }
            Self::Irregular(switches, degree, machines) => {
                Irregular::new(switches, degree, machines, seed)?.topology(hosts)
            }
        })
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let syntax = || ShapeError::Syntax(text.chars().take(80).collect());
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let compact = compact.to_ascii_lowercase();
        let (name, arguments) = compact
            .strip_suffix(')')
            .and_then(|text| text.split_once('('))
            .ok_or_else(syntax)?;
        if matches!(name, "xgft" | "pgft") {
            return Ok(Self::FatTree(text.parse()?));
        }
        let arguments: Vec<&str> = arguments.split(',').collect();
        let number = |text: &str| text.parse::<u32>().map_err(|_| syntax());
        let grid = |shape: &str, hosts: &str| {
            let shape: Result<Vec<u32>, _> = shape.split('x').map(number).collect();
            let hosts = hosts.parse::<u8>().map_err(|_| syntax())?;
            match name {
                "torus" => Ok::<_, ShapeError>(Torus::new(&shape?, hosts)?),
                _ => Ok(Torus::mesh(&shape?, hosts)?),
            }
        };
        Ok(match (name, arguments.as_slice()) {
            ("rlft", &[ports, hosts]) => {
                Self::FatTree(FatTree::rlft(number(ports)?, number(hosts)?)?)
            }
            ("k-ary-n-tree", &[k, n]) => {
                Self::FatTree(FatTree::k_ary_n_tree(number(k)?, number(n)? as usize)?)
            }
            ("m-port-n-tree", &[m, n]) => {
                Self::FatTree(FatTree::m_port_n_tree(number(m)?, number(n)? as usize)?)
            }
            ("torus" | "mesh", &[shape, hosts]) => Self::Torus(grid(shape, hosts)?, 0),
            ("torus" | "mesh", &[shape, hosts, broken]) => {
                Self::Torus(grid(shape, hosts)?, number(broken)? as usize)
            }
            ("dragonfly", &[groups, switches, cables, hosts, ref broken @ ..])
                if broken.len() < 2 =>
            {
                let [groups, switches, cables] = [groups, switches, cables].map(number);
                let hosts = hosts.parse().map_err(|_| syntax())?;
                let dragonfly = Dragonfly::new(groups?, switches?, cables?, hosts)?;
                let broken = broken.first().map(|broken| number(broken)).transpose()?;
                Self::Dragonfly(dragonfly, broken.unwrap_or(0) as usize)
            }
            ("irregular", &[switches, degree, hosts]) => {
                Self::Irregular(number(switches)?, number(degree)?, number(hosts)?)
            }
            _ => return Err(syntax()),
        })
    }
}

/// A topology in parts: no routing could connect it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{unreached} of {nodes} nodes cannot be reached from {from}, {example} among them; cable them, \
     or take them out"
)]
pub struct InParts {
    /// All nodes.
    pub nodes: usize,
    /// Nodes that cannot be reached from the first switch.
    pub unreached: usize,
    /// The first switch.
    pub from: String,
    /// The first of them.
    pub example: String,
}

/// Whether cables connect all nodes. Paths do not go through adapters.
///
/// # Errors
/// [`InParts`].
pub fn connected(topology: &Topology) -> Result<(), InParts> {
    let nodes = topology.nodes();
    let is_switch = |node: NodeId| nodes[node.index()].kind == NodeType::Switch;
    let mut cables = vec![Vec::new(); nodes.len()];
    for &(a, b, _) in topology.links() {
        cables[a.node.index()].push(b.node);
        cables[b.node.index()].push(a.node);
    }
    let Some(first) = topology
        .ids()
        .find(|&node| is_switch(node))
        .or_else(|| topology.ids().next())
    else {
        return Ok(());
    };
    let mut reached = vec![false; nodes.len()];
    reached[first.index()] = true;
    let mut open = vec![first];
    while let Some(at) = open.pop() {
        for &next in &cables[at.index()] {
            if !reached[next.index()] {
                reached[next.index()] = true;
                if is_switch(next) {
                    open.push(next);
                }
            }
        }
    }
    let Some(example) = reached.iter().position(|reached| !reached) else {
        return Ok(());
    };
    let name = |node: usize| Named(&nodes[node]).to_string();
    Err(InParts {
        nodes: nodes.len(),
        unreached: reached.iter().filter(|reached| !**reached).count(),
        from: name(first.index()),
        example: name(example),
    })
}

/// A node as people know it.
struct Named<'a>(&'a fabric::NodeSpec);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.kind {
            NodeType::Switch => "switch",
            _ => "adapter",
        };
        write!(f, "{kind} `{}` ({})", self.0.description, self.0.guid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators() {
        for (text, switches, hosts) in [
            ("XGFT(2;18,18;18,1)", 36, 324),
            (" pgft(2; 6,18; 3,1; 6,1) ", 9, 108),
            ("RLFT(36,648)", 54, 648),
            ("k-ary-n-tree(4,3)", 48, 64),
            ("m-port-n-tree(8,3)", 80, 128),
            ("torus(4x4x4,2)", 64, 128),
            ("Mesh(3X5,1)", 15, 15),
            ("torus(16x8,1,4)", 128, 128),
            ("dragonfly(9,4,2,2)", 36, 72),
            ("dragonfly(5,4,1,1,2)", 20, 20),
            ("irregular(16,8,128)", 16, 128),
        ] {
            assert!(Shape::is_meant_by(text));
            let shape: Shape = text.parse().unwrap();
            let topology = shape.topology(Hosts::Adapters, 7).unwrap();
            assert_eq!(topology.check(), Ok(()), "{text}");
            assert_eq!(connected(&topology), Ok(()), "{text}");
            let found = topology.nodes().iter();
            let found = found.filter(|node| node.kind == NodeType::Switch).count();
            assert_eq!(
                (found, topology.nodes().len() - found),
                (switches, hosts),
                "{text}"
            );
        }
        assert!(!Shape::is_meant_by("trees/xgft.net"));
    }

    #[test]
    fn what_is_none() {
        for (text, message) in [
            (
                "XGFT(2;18,18;18,2)",
                "w2 and p2 must be 1: a host has one uplink; levels are written from the roots down, \
                 so turn lists round that go from the hosts up",
            ),
            (
                "XGFT(2;300,18;18,1)",
                "a switch of level 0 would have 300 ports; a switch has 1 to 254 (level 0 are the \
                 roots, with m1 and w1, as lists go from the roots down)",
            ),
            (
                "XGFT(2;18;18,1)",
                "m has 1 numbers for 2 levels; give one per level",
            ),
            ("XGFT(2;0,18;18,1)", "m1 is 0; give at least 1"),
            (
                "RLFT(35,100)",
                "switches of 35 ports; a fat-tree takes an even number from 2 to 254",
            ),
            (
                "torus(4x1,1)",
                "dimension 2 has 1 switches; give at least 2",
            ),
            (
                "torus(4x4,300)",
                &format!("\"torus(4x4,300)\" is no topology; the generators are {FORMS}"),
            ),
            (
                "dragonfly(10,4,2,1)",
                "8 ports of a group for 9 other groups; give fewer groups, or more cables at a switch",
            ),
            ("irregular(16,99,10)", ""),
            (
                "ring(4)",
                &format!("\"ring(4)\" is no topology; the generators are {FORMS}"),
            ),
        ] {
            let shape = text.parse::<Shape>();
            let error = shape.and_then(|shape| shape.topology(Hosts::Adapters, 1));
            let error = error.unwrap_err().to_string();
            assert!(message.is_empty() || error == message, "{error}");
        }
        let broken: Shape = "torus(3x3,1,18)".parse().unwrap();
        assert!(broken.topology(Hosts::Adapters, 1).is_err());
    }

    #[test]
    fn parts() {
        let text = "Switch 4 \"a\" # \"left\"\n[1] \"h\"[1]\n\nSwitch 4 \"b\" # \"right\"\n\n\
                    Ca 1 \"h\" # \"host\"\n[1] \"a\"[1]\n";
        let error = connected(&Topology::from_netlist(text).unwrap()).unwrap_err();
        assert_eq!((error.nodes, error.unreached), (3, 1));
        assert!(error.example.contains("`right`"), "{error}");
    }
}
