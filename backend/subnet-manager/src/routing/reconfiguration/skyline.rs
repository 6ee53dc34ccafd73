//! The least that changes in a topology of any kind.

use std::collections::VecDeque;

use wire::Lid;

use super::super::{ForwardingTable, Graph};
use super::{Exchange, Update, iterative};

/// The fewest switches that must change in a topology of any kind, so that every switch reaches the
/// machine at its new place; the others send its LID to one of these in any case.
///
/// `from` and `to` are the switches where the machine was and will be. No set of switches smaller
/// than this one does for a LID. Where two LIDs are swapped, each has a smallest set, and both are
/// changed: another choice among the smallest ones could have more switches in common.
///
/// Ways may become longer than those of [`iterative`], and go down and up again in a tree, which
/// [`FatTreeMinimum`](super::FatTreeMinimum) never lets them.
pub fn skyline(
    graph: &Graph,
    tables: &[ForwardingTable],
    exchange: Exchange,
    from: usize,
    to: usize,
) -> Vec<Update> {
    let (lid, other) = exchange.lids();
    let mut wanted = vec![(lid, other, from, to)];
    if matches!(exchange, Exchange::Swap { .. }) {
        wanted.push((other, lid, to, from));
    }
    let mut updates: Vec<Update> = Vec::new();
    for (lid, other, from, to) in wanted {
        let Some(switches) = chain(graph, tables, (lid, other), from, to) else {
            // Not all is connected.
            return iterative(tables, exchange);
        };
        for switch in switches {
            let port = tables[switch].port(other);
            if tables[switch].port(lid) == port {
                continue;
            }
            match updates.iter_mut().find(|update| update.switch == switch) {
                Some(update) => update.entries.push((lid, port)),
                None => updates.push(Update {
                    switch,
                    entries: vec![(lid, port)],
                }),
            }
        }
    }
    updates.sort_unstable_by_key(|update| update.switch);
    updates
}

/// The fewest switches that must send `lid`, which was at the switch `from`, as they send `other`,
/// which is at `to`, for all switches to reach it there. `None` where some do not reach them now.
///
/// All ways to `lid` end at `from`, so that `from` must change, and all others get there or to
/// another switch that changes. From a switch that changes, the way goes on to where that one sends
/// `other`, and from there towards `from` up to the next one that changes: any switch on the way can
/// be that. The shortest such chain from `from` to `to` is the answer.
pub(crate) fn chain(
    graph: &Graph,
    tables: &[ForwardingTable],
    (lid, other): (Lid, Lid),
    from: usize,
    to: usize,
) -> Option<Vec<usize>> {
    let next = |at: usize, lid: Lid| graph.neighbour(at, tables.get(at)?.port(lid));
    // By switch: the one before it in the chain.
    let mut before = vec![None; tables.len()];
    before[from] = Some(from);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            let mut chain = vec![to];
            let mut at = to;
            while at != from {
                at = before[at]?;
                chain.push(at);
            }
            return Some(chain);
        }
        // Beyond a switch that is known all are.
        let mut on = next(at, other)?;
        while before[on].is_none() {
            before[on] = Some(at);
            queue.push_back(on);
            on = next(on, lid)?;
        }
    }
    None
}
