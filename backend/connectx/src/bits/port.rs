//! The port: virtual port context, registers, management datagrams.

use super::{Field, Span, structures};

structures! {
    /// Context of a virtual port.
    hca_vport_context(512) {
        FIELD_SELECT: 0x000 [31:0];
        HAS_SMI: 0x020 [30:30];
        GRH_REQUIRED: 0x020 [28:28];
        PORT_PHYSICAL_STATE: 0x020 [15:12];
        PORT_STATE: 0x020 [7:4];
        VPORT_STATE: 0x020 [3:0];
        SYSTEM_IMAGE_GUID: 0x028 wide;
        PORT_GUID: 0x030 wide;
        NODE_GUID: 0x038 wide;
        CAP_MASK1: 0x040 [31:0];
        CAP_MASK1_FIELD_SELECT: 0x044 [31:0];
        LID: 0x060 [31:16];
        INIT_TYPE_REPLY: 0x060 [11:8];
        LMC: 0x060 [7:5];
        SUBNET_TIMEOUT: 0x060 [4:0];
        SM_LID: 0x064 [31:16];
        SM_SL: 0x064 [15:12];
        QKEY_VIOLATION_COUNTER: 0x068 [31:16];
        PKEY_VIOLATION_COUNTER: 0x068 [15:0];
    }

    /// Reply of QUERY_HCA_VPORT_CONTEXT.
    query_hca_vport_context_out(528) {
        HCA_VPORT_CONTEXT: 0x10 (512);
    }

    /// Request of MODIFY_HCA_VPORT_CONTEXT.
    modify_hca_vport_context_in(528) {
        OTHER_VPORT: 0x08 [31:31];
        PORT_NUM: 0x08 [19:16];
        HCA_VPORT_CONTEXT: 0x10 (512);
    }

    /// Request of QUERY_HCA_VPORT_GID.
    query_hca_vport_gid_in(16) {
        GID_INDEX: 0x0c [15:0];
    }

    /// Reply of QUERY_HCA_VPORT_GID; the GIDs follow it.
    query_hca_vport_gid_out(16) {
        GIDS_NUM: 0x0c [31:16];
    }

    /// Request of QUERY_HCA_VPORT_PKEY; P_Keys follow its reply, a dword each.
    query_hca_vport_pkey_in(16) {
        PKEY_INDEX: 0x0c [15:0];
    }

    /// Request of ACCESS_REG; the register follows it, as it does the reply.
    access_register_in(16) {
        OP_MOD: 0x04 [15:0];
        REGISTER_ID: 0x08 [15:0];
        ARGUMENT: 0x0c [31:0];
    }

    /// Speed and width of a port.
    ptys_reg(64) {
        LOCAL_PORT: 0x00 [23:16];
        PROTO_MASK: 0x00 [2:0];
        IB_LINK_WIDTH_CAPABILITY: 0x10 [31:16];
        IB_PROTO_CAPABILITY: 0x10 [15:0];
        IB_LINK_WIDTH_ADMIN: 0x1c [31:16];
        IB_PROTO_ADMIN: 0x1c [15:0];
        IB_LINK_WIDTH_OPER: 0x28 [31:16];
        IB_PROTO_OPER: 0x28 [15:0];
    }

    /// Packet payload sizes of a port, in bytes.
    pmtu_reg(16) {
        LOCAL_PORT: 0x00 [23:16];
        MAX_MTU: 0x04 [31:16];
        ADMIN_MTU: 0x08 [31:16];
        OPER_MTU: 0x0c [31:16];
    }

    /// Virtual lanes of a port.
    pvlc_reg(16) {
        LOCAL_PORT: 0x00 [23:16];
        VL_HW_CAP: 0x04 [3:0];
        VL_ADMIN: 0x08 [3:0];
        VL_OPERATIONAL: 0x0c [3:0];
    }

    /// Request of MAD_IFC.
    mad_ifc_in(272) {
        REMOTE_LID: 0x08 [31:16];
        PORT: 0x08 [7:0];
        MAD: 0x10 (256);
    }

    /// Reply of MAD_IFC.
    mad_ifc_out(272) {
        RESPONSE_MAD_PACKET: 0x10 (256);
    }
}

/// In the reply of QUERY_HCA_VPORT_GID: the first GID.
pub const FIRST_GID: Span = Span::new(query_hca_vport_gid_out::SIZE, 16);

/// In the reply of QUERY_HCA_VPORT_PKEY: the P_Key at this place of the list.
#[must_use]
pub const fn listed_pkey(at: usize) -> Field {
    Field::new(query_hca_vport_pkey_in::SIZE + 4 * at, 15, 0)
}

/// Register: sizes of packet payloads.
pub const REGISTER_PMTU: u32 = 0x5003;
/// Register: whether the port is up, as its administrator wants it and as it is.
pub const REGISTER_PAOS: u32 = 0x5006;
/// Register: speed and width.
pub const REGISTER_PTYS: u32 = 0x5004;
/// Register: virtual lanes.
pub const REGISTER_PVLC: u32 = 0x500f;
/// Register: node description.
pub const REGISTER_NODE_DESC: u32 = 0x6001;
/// Register: byte order of the host.
pub const REGISTER_HOST_ENDIANNESS: u32 = 0x7004;

/// The register of the port's state; the description of the interface that others are held against has it not.
pub mod paos {
    use crate::bits::Field;

    /// The port's number.
    pub const LOCAL_PORT: Field = Field::new(0x00, 23, 16);
    /// The state that the administrator wants.
    pub const ADMIN_STATE: Field = Field::new(0x00, 11, 8);
    /// The state now.
    pub const OPERATING_STATE: Field = Field::new(0x00, 3, 0);
    /// The administrator's state is to change.
    pub const SETS_STATE: Field = Field::new(0x04, 31, 31);
    /// State: up.
    pub const UP: u32 = 1;
    /// State: down.
    pub const DOWN: u32 = 2;
}
