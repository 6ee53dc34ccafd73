//! Choosing among equally good ports.

use std::cmp::Reverse;
use std::collections::HashMap;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use super::columns::Columns;
use super::{Endpoint, ForwardingTable, Graph};

/// The trunks of all switches in one place: what a search over thousands of switches runs through.
#[derive(Debug)]
pub(super) struct Trunks {
    first: Vec<u32>,
    /// The switch at the other end, and the port here.
    ends: Vec<(u32, u8)>,
}

impl Trunks {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut first = vec![0];
        let mut ends = Vec::new();
        for vertex in &graph.switches {
            let trunks = vertex.trunks.iter();
            ends.extend(trunks.map(|trunk| (trunk.to as u32, trunk.port)));
            first.push(ends.len() as u32);
        }
        Self { first, ends }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// The trunks of a switch, by rising port.
    pub(super) fn of(&self, switch: usize) -> impl Iterator<Item = (usize, u8)> + Clone + '_ {
        let range = self.first[switch] as usize..self.first[switch + 1] as usize;
        self.ends[range]
            .iter()
            .map(|&(to, port)| (to as usize, port))
    }
}

/// "No way" among distances.
pub(super) const FAR: u32 = u32::MAX;

/// Links from every switch to the switch `to`; [`FAR`] where there is no way.
pub(super) fn distances(trunks: &Trunks, to: usize, found: &mut Vec<u32>, queue: &mut Vec<usize>) {
    found.clear();
    found.resize(trunks.len(), FAR);
    found[to] = 0;
    queue.clear();
    queue.push(to);
    let mut next = 0;
    while let Some(&at) = queue.get(next) {
        next += 1;
        let distance = found[at] + 1;
        for (neighbour, _) in trunks.of(at) {
            if found[neighbour] == FAR {
                found[neighbour] = distance;
                queue.push(neighbour);
            }
        }
    }
}

/// For every switch, the ports by which it may send to one switch.
#[derive(Debug, Default)]
pub(super) struct Ways {
    first: Vec<u32>,
    ports: Vec<u8>,
}

impl Ways {
    /// Notes the ports of the next switch, by rising index.
    pub(super) fn next(&mut self, ports: impl Iterator<Item = u8>) {
        self.ports.extend(ports);
        self.first.push(self.ports.len() as u32);
    }

    pub(super) fn clear(&mut self) {
        self.first.clear();
        self.first.push(0);
        self.ports.clear();
    }

    fn of(&self, switch: usize) -> &[u8] {
        &self.ports[self.first[switch] as usize..self.first[switch + 1] as usize]
    }
}

/// Routes from before, for a graph of the same switches and the same links, or fewer.
struct Kept<'a> {
    tables: &'a [ForwardingTable],
    /// By LID: whether it is where it was.
    same: Vec<bool>,
}

impl<'a> Kept<'a> {
    fn new(graph: &Graph, before: Option<(&Graph, &'a [ForwardingTable])>) -> Option<Self> {
        let (old, tables) = before?;
        let guids = |graph: &Graph| -> Vec<Guid> {
            let switches = graph.switches.iter();
            switches.map(|vertex| vertex.guid).collect()
        };
        // Where a link is new, the load is to be spread anew.
        let within = || {
            let mut pairs = graph.switches.iter().zip(&old.switches);
            pairs.all(|(new, old)| new.trunks.iter().all(|trunk| old.trunks.contains(trunk)))
        };
        if tables.len() != graph.switches.len() || guids(graph) != guids(old) || !within() {
            return None;
        }
        let old: HashMap<Lid, Endpoint> = old.endpoints.iter().map(|one| (one.lid, *one)).collect();
        let mut same = vec![false; usize::from(graph.top().value()) + 1];
        for endpoint in &graph.endpoints {
            same[usize::from(endpoint.lid.value())] = old.get(&endpoint.lid) == Some(endpoint);
        }
        Some(Self { tables, same })
    }

    fn port(&self, switch: usize, lid: Lid) -> Option<u8> {
        let port = self.tables[switch].port(lid);
        (self.same[usize::from(lid.value())] && port != LinearBlock::DROP).then_some(port)
    }
}

/// The ports of a switch by which LIDs of one adapter's port are sent: each its own way, as long as
/// there are more.
struct Siblings {
    port: Option<u8>,
    used: [u8; 256],
    /// The ports with a count other than zero in `used`; most often one.
    touched: Vec<u8>,
}

impl Siblings {
    /// Begins anew where this LID is not of the same port as the one before; those of a port come one
    /// after the other.
    fn turn_to(&mut self, endpoint: &Endpoint) {
        if self.port != Some(endpoint.port) {
            self.port = Some(endpoint.port);
            for port in self.touched.drain(..) {
                self.used[usize::from(port)] = 0;
            }
        }
    }

