//! Giving what is there addresses, partitions and paths, and switching it on.

use wire::attribute::{CapabilityMask, GuidInfo, PKeyBlock, PortInfo, vport_block};
use wire::mad::AttributeId;
use wire::smp::DATA;
use wire::{Guid, Lid, PKey, PhysicalState, PortState};

use super::lanes;
use super::routes::{multipath, set_manager_levels};
use super::{Errand, Knowledge, Phase, Purpose, SubnetManager, Ticket, virtualization};
use crate::config::partitions::Candidate;
use crate::keys::KeyPolicy;
use crate::lids;
use crate::model::At;
use crate::sa::Aliases;

/// The order in which a subnet is configured. Each step ends before the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// GUIDs of functions, where a migration was interrupted: all else goes by them.
    Identities,
    /// Partitions and lanes of ports: before LIDs, so that no port is reachable with the wrong ones.
    Tables,
    /// LIDs, keys, MTUs and the like of adapters' ports and switches.
    Ports,
    /// MTUs and the like of switches' external ports.
    Links,
    /// Forwarding tables.
    Paths,
    /// Ports from Initialize to Armed: both ends of a link before either is Active.
    Arm,
    /// Ports from Armed to Active.
    Activate,
}

impl Step {
    pub(super) const FIRST: Self = Self::Identities;

    pub(super) fn next(self) -> Option<Self> {
        match self {
            Self::Identities => Some(Self::Tables),
            Self::Tables => Some(Self::Ports),
            Self::Ports => Some(Self::Links),
            Self::Links => Some(Self::Paths),
            Self::Paths => Some(Self::Arm),
            Self::Arm => Some(Self::Activate),
            Self::Activate => None,
        }
    }
}

impl Knowledge {
    pub(super) fn take_enforcement(&mut self, switch: Guid, place: (u8, u16), data: &[u8; DATA]) {
        let block = PKeyBlock::parse(data);
        self.tables.holds_partitions(switch, place, block);
    }

    /// The switch's port that an adapter's port is cabled to, and how many keys it can check.
    fn enforcer(&self, adapter: At) -> Option<(At, u16)> {
        let peer = self.subnet.port(adapter)?.peer?;
        let switch = self.subnet.nodes[peer.0].switch?;
        let can = switch.inbound_enforcement_cap && switch.outbound_enforcement_cap;
        (can && switch.partition_enforcement_cap > 0)
            .then_some((peer, switch.partition_enforcement_cap))
    }

    fn draw_keys(&mut self) {
        if self.config.m_key != KeyPolicy::PerNode {
            return;
        }
        for at in self.subnet.end_ports() {
            let holder = self.subnet.key_holder(at);
            self.keys.draw(holder, &mut self.key_source);
        }
    }

    /// The management key that a port is to have, and what it protects.
    fn protect(&self, at: At, info: &mut PortInfo) {
        if !self.subnet.is_end_port(at) {
            return;
        }
        let key = match self.config.m_key {
            KeyPolicy::None => 0,
            KeyPolicy::One(key) => key,
            KeyPolicy::PerNode => self.keys.wanted(self.subnet.key_holder(at)),
        };
        let protected = key != 0;
        info.m_key = key;
        info.m_key_protect_bits = if protected {
            self.config.m_key_protect
        } else {
            0
        };
        info.m_key_lease_period = if protected {
            self.config.m_key_lease
        } else {
            0
        };
    }

    /// Whether a port of this GUID is to have a LID.
    pub(super) fn has_lid(&self, guid: Guid) -> bool {
        !self.config.without_lid.contains(&guid)
    }

    /// The LID mask control of the port of this GUID.
    pub(super) fn lmc_of(&self, guid: Guid) -> u8 {
        self.ranges.mask(guid)
    }

    /// All LIDs of the port of this GUID.
    pub(super) fn lids_of(&self, guid: Guid) -> impl Iterator<Item = Lid> + Clone + use<> {
        lids::range(self.lid_of(guid), self.lmc_of(guid))
    }

