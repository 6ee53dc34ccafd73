//! Paths: what switches forward where, on which service levels.

pub(super) mod balance;
mod cache;
pub(super) mod clusters;
pub(super) mod multipath;
pub(super) mod priority;

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use tracing::info;
use wire::attribute::{LinearBlock, MulticastBlock, SwitchInfo};
use wire::mad::AttributeId;
use wire::smp::DATA;
use wire::{Guid, Lid, PortState, Sl};

use super::discovery::switch_info_data;
use super::lanes::{self, levels_apart};
use super::{Knowledge, Purpose, SubnetManager};
use crate::model::At;
use crate::routing::{
    ForwardingTable, Graph, MinHop, Routing, RoutingEngine, RoutingError, Verdict, Vertex,
};
use crate::sa::Paths;
use cache::part_of;
use priority::{Change, by_active_routes};

/// The paths that there were and their engine, if they lead everywhere in the graph of now.
fn keep(before: &Paths, graph: &Graph) -> Option<(Routing, &'static str)> {
    let switches = before.graph.switches.iter().map(|switch| switch.guid);
    let tables: HashMap<Guid, &ForwardingTable> = switches.zip(&*before.tables).collect();
    let of = |switch: &Vertex| {
        tables
            .get(&switch.guid)
            .copied()
            .cloned()
            .unwrap_or_default()
    };
    let kept = Routing {
        tables: graph.switches.iter().map(of).collect(),
        levels: before.levels.clone(),
    };
    let verdict = Verdict::new(graph, &kept);
    let is_good = verdict.is_connected() && verdict.endless.is_none();
    before
        .engine
        .filter(|_| is_good)
        .map(|engine| (kept, engine))
}

/// The subnet as the engine is to see it, and the node of each switch.
pub(super) fn graph(known: &Knowledge) -> (Graph, Vec<usize>) {
    let (mut graph, nodes) = known.subnet.graph(&known.config.roles);
    graph.lanes = levels_apart(known).filter(|_| known.routing.is_layered());
    (graph, nodes)
}

impl Knowledge {
    /// The paths of a graph: those that there are if nothing has changed, or new ones and true.
    fn route(&mut self, graph: Graph, nodes: Vec<usize>) -> (Paths, bool) {
        let mut before = mem::take(&mut self.paths);
        let lanes = self.service_lanes();
        let outdated = self.outdated;
        if !outdated
            && !before.tables.is_empty()
            && (&before.graph, before.lanes) == (&graph, lanes)
        {
            return (Paths { nodes, ..before }, false);
        }
        clusters::lift(&mut before);
        let before = Some(before).filter(|paths| !paths.tables.is_empty());
        let whole = self.whole.take().filter(|_| !outdated);
        let whole = whole.or_else(|| {
            let paths = before.as_ref().filter(|_| !outdated)?;
            self.config.ucast_cache.then(|| paths.clone())
        });
        if let Some(whole) = whole
            && let Some(part) = part_of(&whole, &graph, &nodes, lanes)
        {
            self.whole = Some(whole).filter(|whole| whole.graph != graph);
            return (part, false);
        }
        (self.new_paths(graph, nodes, before.as_ref()), true)
    }

    /// The paths that the engine computes of the subnet as it is, whatever there were before.
    pub(super) fn fresh_paths(&self) -> Paths {
        let (graph, nodes) = graph(self);
        self.new_paths(graph, nodes, None)
    }

    pub(super) fn new_paths(
        &self,
        graph: Graph,
        nodes: Vec<usize>,
        before: Option<&Paths>,
    ) -> Paths {
        let mut refusals = Vec::new();
        // Paths of another engine are none of this one's to keep, nor those of a fallback.
        let former = before.filter(|before| !self.outdated && before.refusals.is_empty());
        let mut plan = None;
        let own = match former {
            _ if self.config.multipath.is_on() => multipath::plan(self, &graph).map(|found| {
                let tables = found.tables(&graph);
                plan = Some(found);
                tables.into()
            }),
            None => self.routing.route(&graph),
            // A path that is good stays: each change costs packets, and may reorder others.
            Some(before) => self
                .routing
                .reroute(&graph, (&before.graph, &before.tables)),
        };
        let own = own.and_then(|routing| match self.check_lanes(&routing.levels) {
            Ok(()) => Ok(routing),
            Err(reason) => Err(RoutingError {
                engine: self.routing.name(),
                reason,
            }),
        });
        let own = own.map(|routing| (routing, multipath::engine(self)));
        let kept = before.filter(|_| own.is_err() && self.routing.keeps_tables());
        if let (Err(error), Some((kept, engine))) =
            (&own, kept.and_then(|before| keep(before, &graph)))
        {
            let reason = format!("{}; the last good tables stay", error.reason);
            return Paths {
                tables: Arc::new(kept.tables),
                levels: kept.levels,
                lanes: self.service_lanes(),
                engine: Some(engine),
                refusals: vec![RoutingError {
                    engine: error.engine,
                    reason,
                }],
                plan: None,
                overlay: None,
                graph,
                nodes,
            };
        }
        // As OpenSM does.
        let found = own.or_else(|error| {
            refusals.push(RoutingError {
                reason: format!("{}; {} does it instead", error.reason, MinHop.name()),
                ..error
            });
            MinHop.route(&graph).map(|routing| (routing, MinHop.name()))
        });
        let (routing, engine) = match found {
            Ok((routing, engine)) => (routing, Some(engine)),
            Err(error) => {
                refusals.push(error);
                (Routing::default(), None)
            }
        };
        Paths {
            graph,
            nodes,
            tables: Arc::new(routing.tables),
            levels: routing.levels,
            lanes: self.service_lanes(),
            engine,
            refusals,
            plan,
            overlay: None,
        }
    }

