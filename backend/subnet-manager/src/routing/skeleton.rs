//! The graph as engines walk it: plain arrays, vSwitches folded away.

use wire::Lid;
use wire::attribute::LinearBlock;

use super::columns::Columns;
use super::{Endpoint, ForwardingTable, Graph};

/// A way from a vertex to its neighbour: one direction of a cable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arc {
    /// The vertex that it leads to.
    pub(super) to: u32,
    /// The other direction, as an index of [`Skeleton::arcs`].
    pub(super) back: u32,
    /// The port at its beginning.
    pub(super) port: u8,
}

/// A LID at a vertex.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) lid: Lid,
    /// The port of the vertex; 0 for its own LID.
    pub(super) port: u8,
    /// It is the port of an adapter, not of a switch.
    pub(super) adapter: bool,
    /// It is an adapter that shows where the leaves are.
    pub(super) compute: bool,
    /// The switch and the port that it is at in the graph: LIDs at the same are one adapter's port's.
    pub(super) home: (u32, u8),
}

/// A vSwitch that is not among the vertices.
#[derive(Debug)]
struct Folded {
    switch: usize,
    parent: usize,
    uplink: u8,
}

/// The graph as engines walk it.
///
/// A vSwitch, known by its one uplink, leaves no choice: its LIDs are taken to be at the port of the
/// switch above it.
#[derive(Debug)]
pub(super) struct Skeleton {
    /// The switch that each vertex is, as an index of [`Graph::switches`].
    pub(super) switches: Vec<usize>,
    /// Where the arcs of each vertex begin, and where the last ones end.
    first: Vec<u32>,
    /// By vertex, then by port.
    pub(super) arcs: Vec<Arc>,
    /// By arc: the vertex that it leads to, once more and side by side, for searches.
    heads: Vec<u32>,
    /// The LIDs of each vertex by port, then by LID.
    pub(super) targets: Vec<Vec<Target>>,
    /// LIDs at each vertex of adapters that show where the leaves are.
    pub(super) adapters: Vec<u32>,
    folded: Vec<Folded>,
    top: Lid,
}

impl Skeleton {
    pub(super) fn new(graph: &Graph) -> Self {
        Self::below(graph, &vec![false; graph.switches.len()])
    }

