//! Finding what is there.

use wire::attribute::{NodeInfo, NodeType, PKeyBlock, PortInfo, SmState, SwitchInfo};
use wire::mad::{AttributeId, Method};
use wire::smp::{DATA, Destination, Request, Route};
use wire::{Lid, PortState};

use super::{Knowledge, Phase, Purpose, SubnetManager, virtualization};
use crate::model::{At, Node, Subnet};

/// The node at the end of a route, or the one that a cable from leads there, in words.
pub(super) fn place(known: &Knowledge, route: &Route, purpose: &Purpose) -> String {
    let name = |node: &Node| {
        let names = &known.config.names;
        names.name(node.info.node_guid, &node.description)
    };
    let nodes = &known.subnet.nodes;
    if let Purpose::NodeInfo { from: Some(from) } = purpose {
        let before = nodes.get(from.0).map(name);
        let before = before.filter(|name| !name.is_empty());
        return before.map_or_else(String::new, |name| {
            format!(" (behind port {} of {name})", from.1)
        });
    }
    let is_there = |node: &&Node| node.ports.values().any(|port| port.route == *route);
    let found = nodes.iter().find(is_there).map(name);
    let found = found.filter(|name| !name.is_empty());
    found.map_or_else(String::new, |name| format!(" ({name})"))
}

impl Knowledge {
    /// A port that has been sent a key, with whatever result but a refusal, is taken to have it: a
    /// port without it shows so when it is read.
    pub(super) fn assume_key(&mut self, at: At, request: &Request) {
        if let (true, Ok(sent)) = (self.subnet.is_end_port(at), PortInfo::parse(&request.data)) {
            let holder = self.subnet.key_holder(at);
            self.keys.assume(holder, sent.m_key);
        }
    }

    pub(super) fn take_partitions(&mut self, at: At, block: u16, data: &[u8; DATA]) {
        if let Some(port) = self.subnet.port_mut(at) {
            port.pkeys.insert(block, PKeyBlock::parse(data).into());
        }
    }
}

impl SubnetManager {
    /// Asks who is at the end of a route.
    pub(super) fn explore(&mut self, route: Route, from: Option<At>) {
        self.get(route, AttributeId::NODE_INFO, 0, Purpose::NodeInfo { from });
    }

    pub(super) fn take_node_info(
        &mut self,
        request: &Request,
        from: Option<At>,
        data: &[u8; DATA],
    ) {
        let Destination::Directed(route) = &request.destination else {
            return;
        };
        let info = match NodeInfo::parse(data) {
            Ok(info) if !info.node_guid.is_none() => info,
            Ok(_) => {
                self.sweeps
                    .error(format!("the node at {route} has no GUID; it is left out"));
                return;
            }
            Err(error) => {
                self.sweeps
                    .error(format!("the node at {route} is left out: {error}"));
                return;
            }
        };
        let is_switch = info.node_type == NodeType::Switch;
        let number = if is_switch { 0 } else { info.local_port_num };
        self.known.keys.found(route, (info.node_guid, number));
        if let Some(name) = self.known.config.names.get(info.node_guid) {
            self.sweeps.name(info.node_guid, name);
            self.sweeps.name(info.port_guid, name);
        }
        let found = self.known.subnet.found(&info, route);
        if let Some(from) = from {
            self.known
                .subnet
                .claim(from, (found.node, info.local_port_num));
        }
        if found.new_node {
            let purpose = Purpose::NodeDescription(found.node);
            self.get(route.clone(), AttributeId::NODE_DESCRIPTION, 0, purpose);
            if info.node_type == NodeType::Switch {
                let purpose = Purpose::SwitchInfo(found.node);
                self.get(route.clone(), AttributeId::SWITCH_INFO, 0, purpose);
            }
            self.ask_extension(found.node, route.clone(), is_switch);
        }
        for port in found.new_ports {
            let purpose = Purpose::PortInfo((found.node, port));
            let known = self.known.subnet.port((found.node, port));
            let modifier = known.map_or(port.into(), |known| known.info_modifier(port));
            self.get(route.clone(), AttributeId::PORT_INFO, modifier, purpose);
            if info.node_type != NodeType::Switch {
                let blocks = info.partition_cap.div_ceil(PKeyBlock::ENTRIES as u16);
                for block in 0..blocks {
                    let purpose = Purpose::Partitions((found.node, port), block);
                    let modifier = u32::from(block);
                    self.get(route.clone(), AttributeId::P_KEY_TABLE, modifier, purpose);
                }
            }
        }
    }

