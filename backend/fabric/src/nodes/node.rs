//! A node and its ports in operation.

use std::collections::BTreeMap;
use std::mem::swap;
use std::sync::Arc;

use wire::attribute::{
    CapabilityMask, LinearBlock, NodeDescription, NodeInfo, NodeType, PortInfo, SlToVl, SwitchInfo,
    VlArbitration, VlWeight,
};
use wire::{
    ExtendedLid, Gid, Guid, Lid, LinkSpeed, LinkSpeedExt, Mtu, PKey, PhysicalState, PortState, Sl,
    Vl,
};

use crate::links::fault::LinkFault;
use crate::nodes::congestion::Congestion;
use crate::nodes::counters::SharedCounters;
use crate::nodes::forwarding::{LinearTable, MulticastTable, SecondaryTable};
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::{NodeSpec, PortRef};
use crate::nodes::vport::{self, VPort, VPorts};

/// P_Keys that an external port of a switch can hold for enforcement.
pub(crate) const ENFORCEMENT_CAP: u16 = 32;
/// VL0 to VL7, in PortInfo's code.
const VL_CAP: u8 = 4;
/// Entries of each arbitration table: one for each lane.
pub(crate) const VL_ARBITRATION_CAP: u8 = 8;
/// Halves of arbitration tables, as VLArbitrationTable's modifier numbers them. With tables this short
/// only the lower halves exist.
pub(crate) const LOW_PRIORITY: u8 = 1;
pub(crate) const HIGH_PRIORITY: u8 = 3;
/// 4.096 us * 2^18: about a second, what adapters commonly say.
pub(crate) const RESPONSE_TIME: u8 = 18;

/// Time that a packet may wait to leave a switch, until a subnet manager sets it: 4.096 us * 2^18, as OpenSM does.
const HOQ_LIFE: u8 = 18;

/// Damaged packets in a row that are no news yet.
const ERROR_THRESHOLD: u8 = 8;

/// Capabilities of every agent.
const CAPABILITIES: CapabilityMask = CapabilityMask::SYSTEM_IMAGE_GUID
    .with(CapabilityMask::SL_MAPPING)
    .with(CapabilityMask::EXTENDED_SPEEDS)
    .with(CapabilityMask::TRAP)
    .with(CapabilityMask::DIRECTED_ROUTE_NOTICE)
    .with(CapabilityMask::CAPABILITY_MASK_NOTICE)
    .with(CapabilityMask::OTHER_LOCAL_CHANGES_NOTICE);

#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// Port GUID; zero at an external switch port.
    pub(crate) guid: Guid,
    /// As PortInfo tells it, but for the number of the port that received the request.
    pub(crate) info: PortInfo,
    /// The vLID, in the extended LID space.
    pub(crate) virtual_lid: Option<ExtendedLid>,
    /// Where the cable ends.
    pub(crate) peer: Option<PortRef>,
    /// Whether the cable is broken.
    pub(crate) severed: bool,
    /// The cable is of FDR10.
    pub(crate) fdr10: bool,
    /// Its own GUID and alias GUIDs, as many as PortInfo's GUIDCap.
    pub(crate) guids: Arc<[Guid]>,
    pub(crate) pkeys: Arc<[PKey]>,
    /// By the port a packet came in; an adapter's only table is that of 0.
    sl_to_vl: Arc<BTreeMap<u8, SlToVl>>,
    /// By the half, what a subnet manager has set.
    arbitration: Arc<BTreeMap<u8, VlArbitration>>,
    pub(crate) counters: SharedCounters,
    pub(crate) owner: Owner,
    pub(crate) access: SmpAccess,
    /// Fault of the link, on the way out.
    pub(crate) fault: Option<LinkFault>,
    /// Settings of its congestion control agent, if any.
    pub(crate) congestion: Option<Arc<Congestion>>,
    /// Its virtual ports, where it can have such.
    pub(crate) virtual_ports: Option<Arc<VPorts>>,
}