    pub(super) fn lid_of(&self, guid: Guid) -> Lid {
        if !self.has_lid(guid) {
            return Lid::NONE;
        }
        self.lids.get(&guid).copied().unwrap_or(Lid::NONE)
    }

    /// The P_Key table that a port with this GUID is to have: its own partitions, and those of the
    /// functions that share it.
    pub(super) fn pkeys(&self, aliases: &Aliases, at: At, guid: Guid) -> Vec<PKey> {
        let mut table = self.config.pkeys(&Candidate {
            guid,
            kind: self.subnet.nodes[at.0].info.node_type,
            is_own: self.subnet.own == Some(at),
        });
        self.join_partitions(&mut table, aliases, guid);
        table
    }

    /// Adds the partitions of the alias GUIDs of a port or virtual port to its table.
    pub(super) fn join_partitions(&self, table: &mut Vec<PKey>, aliases: &Aliases, guid: Guid) {
        let aliases = aliases.of(guid);
        let partitions = aliases.filter_map(|alias| self.config.partitions.get(&alias));
        join(table, partitions.flatten().copied());
    }

    /// Whether a switch's port is to check partitions: it has an adapter, all of whose keys fit.
    fn enforces(&self, aliases: &Aliases, at: At) -> bool {
        let adapter = self.subnet.port(at).and_then(|port| port.peer);
        let Some(adapter) = adapter.filter(|_| self.config.enforce_partitions) else {
            return false;
        };
        let port = self.subnet.port(adapter);
        match (port, self.enforcer(adapter)) {
            (Some(port), Some((_, room))) if !self.subnet.nodes[adapter.0].is_switch() => {
                let_through(self, aliases, adapter, port.guid).len() <= usize::from(room)
            }
            _ => false,
        }
    }

    /// Present and planned settings of a port.
    pub(super) fn wanted(&self, aliases: &Aliases, at: At) -> Option<(PortInfo, PortInfo)> {
        let port = self.subnet.port(at)?;
        let before = port.info?;
        let mut wanted = before;
        if !port.guid.is_none() {
            let own = self.subnet.own.and_then(|own| self.subnet.port(own))?;
            wanted.lid = self.lid_of(port.guid);
            wanted.lmc = match wanted.lid {
                Lid::NONE => 0,
                _ => self.lmc_of(port.guid),
            };
            wanted.master_sm_lid = self.lid_of(own.guid);
            wanted.master_sm_sl = self.manager_level(port.guid);
            wanted.gid_prefix = self.config.gid_prefix;
            self.protect(at, &mut wanted);
            wanted.subnet_timeout = self.config.subnet_timeout;
        }
        if self.subnet.nodes[at.0].is_switch() && at.1 != 0 && port.is_linked() {
            let enforces = self.enforces(aliases, at);
            wanted.partition_enforcement_inbound = enforces;
            wanted.partition_enforcement_outbound = enforces;
        }
        let peer = port
            .peer
            .and_then(|at| Some((at, self.subnet.port(at)?.info?)));
        if let Some((there, peer)) = peer.filter(|_| port.is_linked()) {
            wanted.neighbor_mtu = before.mtu_cap.min(peer.mtu_cap).min(self.config.mtu.code());
            wanted.operational_vls = self.operational_lanes([(at, &before), (there, &peer)]);
        }
        let arbitration = self.config.arbitration(self.subnet.kind(at));
        if let (Some(arbitration), true) = (arbitration, port.is_linked()) {
            wanted.vl_high_limit = arbitration.high_limit;
        }
        Some((before, wanted))
    }
}

