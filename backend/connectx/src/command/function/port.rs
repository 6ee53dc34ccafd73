//! The virtual port: its context, tables and registers.

use std::ops::Range;

use wire::{LinkWidth, PhysicalState};

use super::management;
use crate::bits::Span;
use crate::bits::command::{AnyOpcode, Status};
use crate::bits::port::{
    FIRST_GID, REGISTER_HOST_ENDIANNESS, REGISTER_NODE_DESC, REGISTER_PAOS, REGISTER_PMTU,
    REGISTER_PTYS, REGISTER_PVLC, access_register_in, hca_vport_context as context, listed_pkey,
    mad_ifc_in, modify_hca_vport_context_in, paos, pmtu_reg as pmtu, ptys_reg as ptys,
    pvlc_reg as pvlc, query_hca_vport_context_out, query_hca_vport_gid_in, query_hca_vport_gid_out,
    query_hca_vport_pkey_in,
};
use crate::port::Port;
use crate::refusal::{Outcome, Refusal, UNKNOWN, refuse};

/// Bytes of the head of a reply, and of a register's access, behind which the
/// list or register is.
const BODY: usize = 0x10;
/// Entries of the GID table.
pub const GID_TABLE: u16 = 8;
/// Entries of the P_Key table: drivers ask for 128 and no other number.
pub const PKEY_TABLE: u16 = 128;
/// Index that asks for the whole P_Key table.
const ALL_PKEYS: u32 = 0xffff;
/// Speeds up to the one in use.
const fn speeds_up_to(speed: u16) -> u32 {
    (speed as u32).next_power_of_two() * 2 - 1
}

/// A command of the port.
#[derive(Debug)]
pub(crate) enum PortCommand {
    QueryContext,
    /// New values of these capability bits; the others stay.
    ModifyContext {
        capabilities: u32,
        select: u32,
    },
    QueryGid(u16),
    QueryPkeys(Range<u16>),
    QuerySpeed,
    QueryMtu,
    QueryLanes,
    /// The port's state, or a wish to turn it on.
    State {
        turns_up: bool,
    },
    QueryDescription,
    SetDescription(Box<[u8; 64]>),
    /// The byte order of the host, on which nothing depends.
    SetByteOrder,
    Mad(Box<[u8; 256]>),
}

