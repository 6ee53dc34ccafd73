//! Queue pairs: their context and the address path within it.

use super::command::codes;
use super::{Field, structures};

structures! {
    /// Context of a queue pair.
    qpc(232) {
        STATE: 0x00 [31:28];
        ST: 0x00 [23:16];
        PM_STATE: 0x00 [12:11];
        WQ_SIGNATURE: 0x04 [31:31];
        BLOCK_LB_MC: 0x04 [30:30];
        /// A block that is not as its signature says drains the send queue.
        DRAIN_SIGERR: 0x04 [26:26];
        PD: 0x04 [23:0];
        MTU: 0x08 [31:29];
        LOG_MSG_MAX: 0x08 [28:24];
        LOG_RQ_SIZE: 0x08 [22:19];
        LOG_RQ_STRIDE: 0x08 [18:16];
        NO_SQ: 0x08 [15:15];
        LOG_SQ_SIZE: 0x08 [14:11];
        TS_FORMAT: 0x08 [7:6];
        RLKY: 0x08 [4:4];
        ULP_STATELESS_OFFLOAD_MODE: 0x08 [3:0];
        COUNTER_SET_ID: 0x0c [31:24];
        UAR_PAGE: 0x0c [23:0];
        USER_INDEX: 0x10 [23:0];
        LOG_PAGE_SIZE: 0x14 [28:24];
        REMOTE_QPN: 0x14 [23:0];
        PRIMARY_ADDRESS_PATH: 0x18 (44);
        SECONDARY_ADDRESS_PATH: 0x44 (44);
        LOG_SRA_MAX: 0x70 [23:21];
        RETRY_COUNT: 0x70 [18:16];
        RNR_RETRY: 0x70 [15:13];
        CUR_RNR_RETRY: 0x70 [10:8];
        CUR_RETRY_COUNT: 0x70 [7:5];
        NEXT_SEND_PSN: 0x78 [23:0];
        CQN_SND: 0x7c [23:0];
        DETH_SQPN: 0x80 [23:0];
        LAST_ACKED_PSN: 0x88 [23:0];
        SSN: 0x8c [23:0];
        LOG_RRA_MAX: 0x90 [23:21];
        RRE: 0x90 [15:15];
        RWE: 0x90 [14:14];
        RAE: 0x90 [13:13];
        PAGE_OFFSET: 0x90 [11:6];
        MIN_RNR_NAK: 0x94 [28:24];
        NEXT_RCV_PSN: 0x94 [23:0];
        XRCD: 0x98 [23:0];
        CQN_RCV: 0x9c [23:0];
        DBR_ADDR: 0xa0 wide;
        Q_KEY: 0xa8 [31:0];
        RQ_TYPE: 0xac [26:24];
        SRQN_RMPN_XRQN: 0xac [23:0];
        RMSN: 0xb0 [23:0];
        HW_SQ_WQEBB_COUNTER: 0xb4 [31:16];
        SW_SQ_WQEBB_COUNTER: 0xb4 [15:0];
        HW_RQ_COUNTER: 0xb8 [31:0];
        SW_RQ_COUNTER: 0xbc [31:0];
        /// Longest answer that completions hold.
        CS_REQ: 0xc4 [15:8];
        /// Longest received message that completions hold.
        CS_RES: 0xc4 [7:0];
        DBR_UMEM_VALID: 0x0d0 [28:28];
    }

    /// An address path.
    ads(44) {
        FL: 0x00 [31:31];
        PKEY_INDEX: 0x00 [15:0];
        GRH: 0x04 [23:23];
        MLID: 0x04 [22:16];
        RLID: 0x04 [15:0];
        ACK_TIMEOUT: 0x08 [31:27];
        SRC_ADDR_INDEX: 0x08 [23:16];
        STAT_RATE: 0x08 [11:8];
        HOP_LIMIT: 0x08 [7:0];
        TCLASS: 0x0c [27:20];
        FLOW_LABEL: 0x0c [19:0];
        RGID_RIP: 0x10 (16);
        SL: 0x24 [27:24];
        VHCA_PORT_NUM: 0x24 [23:16];
    }

    /// Request of CREATE_QP, and of all that change a queue pair; the page list
    /// follows it.
    create_qp_in(272) {
        OPT_PARAM_MASK: 0x10 [31:0];
        QPC: 0x18 (232);
        WQ_UMEM_OFFSET: 0x100 wide;
        WQ_UMEM_ID: 0x108 [31:0];
        WQ_UMEM_VALID: 0x10c [31:31];
    }

    /// Reply of QUERY_QP.
    query_qp_out(464) {
        OPT_PARAM_MASK: 0x10 [31:0];
        QPC: 0x18 (232);
    }
}