impl Port {
    fn new(guid: Guid, guid_cap: u8, pkeys: u16, capability_mask: CapabilityMask) -> Self {
        let mut guids = vec![Guid::NONE; usize::from(guid_cap.max(1))];
        guids[0] = guid;
        Self {
            guid,
            info: PortInfo {
                gid_prefix: Gid::DEFAULT_PREFIX,
                capability_mask,
                port_state: PortState::Down,
                port_physical_state: PhysicalState::Polling,
                link_down_default_state: PhysicalState::Polling.code(),
                link_width_enabled: 1,
                link_width_supported: 1,
                link_width_active: 1,
                link_speed_enabled: 1,
                link_speed_supported: 1,
                link_speed_active: 1,
                neighbor_mtu: Mtu::B256.code(),
                mtu_cap: Mtu::B4096.code(),
                vl_cap: VL_CAP,
                operational_vls: 1,
                vl_arbitration_high_cap: VL_ARBITRATION_CAP,
                vl_arbitration_low_cap: VL_ARBITRATION_CAP,
                guid_cap,
                subnet_timeout: RESPONSE_TIME,
                resp_time_value: RESPONSE_TIME,
                local_phy_errors: ERROR_THRESHOLD,
                overrun_errors: ERROR_THRESHOLD,
                ..PortInfo::default()
            },
            virtual_lid: None,
            peer: None,
            severed: false,
            fdr10: false,
            guids: guids.into(),
            pkeys: vec![PKey::INVALID; usize::from(pkeys)].into(),
            sl_to_vl: Arc::default(),
            arbitration: Arc::default(),
            counters: SharedCounters::default(),
            owner: Owner::Fabric,
            access: SmpAccess::Fabric,
            fault: None,
            congestion: None,
            virtual_ports: None,
        }
    }

    /// Changes places with another port, links being down: what a subnet manager has set goes along,
    /// but for the link.
    fn exchange(&mut self, other: &mut Self) {
        swap(&mut self.guid, &mut other.guid);
        swap(&mut self.guids, &mut other.guids);
        swap(&mut self.pkeys, &mut other.pkeys);
        swap(&mut self.virtual_lid, &mut other.virtual_lid);
        swap(&mut self.sl_to_vl, &mut other.sl_to_vl);
        swap(&mut self.arbitration, &mut other.arbitration);
        swap(&mut self.congestion, &mut other.congestion);
        swap(&mut self.info, &mut other.info);
        let [here, there] = [&mut self.info, &mut other.info];
        swap(&mut here.capability_mask, &mut there.capability_mask);
        swap(&mut here.link_width_enabled, &mut there.link_width_enabled);
        swap(
            &mut here.link_width_supported,
            &mut there.link_width_supported,
        );
        swap(&mut here.link_width_active, &mut there.link_width_active);
        swap(&mut here.link_speed_enabled, &mut there.link_speed_enabled);
        swap(
            &mut here.link_speed_supported,
            &mut there.link_speed_supported,
        );
        swap(&mut here.link_speed_active, &mut there.link_speed_active);
    }

    /// Forgets what subnet managers have set.
    pub(crate) fn forget_subnet(&mut self) {
        self.virtual_lid = None;
        self.sl_to_vl = Arc::default();
        self.arbitration = Arc::default();
        self.congestion = None;
        if let Some(virtual_ports) = &mut self.virtual_ports {
            Arc::make_mut(virtual_ports)
                .ports
                .iter_mut()
                .for_each(VPort::reset);
        }
        Arc::make_mut(&mut self.guids)[1..].fill(Guid::NONE);
        let pkeys = Arc::make_mut(&mut self.pkeys);
        pkeys.fill(PKey::INVALID);
        pkeys[0] = PKey::DEFAULT_FULL;
        self.info = PortInfo {
            lid: Lid::NONE,
            lmc: 0,
            master_sm_lid: Lid::NONE,
            master_sm_sl: Sl::default(),
            gid_prefix: Gid::DEFAULT_PREFIX,
            m_key: 0,
            m_key_protect_bits: 0,
            m_key_lease_period: 0,
            ..self.info
        };
    }

    pub(crate) fn set_pkey(&mut self, entry: usize, pkey: PKey) {
        if let Some(place) = Arc::make_mut(&mut self.pkeys).get_mut(entry) {
            *place = pkey;
        }
    }

    pub(crate) fn set_guid(&mut self, entry: usize, guid: Guid) {
        if let Some(place) = Arc::make_mut(&mut self.guids).get_mut(entry) {
            *place = guid;
        }
    }

    /// The lane from the port `from` (0 at an adapter); `None` when the packet is to be dropped.
    pub(crate) fn lane(&self, from: u8, sl: Sl) -> Option<Vl> {
        let vl = self.sl_to_vl(from).lane(sl);
        (vl.value() < PortInfo::lanes(self.info.operational_vls)).then_some(vl)
    }

    pub(crate) fn sl_to_vl(&self, from: u8) -> SlToVl {
        self.sl_to_vl.get(&from).copied().unwrap_or_default()
    }

    pub(crate) fn set_sl_to_vl(&mut self, from: u8, table: SlToVl) {
        Arc::make_mut(&mut self.sl_to_vl).insert(from, table);
    }

    /// Half a table of arbitration. Until a subnet manager says otherwise all lanes take turns, by the table
    /// of low priority: whoever reads it finds no lane that never sends.
    pub(crate) fn arbitration(&self, half: u8) -> VlArbitration {
        let turns = || {
            let mut table = VlArbitration::default();
            if half == LOW_PRIORITY {
                for (lane, entry) in (0..VL_ARBITRATION_CAP).zip(&mut table.0) {
                    *entry = VlWeight {
                        vl: Vl::new(lane),
                        weight: 1,
                    };
                }
            }
            table
        };
        self.arbitration.get(&half).copied().unwrap_or_else(turns)
    }

