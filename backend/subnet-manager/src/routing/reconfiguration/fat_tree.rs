//! The least that changes in a fat-tree.

use wire::Lid;

use super::super::tree::{Tree, trees};
use super::super::{ForwardingTable, Graph, RoutingError};
use super::{Exchange, Update};

/// The minimal reconfiguration of fat-trees, FTreeMinRC.
///
/// Only the leaves of both places change, and whatever is above them up to where the ways up from
/// both meet: all others send the LID to one of these.
#[derive(Debug)]
pub struct FatTreeMinimum {
    /// Switches that are vertices, as indices of [`Graph::switches`].
    switches: Vec<usize>,
    /// For every switch the vertex that it is or hangs at.
    vertices: Vec<usize>,
    /// For every switch and port, where that leads: the vertex.
    next: Vec<Vec<(u8, u32)>>,
    tree: Tree,
}

impl FatTreeMinimum {
    /// Looks at the levels of a fat-tree.
    ///
    /// # Errors
    /// [`RoutingError`] when the graph is none.
    pub fn new(graph: &Graph) -> Result<Self, RoutingError> {
        let mut found: Vec<_> = trees(graph).collect();
        let is_joined =
            |found: &Result<(_, Tree), _>| found.as_ref().is_ok_and(|(_, tree)| tree.is_joined());
        let best = match found.len() {
            1 => 0,
            _ => found.iter().position(is_joined).unwrap_or(0),
        };
        let (skeleton, tree) = found.swap_remove(best).map_err(|reason| RoutingError {
            engine: "the minimal reconfiguration",
            reason,
        })?;
        let next = (0..skeleton.len())
            .map(|vertex| {
                let arcs = skeleton.arcs_of(vertex);
                let arcs = skeleton.arcs[arcs].iter();
                arcs.map(|arc| (arc.port, arc.to)).collect()
            })
            .collect();
        Ok(Self {
            vertices: skeleton.vertices(graph),
            switches: skeleton.switches,
            next,
            tree,
        })
    }

    /// The level and digits by which OpenSM's fat-tree routing knows a switch; none for a vSwitch's
    /// own, which is known by the switch that it hangs at.
    pub fn tuple(&self, switch: usize) -> &[u16] {
        &self.tree.tuple[self.vertices[switch]]
    }

    /// The switches that a move between two switches, or vSwitches, may change, vSwitches not among
    /// them; as indices of [`Graph::switches`].
    pub fn marked(&self, from: usize, to: usize) -> Vec<usize> {
        let marked = self.mark(self.vertices[from], self.vertices[to]);
        marked
            .into_iter()
            .map(|vertex| self.switches[vertex as usize])
            .collect()
    }

    fn mark(&self, from: usize, to: usize) -> Vec<u32> {
        let mut sides = [vec![from as u32], vec![to as u32]];
        let mut marked = Vec::new();
        while sides[0] != sides[1] {
            for side in &mut sides {
                marked.extend(side.iter());
                let groups = side.iter().flat_map(|&at| &self.tree.up[at as usize]);
                let mut above: Vec<u32> = groups.map(|group| group.to).collect();
                above.sort_unstable();
                above.dedup();
                *side = above;
            }
        }
        marked.extend(&sides[0]);
        marked.sort_unstable();
        marked.dedup();
        marked
    }

    /// The switches that a move between two switches, or vSwitches, may change, the two themselves
    /// among them; for [`rounds`](super::rounds()).
    pub fn touched(&self, from: usize, to: usize) -> Vec<usize> {
        let mut touched = self.marked(from, to);
        touched.extend([from, to]);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Plans the changes of a move: the switches between the two places first, then the rest; the vSwitches that
    /// the machine leaves and comes to are among the first.
    pub fn plan(
        &self,
        tables: &[ForwardingTable],
        exchange: Exchange,
        from: usize,
        to: usize,
    ) -> Vec<Update> {
        let (source, target) = (self.vertices[from], self.vertices[to]);
        let marked = self.mark(source, target);
        let (lid, other) = exchange.lids();
        let mut order = vec![from, to];
        // From where the machine was to where it will be, and from there to where it was.
        for (start, lid) in [(source, other), (target, lid)] {
            for switch in self.trace(tables, start, lid) {
                let is_marked = marked
                    .binary_search(&(self.vertices[switch] as u32))
                    .is_ok();
                if is_marked && !order.contains(&switch) {
                    order.push(switch);
                }
            }
        }
        if from == to {
            order.remove(0);
        }
        let active = order.len();
        for vertex in marked {
            let switch = self.switches[vertex as usize];
            if !order[..active].contains(&switch) {
                order.push(switch);
            }
        }
        let updates = order.into_iter();
        updates
            .filter_map(|switch| exchange.update(switch, tables.get(switch)?))
            .collect()
    }

    /// The switches by which a vertex sends a LID.
    fn trace(&self, tables: &[ForwardingTable], start: usize, lid: Lid) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = start;
        // No path is longer than up and down again.
        for _ in 0..=2 * self.tree.leaf_level {
            let switch = self.switches[at];
            path.push(switch);
            let port = tables[switch].port(lid);
            match self.next[at].iter().find(|&&(from, _)| from == port) {
                Some(&(_, to)) => at = to as usize,
                None => break,
            }
        }
        path
    }
}
