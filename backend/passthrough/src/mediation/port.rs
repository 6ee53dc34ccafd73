//! The guest's port: what it may ask about it, what it is shown, and what it may change.

use connectx::bits::Field;
use connectx::bits::command::Status;
use connectx::bits::port::{
    REGISTER_NODE_DESC, REGISTER_PMTU, REGISTER_PTYS, REGISTER_PVLC, access_register_in,
    hca_vport_context as vport, mad_ifc_in, mad_ifc_out, modify_hca_vport_context_in, ptys_reg,
    query_hca_vport_context_out,
};

use wire::attribute::PKeyBlock;
use wire::mad::{self, AttributeId, Class, Mad, Method, Status as MadStatus};
use wire::smp::DATA;
use wire::vendor;

use super::{After, FORWARD, Refusal, Verdict, refuse};
use crate::mediation::partitions::Partitions;
use crate::policy::{Policy, Smp};

/// Operation of a register's access: it is read.
const READ: u32 = 1;

/// Classes by which Mellanox' devices are asked and changed: their registers among others.
const DEVICE: [Class; 2] = [Class(0x09), vendor::CLASS];
/// Attributes that describe the device: ClassPortInfo and GeneralInfo.
const TELLS: [AttributeId; 2] = [AttributeId::CLASS_PORT_INFO, AttributeId(0x0017)];
/// With a directed route: the packet is on its way back (IBA 14.2.1.2).
const RETURNS: u16 = 0x8000;
/// PortInfo (IBA 14.2.5.6): where in it the port's LID and its mask control are.
const PORT_INFO_LID: Field = Field::new(0x10, 31, 16);
const PORT_INFO_LMC: Field = Field::new(0x20, 10, 8);
/// Where a subnet management packet has its attribute.
const ATTRIBUTE: std::ops::Range<usize> = 64..64 + DATA;

/// A management datagram for the port's own agents.
pub(super) fn manage(smp: Smp, request: &[u8]) -> Result<Verdict, Refusal> {
    if mad_ifc_in::PORT.get(request) > 1 {
        return refuse(Status::BadParameter, "there is one port");
    }
    let mut bytes: [u8; mad::SIZE] = mad_ifc_in::MAD.array(request);
    let Ok(mut answer) = Mad::new_checked(&mut bytes) else {
        return refuse(Status::BadParameter, "no management datagram");
    };
    let (class, method) = (answer.class(), answer.method());
    let denied = if class.is_subnet_management() {
        match smp {
            Smp::Deny => true,
            Smp::OwnPort => method == Method::SET,
            Smp::Fabric => false,
        }
    } else {
        let tells =
            class == vendor::CLASS && method == Method::GET && TELLS.contains(&answer.attribute());
        DEVICE.contains(&class) && smp != Smp::Fabric && !tells
    };
    if !denied {
        return Ok(Verdict::Forward(After::ShowAgent));
    }
    let returns = match class {
        Class::SUBN_DIRECTED => RETURNS,
        _ => 0,
    };
    answer.set_method(Method::GET_RESPONSE);
    answer.set_status(MadStatus(returns | MadStatus::UNSUPPORTED_ATTRIBUTE.0));
    let mut reply = vec![0; mad_ifc_out::SIZE];
    mad_ifc_out::RESPONSE_MAD_PACKET.set(&mut reply, &bytes);
    Ok(Verdict::Answer(reply))
}

/// A virtual function has one port, and no say over those of others.
pub(super) fn own_port(request: &[u8]) -> Result<(), Refusal> {
    if modify_hca_vport_context_in::PORT_NUM.get(request) > 1 {
        return refuse(Status::BadParameter, "there is one port");
    }
    if modify_hca_vport_context_in::OTHER_VPORT.is_set(request) {
        return refuse(
            Status::BadParameter,
            "a virtual function has no say over other ports",
        );
    }
    Ok(())
}

/// Lets a guest change only those capabilities of its port that announce its own agents, if the VF allows it.
pub(super) fn modify_port(request: &mut [u8]) -> Result<Verdict, Refusal> {
    own_port(request)?;
    let context = modify_hca_vport_context_in::HCA_VPORT_CONTEXT.get_mut(request);
    if vport::FIELD_SELECT.is_set(context) {
        return refuse(
            Status::BadParameter,
            "addresses and state of the port are not the guest's to set",
        );
    }
    let capabilities = [vport::CAP_MASK1, vport::CAP_MASK1_FIELD_SELECT];
    let values = capabilities.map(|field| field.get(context));
    context.fill(0);
    for (field, value) in capabilities.into_iter().zip(values) {
        field.set(context, value);
    }
    FORWARD
}

/// Registers of the port, which are read, and the node's description, which may be written.
pub(super) fn register(request: &[u8]) -> Result<Verdict, Refusal> {
    let reads = access_register_in::OP_MOD.get(request) == READ;
    let data = request.get(access_register_in::SIZE..).unwrap_or_default();
    match access_register_in::REGISTER_ID.get(request) {
        REGISTER_NODE_DESC => FORWARD,
        REGISTER_PMTU | REGISTER_PTYS | REGISTER_PVLC if reads => {
            if ptys_reg::LOCAL_PORT.get(data) > 1 {
                return refuse(Status::BadParameter, "there is one port");
            }
            FORWARD
        }
        REGISTER_PMTU | REGISTER_PTYS | REGISTER_PVLC => refuse(
            Status::BadParameter,
            "the port is not the guest's to set up",
        ),
        _ => refuse(Status::BadParameter, "no such register"),
    }
}

/// Shows in the port's context the LID that it has in the cluster, and a queue pair 0 to those who may use it.
pub(crate) fn show_context(policy: &Policy, reply: &mut [u8]) {
    let context = query_hca_vport_context_out::HCA_VPORT_CONTEXT.get_mut(reply);
    if policy.smp == Smp::Deny {
        vport::HAS_SMI.set(context, 0);
    }
    if let Some(membership) = &policy.membership
        && vport::LID.get(context) != 0
    {
        vport::LID.set(context, membership.lid.into());
        vport::LMC.set(context, 0);
    }
}

/// The same in what the port's agent says, and the guest's P_Keys, where it has a table of its own.
pub(crate) fn show_agent(policy: &Policy, partitions: Option<&Partitions>, reply: &mut [u8]) {
    let bytes = mad_ifc_out::RESPONSE_MAD_PACKET.get_mut(reply);
    let Ok(mad) = Mad::new_checked(&*bytes) else {
        return;
    };
    if !mad.class().is_subnet_management() {
        return;
    }
    let (attribute, modifier) = (mad.attribute(), mad.modifier());
    let data = &mut bytes[ATTRIBUTE];
    match (attribute, &policy.membership, partitions) {
        (AttributeId::PORT_INFO, Some(membership), _) if PORT_INFO_LID.get(data) != 0 => {
            PORT_INFO_LID.set(data, membership.lid.into());
            PORT_INFO_LMC.set(data, 0);
        }
        (AttributeId::P_KEY_TABLE, _, Some(partitions)) => {
            let first = usize::from(modifier as u16) * PKeyBlock::ENTRIES;
            let (keys, _) = data.as_chunks_mut::<2>();
            for (at, key) in keys.iter_mut().enumerate() {
                *key = partitions.key(first + at).to_be_bytes();
            }
        }
        _ => {}
    }
}
