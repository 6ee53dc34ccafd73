//! Dragonfly routing: by the fewest cables between groups, on a higher lane after each.

mod groups;

use std::collections::{BTreeSet, VecDeque};

use wire::attribute::SlToVl;
use wire::{Lid, Vl};

use super::dfsssp::channels;
use crate::routing::lanes::layer::Layer;
use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::lanes::ports::PortLanes;
use crate::routing::skeleton::{Arc, Skeleton};
use crate::routing::spread::NONE;
use crate::routing::{ForwardingTable, Graph, Routing, RoutingEngine, RoutingError, Vertex};

/// Routing of dragonflies ("Technology-Driven, Highly-Scalable Dragonfly Topology", Kim, Dally, Scott, Abts): groups of
/// switches that are all cabled to each other, and a cable or several between every two groups.
///
/// A path goes by one cable of its first group, one between groups and one of its last group, or by fewer. Cables of a group
/// are on lane 0 before the one between groups and on lane 1 after it; so no circle of channels waits for itself, and
/// all such paths have service level 0. Of equally short paths the least used one is taken.
///
/// Where a cable is missing, paths get longer: two cables of a group, or two between groups by way of a third group. They
/// have service levels and lanes of their own, from lane 2 on, each the first on which the paths between two switches close
/// no circle.
#[derive(Debug, Clone, Copy)]
pub struct Dragonfly {
    /// Virtual lanes that may be used, 2 to 15.
    pub lanes: u8,
}

impl Default for Dragonfly {
    /// The 8 lanes that most adapters have.
    fn default() -> Self {
        Self { lanes: 8 }
    }
}

/// Lanes of paths by at most one cable between groups.
const SHIFTED: u8 = 2;
/// Classes of ports: cables of a group, and between groups.
const LOCAL: u8 = 1;
const GLOBAL: u8 = 2;

/// Length of a cable between groups, where one within a group has 1.
const BETWEEN: u32 = 1 << 16;

/// Form of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    End,
    Local,
    Global,
    GlobalLocal,
    LocalGlobal,
    Whole,
    /// More than that.
    Longer,
}

impl Form {
    /// The form with a cable before it.
    fn after(self, is_global: bool) -> Self {
        match (is_global, self) {
            (false, Self::End) => Self::Local,
            (false, Self::Global) => Self::LocalGlobal,
            (false, Self::GlobalLocal) => Self::Whole,
            (true, Self::End) => Self::Global,
            (true, Self::Local) => Self::GlobalLocal,
            _ => Self::Longer,
        }
    }
}

impl RoutingEngine for Dragonfly {
    fn name(&self) -> &'static str {
        "dragonfly"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn has_port_lanes(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let skeleton = Skeleton::new(graph);
        let error = |reason| RoutingError {
            engine: self.name(),
            reason,
        };
        let lanes = self.lanes.min(graph.lanes.unwrap_or(self.lanes));
        if lanes < SHIFTED {
            return Err(error(format!(
                "its paths need {SHIFTED} data lanes, and links have {lanes}; allow more, or use nue"
            )));
        }
        let (group, _) = groups::find(&skeleton).map_err(error)?;
        let mut walk = Walk::new(graph, &skeleton, &group);
        let mut columns = skeleton.columns();
        for target in 0..skeleton.len() {
            walk.aim(target);
            for lid in &skeleton.targets[target] {
                walk.choose(target);
                let column = columns.column(lid.lid);
                for (entry, &arc) in column.iter_mut().zip(&walk.next) {
                    if arc != NONE {
                        *entry = skeleton.arcs[arc as usize].port;
                    }
                }
                column[target] = lid.port;
            }
        }
        let tables = columns.into_tables();
        let (levels, above) = walk.levels(&tables, lanes - SHIFTED).map_err(error)?;
        let table = |from: u8, to: u8| {
            let shifted = u8::from((from, to) == (GLOBAL, LOCAL));
            SlToVl(std::array::from_fn(|level| {
                let is_above = (1..=above).contains(&(level as u8));
                Vl::new(if is_above {
                    level as u8 + SHIFTED - 1
                } else {
                    shifted
                })
            }))
        };
        let mut classes = vec![Box::default(); graph.switches.len()];
        for (vertex, &switch) in skeleton.switches.iter().enumerate() {
            let mut of = vec![0; usize::from(graph.switches[switch].ports) + 1];
            for arc in &skeleton.arcs[skeleton.arcs_of(vertex)] {
                let class = if walk.is_global(arc) { GLOBAL } else { LOCAL };
                if let Some(entry) = of.get_mut(usize::from(arc.port)) {
                    *entry = class;
                }
            }
            classes[switch] = of.into();
        }
        let ports = PortLanes::new(classes, 3, SHIFTED + above, table);
        Ok(Routing {
            tables: skeleton.unfold(graph, tables),
            levels: ServiceLevels::between(graph, &skeleton, levels).on(ports, 0),
        })
    }
}

/// Paths to one vertex after the other.
struct Walk<'a> {
    names: &'a [Vertex],
    skeleton: &'a Skeleton,
    group: &'a [u32],
    /// By vertex: the length of the way.
    distance: Vec<u32>,
    /// Vertices from near to far.
    order: Vec<usize>,
    /// By vertex: the arc by which it sends.
    next: Vec<u32>,
    /// By arc: paths.
    loads: Vec<u64>,
    /// By vertex: whether adapters are there.
    has_adapters: Vec<bool>,
    /// Two vertices with a path between them that is longer than those of a whole dragonfly.
    longer: BTreeSet<[usize; 2]>,
}

