//! Lanes of service levels that depend on the ports of switches, as the routing engine has them.

use std::collections::HashMap;

use wire::mad::AttributeId;

use super::{Setting, linked};
use crate::manager::Knowledge;
use crate::tables::FROM_ALL;

/// The tables of all ports; `None` where a level has the same lane at all of them. Where a switch can have several tables
/// set at once, one packet does for a port to which packets take the same lanes from everywhere.
pub(super) fn settings(known: &Knowledge) -> Option<Vec<Setting>> {
    let lanes = known.paths.levels.port_lanes()?;
    let places: HashMap<usize, usize> = known.paths.nodes.iter().copied().zip(0..).collect();
    let mut settings = Vec::new();
    for (number, node) in known.subnet.nodes.iter().enumerate() {
        let mut put = |port, modifier, table: wire::attribute::SlToVl| {
            let data = table.to_bytes();
            settings.push(((number, port), AttributeId::SL_TO_VL, modifier, data));
        };
        let ports: Vec<u8> = linked(node).map(|(port, _)| port).collect();
        if !node.is_switch() {
            for &port in &ports {
                put(port, 0, lanes.of_adapters());
            }
            continue;
        }
        let Some(&place) = places.get(&number) else {
            continue;
        };
        let at_once = { node.switch }.is_some_and(|switch| switch.optimized_sl_to_vl != 0);
        for &to in &ports {
            let first = lanes.table(place, 0, to);
            let from = [0].iter().chain(&ports).filter(|&&from| from != to);
            let is_one = from
                .clone()
                .all(|&from| lanes.table(place, from, to) == first);
            if at_once && is_one {
                put(to, FROM_ALL | u32::from(to), first);
                continue;
            }
            for &from in from {
                let modifier = u32::from(from) << 8 | u32::from(to);
                put(to, modifier, lanes.table(place, from, to));
            }
        }
    }
    Some(settings)
}
