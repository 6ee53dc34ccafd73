//! Objects of network interfaces: their send and receive queues, transport interfaces (TIS) and where packets
//! come by (TIR, and tables of receive queues), and the flow tables that choose.

use super::command::codes;
use super::{Field, structures};

structures! {
    /// A work queue, in the context of a send or receive queue.
    wq(192) {
        WQ_TYPE: 0x00 [31:28];
        WQ_SIGNATURE: 0x00 [27:27];
        PAGE_OFFSET: 0x04 [20:16];
        LWM: 0x04 [15:0];
        PD: 0x08 [23:0];
        UAR_PAGE: 0x0c [23:0];
        DBR_ADDR: 0x10 wide;
        HW_COUNTER: 0x18 [31:0];
        SW_COUNTER: 0x1c [31:0];
        /// In bytes, as a power of two.
        LOG_WQ_STRIDE: 0x20 [19:16];
        LOG_WQ_PG_SZ: 0x20 [12:8];
        LOG_WQ_SZ: 0x20 [4:0];
        DBR_UMEM_VALID: 0x24 [31:31];
        WQ_UMEM_VALID: 0x24 [30:30];
    }

    /// Context of a send queue.
    sqc(240) {
        STATE: 0x00 [23:20];
        HAIRPIN: 0x00 [17:17];
        TS_FORMAT: 0x00 [5:4];
        USER_INDEX: 0x04 [23:0];
        CQN: 0x08 [23:0];
        TIS_LST_SZ: 0x20 [31:16];
        TIS_NUM_0: 0x2c [23:0];
        WQ: 0x30 (192);
    }

    /// Context of a receive queue.
    rqc(240) {
        MEM_RQ_TYPE: 0x00 [27:24];
        STATE: 0x00 [23:20];
        HAIRPIN: 0x00 [17:17];
        TS_FORMAT: 0x00 [5:4];
        USER_INDEX: 0x04 [23:0];
        CQN: 0x08 [23:0];
        COUNTER_SET_ID: 0x0c [31:24];
        WQ: 0x30 (192);
    }

    /// Request of CREATE_SQ, of CREATE_RQ and of what changes them; the page list follows it.
    modify_sq_in(272) {
        SQ_STATE: 0x08 [31:28];
        SQN: 0x08 [23:0];
        MODIFY_BITMASK: 0x10 wide;
        CTX: 0x20 (240);
    }

    /// Reply of QUERY_SQ and QUERY_RQ.
    query_sq_out(272) {
        SQ_CONTEXT: 0x20 (240);
    }

    /// Context of what packets leave by.
    tisc(160) {
        TLS_EN: 0x00 [30:30];
        TRANSPORT_DOMAIN: 0x24 [23:0];
        UNDERLAY_QPN: 0x28 [23:0];
    }

    /// Request of CREATE_TIS.
    create_tis_in(192) {
        CTX: 0x20 (160);
    }

    /// Context of what packets come by.
    tirc(240) {
        DISP_TYPE: 0x04 [31:28];
        TLS_EN: 0x04 [27:27];
        PACKET_MERGE_MASK: 0x10 [11:8];
        INLINE_RQN: 0x1c [23:0];
        RX_HASH_SYMMETRIC: 0x20 [31:31];
        TUNNELED_OFFLOAD_EN: 0x20 [29:29];
        INDIRECT_TABLE: 0x20 [23:0];
        RX_HASH_FN: 0x24 [31:28];
        TRANSPORT_DOMAIN: 0x24 [23:0];
        RX_HASH_TOEPLITZ_KEY: 0x28 (40);
        RX_HASH_FIELD_SELECTOR_OUTER: 0x50 (4);
    }

    /// Input of a hash.
    rx_hash_field_select(4) {
        L3_PROT_TYPE: 0x00 [31:31];
        L4_PROT_TYPE: 0x00 [30:30];
        SELECTED_FIELDS: 0x00 [29:0];
    }

    /// Request of CREATE_TIR and of MODIFY_TIR.
    modify_tir_in(272) {
        TIRN: 0x08 [23:0];
        BITMASK: 0x10 (8);
        CTX: 0x20 (240);
    }

    /// Fields that MODIFY_TIR changes.
    modify_tir_bitmask(8) {
        SELF_LB_EN: 0x04 [4:4];
        HASH: 0x04 [2:2];
        PACKET_MERGE: 0x04 [0:0];
    }

    /// Context of a table of receive queues; their numbers follow it.
    rqtc(240) {
        LIST_Q_TYPE: 0x14 [26:24];
        RQT_MAX_SIZE: 0x14 [15:0];
        RQ_VHCA_ID_FORMAT: 0x18 [31:31];
        RQT_ACTUAL_SIZE: 0x18 [15:0];
    }

    /// Request of CREATE_RQT and of MODIFY_RQT.
    modify_rqt_in(272) {
        RQTN: 0x08 [23:0];
        BITMASK: 0x10 (8);
        CTX: 0x20 (240);
    }

    /// Fields that MODIFY_RQT changes.
    rqt_bitmask(8) {
        RQN_LIST: 0x04 [0:0];
    }

    /// Request of CREATE_FLOW_TABLE.
    create_flow_table_in(64) {
        OTHER_VPORT: 0x08 [31:31];
        TABLE_TYPE: 0x10 [31:24];
        FLOW_TABLE_CONTEXT: 0x18 (40);
    }

    /// Context of a flow table.
    flow_table_context(40) {
        REFORMAT_EN: 0x00 [31:31];
        DECAP_EN: 0x00 [30:30];
        SW_OWNER: 0x00 [29:29];
        TERMINATION_TABLE: 0x00 [28:28];
        TABLE_MISS_ACTION: 0x00 [27:24];
        LEVEL: 0x00 [23:16];
        LOG_SIZE: 0x00 [7:0];
        TABLE_MISS_ID: 0x04 [23:0];
    }

    /// Request of CREATE_FLOW_GROUP; those about one table have its first fields.
    create_flow_group_in(1024) {
        OTHER_VPORT: 0x08 [31:31];
        TABLE_TYPE: 0x10 [31:24];
        GROUP_TYPE: 0x10 [19:16];
        TABLE_ID: 0x14 [23:0];
        START_FLOW_INDEX: 0x1c [31:0];
        END_FLOW_INDEX: 0x24 [31:0];
        MATCH_CRITERIA_ENABLE: 0x3c [7:0];
        MATCH_CRITERIA: 0x40 (512);
    }

    /// Request of DESTROY_FLOW_GROUP.
    destroy_flow_group_in(64) {
        TABLE_ID: 0x14 [23:0];
        GROUP_ID: 0x18 [31:0];
    }

    /// The matched headers that are not in a tunnel.
    fte_match_set_lyr_2_4(64) {
        ETHERTYPE: 0x04 [15:0];
        IP_PROTOCOL: 0x10 [31:24];
    }

    /// Request of SET_FLOW_TABLE_ENTRY; destinations follow it.
    set_fte_in(832) {
        OTHER_VPORT: 0x08 [31:31];
        TABLE_TYPE: 0x10 [31:24];
        TABLE_ID: 0x14 [23:0];
        FLOW_INDEX: 0x20 [31:0];
        FLOW_CONTEXT: 0x40 (768);
    }

    /// Treatment of packets that match.
    flow_context(768) {
        GROUP_ID: 0x04 [31:0];
        ACTION: 0x0c [15:0];
        EXTENDED_DESTINATION: 0x10 [31:31];
        DESTINATION_LIST_SIZE: 0x10 [23:0];
        MATCH_VALUE: 0x40 (512);
    }

    /// A destination.
    dest_format_struct(8) {
        DESTINATION_TYPE: 0x00 [31:24];
        DESTINATION_ID: 0x00 [23:0];
    }

    /// Request of DELETE_FLOW_TABLE_ENTRY.
    delete_fte_in(64) {
        TABLE_ID: 0x14 [23:0];
        FLOW_INDEX: 0x20 [31:0];
    }

    /// Request of SET_FLOW_TABLE_ROOT.
    set_flow_table_root_in(64) {
        OTHER_VPORT: 0x08 [31:31];
        TABLE_TYPE: 0x10 [31:24];
        TABLE_ID: 0x14 [23:0];
        UNDERLAY_QPN: 0x18 [23:0];
    }

    /// Reply of QUERY_VPORT_COUNTER. Each counter has packets, and bytes.
    query_vport_counter_out(528) {
        RECEIVED_IB_UNICAST: 0x30 (16);
        TRANSMITTED_IB_UNICAST: 0x40 (16);
        RECEIVED_IB_MULTICAST: 0x50 (16);
        TRANSMITTED_IB_MULTICAST: 0x60 (16);
    }
}

