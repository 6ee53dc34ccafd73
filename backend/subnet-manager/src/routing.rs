//! Routing: from a graph of switches to forwarding tables.

mod balance;
mod bottleneck;
mod check;
mod choice;
pub(crate) mod clusters;
mod columns;
mod dump;
mod engines;
mod lanes;
pub mod multipath;
pub mod reconfiguration;
mod roles;
mod skeleton;
mod spread;
mod tree;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

pub(crate) use bottleneck::bottleneck;
pub(crate) use check::added_circle;
pub use check::transition::{Transition, Transitions};
pub use check::{Break, Circle, Fault, Loads, Verdict, transition};
pub use choice::{MAX_LANES, RoutingChoice};
pub use clusters::{ClusterTables, IdleEntry, IdleReason};
pub use dump::{DUMP_MAX, HopMatrix, MatrixFile, TableDump};
pub use engines::dfsssp::Dfsssp;
pub use engines::dimension_order::DimensionOrder;
pub use engines::dragonfly::Dragonfly;
pub use engines::fat_tree::{FatTree, VSwitchFatTree};
pub use engines::imported::{Imported, TableFile, TableSource};
pub use engines::lash::Lash;
pub use engines::min_hop::MinHop;
pub use engines::nue::Nue;
pub use engines::torus::TorusTwoQos;
pub use engines::up_down::UpDown;
pub use lanes::levels::ServiceLevels;
pub use roles::{Roles, parse_guids};

/// A link between two switches, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trunk {
    /// The port here.
    pub port: u8,
    /// The other switch, as an index of [`Graph::switches`].
    pub to: usize,
    /// The port there.
    pub to_port: u8,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex {
    /// Its GUID.
    pub guid: Guid,
    /// External ports.
    pub ports: u8,
    /// Links to other switches, by rising port.
    pub trunks: Vec<Trunk>,
}

/// A LID and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The LID.
    pub lid: Lid,
    /// GUID of the port that has it.
    pub guid: Guid,
    /// The switch it is at, as an index of [`Graph::switches`].
    pub switch: usize,
    /// The port of that switch; 0 for the switch's own LID.
    pub port: u8,
}

/// Input of routing: switches, links between them, LIDs at them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// The switches, by rising GUID.
    pub switches: Vec<Vertex>,
    /// The LIDs, by rising LID.
    pub endpoints: Vec<Endpoint>,
    /// Roles of nodes, if it is a fat-tree.
    pub roles: Arc<Roles>,
    /// Service levels from 0 that have a lane of their own on every link, or data lanes of every link where the lanes of
    /// levels depend on ports; `None` where it is not known.
    pub lanes: Option<u8>,
}

impl Graph {
    /// The highest LID.
    pub fn top(&self) -> Lid {
        let lids = self.endpoints.iter().map(|endpoint| endpoint.lid);
        lids.max().unwrap_or(Lid::NONE)
    }

    /// The switch that a port of a switch leads to.
    pub(crate) fn neighbour(&self, switch: usize, port: u8) -> Option<usize> {
        let trunks = &self.switches[switch].trunks;
        let found = trunks.binary_search_by_key(&port, |trunk| trunk.port);
        found.ok().map(|found| trunks[found].to)
    }

    /// Links from every switch to the switch `to`; `None` where there is no way.
    pub fn distances(&self, to: usize) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.switches.len()];
        let mut queue = VecDeque::from([to]);
        distances[to] = Some(0);
        while let Some(at) = queue.pop_front() {
            let next = distances[at].map(|distance: u32| distance + 1);
            for trunk in &self.switches[at].trunks {
                if distances[trunk.to].is_none() {
                    distances[trunk.to] = next;
                    queue.push_back(trunk.to);
                }
            }
        }
        distances
    }
}

/// The linear forwarding table of a switch: a port for every LID up to the highest.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ForwardingTable(Vec<u8>);