    /// Whether a subnet manager has set arbitration.
    pub(crate) fn has_arbitration(&self) -> bool {
        !self.arbitration.is_empty()
    }

    pub(crate) fn set_arbitration(&mut self, half: u8, table: VlArbitration) {
        Arc::make_mut(&mut self.arbitration).insert(half, table);
    }

    pub(crate) fn answers_to(&self, lid: Lid) -> bool {
        let own = |port: &VPort| port.lid == lid && port.is_enabled();
        self.info.lid.covers(self.info.lmc, lid)
            || lid.is_unicast()
                && self
                    .virtual_ports
                    .as_ref()
                    .is_some_and(|it| it.enabled && it.ports.iter().any(own))
    }

    /// Whether packets to this LID of the extended space are for this port.
    pub(crate) fn answers_to_extended(&self, lid: ExtendedLid) -> bool {
        match lid.physical() {
            Some(lid) => self.answers_to(lid),
            None => self.virtual_lid == Some(lid),
        }
    }

    /// Has the lanes and their arbitration of another port.
    pub(crate) fn copy_lanes(&mut self, other: &Self) {
        self.sl_to_vl.clone_from(&other.sl_to_vl);
        self.arbitration.clone_from(&other.arbitration);
    }

    pub(crate) fn holds(&self, pkey: PKey) -> bool {
        let virtual_ports = self.virtual_ports.iter().flat_map(|it| &it.ports);
        let theirs = virtual_ports.filter(|port| port.is_enabled());
        { self.pkeys.iter() }
            .chain(theirs.flat_map(VPort::pkeys))
            .any(|&own| own.matches(pkey))
    }

    /// A partition's key as the port's table has it; `pkey` itself when it has none.
    pub(crate) fn own_key(&self, pkey: PKey) -> PKey {
        let base = |key: PKey| key.value() & 0x7fff;
        let own = self.pkeys.iter().find(|&&own| base(own) == base(pkey));
        own.copied().unwrap_or(pkey)
    }

    pub(crate) fn state(&self) -> PortState {
        self.info.port_state
    }

    /// Whether the physical link works: management packets pass.
    pub(crate) fn is_linked(&self) -> bool {
        self.info.port_physical_state == PhysicalState::LinkUp
    }

    /// Whether the link runs at FDR10.
    pub(crate) fn is_fdr10(&self) -> bool {
        let lower = self.info.link_speed_active == LinkSpeed::Qdr.code();
        self.fdr10 && lower && self.info.active_speed_ext() == Some(LinkSpeedExt::None)
    }

    /// Whether it gets no credits.
    pub(crate) fn is_starved(&self) -> bool {
        self.fault.is_some_and(|fault| fault.stalled.outbound())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Switch {
    /// As SwitchInfo tells it.
    pub(crate) info: SwitchInfo,
    pub(crate) linear: LinearTable,
    /// Secondary table of a switch that speaks the extended LID space.
    pub(crate) secondary: Option<SecondaryTable>,
    pub(crate) multicast: MulticastTable,
    /// Entries of the linear table that have no effect, and are refused if they are set again as they are.
    pub(crate) refused: Arc<BTreeMap<Lid, u8>>,
}

impl Switch {
    /// Whether a block of the linear table has an entry that is refused.
    pub(crate) fn refuses(&self, number: u16, block: &LinearBlock) -> bool {
        let mut refused = self.refused.iter();
        refused.any(|(&lid, &port)| {
            let (of, entry) = ExtendedLid::from(lid).place();
            of == number && block.0[entry] == port
        })
    }
}

/// A copy of a node shares with it what is large: all of its ports, and the blocks of its tables.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) spec: Arc<NodeSpec>,
    pub(crate) description: NodeDescription,
    pub(crate) system_image_guid: Guid,
    ports: Box<[Arc<Port>]>,
    pub(crate) switch: Option<Switch>,
}

impl Node {
    pub(crate) fn new(spec: &NodeSpec) -> Self {
        let (switch, ports) = match spec.kind {
            NodeType::Switch => (Some(Self::switch(spec)), Self::switch_ports(spec)),
            _ => (None, Self::adapter_ports(spec)),
        };
        Self {
            spec: Arc::new(spec.clone()),
            description: spec.description,
            system_image_guid: spec.system_image_guid,
            ports: ports.into_iter().map(Arc::new).collect(),
            switch,
        }
    }

