//! Virtual lanes: how many links have, which ones service levels take, and how they share a link.

pub(super) mod clusters;
mod ports;

use wire::attribute::{PortInfo, SlToVl};
use wire::mad::AttributeId;
use wire::smp::DATA;
use wire::{Guid, Sl};

use super::{Knowledge, Purpose, SubnetManager};
use crate::config::quality::{Arbitration, PortKind};
use crate::model::{At, Node, Port};
use crate::routing::ServiceLevels;
use crate::tables::{FROM_ALL, TO_ALL};

/// A table of a port: where it is, its attribute and modifier, and what it is to hold.
type Setting = (At, AttributeId, u32, [u8; DATA]);

/// From all of a switch's ports to all others.
const ALL_TO_ALL: u32 = FROM_ALL | TO_ALL;

impl Knowledge {
    /// The code for the lanes that a link is to use: as many as both its ends have and the
    /// configuration allows.
    pub(super) fn operational_lanes(&self, ends: [(At, &PortInfo); 2]) -> u8 {
        let both = ends[0].1.vl_cap.min(ends[1].1.vl_cap);
        let most = ends.map(|(at, _)| self.config.max_lanes(self.subnet.kind(at)));
        let most = most[0].min(most[1]);
        // Codes rise with the number of lanes.
        let allowed = (1..=5).rev().find(|&code| PortInfo::lanes(code) <= most);
        both.min(allowed.unwrap_or(1))
    }

    /// The data lanes that every link has, and a port of a link that has no more.
    fn common_lanes(&self) -> Option<(u8, At)> {
        let ports = self.subnet.ports().filter(|(_, port)| port.is_linked());
        let lanes = ports.filter_map(|(at, port)| {
            let peer = port.peer?;
            let other = self.subnet.port(peer)?.info?;
            let code = self.operational_lanes([(at, &port.info?), (peer, &other)]);
            Some((PortInfo::lanes(code), at))
        });
        lanes.min()
    }

    /// The lanes of the service levels: as the configuration says or, where the routing engine needs
    /// a lane for each of its levels, one after the other. `None` leaves them as they are.
    pub(super) fn service_lanes(&self) -> Option<SlToVl> {
        self.config.sl_to_vl.or_else(|| {
            let (lanes, _) = self.common_lanes().filter(|_| self.routing.is_layered())?;
            Some(SlToVl::modulo(lanes))
        })
    }

    /// Whether every service level that paths use has a lane of its own on every link.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_lanes(&self, levels: &ServiceLevels) -> Result<(), String> {
        let needed = levels.lanes();
        let by_ports = levels.port_lanes().is_some();
        if by_ports && has_own_lanes(self) {
            return Err("it needs lanes that depend on the ports of switches, and qos_sl2vl gives each level \
                        one lane; leave qos_sl2vl out"
                .to_owned());
        }
        let Some((lanes, (node, port))) = self.common_lanes().filter(|_| needed > 1) else {
            return Ok(());
        };
        if needed > lanes {
            let limit = match self.config.max_lanes {
                Some(most) => format!(", qos_max_vls is {most}"),
                None => String::new(),
            };
            return Err(format!(
                "its paths need {needed} data lanes, and the link at port {port} of node {} has \
                 {lanes}{limit}; allow more, or use updn",
                self.subnet.nodes[node].info.node_guid
            ));
        }
        if by_ports {
            return Ok(());
        }
        are_levels_apart(self, needed, lanes)
    }

    pub(super) fn take_setting(
        &mut self,
        node: Guid,
        place: (u8, AttributeId, u32),
        sent: &[u8; DATA],
    ) {
        self.tables.holds_setting(node, place, *sent);
    }
}

/// Whether the configuration has tables from service levels to lanes.
fn has_own_lanes(known: &Knowledge) -> bool {
    let mut kinds = known.config.kinds.values();
    known.config.sl_to_vl.is_some() || kinds.any(|own| own.sl_to_vl.is_some())
}

fn are_levels_apart(known: &Knowledge, needed: u8, lanes: u8) -> Result<(), String> {
    let own = known.config.kinds.values().filter_map(|own| own.sl_to_vl);
    for table in own.chain([known.service_lanes().unwrap_or_default()]) {
        are_apart(&table, needed, lanes)?;
    }
    Ok(())
}

/// Service levels from 0 that have a lane of their own on every link, or all lanes where those of levels depend on ports;
/// `None` without links.
pub(super) fn levels_apart(known: &Knowledge) -> Option<u8> {
    let (lanes, _) = known.common_lanes()?;
    if known.routing.has_port_lanes() {
        return Some(lanes);
    }
    let apart = (2..=lanes).rev();
    let mut apart = apart.filter(|&levels| are_levels_apart(known, levels, lanes).is_ok());
    Some(apart.next().unwrap_or(1))
}