impl PortCommand {
    pub fn parse(opcode: AnyOpcode, request: &[u8]) -> Result<Self, Refusal> {
        match opcode {
            AnyOpcode::AccessReg => return Self::parse_register(request),
            AnyOpcode::MadIfc => return Ok(Self::Mad(Box::new(mad_ifc_in::MAD.array(request)))),
            _ => {}
        }
        // There is one virtual port; naming another asks for a right that a virtual function has not.
        if modify_hca_vport_context_in::OTHER_VPORT.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function has no say over other ports",
            ));
        }
        match opcode {
            AnyOpcode::QueryHcaVportContext => Ok(Self::QueryContext),
            AnyOpcode::ModifyHcaVportContext => Self::parse_context(request),
            AnyOpcode::QueryHcaVportGid => {
                let index = query_hca_vport_gid_in::GID_INDEX.get(request) as u16;
                if index >= GID_TABLE {
                    return Err(refuse(Status::BadIndex, "the GID table is not that long"));
                }
                Ok(Self::QueryGid(index))
            }
            AnyOpcode::QueryHcaVportPkey => {
                match query_hca_vport_pkey_in::PKEY_INDEX.get(request) {
                    ALL_PKEYS => Ok(Self::QueryPkeys(0..PKEY_TABLE)),
                    index if index < u32::from(PKEY_TABLE) => {
                        Ok(Self::QueryPkeys(index as u16..index as u16 + 1))
                    }
                    _ => Err(refuse(Status::BadIndex, "the P_Key table is not that long")),
                }
            }
            _ => Err(UNKNOWN),
        }
    }

    fn parse_context(request: &[u8]) -> Result<Self, Refusal> {
        let wanted = modify_hca_vport_context_in::HCA_VPORT_CONTEXT.get(request);
        if context::FIELD_SELECT.get(wanted) != 0 {
            return Err(refuse(
                Status::BadParameter,
                "GUIDs and states of a port are not its guest's to change",
            ));
        }
        Ok(Self::ModifyContext {
            capabilities: context::CAP_MASK1.get(wanted),
            select: context::CAP_MASK1_FIELD_SELECT.get(wanted),
        })
    }

    fn parse_register(request: &[u8]) -> Result<Self, Refusal> {
        let modifier = access_register_in::OP_MOD.get(request);
        let (reads, given) = (modifier == 1, request.get(BODY..).unwrap_or_default());
        match (access_register_in::REGISTER_ID.get(request), reads) {
            (REGISTER_PTYS, true) => Ok(Self::QuerySpeed),
            (REGISTER_PMTU, true) => Ok(Self::QueryMtu),
            (REGISTER_PVLC, true) => Ok(Self::QueryLanes),
            (REGISTER_PAOS, _) => {
                let sets = !reads && paos::SETS_STATE.is_set(given);
                if sets && paos::ADMIN_STATE.get(given) != paos::UP {
                    return Err(refuse(
                        Status::BadParameter,
                        "a virtual function does not turn its port off",
                    ));
                }
                Ok(Self::State {
                    turns_up: sets && modifier == 0,
                })
            }
            (REGISTER_NODE_DESC, true) => Ok(Self::QueryDescription),
            (REGISTER_NODE_DESC, false) => {
                let description = Span::new(0, 64).array(given);
                Ok(Self::SetDescription(Box::new(description)))
            }
            (REGISTER_HOST_ENDIANNESS, _) => Ok(Self::SetByteOrder),
            (register, _) => {
                tracing::debug!("register {register:#06x} is not known; the driver is told so");
                Err(refuse(Status::BadParameter, "no such register"))
            }
        }
    }

    /// Whether the command turns the port on. Drivers wait for an event then, be the port up or not.
    pub const fn turns_up(&self) -> bool {
        matches!(self, Self::State { turns_up: true })
    }
}

/// The commands of a function's port. They need no engine: a port's answer may take its time, and
/// others wait for the engine.
pub(crate) struct PortCommands<'a>(pub(crate) &'a mut dyn Port);

