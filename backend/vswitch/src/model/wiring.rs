//! Switches, the cables between them, and routers.

use fabric::{NodeId, PortRef, Topology};
use wire::Guid;

use super::Subnet;

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Name, unique among switches.
    pub name: String,
    /// Node GUID, derived from its name unless a file gives it.
    pub guid: Guid,
    /// Its subnet: which of [`Model::subnets`](super::Model::subnets).
    pub subnet: usize,
    /// Whether it speaks LIDs of 18 bits where the others do.
    pub extended_lids: bool,
}

/// A router, which is in several subnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Router {
    /// Name, unique among routers.
    pub name: String,
    /// Node GUID, derived from its name.
    pub guid: Guid,
    /// Its ports from 1 on.
    pub ports: Vec<RouterPort>,
}

/// A port of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterPort {
    /// Port GUID, derived from the router's name and the port's number.
    pub guid: Guid,
    /// The switch that it is cabled to: which of [`Wiring::switches`].
    pub switch: usize,
}

/// Switches, the cables between them, and routers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wiring {
    /// The switches, at least one.
    pub switches: Vec<Switch>,
    /// Cables between switches, by their places in `switches`; none where there is a file.
    pub cables: Vec<(usize, usize)>,
    /// The routers.
    pub routers: Vec<Router>,
    /// Nodes and cables of a file.
    pub file: Option<FileNodes>,
}

/// Nodes and cables of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNodes {
    /// Nodes and cables.
    pub topology: Topology,
    /// The switches among the nodes, in the order of [`Wiring::switches`].
    pub switches: Vec<NodeId>,
    /// Names of all nodes, in their order, each different from the others.
    pub names: Vec<String>,
    /// The port of the subnet manager: of a channel adapter, with a cable.
    pub manager: PortRef,
}

impl Wiring {
    /// The switches at the ends of cables to managers' hosts, to routers and to other switches, once for
    /// each end. Cables to hypervisors are not among them.
    pub fn ends<'a>(&'a self, subnets: &'a [Subnet]) -> impl Iterator<Item = usize> + 'a {
        let between = self.cables.iter().flat_map(|&(a, b)| [a, b]);
        let routers = self.routers.iter().flat_map(|router| &router.ports);
        between
            .chain(routers.map(|port| port.switch))
            .chain(subnets.iter().map(|subnet| subnet.manager.switch))
    }
}