impl SubnetManager {
    /// Lanes of service levels, and arbitration of lanes on links.
    pub(super) fn set_lanes(&mut self) {
        let lanes = self.known.service_lanes();
        let config = &self.known.config;
        let mut wanted: Vec<Setting> = Vec::new();
        let by_clusters = clusters::is_on(&self.known);
        if by_clusters {
            wanted = clusters::settings(&self.known);
        }
        let by_ports = ports::settings(&self.known);
        let has_tables = by_ports.is_some();
        wanted.extend(by_ports.into_iter().flatten());
        let nodes = self.known.subnet.nodes.iter().enumerate();
        for (node, entry) in nodes.filter(|_| !by_clusters) {
            for (port, modifier) in lane_tables(entry).into_iter().filter(|_| !has_tables) {
                // A switch that has all its tables set at once is asked at port 0.
                let out = if modifier == ALL_TO_ALL { 1 } else { port };
                let own = config.kinds.get(&PortKind::of(entry.info.node_type, out));
                if let Some(table) = own.and_then(|own| own.sl_to_vl).or(lanes) {
                    let data = table.to_bytes();
                    wanted.push(((node, port), AttributeId::SL_TO_VL, modifier, data));
                }
            }
            for (number, port) in linked(entry) {
                let kind = PortKind::of(entry.info.node_type, number);
                if let Some(arbitration) = config.arbitration(kind) {
                    wanted.extend(arbitration_tables(entry, (node, number), port, arbitration));
                }
            }
        }
        for (at, attribute, modifier, data) in wanted {
            let Some(port) = self.known.subnet.port(at) else {
                continue;
            };
            let route = port.route.clone();
            let node = self.known.subnet.nodes[at.0].info.node_guid;
            let place = (at.1, attribute, modifier);
            if self.known.tables.setting_differs(node, place, &data) {
                self.known.tables.writes_setting(node, place);
                self.set(
                    route,
                    attribute,
                    modifier,
                    data,
                    Purpose::Setting { node, place },
                );
            }
        }
    }
}

/// Whether a table gives each of the service levels below `needed` one of `lanes` lanes to itself.
fn are_apart(table: &SlToVl, needed: u8, lanes: u8) -> Result<(), String> {
    let mut taken = [None; 16];
    for level in 0..needed {
        let lane = table.lane(Sl::new(level)).value();
        if lane >= lanes {
            return Err(format!(
                "its paths use service level {level}, which qos_sl2vl gives lane {lane}, and \
                     links have {lanes}; leave qos_sl2vl out"
            ));
        }
        if let Some(other) = taken[usize::from(lane)].replace(level) {
            return Err(format!(
                "its paths need a lane for each of the service levels 0 to {}, and qos_sl2vl \
                     gives {other} and {level} the same; leave qos_sl2vl out",
                needed - 1
            ));
        }
    }
    Ok(())
}

/// Ports that have lanes: external ones with a link, and enhanced ports 0.
fn linked(node: &Node) -> impl Iterator<Item = (u8, &Port)> {
    let enhanced = node.switch.is_some_and(|switch| switch.enhanced_port0);
    let ports = node
        .ports
        .iter()
        .map(|(&number, port)| (number, port.as_ref()));
    ports.filter(move |(number, port)| {
        (*number != 0 || !node.is_switch() || enhanced) && port.is_linked() && port.info.is_some()
    })
}

/// The SL-to-VL tables of a node: the port that is asked, and the modifier. One packet for a switch
/// that can have all its tables set at once.
fn lane_tables(node: &Node) -> Vec<(u8, u32)> {
    let mut ports = linked(node).map(|(number, _)| number);
    if !node.is_switch() {
        return ports.map(|number| (number, 0)).collect();
    }
    if node
        .switch
        .is_some_and(|switch| switch.optimized_sl_to_vl != 0)
    {
        return ports.next().map(|_| (0, ALL_TO_ALL)).into_iter().collect();
    }
    ports
        .flat_map(|to| {
            let from = node.ports.keys().filter(move |&&from| from != to);
            from.map(move |&from| (to, u32::from(from) << 8 | u32::from(to)))
        })
        .collect()
}

fn arbitration_tables(node: &Node, at: At, port: &Port, arbitration: &Arbitration) -> Vec<Setting> {
    let Some(info) = port.info else {
        return Vec::new();
    };
    let number = if node.is_switch() { u32::from(at.1) } else { 0 };
    let blocks = arbitration.blocks(&info);
    blocks
        .map(|(block, table)| {
            let modifier = u32::from(block) << 16 | number;
            (at, AttributeId::VL_ARBITRATION, modifier, table.to_bytes())
        })
        .collect()
}