impl SubnetManager {
    pub(super) fn enter(&mut self, step: Step) {
        self.phase = Phase::Configuring(step);
        match step {
            Step::Identities => {
                self.known.fall_back();
                self.mend_identities();
                virtualization::enable(self);
            }
            Step::Tables => {
                set_aliases(self);
                virtualization::check(self);
                set_partition_tables(self);
                virtualization::set_partitions(self);
                // Those of clusters, and those that depend on ports, are known when paths are.
                if !lanes::clusters::is_on(&self.known) && !self.known.routing.has_port_lanes() {
                    self.set_lanes();
                }
            }
            Step::Ports => {
                self.assign_lids();
                self.known.draw_keys();
                self.set_ports(true);
                virtualization::set_lids(self);
                self.set_virtual_lids();
            }
            Step::Links => self.set_ports(false),
            Step::Paths => {
                self.set_paths();
                self.set_secondary_tables();
            }
            Step::Arm => {
                set_manager_levels(self);
                self.set_states(PortState::Initialize, PortState::Armed);
                virtualization::set_states(self, PortState::Initialize, PortState::Armed);
            }
            Step::Activate => {
                self.set_states(PortState::Armed, PortState::Active);
                virtualization::set_states(self, PortState::Armed, PortState::Active);
            }
        }
    }

    /// Writes the alias GUIDs that somebody has changed between sweeps.
    pub(super) fn set_changed_aliases(&mut self) {
        for port in self.administration.take_changed_aliases() {
            // A sweep that is still looking writes them when it has found everything.
            if self.phase != Phase::Discovering {
                self.set_aliases_of(port);
                let found = self.known.subnet.end_ports().into_iter();
                let mut found = found
                    .filter(|&at| self.known.subnet.port(at).is_some_and(|it| it.guid == port));
                if let Some(at) = found.next() {
                    self.set_partitions_at(at, port, None);
                } else if let Some((at, ..)) = virtualization::with_guid(&self.known, port) {
                    virtualization::set_partitions(self);
                    let physical = self.known.subnet.port(at).map(|it| it.guid);
                    self.set_partitions_at(at, physical.unwrap_or_default(), None);
                }
            }
        }
    }

    fn set_aliases_of(&mut self, guid: Guid) {
        let mut ports = self.known.subnet.ports();
        if let Some((at, port)) = ports.find(|(_, port)| port.guid == guid) {
            let entries = port.info.map_or(0, |info| info.guid_cap);
            drop(ports);
            set_guids(self, at, (guid, entries), AttributeId::GUID_INFO, 0);
        } else if let Some((at, index, vport)) = virtualization::with_guid(&self.known, guid) {
            let (entries, first) = (vport.info.guid_cap, vport_block(index, 0));
            drop(ports);
            set_guids(
                self,
                at,
                (guid, entries),
                AttributeId::VPORT_GUID_INFO,
                first,
            );
        }
    }

    /// Gives an adapter's port, and the switch's port that it is at, the P_Keys of this GUID.
    pub(super) fn set_partitions_at(&mut self, at: At, guid: Guid, migration: Option<Ticket>) {
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let route = port.route.clone();
        let wanted = self.known.pkeys(self.administration.aliases(), at, guid);
        let entries = usize::from(self.known.subnet.nodes[at.0].info.partition_cap);
        if wanted.len() > entries {
            self.sweeps.error(format!(
                "port {guid} takes {entries} P_Keys and is to have {}; the last ones are left out",
                wanted.len()
            ));
        }
        for (number, held) in port_blocks(&self.known.subnet, at) {
            let first = usize::from(number) * PKeyBlock::ENTRIES;
            let mut block = PKeyBlock::default();
            let keys = wanted.iter().take(entries).skip(first);
            for (entry, &key) in block.0.iter_mut().zip(keys) {
                *entry = key;
            }
            if block != held {
                let purpose = Purpose::Partitions(at, number);
                let errand = Errand { purpose, migration };
                let modifier = u32::from(number);
                let data = block.to_bytes();
                let route = route.clone();
                self.set(route, AttributeId::P_KEY_TABLE, modifier, data, errand);
            }
        }
        if self.known.config.enforce_partitions {
            let aliases = self.administration.aliases();
            let through = let_through(&self.known, aliases, at, guid);
            self.set_enforcement(at, &through, migration);
        }
    }

