//! The ways that forwarding tables take, walked once to be looked up many times.

use std::collections::HashMap;

use rayon::prelude::*;
use subnet_manager::{ForwardingTable, Graph};
use wire::Lid;

use super::QualityError;

/// Links of a graph, each direction of a cable by itself, numbered.
pub(super) struct Links {
    /// By switch, where its ports begin in `ports`; and where the last ones end.
    first: Vec<u32>,
    /// The link that begins at a port, and the switch that it leads to.
    ports: Vec<(u32, u32)>,
    count: u32,
}

const NONE: u32 = u32::MAX;

impl Links {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut first = vec![0];
        let mut ports = Vec::new();
        let mut count = 0;
        for vertex in &graph.switches {
            let start = ports.len();
            for trunk in &vertex.trunks {
                let at = start + usize::from(trunk.port);
                if ports.len() <= at {
                    ports.resize(at + 1, (NONE, NONE));
                }
                ports[at] = (count, trunk.to as u32);
                count += 1;
            }
            first.push(ports.len() as u32);
        }
        Self {
            first,
            ports,
            count,
        }
    }

    /// The link that begins at a port of a switch, and the switch that it leads to.
    #[inline]
    fn at(&self, switch: u32, port: u8) -> Option<(u32, u32)> {
        let (start, end) = (self.first[switch as usize], self.first[switch as usize + 1]);
        let at = start + u32::from(port);
        let (link, to) = *self.ports.get(at as usize)?;
        (at < end && link != NONE).then_some((link, to))
    }
}

/// Where a LID is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    lid: Lid,
    switch: u32,
    port: u8,
}

/// Where LIDs are.
///
/// # Errors
/// [`QualityError::UnknownLid`].
pub(super) fn places(graph: &Graph, lids: &[Lid]) -> Result<Vec<Place>, QualityError> {
    let endpoints = graph.endpoints.iter();
    let endpoints: HashMap<Lid, (u32, u8)> = endpoints
        .map(|endpoint| (endpoint.lid, (endpoint.switch as u32, endpoint.port)))
        .collect();
    let place = |&lid: &Lid| {
        let &(switch, port) = endpoints.get(&lid).ok_or(QualityError::UnknownLid(lid))?;
        Ok(Place { lid, switch, port })
    };
    lids.iter().map(place).collect()
}

/// One of the LIDs that send and receive.
#[derive(Clone, Copy)]
struct End {
    /// Where the ways begin that it sends by.
    row: u32,
    /// The link before these, from a vSwitch to the switch above it and only there, or none.
    up: u32,
    /// The link after those that lead to it, or none.
    down: u32,
}

/// The way of every LID to every other one by some forwarding tables.
///
/// A vSwitch's uplink, which all that is behind it takes, is kept apart from what comes after, so
/// that there is one row of ways for every leaf and not one for every vSwitch.
pub(super) struct Ways {
    ends: Vec<End>,
    /// By row, then by LID to send to, `stride` links each.
    links: Vec<u32>,
    stride: usize,
    count: u32,
}

impl Ways {
    pub(super) fn new(
        graph: &Graph,
        links: &Links,
        tables: &[ForwardingTable],
        places: &[Place],
    ) -> Self {
        let count = links.count;
        let (nothing, lost) = (count, count + 1);
        let mut rows: Vec<u32> = Vec::new();
        let mut row_of: HashMap<u32, u32> = HashMap::new();
        let mut above: HashMap<u32, Option<(u32, u32)>> = HashMap::new();
        let ends: Vec<End> = places
            .iter()
            .map(|place| {
                let switch = place.switch;
                let above = *above
                    .entry(switch)
                    .or_insert_with(|| uplink(graph, links, tables, places, switch));
                let (up, from) = above.unwrap_or((nothing, switch));
                let row = *row_of.entry(from).or_insert_with(|| {
                    rows.push(from);
                    rows.len() as u32 - 1
                });
                let down = match above {
                    Some(_) => back(graph, links, switch).unwrap_or(nothing),
                    None => nothing,
                };
                End { row, up, down }
            })
            .collect();
        let walked: Vec<(Vec<u32>, Vec<u32>)> = rows
            .par_iter()
            .map(|&from| {
                let (mut row, mut stops) = (Vec::new(), Vec::with_capacity(places.len()));
                for (place, end) in places.iter().zip(&ends) {
                    let start = row.len();
                    if !walk(links, tables, from, *place, &mut row) {
                        row.truncate(start);
                        row.push(lost);
                    } else if end.down != nothing && row.last() == Some(&end.down) {
                        row.pop();
                    }
                    stops.push(row.len() as u32);
                }
                (row, stops)
            })
            .collect();
        let lengths = |stops: &[u32]| {
            let starts = std::iter::once(0).chain(stops.iter().copied());
            let lengths = stops.iter().zip(starts).map(|(stop, start)| stop - start);
            lengths.max().unwrap_or(0)
        };
        let longest = walked.iter().map(|(_, stops)| lengths(stops)).max();
        let stride = longest.unwrap_or(0) as usize;
        let mut packed = vec![nothing; stride * places.len() * rows.len()];
        if stride > 0 {
            packed
                .par_chunks_mut(stride * places.len())
                .zip(walked)
                .for_each(|(packed, (row, stops))| {
                    let mut start = 0;
                    for (way, stop) in packed.chunks_mut(stride).zip(stops) {
                        let found = &row[start..stop as usize];
                        way[..found.len()].copy_from_slice(found);
                        start = stop as usize;
                    }
                });
        }
        Self {
            ends,
            links: packed,
            stride,
            count,
        }
    }