impl ForwardingTable {
    /// A table that drops every LID up to `top`.
    pub fn new(top: Lid) -> Self {
        Self(vec![LinearBlock::DROP; usize::from(top.value()) + 1])
    }

    /// The port for a LID; [`LinearBlock::DROP`] for none.
    #[inline]
    pub fn port(&self, lid: Lid) -> u8 {
        let port = self.0.get(usize::from(lid.value()));
        port.copied().unwrap_or(LinearBlock::DROP)
    }

    /// Sets the port for a LID up to the table's highest.
    #[inline]
    pub fn set(&mut self, lid: Lid, port: u8) {
        if let Some(entry) = self.0.get_mut(usize::from(lid.value())) {
            *entry = port;
        }
    }

    /// Makes room for LIDs up to `top`, dropped at first.
    pub(crate) fn grow(&mut self, top: Lid) {
        let size = usize::from(top.value()) + 1;
        if self.0.len() < size {
            self.0.resize(size, LinearBlock::DROP);
        }
    }

    /// The entries that do not drop their LID.
    fn entries(&self) -> impl Iterator<Item = (Lid, u8)> + '_ {
        let entries = (0u16..).map(Lid::new).zip(self.0.iter().copied());
        entries.filter(|&(_, port)| port != LinearBlock::DROP)
    }

    /// The highest LID that has an entry.
    pub(crate) fn top(&self) -> Lid {
        let last = self.0.iter().rposition(|&port| port != LinearBlock::DROP);
        Lid::new(last.unwrap_or_default() as u16)
    }

    /// Sets the ports for a block of 64 LIDs.
    pub(crate) fn set_block(&mut self, number: u16, block: &LinearBlock) {
        let first = usize::from(number) * usize::from(LinearBlock::LIDS);
        let end = first + block.0.len();
        if self.0.len() < end && block.0.iter().any(|&port| port != LinearBlock::DROP) {
            self.0.resize(end, LinearBlock::DROP);
        }
        for (entry, &port) in self.0.iter_mut().skip(first).zip(&block.0) {
            *entry = port;
        }
    }

    /// The table in blocks of 64 LIDs, as it is sent.
    pub fn blocks(&self) -> impl Iterator<Item = LinearBlock> {
        self.0.chunks(usize::from(LinearBlock::LIDS)).map(|ports| {
            let mut block = LinearBlock::default();
            block.0[..ports.len()].copy_from_slice(ports);
            block
        })
    }
}

impl fmt::Debug for ForwardingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries().map(|(lid, port)| (lid.value(), port));
        f.debug_map().entries(entries).finish()
    }
}

/// Why there are no forwarding tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{engine} cannot route this subnet: {reason}")]
pub struct RoutingError {
    /// The engine.
    pub engine: &'static str,
    /// The obstacle.
    pub reason: String,
}

/// Routes of a subnet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The tables of the switches, in the order of [`Graph::switches`].
    pub tables: Vec<ForwardingTable>,
    /// The service level of every path.
    pub levels: ServiceLevels,
}

impl From<Vec<ForwardingTable>> for Routing {
    /// All paths on one service level.
    fn from(tables: Vec<ForwardingTable>) -> Self {
        Self {
            tables,
            levels: ServiceLevels::uniform(),
        }
    }
}

/// Computes forwarding tables.
pub trait RoutingEngine: fmt::Debug + Send {
    /// The name it is configured by.
    fn name(&self) -> &'static str;

    /// Whether it keeps paths free of deadlock by spreading them over virtual lanes, so that ports
    /// need a lane for each service level.
    fn is_layered(&self) -> bool {
        false
    }

    /// Whether the lanes of its service levels depend on the ports of the switches on the way.
    fn has_port_lanes(&self) -> bool {
        false
    }

    /// Whether tables that are good stay when it has no others: it does not compute them itself.
    fn keeps_tables(&self) -> bool {
        false
    }

    /// Tables and service levels. LIDs that cannot be reached are left out.
    ///
    /// # Errors
    /// [`RoutingError`] when the graph is not one this engine can route.
    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError>;

