//! Paths spread anew when migrations have crowded them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tracing::info;
use wire::Lid;

use super::{clusters, graph};
use crate::manager::lanes::clusters::update;
use crate::manager::{Knowledge, Phase, SubnetManager};
use crate::routing::{Endpoint, Graph, Routing, RoutingEngine, VSwitchFatTree, bottleneck};
use crate::sa::Paths;

/// Load of the link that most paths between VMs share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    /// Paths on it when all paths were last computed.
    pub computed: u64,
    /// Paths on it now.
    pub now: u64,
    /// Number of times that migrations had crowded it so that paths were spread anew.
    pub rebalanced: u64,
}

impl Balance {
    /// Whether it carries that many percent of what it did.
    fn exceeds(&self, percent: u16) -> bool {
        self.now * 100 >= self.computed.max(1) * u64::from(percent) && self.now > self.computed
    }
}

impl Knowledge {
    /// All paths have been computed.
    pub(in crate::manager) fn paths_computed(&mut self) {
        if self.config.rebalance_threshold.is_some() {
            let paths = self.crowd(&self.paths);
            (self.balance.computed, self.balance.now) = (paths, paths);
        }
    }

    /// VMs have moved: whether paths are to be spread anew.
    pub(in crate::manager) fn look_at_balance(&mut self) {
        if let Some(percent) = self.config.rebalance_threshold {
            self.balance.now = self.crowd(&self.paths);
            self.crowded |= self.balance.exceeds(percent);
        }
    }

    fn crowd(&self, paths: &Paths) -> u64 {
        let spares = self.spare_lids();
        let adapters = paths.graph.endpoints.iter().filter(|end| end.port != 0);
        let lids = adapters
            .map(|end| end.lid)
            .filter(|lid| !spares.contains(lid));
        bottleneck(&paths.graph, &paths.tables, &lids.collect::<Vec<_>>())
    }

    /// LIDs that no VM has.
    fn spare_lids(&self) -> BTreeSet<Lid> {
        let spares = self.config.spare_functions.iter();
        spares.flat_map(|&guid| self.lids_of(guid)).collect()
    }

    /// Paths in which VMs alone count: computed without the LIDs that no VM has, which then go the
    /// way of their vSwitch, as a VM that starts there does.
    fn spread(&self, graph: Graph, nodes: Vec<usize>) -> Paths {
        let spares = self.spare_lids();
        let (idle, busy): (Vec<Endpoint>, Vec<Endpoint>) = graph
            .endpoints
            .iter()
            .partition(|end| end.port != 0 && spares.contains(&end.lid));
        let own: HashMap<usize, Lid> = busy
            .iter()
            .filter(|end| end.port == 0)
            .map(|end| (end.switch, end.lid))
            .collect();
        // Nothing to follow: it counts like the others.
        let (idle, alone): (Vec<_>, Vec<_>) = idle
            .into_iter()
            .partition(|end| own.contains_key(&end.switch));
        let mut endpoints = [busy, alone].concat();
        endpoints.sort_unstable_by_key(|end| end.lid);
        let counted = Graph {
            switches: graph.switches.clone(),
            endpoints,
            roles: Arc::clone(&graph.roles),
            lanes: graph.lanes,
        };
        let mut paths = self.balanced(counted, nodes);
        for end in idle {
            let Some(&leader) = own.get(&end.switch) else {
                continue;
            };
            for (switch, table) in Arc::make_mut(&mut paths.tables).iter_mut().enumerate() {
                let port = if switch == end.switch {
                    end.port
                } else {
                    table.port(leader)
                };
                table.grow(graph.top());
                table.set(end.lid, port);
            }
            paths.levels.moved(end.lid, end.switch);
        }
        paths.graph = graph;
        paths
    }

    /// By vSwitchFatTree where that needs no lanes and the subnet is a fat-tree, otherwise, and where tables come from
    /// elsewhere, by the engine that is configured.
    fn balanced(&self, graph: Graph, nodes: Vec<usize>) -> Paths {
        if !self.routing.is_layered()
            && !self.routing.keeps_tables()
            && let Ok(Routing { tables, levels }) = VSwitchFatTree.route(&graph)
        {
            return Paths {
                graph,
                nodes,
                tables: Arc::new(tables),
                levels,
                lanes: self.paths.lanes,
                engine: Some(VSwitchFatTree.name()),
                refusals: Vec::new(),
                plan: None,
                overlay: None,
            };
        }
        self.new_paths(graph, nodes, None)
    }
}

impl SubnetManager {
    /// Load of the links; `None` where it is not measured, since
    /// [`Config::rebalance_threshold`](crate::Config::rebalance_threshold) is not set.
    pub fn balance(&self) -> Option<Balance> {
        self.known
            .config
            .rebalance_threshold
            .map(|_| self.known.balance)
    }

    /// Spreads the paths anew, if that helps.
    pub(in crate::manager) fn rebalance(&mut self) {
        self.known.crowded = false;
        self.phase = Phase::Rebalancing;
        let (graph, nodes) = graph(&self.known);
        let mut fresh = self.known.spread(graph, nodes);
        let crowd = self.known.crowd(&fresh);
        if fresh.engine.is_none() || crowd >= self.known.balance.now {
            // Where the VMs are now nothing better can be had.
            self.known.balance.computed = self.known.balance.now;
            return;
        }
        info!(
            before = self.known.balance.now,
            now = crowd,
            "paths spread anew"
        );
        self.known.balance = Balance {
            computed: crowd,
            now: crowd,
            rebalanced: self.known.balance.rebalanced + 1,
        };
        for message in clusters::merge(&mut self.known, &mut fresh) {
            self.sweeps.error(message);
        }
        self.send_tables(&fresh, false);
        self.known.paths = fresh;
        update(self);
    }
}
