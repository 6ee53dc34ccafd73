//! The least that changes in a fat-tree when cables, switches or LIDs come or go.

use super::super::skeleton::{Arc, Skeleton};
use super::super::tree::Tree;
use super::super::{ForwardingTable, Graph, Vertex};

const FAR: u8 = u8::MAX;

/// A graph and its tables before something happened.
pub(in crate::routing) type Before<'a> = (&'a Graph, &'a [ForwardingTable]);

/// Replaces the entries of new tables by those that there were: each that still leads to its LID by a shortest way up
/// and then down. Entries of new tables stay where their paths cross a cable that there was not before.
///
/// All entries that are used lead one link closer by such ways, so no mixture of old ones and new ones makes a circle.
pub(in crate::routing) fn keep(
    graph: &Graph,
    (skeleton, tree): (&Skeleton, &Tree),
    before: Before<'_>,
    tables: &mut [ForwardingTable],
) {
    let switch = |vertex: usize| &graph.switches[skeleton.switches[vertex]];
    let former: Vec<_> = (0..skeleton.len())
        .map(|vertex| find(before, switch(vertex)))
        .collect();
    let mut ways = Ways {
        skeleton,
        tree,
        hops: Vec::new(),
        above: Vec::new(),
        by_level: (0..skeleton.len()).collect(),
    };
    ways.by_level.sort_by_key(|&at| tree.level[at]);
    let is_new = |(vertex, arc): (usize, &Arc)| {
        let here = switch(vertex);
        !is_same_cable(
            graph,
            here,
            before.0,
            former[vertex].map(|(old, _)| old),
            arc.port,
        )
    };
    let arcs = |vertex: usize| skeleton.arcs[skeleton.arcs_of(vertex)].iter();
    let new: Vec<bool> = (0..skeleton.len())
        .flat_map(|vertex| arcs(vertex).map(move |arc| (vertex, arc)))
        .map(is_new)
        .collect();
    let any_new = new.contains(&true);
    let mut by_hops: Vec<usize> = Vec::new();
    let mut crosses = vec![false; skeleton.len()];
    for (target, lids) in skeleton.targets.iter().enumerate() {
        if lids.is_empty() {
            continue;
        }
        ways.aim(target);
        by_hops.clear();
        by_hops.extend((0..skeleton.len()).filter(|&at| at != target && ways.hops[at] != FAR));
        by_hops.sort_by_key(|&at| ways.hops[at]);
        for lid in lids.iter().map(|target| target.lid) {
            crosses.fill(false);
            for &at in &by_hops {
                let fresh = tables[at].port(lid);
                if any_new && let Some(arc) = ways.arc(at, fresh) {
                    crosses[at] = new[arc] || crosses[skeleton.arcs[arc].to as usize];
                }
                let Some((_, table)) = former[at].filter(|_| !crosses[at]) else {
                    continue;
                };
                let port = table.port(lid);
                if port != fresh && ways.is_good(at, port) {
                    tables[at].set(lid, port);
                }
            }
        }
    }
}

/// Puts the entries of LIDs that are away back into tables, as long as they lead where they led: the LIDs may return,
/// and a switch need not be told that they are away.
pub(in crate::routing) fn keep_absent(
    graph: &Graph,
    before: Before<'_>,
    tables: &mut [ForwardingTable],
) {
    let mut present = vec![false; 1 << u16::BITS];
    for endpoint in &graph.endpoints {
        present[usize::from(endpoint.lid.value())] = true;
    }
    for (switch, table) in graph.switches.iter().zip(tables) {
        let Some((old, former)) = find(before, switch) else {
            continue;
        };
        for (lid, port) in former.entries() {
            if !present[usize::from(lid.value())]
                && is_same_cable(graph, switch, before.0, Some(old), port)
            {
                table.grow(lid);
                table.set(lid, port);
            }
        }
    }
}

/// The switch as it was, and its table.
fn find<'a>(
    (graph, tables): Before<'a>,
    switch: &Vertex,
) -> Option<(&'a Vertex, &'a ForwardingTable)> {
    let place = graph
        .switches
        .binary_search_by_key(&switch.guid, |old| old.guid);
    let place = place.ok()?;
    Some((&graph.switches[place], tables.get(place)?))
}

/// Whether a port leads to the port of a switch that it led to before, or to none now as then.
fn is_same_cable(
    graph: &Graph,
    switch: &Vertex,
    old_graph: &Graph,
    old: Option<&Vertex>,
    port: u8,
) -> bool {
    let end = |graph: &Graph, switch: &Vertex| {
        let trunk = switch
            .trunks
            .binary_search_by_key(&port, |trunk| trunk.port);
        let trunk = &switch.trunks[trunk.ok()?];
        Some((graph.switches[trunk.to].guid, trunk.to_port))
    };
    old.is_some_and(|old| end(old_graph, old) == end(graph, switch))
}

/// Shortest ways up and then down to a vertex.
struct Ways<'a> {
    skeleton: &'a Skeleton,
    tree: &'a Tree,
    /// By vertex: links to the target.
    hops: Vec<u8>,
    /// By vertex: whether it is the target, or reaches it by going down alone.
    above: Vec<bool>,
    by_level: Vec<usize>,
}

impl Ways<'_> {
    fn aim(&mut self, target: usize) {
        let Self {
            tree, hops, above, ..
        } = self;
        hops.clear();
        hops.resize(tree.level.len(), FAR);
        above.clear();
        above.resize(tree.level.len(), false);
        (hops[target], above[target]) = (0, true);
        for &at in self.by_level.iter().rev() {
            if above[at] {
                for group in &tree.up[at] {
                    let to = group.to as usize;
                    (hops[to], above[to]) = (hops[at] + 1, true);
                }
            }
        }
        for &at in &self.by_level {
            let next = hops[at].saturating_add(1);
            for group in &tree.down[at] {
                let to = group.to as usize;
                hops[to] = hops[to].min(next);
            }
        }
    }

    /// The arc by which a vertex sends from a port, as an index of [`Skeleton::arcs`].
    fn arc(&self, at: usize, port: u8) -> Option<usize> {
        let arcs = self.skeleton.arcs_of(at);
        let found = self.skeleton.arcs[arcs.clone()].binary_search_by_key(&port, |arc| arc.port);
        Some(arcs.start + found.ok()?)
    }

    /// Whether a port leads one link closer to the target.
    fn is_good(&self, at: usize, port: u8) -> bool {
        self.arc(at, port).is_some_and(|arc| {
            let to = self.skeleton.arcs[arc].to as usize;
            let goes_down = self.tree.level[to] > self.tree.level[at];
            (self.above[to] || !goes_down)
                && self.hops[to] != FAR
                && self.hops[to] + 1 == self.hops[at]
        })
    }
}