codes! {
    /// State of a queue pair in its context.
    State: u32 {
        Reset = 0,
        Init = 1,
        ReadyToReceive = 2,
        ReadyToSend = 3,
        SendQueueError = 4,
        SendQueueDrain = 5,
        Error = 6,
    }
}

codes! {
    /// Service type of a queue pair in its context.
    ServiceType: u32 {
        ReliableConnection = 0x0,
        UnreliableConnection = 0x1,
        UnreliableDatagram = 0x2,
        ExtendedReliableConnection = 0x3,
        DynamicInitiator = 0x5,
        QueuePair0 = 0x7,
        QueuePair1 = 0x8,
        KeyUpdate = 0xc,
    }
}

codes! {
    /// Whether a queue pair may move to its alternate path.
    MigrationState: u32 {
        Armed = 0,
        Rearm = 1,
        Migrated = 3,
    }
}

codes! {
    /// Kind of a queue pair's receive queue.
    ReceiveType: u32 {
        Own = 0,
        Shared = 1,
        None = 3,
    }
}

codes! {
    /// Offloads of IP packets that a queue pair of datagrams does, in its context.
    OffloadMode: u32 {
        None = 0,
        /// Checksums, and segments of TCP.
        Basic = 1,
        /// The queue pair is the address of a network interface's queues.
        Enhanced = 2,
    }
}

codes! {
    /// Longest answer that completions hold, in a queue pair's context.
    AnswersHeld: u32 {
        None = 0,
        UpTo32 = 0x11,
        UpTo64 = 0x22,
    }
}

codes! {
    /// Longest received message that completions hold, in a queue pair's context and a target's.
    MessagesHeld: u32 {
        None = 0,
        UpTo32 = 1,
        UpTo64 = 2,
    }
}

codes! {
    /// Clock of the times in a queue pair's completions, in its context.
    TimestampFormat: u32 {
        FreeRunning = 0,
        Default = 1,
        RealTime = 2,
    }
}

/// Value in the context of a queue pair, target or shared receive queue in place of a user index where completions
/// name it by its number alone.
pub const NO_USER_INDEX: u32 = 0x00ff_ffff;

/// Optional parameters of a change.
pub mod optional {
    /// Alternate path.
    pub const ALTERNATE_PATH: u32 = 1 << 0;
    /// Remote reads.
    pub const RRE: u32 = 1 << 1;
    /// Remote atomics.
    pub const RAE: u32 = 1 << 2;
    /// Remote writes.
    pub const RWE: u32 = 1 << 3;
    /// P_Key index.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Q_Key.
    pub const Q_KEY: u32 = 1 << 5;
    /// RNR timer.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// Primary path.
    pub const PRIMARY_PATH: u32 = 1 << 7;
    /// State of the migration to the alternate path.
    pub const MIGRATION_STATE: u32 = 1 << 10;
    /// Whether a wrong block drains the send queue: where the state stays Init.
    pub const DRAIN_SIGERR: u32 = 1 << 11;
    /// Retries.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// RNR retries.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// ACK timeout.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// Set of counters.
    pub const COUNTER_SET_ID: u32 = 1 << 25;
}

/// In the context: the memory object of the doorbell record.
pub const DBR_UMEM_ID: Field = Field::new(0xe4, 31, 0);