    fn switch(spec: &NodeSpec) -> Switch {
        Switch {
            info: SwitchInfo {
                linear_fdb_cap: LinearTable::CAP,
                multicast_fdb_cap: MulticastTable::CAP,
                default_multicast_primary_port: 255,
                default_multicast_not_primary_port: 255,
                port_state_change: true,
                partition_enforcement_cap: ENFORCEMENT_CAP,
                inbound_enforcement_cap: true,
                outbound_enforcement_cap: true,
                optimized_sl_to_vl: 1,
                enhanced_port0: spec.enhanced_port0,
                ..SwitchInfo::default()
            },
            linear: LinearTable::default(),
            secondary: spec.extended_lids.then(SecondaryTable::default),
            multicast: MulticastTable::new(spec.ports),
            refused: Arc::default(),
        }
    }

    fn switch_ports(spec: &NodeSpec) -> Vec<Port> {
        let capabilities = CAPABILITIES.with(CapabilityMask::SWITCH_PKEY_TRAP);
        let mut port0 = Port::new(
            spec.port_guids[0],
            spec.guid_cap,
            spec.partition_cap,
            capabilities,
        );
        port0.set_pkey(0, PKey::DEFAULT_FULL);
        port0.info.lid = spec.lids.first().copied().unwrap_or_default();
        // Port 0 has no link that could be down: it is a place in the switch.
        port0.info.port_state = PortState::Active;
        port0.info.port_physical_state = PhysicalState::LinkUp;
        port0.info.neighbor_mtu = Mtu::B4096.code();
        let mut external = Port::new(Guid::NONE, 0, ENFORCEMENT_CAP, CapabilityMask::default());
        external.info.hoq_life = HOQ_LIFE;
        // They share what is alike, and each counts for itself.
        let external = (0..spec.ports).map(|_| Port {
            counters: SharedCounters::default(),
            ..external.clone()
        });
        std::iter::once(port0).chain(external).collect()
    }

    fn adapter_ports(spec: &NodeSpec) -> Vec<Port> {
        let capabilities = CAPABILITIES.with(CapabilityMask::CLIENT_REREGISTRATION);
        let lids = spec
            .lids
            .iter()
            .copied()
            .chain(std::iter::repeat(Lid::NONE));
        let adapter = |(&guid, lid): (&Guid, Lid)| {
            let mut port = Port::new(guid, spec.guid_cap, spec.partition_cap, capabilities);
            port.set_pkey(0, PKey::DEFAULT_FULL);
            port.info.lid = lid;
            if !spec.vports.is_empty() {
                let ports = VPorts::new(&spec.vports, spec.partition_cap);
                port.virtual_ports = Some(Arc::new(ports));
                vport::show(&mut port.info);
            }
            port
        };
        spec.port_guids.iter().zip(lids).map(adapter).collect()
    }

    /// The lowest port number: switches have a port 0.
    pub(crate) fn first_port(&self) -> u8 {
        u8::from(self.switch.is_none())
    }

    pub(crate) fn last_port(&self) -> u8 {
        self.spec.ports
    }

    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        let index = usize::from(number.checked_sub(self.first_port())?);
        self.ports.get(index).map(Arc::as_ref)
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let index = usize::from(number.checked_sub(self.first_port())?);
        self.ports.get_mut(index).map(Arc::make_mut)
    }

    /// The port whose agents and queue pairs a packet that came in by `ingress` is for.
    pub(crate) fn management_port(&self, ingress: u8) -> u8 {
        if self.switch.is_some() { 0 } else { ingress }
    }

    /// Changes places with another virtual function.
    pub(crate) fn exchange(&mut self, other: &mut Self) {
        swap(&mut self.spec, &mut other.spec);
        swap(&mut self.description, &mut other.description);
        swap(&mut self.system_image_guid, &mut other.system_image_guid);
        for (own, others) in self.ports.iter_mut().zip(&mut other.ports) {
            Arc::make_mut(own).exchange(Arc::make_mut(others));
        }
    }

    /// Whether the two have the same ports, by pointer.
    #[cfg(test)]
    pub(crate) fn shares_ports_with(&self, other: &Self) -> bool {
        let mut pairs = self.ports.iter().zip(&other.ports);
        pairs.all(|(own, others)| Arc::ptr_eq(own, others))
    }

    pub(crate) fn info(&self, ingress: u8) -> NodeInfo {
        let port = self.port(self.management_port(ingress));
        NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: self.spec.kind,
            num_ports: self.spec.ports,
            system_image_guid: self.system_image_guid,
            node_guid: self.spec.guid,
            port_guid: port.map_or(Guid::NONE, |port| port.guid),
            partition_cap: self.spec.partition_cap,
            device_id: self.spec.device_id,
            revision: 0,
            local_port_num: ingress,
            vendor_id: self.spec.vendor_id,
        }
    }
}