    /// Gives the switch's port at the other end of an adapter's cable the same keys to let through.
    fn set_enforcement(&mut self, adapter: At, keys: &[PKey], migration: Option<Ticket>) {
        let Some((at, _)) = self.known.enforcer(adapter) else {
            return;
        };
        let (node, number) = at;
        let switch = self.known.subnet.nodes[node].info.node_guid;
        let Some(route) = self.known.subnet.port(at).map(|port| port.route.clone()) else {
            return;
        };
        let needed = keys.len().div_ceil(PKeyBlock::ENTRIES).max(1) as u16;
        for block_number in 0..needed.max(self.known.tables.partition_blocks(switch, number)) {
            let first = usize::from(block_number) * PKeyBlock::ENTRIES;
            let mut block = PKeyBlock::default();
            for (entry, &key) in block.0.iter_mut().zip(keys.iter().skip(first)) {
                *entry = key;
            }
            let place = (number, block_number);
            if self.known.tables.partitions_differ(switch, place, &block) {
                self.known.tables.writes_partitions(switch, place);
                let modifier = u32::from(number) << 16 | u32::from(block_number);
                self.set(
                    route.clone(),
                    AttributeId::P_KEY_TABLE,
                    modifier,
                    block.to_bytes(),
                    Errand {
                        purpose: Purpose::Enforcement { switch, place },
                        migration,
                    },
                );
            }
        }
    }

    /// Ports with a GUID of their own, or the others: with one comes the key that the others of the
    /// node are then set by.
    fn set_ports(&mut self, with_guid: bool) {
        let ports: Vec<At> = self
            .known
            .subnet
            .ports()
            .filter(|(_, port)| port.guid.is_none() != with_guid)
            .map(|(at, _)| at)
            .collect();
        for at in ports {
            let Some((before, wanted)) = self.known.wanted(self.administration.aliases(), at)
            else {
                continue;
            };
            let addresses = |info: &PortInfo| (info.lid, info.lmc, info.master_sm_lid);
            let forgotten = with_guid && self.sweeps.is_first();
            let reregister = before.port_state == PortState::Active
                && (forgotten || addresses(&before) != addresses(&wanted))
                && wanted
                    .capability_mask
                    .contains(CapabilityMask::CLIENT_REREGISTRATION);
            if wanted == before && !reregister {
                continue;
            }
            self.set_port(at, &wanted, PortState::NoChange, reregister, None);
        }
    }

    fn assign_lids(&mut self) {
        multipath::find(&mut self.known);
        let candidates: Vec<_> = self
            .known
            .subnet
            .end_ports()
            .into_iter()
            .filter_map(|at| self.known.subnet.port(at))
            .filter(|port| self.known.has_lid(port.guid))
            .map(|port| lids::Candidate {
                guid: port.guid,
                current: port.info.map_or(Lid::NONE, |info| info.lid),
                lmc: self.known.lmc_of(port.guid),
            })
            .chain(virtualization::candidates(&self.known))
            .collect();
        let Knowledge {
            config,
            lids,
            ranges,
            ..
        } = &mut self.known;
        let likely = |guid, base| ranges.likely(config, guid, base);
        let without = lids::assign(&candidates, &config.pinned_lids, lids, likely);
        for guid in without {
            self.sweeps.error(format!(
                "port {guid} gets no LID: all 49151 unicast LIDs are taken{}",
                match self.known.lmc_of(guid) {
                    0 => String::new(),
                    lmc if self.known.config.multipath.is_on() => {
                        format!(", and its paths need {}; leave sm.lids out", 1 << lmc)
                    }
                    lmc => format!(", by {} for each adapter's port; lower lmc", 1 << lmc),
                }
            ));
        }
    }

    pub(super) fn set_port(
        &mut self,
        at: At,
        wanted: &PortInfo,
        state: PortState,
        reregister: bool,
        migration: Option<Ticket>,
    ) {
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let (route, modifier) = (port.route.clone(), port.info_modifier(at.1));
        let can = wanted
            .capability_mask
            .contains(CapabilityMask::CLIENT_REREGISTRATION);
        let mut request = PortInfo {
            port_state: state,
            port_physical_state: PhysicalState::NoChange,
            link_down_default_state: 0,
            link_width_enabled: 0,
            link_speed_enabled: 0,
            link_speed_ext_enabled: 0,
            link_speed_ext2_enabled: 0,
            client_reregister: reregister && can,
            ..*wanted
        };
        // Not what an answer said: a port with a key that nobody knows is lost.
        self.known.protect(at, &mut request);
        let mut data = [0; DATA];
        request.emit(&mut data);
        let errand = Errand {
            purpose: Purpose::PortInfo(at),
            migration,
        };
        self.set(route, AttributeId::PORT_INFO, modifier, data, errand);
    }