impl PortCommands<'_> {
    pub fn act(&mut self, command: PortCommand, reply: &mut [u8]) -> Outcome {
        let out = reply.get_mut(BODY..).unwrap_or_default();
        match command {
            PortCommand::QueryContext => self.query_vport_context(reply),
            PortCommand::ModifyContext {
                capabilities,
                select,
            } => return self.modify_vport_context(capabilities, select),
            PortCommand::QueryGid(index) => {
                query_hca_vport_gid_out::GIDS_NUM.set(reply, 1);
                FIRST_GID.set(reply, &self.0.gid(index).to_bytes());
            }
            PortCommand::QueryPkeys(indices) => {
                for (at, index) in indices.enumerate() {
                    listed_pkey(at).set(reply, u32::from(self.0.pkey(index).value()));
                }
            }
            PortCommand::QuerySpeed => self.speed_register(out),
            PortCommand::QueryMtu => self.mtu_register(out),
            PortCommand::QueryLanes => self.lanes_register(out),
            PortCommand::State { .. } => self.state_register(out),
            PortCommand::QueryDescription => {
                let description = self.0.node_description();
                Span::new(0, description.len()).set(out, &description);
            }
            PortCommand::SetDescription(description) => {
                self.0.set_node_description(&description);
            }
            PortCommand::SetByteOrder => {}
            PortCommand::Mad(mad) => return management::mad_ifc(self.0, &mad, reply),
        }
        Ok(())
    }

    fn query_vport_context(&self, reply: &mut [u8]) {
        let port = self.0.attributes();
        let out = query_hca_vport_context_out::HCA_VPORT_CONTEXT.get_mut(reply);
        let values = [
            (context::HAS_SMI, u32::from(port.has_smi)),
            (context::GRH_REQUIRED, u32::from(port.grh_required)),
            (
                context::PORT_PHYSICAL_STATE,
                u32::from(port.physical_state.code()),
            ),
            (context::PORT_STATE, u32::from(port.state.code())),
            (context::VPORT_STATE, u32::from(port.state.code())),
            (context::CAP_MASK1, port.capability_mask),
            (
                context::CAP_MASK1_FIELD_SELECT,
                port.capability_mask_writable,
            ),
            (context::LID, u32::from(port.lid.value())),
            (context::INIT_TYPE_REPLY, u32::from(port.init_type_reply)),
            (context::LMC, u32::from(port.lmc)),
            (context::SUBNET_TIMEOUT, u32::from(port.subnet_timeout)),
            (context::SM_LID, u32::from(port.sm_lid.value())),
            (context::SM_SL, u32::from(port.sm_sl.value())),
            (
                context::QKEY_VIOLATION_COUNTER,
                u32::from(port.qkey_violations),
            ),
            (
                context::PKEY_VIOLATION_COUNTER,
                u32::from(port.pkey_violations),
            ),
        ];
        for (field, value) in values {
            field.set(out, value);
        }
        context::SYSTEM_IMAGE_GUID.set(out, port.system_image_guid.value());
        context::PORT_GUID.set(out, port.port_guid.value());
        context::NODE_GUID.set(out, port.node_guid.value());
    }

    fn modify_vport_context(&mut self, capabilities: u32, select: u32) -> Outcome {
        if select & !self.0.attributes().capability_mask_writable != 0 {
            return Err(refuse(
                Status::BadParameter,
                "these capability bits cannot be changed",
            ));
        }
        if select != 0 {
            self.0.set_capability_mask(capabilities, select);
        }
        Ok(())
    }

    /// Whether the port is up. A port of the subnet is up for its guest's driver: to turn it off is the
    /// subnet manager's.
    fn state_register(&self, out: &mut [u8]) {
        let port = self.0.attributes();
        let up = port.physical_state == PhysicalState::LinkUp;
        paos::LOCAL_PORT.set(out, 1);
        paos::ADMIN_STATE.set(out, paos::UP);
        paos::OPERATING_STATE.set(out, if up { paos::UP } else { paos::DOWN });
    }

    fn speed_register(&self, out: &mut [u8]) {
        /// The register speaks of InfiniBand.
        const INFINIBAND: u32 = 1;
        let port = self.0.attributes();
        let width = match port.active_width {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 16,
        };
        ptys::LOCAL_PORT.set(out, 1);
        ptys::PROTO_MASK.set(out, INFINIBAND);
        ptys::IB_LINK_WIDTH_CAPABILITY.set(out, width | 1);
        ptys::IB_LINK_WIDTH_ADMIN.set(out, width | 1);
        ptys::IB_PROTO_CAPABILITY.set(out, speeds_up_to(port.active_speed));
        ptys::IB_PROTO_ADMIN.set(out, speeds_up_to(port.active_speed));
        // A link that is down has neither width nor speed.
        if port.physical_state == PhysicalState::LinkUp {
            ptys::IB_LINK_WIDTH_OPER.set(out, width);
            ptys::IB_PROTO_OPER.set(out, u32::from(port.active_speed));
        }
    }

    fn mtu_register(&self, out: &mut [u8]) {
        let port = self.0.attributes();
        pmtu::LOCAL_PORT.set(out, 1);
        pmtu::MAX_MTU.set(out, port.max_mtu.bytes());
        pmtu::ADMIN_MTU.set(out, port.active_mtu.bytes());
        pmtu::OPER_MTU.set(out, port.active_mtu.bytes());
    }

    fn lanes_register(&self, out: &mut [u8]) {
        let port = self.0.attributes();
        // The register has the number of lanes where PortInfo has a code.
        let lanes = |code: u8| match code {
            0 | 1 => 1,
            2 => 2,
            3 => 4,
            4 => 8,
            _ => 15,
        };
        pvlc::LOCAL_PORT.set(out, 1);
        pvlc::VL_HW_CAP.set(out, lanes(port.vl_cap));
        pvlc::VL_ADMIN.set(out, lanes(port.operational_vls));
        pvlc::VL_OPERATIONAL.set(out, lanes(port.operational_vls));
    }
}