/// A cyclic work queue, the only type here.
pub const CYCLIC: u32 = 1;
/// Where a table of receive queues has its list in a request.
pub const QUEUE_LIST: usize = 0x110;
/// In `OP_MOD` of SET_FLOW_TABLE_ROOT: the queue pair has no table from now on.
pub const DISCONNECT: u32 = 1;
/// In `MATCH_CRITERIA_ENABLE`: headers that are not in a tunnel.
pub const OUTER_HEADERS: u32 = 1;

codes! {
    /// State of a send or receive queue.
    QueueState: u32 {
        Reset = 0,
        Ready = 1,
        Error = 3,
    }
}

codes! {
    /// Where packets go that have come by a TIR.
    Dispatch: u32 {
        /// To one receive queue.
        Direct = 0,
        /// To one of a table.
        Indirect = 1,
    }
}

codes! {
    /// Hash functions.
    HashFunction: u32 {
        None = 0,
        InvertedXor8 = 1,
        Toeplitz = 2,
    }
}

codes! {
    /// Treatment of packets that no entry of a table matches.
    MissAction: u32 {
        /// Nothing: they are dropped.
        Default = 0,
        /// They go to another table.
        Forward = 1,
    }
}

codes! {
    /// Where packets go that an entry of a flow table matches.
    Destination: u32 {
        FlowTable = 1,
        Tir = 2,
    }
}

/// Actions on packets that match.
pub mod action {
    /// They are dropped.
    pub const DROP: u32 = 0x2;
    /// They go to the destination.
    pub const FORWARD: u32 = 0x4;
}

/// Fields that a hash is of.
pub mod selected {
    /// Source address.
    pub const SOURCE: u32 = 1 << 0;
    /// Destination address.
    pub const DESTINATION: u32 = 1 << 1;
    /// Source port.
    pub const SOURCE_PORT: u32 = 1 << 2;
    /// Destination port.
    pub const DESTINATION_PORT: u32 = 1 << 3;
}

/// In all commands about the virtual port and flow tables: another port's are meant.
pub const OTHER_VPORT: Field = Field::new(0x08, 31, 31);
