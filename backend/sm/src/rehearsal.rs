//! A port by which nothing is changed: the manager is told that its settings are done, and what they would have changed
//! is noted.
//!
//! In place of each Set the wrapped port sends a Get of the same attribute, so that a setting which is there already is
//! none. Other managers are noted and hidden, so that this one plans as the master.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use subnet_manager::{NodeNames, Transport};
use wire::attribute::{NodeDescription, NodeInfo, PortInfo, SmInfo};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Smp};
use wire::{MadPacket, PortState};

use crate::port::Port;

/// Changes that are listed; there may be millions.
const MAX_LISTED: usize = 100_000;

/// A port by which nothing is changed.
#[derive(Debug)]
pub struct Rehearsal<P> {
    port: P,
    /// Data of Sets that a Get stands for, by transaction.
    wanted: BTreeMap<u64, [u8; DATA]>,
    /// Names of nodes, by the way to them.
    names: BTreeMap<Vec<u8>, String>,
    /// Names that nodes have in place of those that they tell.
    map: Arc<NodeNames>,
    changes: BTreeMap<(Vec<u8>, AttributeId, u32), String>,
    unlisted: BTreeSet<AttributeId>,
    managers: BTreeMap<u64, SmInfo>,
}

impl<P: Port> Rehearsal<P> {
    /// In front of a port.
    pub fn new(port: P) -> Self {
        Self {
            port,
            wanted: BTreeMap::new(),
            names: BTreeMap::new(),
            map: Arc::default(),
            changes: BTreeMap::new(),
            unlisted: BTreeSet::new(),
            managers: BTreeMap::new(),
        }
    }

    /// Nodes have these names.
    #[must_use]
    pub fn named(self, map: Arc<NodeNames>) -> Self {
        Self { map, ..self }
    }

    /// The other managers, and one line for each attribute that would have changed.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = String::new();
        for manager in self.managers.values() {
            let SmInfo {
                guid,
                priority,
                state,
                ..
            } = manager;
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                text,
                "another subnet manager is at port {guid}: {state}, priority {priority}"
            );
        }
        for ((way, attribute, modifier), what) in &self.changes {
            let name = self.names.get(way).map_or("?", String::as_str);
            let hops: Vec<String> = way.iter().map(ToString::to_string).collect();
            let hops = hops.join(",");
            // That this manager knows extended speeds is no news to anybody.
            let modifier = match *attribute {
                AttributeId::PORT_INFO => modifier & !PortInfo::SPEEDS_REQUESTED,
                _ => *modifier,
            };
            let _ = writeln!(text, "{name} (0,{hops}): {attribute} 0x{modifier:x}{what}");
        }
        for attribute in &self.unlisted {
            let _ = writeln!(text, "more changes of {attribute} are not listed");
        }
        let count = self.changes.len();
        let _ = writeln!(text, "{count} changes; nothing was written");
        text
    }

    fn note(&mut self, smp: &Smp<&[u8]>, wanted: &[u8; DATA], is: Option<&[u8; DATA]>) {
        let mad = smp.mad();
        let (attribute, modifier) = (mad.attribute(), mad.modifier());
        let Some(what) = difference(attribute, wanted, is) else {
            return;
        };
        if self.changes.len() < MAX_LISTED {
            let key = (way(smp), attribute, modifier);
            // The last of several settings of one place has what the others set.
            self.changes.insert(key, what);
        } else {
            self.unlisted.insert(attribute);
        }
    }

    /// The answer that the manager gets for what came.
    fn answer(&mut self, mut packet: MadPacket) -> Option<MadPacket> {
        let (method, status) = (packet.header().method(), packet.header().status());
        if !packet.is_smp() || !method.is_response() {
            return None;
        }
        let attribute = packet.header().attribute();
        let transaction = packet.header().transaction() & 0xffff_ffff;
        let smp = Smp::new_checked(&packet.mad[..]).ok()?;
        let is = *smp.data();
        if let Some(wanted) = self.wanted.remove(&transaction) {
            self.note(&smp, &wanted, status.is_ok().then_some(&is));
            let mut smp = Smp::new_checked(&mut packet.mad[..]).ok()?;
            let after = after(attribute, &wanted, &is);
            smp.data_mut().copy_from_slice(&after);
            smp.mad_mut().set_status(Status::OK);
        } else if attribute == AttributeId::NODE_DESCRIPTION && status.is_ok() {
            let description = NodeDescription::of_bytes(&is);
            let name = self.names.entry(way(&smp));
            name.or_insert_with(|| description.to_string());
        } else if attribute == AttributeId::NODE_INFO && status.is_ok() {
            let info = NodeInfo::parse(&is).ok();
            if let Some(name) = info.and_then(|info| self.map.get(info.node_guid)) {
                self.names.insert(way(&smp), name.to_owned());
            }
        } else if attribute == AttributeId::SM_INFO && status.is_ok() {
            let info = SmInfo::parse(&is).ok()?;
            self.managers.insert(info.guid.value(), info);
            let mut smp = Smp::new_checked(&mut packet.mad[..]).ok()?;
            smp.mad_mut().set_status(Status::UNSUPPORTED_ATTRIBUTE);
        }
        Some(packet)
    }
}