    /// As [`RoutingEngine::route`], for a subnet that was routed before as these tables of this
    /// graph say: an engine may leave paths as they are that are still good.
    ///
    /// # Errors
    /// [`RoutingError`] when the graph is not one this engine can route.
    fn reroute(
        &self,
        graph: &Graph,
        _before: (&Graph, &[ForwardingTable]),
    ) -> Result<Routing, RoutingError> {
        self.route(graph)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two leaves with two hosts each, two spines between them; LIDs 1 to 4 switches, 5 to 8 hosts.
    pub(crate) fn fat_tree() -> Graph {
        let trunk = |port, to, to_port| Trunk { port, to, to_port };
        let vertex = |guid, trunks: [Trunk; 2]| Vertex {
            guid: Guid::new(guid),
            ports: 4,
            trunks: trunks.to_vec(),
        };
        let endpoint = |lid, switch, port| Endpoint {
            lid: Lid::new(lid),
            guid: Guid::new(u64::from(lid)),
            switch,
            port,
        };
        Graph {
            switches: vec![
                vertex(1, [trunk(3, 2, 1), trunk(4, 3, 1)]),
                vertex(2, [trunk(3, 2, 2), trunk(4, 3, 2)]),
                vertex(3, [trunk(1, 0, 3), trunk(2, 1, 3)]),
                vertex(4, [trunk(1, 0, 4), trunk(2, 1, 4)]),
            ],
            endpoints: vec![
                endpoint(1, 0, 0),
                endpoint(2, 1, 0),
                endpoint(3, 2, 0),
                endpoint(4, 3, 0),
                endpoint(5, 0, 1),
                endpoint(6, 0, 2),
                endpoint(7, 1, 1),
                endpoint(8, 1, 2),
            ],
            ..Graph::default()
        }
    }

    #[test]
    fn shortest_and_spread() {
        let tables = MinHop.route(&fat_tree()).unwrap().tables;
        let port = |switch: usize, lid| tables[switch].port(Lid::new(lid));
        assert_eq!([port(0, 5), port(0, 6), port(0, 1)], [1, 2, 0]);
        let mut up = [port(0, 7), port(0, 8)];
        up.sort_unstable();
        assert_eq!(up, [3, 4], "two hosts of the other leaf by two spines");
        assert_eq!([port(2, 5), port(2, 7)], [1, 2]);
        assert_eq!(port(0, 9), LinearBlock::DROP);
    }

    #[test]
    fn ports_of_a_list_come_first() {
        let way = |order: &[u64], lid| {
            let roles = Roles {
                order: order.iter().map(|&guid| Guid::new(guid)).collect(),
                ..Roles::default()
            };
            let graph = Graph {
                roles: Arc::new(roles),
                ..fat_tree()
            };
            MinHop.route(&graph).unwrap().tables[0].port(Lid::new(lid))
        };
        // The first has the first port.
        assert_eq!([way(&[], 7), way(&[], 8)], [3, 4]);
        assert_eq!([way(&[8], 7), way(&[8], 8)], [4, 3]);
        assert_eq!([way(&[9, 7, 8], 7), way(&[9, 7, 8], 8)], [3, 4]);
    }

    #[test]
    fn a_part_that_cannot_be_reached() {
        let mut graph = fat_tree();
        for vertex in &mut graph.switches {
            vertex.trunks.clear();
        }
        let tables = MinHop.route(&graph).unwrap().tables;
        assert_eq!(tables[0].port(Lid::new(5)), 1);
        assert_eq!(tables[0].port(Lid::new(7)), LinearBlock::DROP);
    }

    #[test]
    fn blocks_of_64() {
        let mut table = ForwardingTable::new(Lid::new(64));
        table.set(Lid::new(64), 9);
        let blocks: Vec<_> = table.blocks().collect();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[1].0[0], 9);
        assert_eq!(blocks[1].0[1], LinearBlock::DROP);
    }
}