    /// The skeleton where the `upper` switches are known to stand above the switches with compute nodes. An
    /// upper switch may have adapters itself.
    pub(super) fn below(graph: &Graph, upper: &[bool]) -> Self {
        let count = graph.switches.len();
        let is_compute = |endpoint: &Endpoint| {
            endpoint.port != 0 && !upper[endpoint.switch] && graph.roles.is_compute(endpoint.guid)
        };
        let mut has_adapters = vec![false; count];
        for endpoint in &graph.endpoints {
            has_adapters[endpoint.switch] |= is_compute(endpoint);
        }
        let single = |at: usize| graph.switches[at].trunks.len() == 1;
        // Where some neighbour with adapters has several cables, the others have lost theirs.
        let folds: Vec<bool> = (0..count)
            .map(|at| {
                let trunks = &graph.switches[at].trunks;
                trunks.len() > 1
                    && trunks
                        .iter()
                        .all(|trunk| single(trunk.to) || !has_adapters[trunk.to])
            })
            .collect();
        let parent = |at: usize| {
            let trunk = graph.switches[at].trunks.first();
            trunk.filter(|trunk| single(at) && folds[trunk.to])
        };
        let switches: Vec<usize> = (0..count).filter(|&at| parent(at).is_none()).collect();
        let mut vertex = vec![usize::MAX; count];
        for (index, &at) in switches.iter().enumerate() {
            vertex[at] = index;
        }
        let mut first = vec![0u32];
        let mut arcs = Vec::new();
        for &at in &switches {
            for trunk in &graph.switches[at].trunks {
                if parent(trunk.to).is_none() {
                    arcs.push(Arc {
                        to: vertex[trunk.to] as u32,
                        // The port there, until all arcs are known and it becomes the index of one.
                        back: trunk.to_port.into(),
                        port: trunk.port,
                    });
                }
            }
            first.push(arcs.len() as u32);
        }
        let of = |at: u32| first[at as usize] as usize..first[at as usize + 1] as usize;
        let backs: Vec<u32> = arcs
            .iter()
            .map(|arc| {
                let range = of(arc.to);
                let back = arcs[range.clone()]
                    .binary_search_by_key(&arc.back, |back| back.port.into())
                    .unwrap_or_default();
                (range.start + back) as u32
            })
            .collect();
        for (arc, back) in arcs.iter_mut().zip(backs) {
            arc.back = back;
        }
        let mut targets = vec![Vec::new(); switches.len()];
        let mut adapters = vec![0; switches.len()];
        for endpoint in &graph.endpoints {
            let (at, port) = match parent(endpoint.switch) {
                Some(uplink) => (vertex[uplink.to], uplink.to_port),
                None => (vertex[endpoint.switch], endpoint.port),
            };
            let compute = is_compute(endpoint) && !upper[switches[at]];
            targets[at].push(Target {
                lid: endpoint.lid,
                port,
                adapter: endpoint.port != 0,
                compute,
                home: (endpoint.switch as u32, endpoint.port),
            });
            adapters[at] += u32::from(compute);
        }
        for targets in &mut targets {
            targets.sort_by_key(|target: &Target| (target.port, target.lid));
        }
        let folded = (0..count)
            .filter_map(|switch| {
                let uplink = parent(switch)?;
                Some(Folded {
                    switch,
                    parent: vertex[uplink.to],
                    uplink: uplink.port,
                })
            })
            .collect();
        Self {
            switches,
            first,
            heads: arcs.iter().map(|arc| arc.to).collect(),
            arcs,
            targets,
            adapters,
            folded,
            top: graph.top(),
        }
    }

    /// Vertices.
    pub(super) fn len(&self) -> usize {
        self.switches.len()
    }

    /// The arcs of a vertex, as indices of [`Skeleton::arcs`].
    pub(super) fn arcs_of(&self, vertex: usize) -> std::ops::Range<usize> {
        self.first[vertex] as usize..self.first[vertex + 1] as usize
    }

    /// Tables for the vertices, to be filled.
    pub(super) fn columns(&self) -> Columns {
        Columns::new(vec![ForwardingTable::new(self.top); self.len()])
    }

    /// By arc: the vertex that it leads to.
    pub(super) fn heads(&self) -> &[u32] {
        &self.heads
    }

    /// The tables of all switches of the graph, from those of the vertices.
    pub(super) fn unfold(
        &self,
        graph: &Graph,
        tables: Vec<ForwardingTable>,
    ) -> Vec<ForwardingTable> {
        if self.folded.is_empty() {
            return tables;
        }
        let mut all = vec![ForwardingTable::default(); graph.switches.len()];
        for folded in &self.folded {
            // Up, what the switch above knows how to reach.
            let ports = tables[folded.parent].0.iter();
            let up = ports.map(|&port| match port {
                LinearBlock::DROP => LinearBlock::DROP,
                _ => folded.uplink,
            });
            all[folded.switch] = ForwardingTable(up.collect());
        }
        let mut is_folded = vec![false; graph.switches.len()];
        for folded in &self.folded {
            is_folded[folded.switch] = true;
        }
        for endpoint in &graph.endpoints {
            if is_folded[endpoint.switch] {
                all[endpoint.switch].set(endpoint.lid, endpoint.port);
            }
        }
        for (&switch, table) in self.switches.iter().zip(tables) {
            all[switch] = table;
        }
        all
    }

    /// For every switch of the graph the vertex that it is, or that it hangs at.
    pub(super) fn vertices(&self, graph: &Graph) -> Vec<usize> {
        let mut vertices = vec![0; graph.switches.len()];
        for (vertex, &switch) in self.switches.iter().enumerate() {
            vertices[switch] = vertex;
        }
        for folded in &self.folded {
            vertices[folded.switch] = folded.parent;
        }
        vertices
    }
}