/// The ports of a directed route.
fn way(smp: &Smp<&[u8]>) -> Vec<u8> {
    (1..=smp.hop_count())
        .map(|hop| smp.initial_path(hop))
        .collect()
}

/// An attribute once it is set to something.
fn after(attribute: AttributeId, wanted: &[u8; DATA], is: &[u8; DATA]) -> [u8; DATA] {
    let mut after = *wanted;
    if attribute == AttributeId::PORT_INFO
        && let (Ok(mut new), Ok(old)) = (PortInfo::parse(wanted), PortInfo::parse(is))
        && new.port_state == PortState::NoChange
    {
        new.port_state = old.port_state;
        new.emit(&mut after);
    }
    after
}

/// Changes by a setting, in words; `None` for no change.
fn difference(
    attribute: AttributeId,
    wanted: &[u8; DATA],
    is: Option<&[u8; DATA]>,
) -> Option<String> {
    let Some(is) = is else {
        return Some(" (what is there cannot be read)".to_owned());
    };
    let port = |data| PortInfo::parse(data).ok();
    if attribute == AttributeId::PORT_INFO
        && let (Some(old), Some(new)) = (port(is), port(wanted))
    {
        return port_difference(&old, &new);
    }
    let bytes = wanted
        .iter()
        .zip(is)
        .filter(|(new, old)| new != old)
        .count();
    (bytes > 0).then(|| format!(": {bytes} of {DATA} bytes"))
}

fn port_difference(old: &PortInfo, new: &PortInfo) -> Option<String> {
    let mut parts = Vec::new();
    let mut differ = |name: &str, old: String, new: String| {
        if old != new {
            parts.push(format!("{name} {old} -> {new}"));
        }
    };
    differ("lid", old.lid.to_string(), new.lid.to_string());
    differ("lmc", old.lmc.to_string(), new.lmc.to_string());
    let of = |info: &PortInfo| info.master_sm_lid.to_string();
    differ("sm_lid", of(old), of(new));
    let of = |info: &PortInfo| format!("0x{:016x}", info.gid_prefix);
    differ("gid_prefix", of(old), of(new));
    let of = |info: &PortInfo| info.neighbor_mtu.to_string();
    differ("mtu code", of(old), of(new));
    if new.operational_vls != 0 {
        let of = |info: &PortInfo| info.operational_vls.to_string();
        differ("lanes code", of(old), of(new));
    }
    if new.port_state != PortState::NoChange {
        differ(
            "state",
            old.port_state.to_string(),
            new.port_state.to_string(),
        );
    }
    let is_key = old.m_key != new.m_key;
    differ(
        "m_key",
        String::new(),
        if is_key { "another" } else { "" }.to_owned(),
    );
    (!parts.is_empty()).then(|| format!(": {}", parts.join(", ")))
}

impl<P: Port> Transport for Rehearsal<P> {
    fn send(&mut self, mut packet: MadPacket) {
        let header = packet.header();
        let (method, transaction) = (header.method(), header.transaction());
        let (attribute, modifier) = (header.attribute(), header.modifier());
        if !packet.is_smp() || ![Method::GET, Method::SET].contains(&method) {
            return;
        }
        if method == Method::SET {
            let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) else {
                return;
            };
            self.wanted.insert(transaction & 0xffff_ffff, *smp.data());
            smp.data_mut().fill(0);
            smp.mad_mut().set_method(Method::GET);
            smp.mad_mut().set_attribute(attribute, modifier);
        }
        self.port.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        while let Some(packet) = self.port.receive() {
            if let Some(answer) = self.answer(packet) {
                return Some(answer);
            }
        }
        None
    }
}

impl<P: Port> Port for Rehearsal<P> {
    fn take(&mut self) -> io::Result<()> {
        self.port.take()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.port.flush()
    }

    fn resign(&mut self) {
        // Nobody has seen one.
    }

    fn is_behind(&self) -> bool {
        self.port.is_behind()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.descriptor()
    }
}