    /// Takes ports that are in one state to the next one.
    fn set_states(&mut self, from: PortState, to: PortState) {
        let ports: Vec<(At, PortInfo)> = self
            .known
            .subnet
            .ports()
            .filter(|(_, port)| port.state() == from && port.peer.is_some())
            // Not what the port told last: that need not be what was asked of it.
            .filter_map(|(at, _)| {
                Some((at, self.known.wanted(self.administration.aliases(), at)?.1))
            })
            .collect();
        for (at, info) in ports {
            self.set_port(at, &info, to, to == PortState::Active, None);
        }
    }
}

/// Keys that a switch's port is to let through of an adapter's port: the port's, and those of its virtual ports.
fn let_through(known: &Knowledge, aliases: &Aliases, at: At, guid: Guid) -> Vec<PKey> {
    let mut table = known.pkeys(aliases, at, guid);
    if let Some(port) = known.subnet.port(at) {
        for vport in port.vports.values() {
            join(
                &mut table,
                virtualization::pkeys(known, aliases, vport).into_iter(),
            );
        }
    }
    table
}

/// Adds keys to a table; of two keys of a partition the full member's stays.
fn join(table: &mut Vec<PKey>, keys: impl Iterator<Item = PKey>) {
    for pkey in keys {
        let same = |own: &&mut PKey| own.partition() == pkey.partition();
        match table.iter_mut().find(same) {
            Some(own) => *own = (*own).max(pkey),
            None => table.push(pkey),
        }
    }
}

/// The P_Key blocks that a port told of.
fn port_blocks(subnet: &crate::model::Subnet, at: At) -> Vec<(u16, PKeyBlock)> {
    let blocks = subnet.port(at).map(|port| &port.pkeys);
    blocks
        .into_iter()
        .flatten()
        .map(|(&number, block)| (number, **block))
        .collect()
}

/// Writes the GUIDs that ports have besides their own.
fn set_aliases(manager: &mut SubnetManager) {
    let ports: Vec<Guid> = manager
        .administration
        .aliases()
        .ports()
        .map(|(port, _)| port)
        .collect();
    for port in ports {
        manager.set_aliases_of(port);
    }
}

/// Writes the table with so many GUIDs of a port, or of a virtual port of this port: the blocks that follow a modifier.
fn set_guids(
    manager: &mut SubnetManager,
    at: At,
    (guid, entries): (Guid, u8),
    attribute: AttributeId,
    first: u32,
) {
    let known = &mut manager.known;
    let Some(route) = known.subnet.port(at).map(|port| port.route.clone()) else {
        return;
    };
    let node = known.subnet.nodes[at.0].info.node_guid;
    for block in 0..entries.div_ceil(GuidInfo::ENTRIES as u8) {
        let entries = manager.administration.aliases().block(guid, block);
        let data = GuidInfo::from_entries(entries).to_bytes();
        let place = (at.1, attribute, first + u32::from(block));
        if manager.known.tables.setting_differs(node, place, &data) {
            manager.known.tables.writes_setting(node, place);
            let purpose = Purpose::Setting { node, place };
            manager.set(route.clone(), attribute, place.2, data, purpose);
        }
    }
}

fn set_partition_tables(manager: &mut SubnetManager) {
    for at in manager.known.subnet.end_ports() {
        let (node, _) = at;
        if !manager.known.subnet.nodes[node].is_switch()
            && let Some(port) = manager.known.subnet.port(at)
        {
            manager.set_partitions_at(at, port.guid, None);
        }
    }
}
