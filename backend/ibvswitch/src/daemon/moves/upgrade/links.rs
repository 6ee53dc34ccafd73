//! Links that are not as the configuration has them: under another program they are as they were.

use std::time::Duration;

use fabric::{Fabric, PortRef, Stalled};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};
use vswitch::{LinkAction, Plan, VSwitch};

/// Changes that a user has made to a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRecord {
    /// Node and port of both ends.
    ends: [(String, u8); 2],
    /// Whether the cable is in.
    cable: bool,
    /// Packets of a million that get lost.
    loss_ppm: u32,
    /// Where the random numbers begin that choose them.
    seed: u64,
    /// Delay of each packet, in microseconds.
    delay_us: u64,
    /// One packet of so many finds buffers full; 0 for none.
    overrun_every: u32,
    /// Whether no credits arrive for what the first end would send, and the second.
    stalled: [bool; 2],
}

/// The links of a subnet that somebody has done something to.
#[must_use]
pub fn odd(plan: &Plan, fabric: &Fabric) -> Vec<LinkRecord> {
    let ports = |node| {
        let info = fabric.node_info(PortRef { node, port: 1 });
        let count = info.map_or(0, |info| info.num_ports);
        (1..=count).map(move |port| PortRef { node, port })
    };
    let ends = fabric.nodes().flat_map(ports);
    let links = ends.filter_map(|end| Some((end, fabric.peer(end)?)));
    // Each link once.
    let once = links.filter(|(end, peer)| (end.node, end.port) < (peer.node, peer.port));
    let handover = |(end, peer): (PortRef, PortRef)| {
        let (cable, fault) = (fabric.has_cable(end), fabric.link_fault(end));
        let fault = fault.unwrap_or_default();
        if cable && fault.is_harmless() {
            return None;
        }
        let name = |end: PortRef| Some((plan.name(end.node)?.to_owned(), end.port));
        Some(LinkRecord {
            ends: [name(end)?, name(peer)?],
            cable,
            loss_ppm: fault.loss_ppm,
            seed: fault.seed,
            delay_us: fault.delay.as_micros() as u64,
            overrun_every: fault.overrun_every,
            stalled: match fault.stalled {
                Stalled::No => [false, false],
                Stalled::Outbound => [true, false],
                Stalled::Inbound => [false, true],
                Stalled::Both => [true, true],
            },
        })
    };
    once.filter_map(handover).collect()
}

/// Does the same to them again. A link that the configuration has no more is left out; one of which an end has
/// another port now is found by its other end.
pub fn restore(plan: &Plan, vswitch: &VSwitch, links: &[LinkRecord]) {
    for link in links {
        let named = |[near, far]: [usize; 2]| {
            let ((node, port), (peer, _)) = (&link.ends[near], &link.ends[far]);
            let found = vswitch.inspect(|fabric| {
                let ends = plan.named(node).map(|node| PortRef { node, port: *port });
                let leads_there = |end: &PortRef| {
                    let far = fabric.peer(*end).and_then(|far| plan.name(far.node));
                    far == Some(peer.as_str())
                };
                let info = fabric.node_info(ends.into_iter().find(leads_there)?)?;
                // Another node may have the same name.
                Some(info.node_guid.to_string())
            });
            found.map(|guid| (guid, *port, link.stalled_from(near)))
        };
        let Some((node, port, stalled)) = named([0, 1]).or_else(|| named([1, 0])) else {
            debug!(?link, "a link no longer exists");
            continue;
        };
        for action in link.actions(stalled) {
            if let Err(error) = vswitch.change_link(plan, (&node, port), action) {
                warn!("a link could not be restored: {error}");
            }
        }
    }
}

impl LinkRecord {
    /// Where no credits arrive, seen from one of the ends.
    fn stalled_from(&self, end: usize) -> Stalled {
        match [self.stalled[end], self.stalled[1 - end]] {
            [false, false] => Stalled::No,
            [true, false] => Stalled::Outbound,
            [false, true] => Stalled::Inbound,
            [true, true] => Stalled::Both,
        }
    }

    fn actions(&self, stalled: Stalled) -> Vec<LinkAction> {
        let mut actions = Vec::new();
        if self.loss_ppm > 0 {
            actions.push(LinkAction::Drop {
                per_million: self.loss_ppm,
                seed: self.seed,
            });
        }
        if self.delay_us > 0 {
            actions.push(LinkAction::Delay(Duration::from_micros(self.delay_us)));
        }
        if self.overrun_every > 0 {
            actions.push(LinkAction::Overrun(self.overrun_every));
        }
        if stalled != Stalled::No {
            actions.push(LinkAction::Stall(stalled));
        }
        if !self.cable {
            actions.push(LinkAction::Down);
        }
        actions
    }
}