    /// The service level by which a port reaches the manager, as far as the last paths say.
    pub(super) fn manager_level(&self, port: Guid) -> Sl {
        self.manager_levels.get(&port).copied().unwrap_or_default()
    }

    pub(super) fn find_manager_levels(&mut self) {
        self.manager_levels.clear();
        let own = self.subnet.own.and_then(|own| self.subnet.port(own));
        let Some(manager) = own.map(|own| self.lid_of(own.guid)) else {
            return;
        };
        for &port in self.cluster_lanes.levels.of_port.keys() {
            if let Some(&level) = self.cluster_lanes.levels.of(port).first() {
                self.manager_levels.insert(port, level);
            }
        }
        if self.paths.levels.count() < 2 {
            return;
        }
        let vertices: HashMap<usize, usize> = self.paths.nodes.iter().copied().zip(0..).collect();
        for (at, port) in self.subnet.ports().filter(|(_, port)| !port.guid.is_none()) {
            let switch = if self.subnet.nodes[at.0].is_switch() {
                Some(at.0)
            } else {
                port.peer.map(|(node, _)| node)
            };
            if let Some(&vertex) = switch.and_then(|switch| vertices.get(&switch)) {
                let level = self.paths.levels.level(vertex, manager);
                self.manager_levels.insert(port.guid, level);
            }
        }
    }

    /// Two ports change places.
    pub(super) fn swap_manager_levels(&mut self, one: Guid, other: Guid) {
        let levels = [one, other].map(|guid| self.manager_levels.get(&guid).copied());
        if let [Some(here), Some(there)] = levels {
            self.manager_levels.insert(one, there);
            self.manager_levels.insert(other, here);
        }
    }

    pub(super) fn take_linear(&mut self, switch: Guid, number: u16, data: &[u8; DATA]) {
        self.tables.holds_linear(switch, number, LinearBlock(*data));
    }

    pub(super) fn take_multicast(&mut self, switch: Guid, at: (u16, u8), data: &[u8; DATA]) {
        let block = MulticastBlock::parse(data);
        self.tables.holds_multicast(switch, at, block);
    }
}

impl SubnetManager {
    pub(super) fn set_paths(&mut self) {
        let is_first = self.known.paths.tables.is_empty();
        let (graph, nodes) = graph(&self.known);
        let (mut paths, computed) = self.known.route(graph, nodes);
        self.known.outdated = false;
        let refusals = paths.refusals.iter().map(ToString::to_string);
        let refusals: Vec<String> = refusals.collect();
        let of_clusters = clusters::merge(&mut self.known, &mut paths);
        for message in refusals.into_iter().chain(of_clusters) {
            self.sweeps.error(message);
        }
        self.send_tables(&paths, is_first);
        let whole = self.known.whole.as_ref().unwrap_or(&paths);
        let tops = whole.tables.iter().map(ForwardingTable::top);
        let top = tops.max().unwrap_or_default().max(whole.graph.top());
        set_tops(self, top, &paths.nodes);
        self.known.paths = paths;
        self.migrations.paths_are_new();
        self.sweeps.report.lids = multipath::usage(&self.known);
        if let (true, Some(usage)) = (computed, self.sweeps.report.lids) {
            info!(
                lids = usage.lids,
                paths = usage.paths,
                saved = usage.one_each.saturating_sub(usage.lids),
                "LIDs by paths"
            );
        }
        if computed {
            self.known.paths_computed();
        }
        lanes::clusters::update(self);
        if self.known.routing.has_port_lanes() {
            self.set_lanes();
        }
        self.set_multicast();
    }

