//! Lanes among which a tenant divides its links.

use std::collections::BTreeMap;

use wire::Sl;

use super::ViewFabric;
use crate::nodes::node::{HIGH_PRIORITY, LOW_PRIORITY, Port};
use crate::nodes::topology::PortRef;

/// Division of a link among lanes, as SLtoVL and arbitration tables say it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Division {
    /// By service level: the place of its lane among the parts. Levels that are dropped have the first one.
    pub places: [u8; 16],
    /// By lane that has a service level, in their order: its part. Fewer than two where nothing is divided.
    pub parts: Vec<u16>,
}

impl Division {
    /// The division at a port. A lane's part is its weight in the table of low priority or, if that has none, in the
    /// other one.
    fn at(port: &Port) -> Option<Self> {
        if !port.has_arbitration() {
            return None;
        }
        let lanes = (0..16).map(|sl| port.lane(0, Sl::new(sl)));
        let lanes: Vec<_> = lanes.collect();
        let mut parts = BTreeMap::new();
        for &lane in lanes.iter().flatten() {
            let weight = |half| -> u16 {
                let entries = port.arbitration(half).0.into_iter();
                let own = entries.filter(|entry| entry.vl == lane);
                own.map(|entry| u16::from(entry.weight)).sum()
            };
            let part = [LOW_PRIORITY, HIGH_PRIORITY].map(weight);
            let part = part.into_iter().find(|&part| part > 0);
            parts.insert(lane.value(), part.unwrap_or(1));
        }
        let mut places = [0; 16];
        for (place, lane) in places.iter_mut().zip(lanes) {
            let before = lane.map_or(0, |lane| parts.range(..lane.value()).count());
            *place = before as u8;
        }
        let parts = parts.into_values().collect();
        Some(Self { places, parts })
    }
}

impl ViewFabric {
    /// The division of links that most ports with a link have, of those whose arbitration the tenant's subnet manager has
    /// set.
    pub fn division(&self) -> Division {
        let mut counts: BTreeMap<Division, usize> = BTreeMap::new();
        for node in self.fabric.nodes() {
            let last = { self.fabric.node(node) }.map_or(0, |node| node.spec.ports);
            let ports = (1..=last).filter_map(|port| self.fabric.port(PortRef { node, port }));
            for division in ports
                .filter(|port| port.is_linked())
                .filter_map(Division::at)
            {
                *counts.entry(division).or_default() += 1;
            }
        }
        let most = { counts.into_iter() }.max_by_key(|&(_, count)| count);
        let most = most.map(|(division, _)| division);
        most.filter(|division| division.parts.len() > 1)
            .unwrap_or_default()
    }
}
