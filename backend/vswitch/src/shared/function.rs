//! A function's port, as its device asks about it and changes it.

use std::sync::Arc;

use fabric::{PortRef, SmpAccess};
use hca::VfId;
use wire::attribute::{CapabilityMask, NodeDescription, NodeInfo, PortInfo};
use wire::{Gid, Guid, Lid, PKey, PortState};

use super::VSwitch;
use super::snapshot::Snapshot;
use super::tenants::Tenants;
use crate::model::GmpClass;

/// A function's port as its guest is to see it.
#[derive(Debug, Clone)]
pub struct PortFacts {
    /// Its LID.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// The LID of the subnet manager.
    pub sm_lid: Lid,
    /// State, of which a function may know another than those that share the port.
    pub state: PortState,
    /// GUID of the port.
    pub guid: Guid,
    /// GUID of the guest's node.
    pub node_guid: Guid,
    /// Capabilities that the guest's driver may switch.
    pub writable: CapabilityMask,
    /// Whether the guest may send subnet management packets.
    pub has_smi: bool,
    /// Whether every packet needs a global route header.
    pub grh_required: bool,
    /// The port as it is in the subnet.
    pub port: PortInfo,
    /// The node as it is in the subnet.
    pub node: NodeInfo,
}

/// A function's port.
#[derive(Debug, Clone)]
pub struct Function {
    pub(super) vswitch: Arc<VSwitch>,
    pub(super) vf: VfId,
    pub(super) port: PortRef,
}

impl Function {
    /// The port as it is now.
    #[must_use]
    pub fn facts(&self) -> PortFacts {
        port_facts(&self.vswitch, self.vf, self.port)
    }

    /// The GID of this index, with no GUID where it has none.
    #[must_use]
    pub fn gid(&self, index: u16) -> Gid {
        let Snapshot { nodes, sharing, .. } = &**self.vswitch.snapshot();
        let index = usize::from(index);
        let guid = match sharing.place(self.vf) {
            Some(place) => place.guids(nodes).nth(index),
            None => { nodes.guids(self.port) }.and_then(|guids| guids.get(index).copied()),
        };
        let info = nodes.port_info(self.port).unwrap_or_default();
        Gid::new(info.gid_prefix, guid.unwrap_or_default())
    }

    /// The P_Key of this index, as the guest sees it.
    #[must_use]
    pub fn pkey(&self, index: u16) -> PKey {
        let Snapshot {
            nodes,
            addresses,
            sharing,
            ..
        } = &**self.vswitch.snapshot();
        let shared = sharing.pkeys(self.vf, nodes);
        let table = nodes.pkeys(self.port).unwrap_or_default();
        addresses
            .pkeys(self.vf, shared.as_deref().unwrap_or(table))
            .get(usize::from(index))
            .copied()
            .unwrap_or(PKey::INVALID)
    }

    /// The text of the node that the port is of.
    #[must_use]
    pub fn node_description(&self) -> Option<NodeDescription> {
        let snapshot = self.vswitch.snapshot();
        snapshot.nodes.node_description(self.port.node)
    }

    /// Changes that text. To be called where the node is the function's own
    /// ([`Function::shares_port`]).
    pub fn set_node_description(&self, text: NodeDescription) {
        self.vswitch
            .change()
            .fabric
            .set_node_description(self.port.node, text);
        self.vswitch.views.outdate();
        // The subnet manager is told.
        self.vswitch.wake();
    }

    /// Changes capabilities of the port.
    pub fn set_capabilities(&self, set: CapabilityMask, clear: CapabilityMask) {
        // A bit that one has switched off another may still have on.
        let clear = if self.shares_port() {
            CapabilityMask::default()
        } else {
            clear
        };
        let is_manager = |mask: CapabilityMask| mask.contains(CapabilityMask::IS_SM);
        let (mut set, mut clear) = (set, clear);
        if (is_manager(set) || is_manager(clear))
            && Tenants(&self.vswitch).announce(self.vf, is_manager(set))
        {
            // The subnet's manager is not to know of it.
            [set, clear] = [set, clear].map(|mask| mask.without(CapabilityMask::IS_SM));
        }
        self.vswitch
            .change()
            .fabric
            .set_capabilities(self.port, set, clear);
        self.vswitch.views.outdate();
        self.vswitch.wake();
    }