    /// All has been asked: the cables that were found become links.
    pub(super) fn settle_links(&mut self) {
        for at in self.known.subnet.link() {
            let Some(port) = self.known.subnet.port(at) else {
                continue;
            };
            let (other, _) = port.claim.unwrap_or(at);
            let (Some(route), other) = (port.route.then(at.1), &self.known.subnet.nodes[other])
            else {
                continue;
            };
            let guid = other.info.node_guid;
            let first = other.route().cloned().unwrap_or_default();
            self.sweeps.error(format!(
                "two nodes have the GUID {guid}, one at {first} and one at {route}; the second is \
                 left out until one of them gets another GUID"
            ));
        }
    }

    pub(super) fn take_switch_info(&mut self, request: &Request, node: usize, data: &[u8; DATA]) {
        let Ok(info) = SwitchInfo::parse(data) else {
            return;
        };
        let Some(entry) = self.known.subnet.nodes.get_mut(node) else {
            return;
        };
        entry.switch = Some(info);
        let guid = entry.info.node_guid;
        if request.method != Method::GET {
            return;
        }
        if info.linear_fdb_top == 0 {
            // As after a reset: what it was sent before is gone.
            self.known.tables.forget(guid);
        }
        // Another manager's switch keeps its bit until that manager has seen it.
        let ours = |before: &Subnet| before.node_by_guid(guid).is_some();
        if self.state() == SmState::Master && self.known.before.as_ref().is_some_and(ours) {
            // Cleared before the ports are looked at: what changes after that shows again.
            self.clear_change(node);
        }
    }

    /// Clears a switch's change bit, if it is set.
    fn clear_change(&mut self, node: usize) {
        let entry = &self.known.subnet.nodes[node];
        if let (Some(info), Some(route)) = (entry.switch, entry.route().cloned())
            && info.port_state_change
        {
            let data = switch_info_data(&info);
            let purpose = Purpose::SwitchInfo(node);
            self.set(route, AttributeId::SWITCH_INFO, 0, data, purpose);
        }
    }

    /// Clears all change bits that are left.
    pub(super) fn clear_changes(&mut self) {
        for node in 0..self.known.subnet.nodes.len() {
            self.clear_change(node);
        }
    }

    pub(super) fn take_port_info(&mut self, request: &Request, at: At, data: &[u8; DATA]) {
        let info = match PortInfo::parse(data) {
            Ok(info) => info,
            Err(error) => {
                let (_, port) = at;
                self.sweeps
                    .error(format!("port {port} is left out: {error}"));
                return;
            }
        };
        let own = self.known.subnet.own;
        let (node, number) = at;
        let Some(entry) = self.known.subnet.nodes.get(node) else {
            return;
        };
        let (is_switch, guid) = (entry.is_switch(), entry.info.node_guid);
        if request.method == Method::GET && info.port_state == PortState::Initialize {
            // The node may have been switched off and on.
            self.known.tables.forget_settings(guid, number);
        }
        let is_end = self.known.subnet.is_end_port(at);
        if is_end {
            let holder = self.known.subnet.key_holder(at);
            if request.method == Method::SET {
                self.known.assume_key(at, request);
            } else if !self.known.keys.shown(holder, &info) {
                self.sweeps.error(format!(
                    "node {guid} has a management key that is not known here; wait until its lease \
                     has run out"
                ));
            }
        }
        let Some(port) = self.known.subnet.port_mut(at) else {
            return;
        };
        port.info = Some(info);
        let route = port.route.clone();
        if self.phase != Phase::Discovering || request.method != Method::GET {
            return;
        }
        if is_switch && number == 0 && info.lid == Lid::NONE {
            self.known.tables.forget(guid);
        }
        self.ask_manager(at);
        if !is_switch && virtualization::is_announced(&info) {
            virtualization::ask(self, at, route.clone());
        }
        // An adapter passes nothing on, but for the one that the manager itself is at.
        let passes = if is_switch {
            number != 0
        } else {
            own == Some(at)
        };
        if passes
            && info.port_state >= PortState::Initialize
            && let Some(further) = route.then(number)
        {
            self.explore(further, Some(at));
        }
    }
}

/// SwitchInfo as a Set carries it; a set change bit clears the switch's.
pub(super) fn switch_info_data(info: &SwitchInfo) -> [u8; DATA] {
    let mut data = [0; DATA];
    info.emit(&mut data);
    data
}