    /// Sends the blocks in which forwarding tables differ from what switches hold, in the order of their active routes
    /// if there were routes before.
    pub(super) fn send_tables(&mut self, paths: &Paths, is_first: bool) {
        let mut changes: Vec<Change> = Vec::new();
        for (switch, table) in paths.tables.iter().enumerate() {
            let guid = paths.graph.switches[switch].guid;
            let blocks = self.known.tables.linear_changes(guid, table).into_iter();
            changes.extend(blocks.map(|(number, block)| (switch, number, block)));
        }
        if !is_first {
            by_active_routes(&self.known, paths, &mut changes);
        }
        for (switch, number, block) in changes {
            let guid = paths.graph.switches[switch].guid;
            self.known.tables.writes_linear(guid, number);
            let purpose = Purpose::Linear {
                switch: guid,
                number,
            };
            self.set_at_switch(
                paths.nodes[switch],
                AttributeId::LINEAR_FORWARDING,
                u32::from(number),
                block.0,
                purpose,
            );
        }
    }

    /// Writes what differs in the multicast forwarding tables.
    pub(super) fn set_multicast(&mut self) {
        let wanted = self
            .administration
            .multicast(&self.known.paths.graph, &self.known.lids);
        let mut requests = Vec::new();
        for (&node, blocks) in self.known.paths.nodes.iter().zip(wanted) {
            let switch = self.known.subnet.nodes[node].info.node_guid;
            for (at, block) in blocks {
                if self.known.tables.multicast_differs(switch, at, &block) {
                    requests.push((node, Purpose::Multicast { switch, at }, at, block));
                }
            }
        }
        for (node, purpose, (number, position), block) in requests {
            let switch = self.known.subnet.nodes[node].info.node_guid;
            self.known
                .tables
                .writes_multicast(switch, (number, position));
            self.set_at_switch(
                node,
                AttributeId::MULTICAST_FORWARDING,
                MulticastBlock::modifier(number, position),
                block.to_bytes(),
                purpose,
            );
        }
    }

    pub(super) fn set_at_switch(
        &mut self,
        node: usize,
        attribute: AttributeId,
        modifier: u32,
        data: [u8; DATA],
        purpose: Purpose,
    ) {
        if let Some(route) = self.known.subnet.nodes[node].route().cloned() {
            self.set(route, attribute, modifier, data, purpose);
        }
    }
}

/// Tells ports that were told before there were paths, and are in use already.
pub(super) fn set_manager_levels(manager: &mut SubnetManager) {
    let changed: Vec<At> = manager
        .known
        .subnet
        .end_ports()
        .into_iter()
        .filter(|&at| {
            let port = manager
                .known
                .subnet
                .port(at)
                .filter(|port| port.state() >= PortState::Armed);
            port.and_then(|port| Some((port.guid, port.info?)))
                .is_some_and(|(guid, info)| info.master_sm_sl != manager.known.manager_level(guid))
        })
        .collect();
    for at in changed {
        if let Some((_, wanted)) = manager.known.wanted(manager.administration.aliases(), at) {
            manager.set_port(at, &wanted, PortState::NoChange, false, None);
        }
    }
}

/// The highest LID that each switch looks up.
fn set_tops(manager: &mut SubnetManager, top: Lid, nodes: &[usize]) {
    // A VM that starts later takes the lowest free LID, and finds it within reach.
    let ports = manager.known.subnet.end_ports().len() << manager.known.config.lmc;
    let ports = u16::try_from(ports).unwrap_or(u16::MAX);
    let pinned = manager
        .known
        .config
        .pinned_lids
        .values()
        .map(|lid| lid.value())
        .max();
    let reach = if manager.known.config.without_lid.is_empty() {
        0
    } else {
        ports
            .max(pinned.unwrap_or(0))
            .min(Lid::UNICAST_LAST.value())
    };
    let top = top.value().max(reach);
    for &node in nodes {
        let Some(info) = manager.known.subnet.nodes[node].switch else {
            continue;
        };
        if top >= info.linear_fdb_cap {
            let guid = manager.known.subnet.nodes[node].info.node_guid;
            manager.sweeps.error(format!(
                "switch {guid} forwards LIDs below {}, the highest is {top}",
                info.linear_fdb_cap
            ));
            continue;
        }
        if info.linear_fdb_top != top {
            let data = switch_info_data(&SwitchInfo {
                linear_fdb_top: top,
                port_state_change: false,
                ..info
            });
            let purpose = Purpose::SwitchInfo(node);
            manager.set_at_switch(node, AttributeId::SWITCH_INFO, 0, data, purpose);
        }
    }
}