    fn count(&mut self, port: u8) {
        self.used[usize::from(port)] += 1;
        self.touched.push(port);
    }
}

/// The tables that send every LID by one of the ways to its switch: by the one it had before if
/// that is still one of them, else by the one that the fewest adapters' LIDs use so far. LIDs of one
/// adapter's port, which come one after the other, go each its own way, as long as there are more.
pub(super) fn spread(
    graph: &Graph,
    before: Option<(&Graph, &[ForwardingTable])>,
    mut ways: impl FnMut(usize, &mut Ways),
) -> Vec<ForwardingTable> {
    let switches = graph.switches.len();
    let mut columns = Columns::new(vec![ForwardingTable::new(graph.top()); switches]);
    let order = graph.roles.order.iter().rev().enumerate();
    let ranks: HashMap<Guid, usize> = order.map(|(rank, &guid)| (guid, rank)).collect();
    let mut endpoints = graph.endpoints.clone();
    endpoints.sort_by_key(|one| (Reverse(ranks.get(&one.guid)), one.switch));
    let kept = Kept::new(graph, before);
    // Former paths may be by any port; else they are by trunks alone. The less room, the more of it is cached.
    let trunks = graph.switches.iter().flat_map(|vertex| &vertex.trunks);
    let highest = trunks.map(|trunk| trunk.port).max().unwrap_or(0);
    let width = usize::from(kept.as_ref().map_or(highest, |_| u8::MAX)) + 1;
    let mut loads = vec![0u32; width * switches];
    if let Some(kept) = &kept {
        for endpoint in graph.endpoints.iter().filter(|one| one.port != 0) {
            for (switch, loads) in loads.chunks_exact_mut(width).enumerate() {
                if let Some(port) = kept.port(switch, endpoint.lid) {
                    loads[usize::from(port)] += 1;
                }
            }
        }
    }
    let mut found = Ways::default();
    let mut siblings = Siblings {
        port: None,
        used: [0; 256],
        touched: Vec::new(),
    };
    for endpoints in endpoints.chunk_by(|one, next| one.switch == next.switch) {
        let target = endpoints[0].switch;
        found.clear();
        ways(target, &mut found);
        let columns = columns.columns(endpoints.iter().map(|endpoint| endpoint.lid));
        for (switch, loads) in loads.chunks_exact_mut(width).enumerate() {
            let ports = found.of(switch);
            siblings.port = None;
            for (endpoint, column) in endpoints.iter().zip(columns.chunks_exact_mut(switches)) {
                if switch == target {
                    column[switch] = endpoint.port;
                    continue;
                }
                siblings.turn_to(endpoint);
                // Hardly anything is sent to a switch itself.
                let weight = u32::from(endpoint.port != 0);
                let kept = kept.as_ref();
                if let Some(port) = kept.and_then(|kept| kept.port(switch, endpoint.lid)) {
                    if ports.contains(&port) {
                        siblings.count(port);
                        column[switch] = port;
                        continue;
                    }
                    loads[usize::from(port)] -= weight;
                }
                let least = ports.iter().min_by_key(|&&port| {
                    let port = usize::from(port);
                    (siblings.used[port], loads[port])
                });
                if let Some(&port) = least {
                    siblings.count(port);
                    column[switch] = port;
                    loads[usize::from(port)] += weight;
                }
            }
        }
    }
    columns.into_tables()
}