impl<'a> Walk<'a> {
    fn new(graph: &'a Graph, skeleton: &'a Skeleton, group: &'a [u32]) -> Self {
        Self {
            names: &graph.switches,
            skeleton,
            group,
            distance: Vec::new(),
            order: Vec::new(),
            next: vec![NONE; skeleton.len()],
            loads: vec![0; skeleton.arcs.len()],
            has_adapters: { skeleton.targets.iter() }
                .map(|targets| targets.iter().any(|target| target.adapter))
                .collect(),
            longer: BTreeSet::new(),
        }
    }

    fn is_global(&self, arc: &Arc) -> bool {
        let from = self.skeleton.arcs[arc.back as usize].to;
        self.group[from as usize] != self.group[arc.to as usize]
    }

    fn length(&self, arc: usize) -> u32 {
        if self.is_global(&self.skeleton.arcs[arc]) {
            BETWEEN
        } else {
            1
        }
    }

    /// Finds the distances to a vertex.
    fn aim(&mut self, target: usize) {
        self.distance = vec![u32::MAX; self.skeleton.len()];
        self.distance[target] = 0;
        self.order.clear();
        // Those that are as many cables between groups away, and those that are one more.
        let mut near = VecDeque::from([target]);
        let mut far = Vec::new();
        let mut done = vec![false; self.skeleton.len()];
        while !near.is_empty() {
            while let Some(at) = near.pop_front() {
                if std::mem::replace(&mut done[at], true) {
                    continue;
                }
                self.order.push(at);
                for arc in self.skeleton.arcs_of(at) {
                    let to = self.skeleton.arcs[arc].to as usize;
                    let length = self.length(arc);
                    let distance = self.distance[at] + length;
                    if distance < self.distance[to] {
                        self.distance[to] = distance;
                        if length == 1 {
                            near.push_back(to);
                        } else {
                            far.push(to);
                        }
                    }
                }
            }
            far.retain(|&at| !done[at]);
            far.sort_by_key(|&at| self.distance[at]);
            near.extend(far.drain(..));
        }
    }

    /// Chooses the ways of a LID of that vertex, the least used of the shortest.
    fn choose(&mut self, target: usize) {
        let skeleton = self.skeleton;
        self.next.fill(NONE);
        let mut flow: Vec<u64> = skeleton.adapters.iter().map(|&own| own.into()).collect();
        for &at in self.order.iter().rev().filter(|&&at| at != target) {
            let fits = |&arc: &usize| {
                let to = self.distance[skeleton.arcs[arc].to as usize];
                to.checked_add(self.length(arc)) == Some(self.distance[at])
            };
            let arcs = skeleton.arcs_of(at).filter(fits);
            let Some(arc) = arcs.min_by_key(|&arc| self.loads[arc]) else {
                continue;
            };
            self.next[at] = arc as u32;
            self.loads[arc] += flow[at];
            flow[skeleton.arcs[arc].to as usize] += flow[at];
        }
        let mut forms = vec![Form::End; skeleton.len()];
        for &at in self.order.iter().filter(|&&at| at != target) {
            let arc = &skeleton.arcs[self.next[at] as usize];
            forms[at] = forms[arc.to as usize].after(self.is_global(arc));
            // Between switches alone only management travels, on a lane of its own.
            if forms[at] == Form::Longer && (self.has_adapters[at] || self.has_adapters[target]) {
                self.longer.insert([at.min(target), at.max(target)]);
            }
        }
    }

    /// The arcs of a path by the tables of the vertices.
    fn path(&self, tables: &[ForwardingTable], from: usize, to: usize, lid: Lid) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = from;
        while at != to && path.len() < self.skeleton.len() {
            let own = self.skeleton.arcs_of(at);
            let arcs = &self.skeleton.arcs[own.clone()];
            let Ok(found) = arcs.binary_search_by_key(&tables[at].port(lid), |arc| arc.port) else {
                break;
            };
            path.push(own.start + found);
            at = arcs[found].to as usize;
        }
        path
    }

    /// The service level of every pair of vertices, 0 or that of a layer, and the number of layers.
    fn levels(&self, tables: &[ForwardingTable], most: u8) -> Result<(Vec<u8>, u8), String> {
        let count = self.skeleton.len();
        let mut levels = vec![0; count * count];
        let channels = channels(self.skeleton);
        let order: Vec<u32> = (0..channels.channels() as u32).collect();
        let mut layers: Vec<Layer> = Vec::new();
        for &[one, other] in &self.longer {
            let mut paths: Vec<Vec<usize>> = Vec::new();
            for (from, to) in [(one, other), (other, one)] {
                for lid in &self.skeleton.targets[to] {
                    let path = self.path(tables, from, to, lid.lid);
                    if !paths.contains(&path) {
                        paths.push(path);
                    }
                }
            }
            let mut found = layers
                .iter_mut()
                .position(|layer| layer.add(&channels, &paths));
            if found.is_none() && layers.len() < most.into() {
                let mut layer = Layer::new(&channels, &order);
                found = layer.add(&channels, &paths).then_some(layers.len());
                layers.push(layer);
            }
            let Some(layer) = found else {
                let switch = |at: usize| self.skeleton.switches[at];
                return Err(format!(
                    "{} data lanes do not suffice for the paths that are longer since cables are missing, as between \
                     switches {} and {}; mend cables, allow more lanes, or use nue",
                    most + SHIFTED,
                    self.names[switch(one)].guid,
                    self.names[switch(other)].guid,
                ));
            };
            let level = layer as u8 + 1;
            (levels[one * count + other], levels[other * count + one]) = (level, level);
        }
        Ok((levels, layers.len() as u8))
    }
}
