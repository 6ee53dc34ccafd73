//! Service levels: which virtual lanes a path may use.

use std::sync::Arc;

use wire::{Lid, Sl};

use crate::routing::Graph;
use crate::routing::lanes::ports::PortLanes;
use crate::routing::skeleton::Skeleton;

/// The service level of every path, from the switch where it begins to the LID where it ends.
///
/// Engines that keep paths free of deadlock by spreading them over virtual lanes answer with one per
/// pair of switches; service level n travels on lane n, or on lanes that depend on the ports of the switches on the way
/// (`PortLanes`). A path belongs to the switches of its ends,
/// and so do the paths back: whoever answers does so on the service level on which it was asked, a
/// connection's two directions among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceLevels {
    count: u8,
    /// By LID: which row or column tells of it.
    of_lid: Vec<u32>,
    /// By switch: which row or column tells of it.
    of_switch: Vec<u32>,
    /// Number of rows, and of columns.
    size: usize,
    levels: Vec<u8>,
    /// The lanes of the levels, where these depend on ports.
    ports: Option<Arc<PortLanes>>,
    /// Bits of a level that whoever asks for a path may choose: the class of service.
    free: u8,
}

impl ServiceLevels {
    /// Every path on service level 0.
    pub fn uniform() -> Self {
        Self {
            count: 1,
            of_lid: Vec::new(),
            of_switch: Vec::new(),
            size: 0,
            levels: Vec::new(),
            ports: None,
            free: 0,
        }
    }

    /// Levels by two vertices of a skeleton, the same both ways.
    pub(in crate::routing) fn between(graph: &Graph, skeleton: &Skeleton, levels: Vec<u8>) -> Self {
        let count = levels.iter().max().map_or(1, |&level| level + 1);
        if count == 1 {
            return Self::uniform();
        }
        let mut of_lid = vec![u32::MAX; usize::from(graph.top().value()) + 1];
        for (vertex, targets) in (0..).zip(&skeleton.targets) {
            for target in targets {
                of_lid[usize::from(target.lid.value())] = vertex;
            }
        }
        let vertices = skeleton.vertices(graph).into_iter();
        Self {
            count,
            of_lid,
            of_switch: vertices.map(|vertex| vertex as u32).collect(),
            size: skeleton.len(),
            levels,
            ports: None,
            free: 0,
        }
    }

    /// The same on lanes that depend on ports, with these bits of a level free.
    pub(in crate::routing) fn on(self, ports: PortLanes, free: u8) -> Self {
        Self {
            ports: Some(Arc::new(ports)),
            free,
            ..self
        }
    }

    /// The same for a graph that has only these switches, by their index.
    pub(crate) fn of_switches(&self, switches: &[usize]) -> Self {
        let vertices = switches.iter();
        let of_switch = vertices.filter_map(|&switch| self.of_switch.get(switch).copied());
        Self {
            of_switch: of_switch.collect(),
            ports: { self.ports.as_ref() }.map(|ports| Arc::new(ports.of_switches(switches))),
            ..self.clone()
        }
    }

    /// Number of service levels in use: those from 0, their free bits left out.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// Number of data lanes in use: those from 0.
    pub fn lanes(&self) -> u8 {
        self.port_lanes().map_or(self.count, PortLanes::lanes)
    }

    /// The lanes of the levels, where these depend on ports; elsewhere each level has the lane of its number.
    pub(crate) fn port_lanes(&self) -> Option<&PortLanes> {
        self.ports.as_deref()
    }

    /// The bits of a level that whoever asks for a path may choose.
    pub(crate) fn free(&self) -> u8 {
        self.free
    }

    /// The levels, as bits, that packets from a switch to a LID may have.
    pub(in crate::routing) fn mask(&self, switch: usize, destination: Lid) -> u16 {
        let own = self.level(switch, destination).value();
        1 << own | 1 << (own | self.free)
    }

    /// The level of the path from what hangs at a switch, an index of
    /// [`Graph::switches`](crate::routing::Graph::switches), to a LID.
    pub fn level(&self, switch: usize, destination: Lid) -> Sl {
        let to = self.of_lid.get(usize::from(destination.value()));
        let place = to
            .zip(self.of_switch.get(switch))
            .filter(|&(&to, _)| (to as usize) < self.size)
            .map(|(&to, &from)| from as usize * self.size + to as usize);
        let level = place.and_then(|place| self.levels.get(place));
        Sl::new(level.copied().unwrap_or_default())
    }

    /// A LID is at another switch now, and its paths are those of a LID that is there: it has their
    /// levels.
    pub(crate) fn moved(&mut self, lid: Lid, switch: usize) {
        let (lid, of) = (usize::from(lid.value()), self.of_switch.get(switch));
        let Some(&of) = of else {
            return;
        };
        if self.of_lid.len() <= lid {
            self.of_lid.resize(lid + 1, u32::MAX);
        }
        self.of_lid[lid] = of;
    }
}

impl Default for ServiceLevels {
    fn default() -> Self {
        Self::uniform()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::tests::fat_tree;

    #[test]
    fn by_switch_and_lid() {
        let graph = fat_tree();
        let skeleton = Skeleton::new(&graph);
        let size = skeleton.len();
        let mut levels = vec![0; size * size];
        (levels[1], levels[size]) = (2, 2);
        let mut levels = ServiceLevels::between(&graph, &skeleton, levels);
        assert_eq!(levels.count(), 3);
        let level =
            |levels: &ServiceLevels, switch, lid| levels.level(switch, Lid::new(lid)).value();
        // The hosts 5 and 6 are at switch 0, 7 and 8 at switch 1.
        assert_eq!(
            [1, 7, 8, 5, 3].map(|lid| level(&levels, 0, lid)),
            [0, 2, 2, 0, 0]
        );
        assert_eq!([5, 6, 7].map(|lid| level(&levels, 1, lid)), [2, 2, 0]);
        assert_eq!([level(&levels, 0, 0), level(&levels, 0, 99)], [0, 0]);
        assert_eq!(level(&levels, 9, 7), 0);
        levels.moved(Lid::new(5), 1);
        levels.moved(Lid::new(70), 1);
        assert_eq!([level(&levels, 0, 5), level(&levels, 0, 70)], [2, 2]);
        assert_eq!(ServiceLevels::uniform().level(3, Lid::new(1)).value(), 0);
    }
}