    /// Whether other functions have the same port.
    #[must_use]
    pub fn shares_port(&self) -> bool {
        self.vswitch.layout.sharing.place(self.vf).is_some()
    }

    /// The answer of the agents of its own port to a guest that asks by a command; `None` where they do not.
    #[must_use]
    pub fn ask_own_port(&self, mad: &[u8; 256]) -> Option<[u8; 256]> {
        if !self
            .vswitch
            .filter
            .admit_local(self.vswitch.now(), self.vf, mad)
        {
            return None;
        }
        if let Some(answer) = self.vswitch.ask_view_locally(self.vf, mad) {
            return Some(answer);
        }
        let answer = { &self.vswitch }.with(|core| core.ask_own_port(self.vf, self.port, mad));
        // A Set may have changed the port.
        self.vswitch.wake();
        answer
    }
}

/// A function's port as it is now.
pub(super) fn port_facts(vswitch: &VSwitch, vf: VfId, at: PortRef) -> PortFacts {
    let Snapshot {
        nodes,
        addresses,
        sharing,
        ..
    } = &**vswitch.snapshot();
    let mut port = nodes.port_info(at).unwrap_or_default();
    let node = nodes.node_info(at).unwrap_or_default();
    let mut state = sharing.state(vf, nodes, at);
    let own = addresses.tenancy(vf).map(|tenancy| tenancy.info(vf));
    let sm_lid = match own {
        None => addresses.seen(vf, port.master_sm_lid),
        Some(own) => {
            let own = own.unwrap_or_default();
            state = state.min(own.port_state);
            port = PortInfo {
                gid_prefix: port.gid_prefix,
                local_port_num: port.local_port_num,
                ..own
            };
            Some(own.master_sm_lid)
        }
    };
    let (lid, lmc) = sharing.address(vf, nodes, at);
    let access = vswitch.filter.smp_access(vf);
    let layout = &vswitch.layout;
    // A VM has one HCA, wherever its port is.
    let guid = match sharing.place(vf) {
        Some(place) => { place.guid(nodes) }.unwrap_or_else(|| layout.configured_guid(vf)),
        None => node.port_guid,
    };
    PortFacts {
        lid: addresses.own_lid(vf, lid),
        lmc: match own {
            Some(own) => own.unwrap_or_default().lmc,
            None if addresses.has_own_lids(vf) => 0,
            None => lmc,
        },
        sm_lid: sm_lid.unwrap_or_default(),
        state,
        guid,
        node_guid: layout.node_guid(guid),
        writable: writable_capabilities(vswitch, vf, access),
        has_smi: access != SmpAccess::Deny,
        grh_required: sharing.requires_grh(vf, nodes),
        port,
        node,
    }
}

/// Capabilities that a driver may switch: those that say that an agent of
/// the guest's listens. Its communication manager comes and goes; agents of
/// other classes, such as a storage target's, may be there where the class
/// passes, and a subnet manager where the guest may manage: one that may not
/// must not make managers talk to it either.
fn writable_capabilities(vswitch: &VSwitch, vf: VfId, access: SmpAccess) -> CapabilityMask {
    use wire::attribute::CapabilityMask as Mask;
    let of_class = [
        (GmpClass::DevMgt, Mask::DEVICE_MANAGEMENT),
        (GmpClass::Snmp, Mask::SNMP_TUNNELING),
        (GmpClass::Vendor, Mask::VENDOR_CLASS),
    ];
    let passing = of_class
        .into_iter()
        .filter(|&(class, _)| vswitch.filter.passes(vf, class));
    let always = Mask::COMMUNICATION_MANAGEMENT;
    let mask = passing.fold(always, |mask, (_, capability)| mask.with(capability));
    match access {
        SmpAccess::Fabric => mask.with(Mask::IS_SM),
        SmpAccess::OwnPort if Tenants(vswitch).may_manage(vf) => mask.with(Mask::IS_SM),
        SmpAccess::OwnPort | SmpAccess::Deny => mask,
    }
}
