//! The virtual port: its context, tables and registers.

use wire::{LinkWidth, PhysicalState};

use super::{Outcome, UNKNOWN, management, refuse};
use crate::bits::command::{Opcode, Status};
use crate::bits::port::{
    REGISTER_HOST_ENDIANNESS, REGISTER_NODE_DESC, REGISTER_PAOS, REGISTER_PMTU, REGISTER_PTYS,
    REGISTER_PVLC, access_register_in, hca_vport_context as context, modify_hca_vport_context_in,
    pmtu_reg as pmtu, ptys_reg as ptys, pvlc_reg as pvlc, query_hca_vport_context_out,
    query_hca_vport_gid_in, query_hca_vport_gid_out, query_hca_vport_pkey_in,
};
use crate::port::Port;
use crate::state::Stage;

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

/// In the register of the port's state: as its administrator wants it.
const ADMIN_STATE: crate::bits::Field = crate::bits::Field::new(0x00, 11, 8);
/// As above: as it is.
const OPERATING_STATE: crate::bits::Field = crate::bits::Field::new(0x00, 3, 0);
/// As above: the administrator's state is to change.
const SETS_STATE: crate::bits::Field = crate::bits::Field::new(0x04, 31, 31);
/// States of the port there.
const UP: u32 = 1;
const DOWN: u32 = 2;

/// How far the driver has to have brought the function for a command of the port. The host's byte order
/// drivers tell before they initialize it.
pub(super) fn needed_stage(opcode: Opcode, request: &[u8]) -> Stage {
    let register = access_register_in::REGISTER_ID.get(request);
    match opcode {
        Opcode::AccessReg if register == REGISTER_HOST_ENDIANNESS => Stage::Enabled,
        _ => Stage::Initialized,
    }
}

/// Whether a command turns the port on. Drivers wait for an event then, be the port up or not.
pub(super) fn turns_up(opcode: Opcode, request: &[u8]) -> bool {
    let given = request.get(BODY..).unwrap_or_default();
    opcode == Opcode::AccessReg
        && access_register_in::REGISTER_ID.get(request) == REGISTER_PAOS
        && access_register_in::OP_MOD.get(request) == 0
        && SETS_STATE.is_set(given)
}

/// Whether a command is one of the port's.
pub(super) const fn is_of_port(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::QueryHcaVportContext
            | Opcode::ModifyHcaVportContext
            | Opcode::QueryHcaVportGid
            | Opcode::QueryHcaVportPkey
            | Opcode::AccessReg
            | Opcode::MadIfc
    )
}

/// The commands of a function's port. They need no engine: a port's answer may take its time, and
/// whoever has the engine keeps others waiting.
pub(super) struct PortCommands<'a>(pub(super) &'a mut dyn Port);

impl PortCommands<'_> {
    /// Executes a command for which [`is_of_port`].
    pub(super) fn dispatch(&mut self, opcode: Opcode, request: &[u8], reply: &mut [u8]) -> Outcome {
        match opcode {
            Opcode::QueryHcaVportContext => self.query_vport_context(request, reply),
            Opcode::ModifyHcaVportContext => self.modify_vport_context(request),
            Opcode::QueryHcaVportGid => self.query_vport_gid(request, reply),
            Opcode::QueryHcaVportPkey => self.query_vport_pkey(request, reply),
            Opcode::AccessReg => self.access_register(request, reply),
            Opcode::MadIfc => management::mad_ifc(self.0, request, reply),
            _ => Err(UNKNOWN),
        }
    }

    /// There is one virtual port; naming another asks for a right that a
    /// virtual function has not.
    fn own_vport(request: &[u8]) -> Outcome {
        if modify_hca_vport_context_in::OTHER_VPORT.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function has no say over other ports",
            ));
        }
        Ok(())
    }

    fn query_vport_context(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        Self::own_vport(request)?;
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
        Ok(())
    }

    fn modify_vport_context(&mut self, request: &[u8]) -> Outcome {
        Self::own_vport(request)?;
        let wanted = modify_hca_vport_context_in::HCA_VPORT_CONTEXT.get(request);
        if context::FIELD_SELECT.get(wanted) != 0 {
            return Err(refuse(
                Status::BadParameter,
                "GUIDs and states of a port are not its guest's to change",
            ));
        }
        let select = context::CAP_MASK1_FIELD_SELECT.get(wanted);
        if select & !self.0.attributes().capability_mask_writable != 0 {
            return Err(refuse(
                Status::BadParameter,
                "these capability bits cannot be changed",
            ));
        }
        if select != 0 {
            self.0
                .set_capability_mask(context::CAP_MASK1.get(wanted), select);
        }
        Ok(())
    }

    fn query_vport_gid(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        Self::own_vport(request)?;
        let index = query_hca_vport_gid_in::GID_INDEX.get(request) as u16;
        if index >= GID_TABLE {
            return Err(refuse(Status::BadIndex, "the GID table is not that long"));
        }
        query_hca_vport_gid_out::GIDS_NUM.set(reply, 1);
        crate::bits::Span::new(BODY, 16).set(reply, &self.0.gid(index).to_bytes());
        Ok(())
    }

    fn query_vport_pkey(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        Self::own_vport(request)?;
        let index = query_hca_vport_pkey_in::PKEY_INDEX.get(request);
        let indices = match index {
            ALL_PKEYS => 0..PKEY_TABLE,
            _ if index < u32::from(PKEY_TABLE) => index as u16..index as u16 + 1,
            _ => return Err(refuse(Status::BadIndex, "the P_Key table is not that long")),
        };
        for (at, index) in indices.enumerate() {
            let field = crate::bits::Field::new(BODY + 4 * at, 15, 0);
            field.set(reply, u32::from(self.0.pkey(index).value()));
        }
        Ok(())
    }

    fn access_register(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let read = access_register_in::OP_MOD.get(request) == 1;
        let given = request.get(BODY..).unwrap_or_default();
        let out = reply.get_mut(BODY..).unwrap_or_default();
        match (access_register_in::REGISTER_ID.get(request), read) {
            (REGISTER_PTYS, true) => self.speed_register(out),
            (REGISTER_PMTU, true) => self.mtu_register(out),
            (REGISTER_PVLC, true) => self.lanes_register(out),
            (REGISTER_PAOS, _) => self.state_register(given, read, out)?,
            (REGISTER_NODE_DESC, true) => {
                let description = self.0.node_description();
                crate::bits::Span::new(0, description.len()).set(out, &description);
            }
            (REGISTER_NODE_DESC, false) => {
                let description = crate::bits::Span::new(0, 64).array(given);
                self.0.set_node_description(&description);
            }
            // Nothing here depends on the byte order of the host.
            (REGISTER_HOST_ENDIANNESS, _) => {}
            (register, _) => {
                tracing::debug!("register {register:#06x} is not known; the driver is told so");
                return Err(refuse(Status::BadParameter, "no such register"));
            }
        }
        Ok(())
    }

    /// Whether the port is up. A port of the subnet is up for its guest's driver: to turn it off is the
    /// subnet manager's.
    fn state_register(&self, given: &[u8], read: bool, out: &mut [u8]) -> Outcome {
        if !read && SETS_STATE.is_set(given) && ADMIN_STATE.get(given) != UP {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function does not turn its port off",
            ));
        }
        let port = self.0.attributes();
        let up = port.physical_state == PhysicalState::LinkUp;
        crate::bits::Field::new(0x00, 23, 16).set(out, 1);
        ADMIN_STATE.set(out, UP);
        OPERATING_STATE.set(out, if up { UP } else { DOWN });
        Ok(())
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