    /// Counters for [`Ways::shares`].
    pub(super) fn counters(&self) -> Vec<u32> {
        vec![0; self.count as usize + 2]
    }

    /// The sum of what flows between LIDs, given by their numbers, get of the link that most of them
    /// share; `own` of each LID's flows leave it, and those that share a link with fewer get it all.
    pub(super) fn shares(
        &self,
        flows: impl Iterator<Item = (usize, usize)> + Clone,
        own: u32,
        loads: &mut [u32],
    ) -> f64 {
        // Ways of two and three levels of switches, whose lengths are worth knowing beforehand.
        match self.stride {
            2 => self.shares_of::<2>(flows, own, loads),
            4 => self.shares_of::<4>(flows, own, loads),
            _ => self.shares_by(flows, own, loads, |at| &self.links[at..at + self.stride]),
        }
    }

    fn shares_of<const STRIDE: usize>(
        &self,
        flows: impl Iterator<Item = (usize, usize)> + Clone,
        own: u32,
        loads: &mut [u32],
    ) -> f64 {
        let (ways, _) = self.links.as_chunks::<STRIDE>();
        self.shares_by(flows, own, loads, |at| &ways[at / STRIDE])
    }

    #[inline]
    fn shares_by<'a, W: AsRef<[u32]> + ?Sized + 'a>(
        &'a self,
        flows: impl Iterator<Item = (usize, usize)> + Clone,
        own: u32,
        loads: &mut [u32],
        links: impl Fn(usize) -> &'a W,
    ) -> f64 {
        let (nothing, lost) = (self.count, self.count + 1);
        // Between the machines of one vSwitch there are no links.
        let way = |(from, to): (usize, usize)| {
            let (sender, receiver) = (self.ends[from], self.ends[to]);
            let at = (sender.row as usize * self.ends.len() + to) * self.stride;
            let is_local = sender.up == receiver.up && sender.up != nothing;
            (!is_local).then(|| (links(at).as_ref(), sender.up, receiver.down))
        };
        loads.fill(0);
        for (links, up, down) in flows.clone().filter_map(way) {
            if links.first() == Some(&lost) {
                continue;
            }
            loads[up as usize] += 1;
            loads[down as usize] += 1;
            for &link in links {
                loads[link as usize] += 1;
            }
        }
        loads[nothing as usize] = 0;
        loads[lost as usize] = u32::MAX;
        let shares = flows.map(|flow| {
            let Some((links, up, down)) = way(flow) else {
                return 1.0;
            };
            let ends = loads[up as usize].max(loads[down as usize]);
            let most = links
                .iter()
                .fold(ends, |most, &link| most.max(loads[link as usize]));
            match most {
                u32::MAX => 0.0,
                most => f64::from(own) / f64::from(most.max(own)),
            }
        });
        shares.sum()
    }
}

/// The only link of a switch and where it leads to, if its table is that of a vSwitch: its own LIDs
/// at their ports, all others up.
fn uplink(
    graph: &Graph,
    links: &Links,
    tables: &[ForwardingTable],
    places: &[Place],
    switch: u32,
) -> Option<(u32, u32)> {
    let [trunk] = graph.switches[switch as usize].trunks[..] else {
        return None;
    };
    let above = graph.switches[trunk.to].trunks.len();
    let table = tables.get(switch as usize)?;
    let as_vswitch = |place: &Place| {
        let wanted = if place.switch == switch {
            place.port
        } else {
            trunk.port
        };
        table.port(place.lid) == wanted
    };
    let is_vswitch = above > 1 && places.iter().all(as_vswitch);
    links.at(switch, trunk.port).filter(|_| is_vswitch)
}

/// The other direction of a switch's only link.
fn back(graph: &Graph, links: &Links, switch: u32) -> Option<u32> {
    let trunk = graph.switches[switch as usize].trunks.first()?;
    links
        .at(trunk.to as u32, trunk.to_port)
        .map(|(link, _)| link)
}

/// Adds the links on the way from a switch to a LID; false if it does not arrive.
fn walk(
    links: &Links,
    tables: &[ForwardingTable],
    from: u32,
    place: Place,
    way: &mut Vec<u32>,
) -> bool {
    let mut at = from;
    // A way that visits more switches than there are goes round.
    for _ in 0..tables.len() {
        let Some(table) = tables.get(at as usize) else {
            return false;
        };
        let out = table.port(place.lid);
        if at == place.switch {
            return out == place.port;
        }
        let Some((link, next)) = links.at(at, out) else {
            return false;
        };
        way.push(link);
        at = next;
    }
    false
}
