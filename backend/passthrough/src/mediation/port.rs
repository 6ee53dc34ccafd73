//! The guest's port: what it may ask about it, what it is shown, and what it may change.

use connectx::bits::Field;
use connectx::bits::command::Status;
use connectx::bits::port::{
    REGISTER_NODE_DESC, REGISTER_PMTU, REGISTER_PTYS, REGISTER_PVLC, access_register_in,
    hca_vport_context as vport, mad_ifc_in, mad_ifc_out, modify_hca_vport_context_in, ptys_reg,
    query_hca_vport_context_out,
};

use super::{After, FORWARD, Refusal, Verdict, refuse};
use crate::mediation::partitions::Partitions;
use crate::policy::{Policy, Smp};

/// In requests about a port: its number.
const PORT_NUMBER: Field = Field::new(0x08, 19, 16);
/// Operation of a register's access: it is read.
const READ: u32 = 1;

/// In a management datagram (IBA 13.4.2): class, method, status, attribute.
const CLASS: Field = Field::new(0x00, 23, 16);
const METHOD: Field = Field::new(0x00, 7, 0);
const STATUS: Field = Field::new(0x04, 31, 16);
const ATTRIBUTE: Field = Field::new(0x10, 31, 16);
/// Classes of subnet management: by LID, and by a directed route.
const SUBNET_MANAGEMENT: [u32; 2] = [0x01, DIRECTED];
const DIRECTED: u32 = 0x81;
/// Classes by which Mellanox' devices are asked and changed: their registers among others.
const DEVICE: [u32; 2] = [0x09, TELLING];
const TELLING: u32 = 0x0a;
/// Attributes that describe the device: ClassPortInfo and GeneralInfo.
const TELLS: [u32; 2] = [0x0001, 0x0017];
const GET: u32 = 0x01;
const SET: u32 = 0x02;
const GET_RESPONSE: u32 = 0x81;
/// The method is not supported for the attribute.
const NOT_SUPPORTED: u32 = 0x000c;
/// With a directed route: the packet is on its way back (IBA 14.2.1.2).
const RETURNS: u32 = 0x8000;
/// PortInfo (IBA 14.2.5.6), and where in it the port's LID and its mask control are.
const PORT_INFO: u32 = 0x0015;
const PORT_INFO_LID: Field = Field::new(0x40 + 0x10, 31, 16);
const PORT_INFO_LMC: Field = Field::new(0x40 + 0x20, 10, 8);
/// P_KeyTable (IBA 14.2.5.7): 32 P_Keys, of the block that the modifier names.
const PKEY_TABLE: u32 = 0x0016;
const BLOCK: Field = Field::new(0x14, 15, 0);
const BLOCK_KEYS: usize = 32;
const BLOCK_AT: usize = 0x40;

/// A management datagram for the port's own agents.
pub(super) fn manage(smp: Smp, request: &[u8]) -> Result<Verdict, Refusal> {
    if mad_ifc_in::PORT.get(request) > 1 {
        return refuse(Status::BadParameter, "there is one port");
    }
    let mad: [u8; 256] = mad_ifc_in::MAD.array(request);
    let (class, method) = (CLASS.get(&mad), METHOD.get(&mad));
    let denied = if SUBNET_MANAGEMENT.contains(&class) {
        match smp {
            Smp::Deny => true,
            Smp::OwnPort => method == SET,
            Smp::Fabric => false,
        }
    } else {
        let attribute = ATTRIBUTE.get(&mad);
        let tells = class == TELLING && method == GET && TELLS.contains(&attribute);
        DEVICE.contains(&class) && smp != Smp::Fabric && !tells
    };
    if !denied {
        return Ok(Verdict::Forward(After::ShowAgent));
    }
    let mut answer = mad;
    METHOD.set(&mut answer, GET_RESPONSE);
    let returns = match class {
        DIRECTED => RETURNS,
        _ => 0,
    };
    STATUS.set(&mut answer, returns | NOT_SUPPORTED);
    let mut reply = vec![0; mad_ifc_out::SIZE];
    mad_ifc_out::RESPONSE_MAD_PACKET.set(&mut reply, &answer);
    Ok(Verdict::Answer(reply))
}

/// A virtual function has one port, and no say over those of others.
pub(super) fn own_port(request: &[u8]) -> Result<(), Refusal> {
    if PORT_NUMBER.get(request) > 1 {
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
    let mad = mad_ifc_out::RESPONSE_MAD_PACKET.get_mut(reply);
    if !SUBNET_MANAGEMENT.contains(&CLASS.get(mad)) {
        return;
    }
    match (ATTRIBUTE.get(mad), &policy.membership, partitions) {
        (PORT_INFO, Some(membership), _) if PORT_INFO_LID.get(mad) != 0 => {
            PORT_INFO_LID.set(mad, membership.lid.into());
            PORT_INFO_LMC.set(mad, 0);
        }
        (PKEY_TABLE, _, Some(partitions)) => {
            let first = BLOCK.get(mad) as usize * BLOCK_KEYS;
            let (keys, _) = mad[BLOCK_AT..].as_chunks_mut::<2>();
            for (at, key) in keys.iter_mut().take(BLOCK_KEYS).enumerate() {
                *key = partitions.key(first + at).to_be_bytes();
            }
        }
        _ => {}
    }
}
