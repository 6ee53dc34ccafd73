//! Completion queues: their context and entries.

use super::command::codes;
use super::{Field, Wide, structures};

structures! {
    /// Context of a completion queue.
    cqc(64) {
        STATUS: 0x00 [31:28];
        DBR_UMEM_VALID: 0x00 [25:25];
        APU_CQ: 0x00 [24:24];
        CQE_SZ: 0x00 [23:21];
        OI: 0x00 [17:17];
        CQE_COMP_EN: 0x00 [14:14];
        MINI_CQE_RES_FORMAT: 0x00 [13:12];
        ST: 0x00 [11:8];
        CQE_COMPRESSION_LAYOUT: 0x00 [1:0];
        PAGE_OFFSET: 0x08 [11:6];
        LOG_CQ_SIZE: 0x0c [28:24];
        UAR_PAGE: 0x0c [23:0];
        CQ_PERIOD: 0x10 [27:16];
        CQ_MAX_COUNT: 0x10 [15:0];
        C_EQN_OR_APU_ELEMENT: 0x14 [31:0];
        LOG_PAGE_SIZE: 0x18 [28:24];
        LAST_NOTIFIED_INDEX: 0x20 [23:0];
        LAST_SOLICIT_INDEX: 0x24 [23:0];
        CONSUMER_COUNTER: 0x28 [23:0];
        PRODUCER_COUNTER: 0x2c [23:0];
        DBR_ADDR: 0x38 wide;
    }

    /// Request of CREATE_CQ; the page list follows it.
    create_cq_in(272) {
        CQ_CONTEXT: 0x10 (64);
        CQ_UMEM_VALID: 0x5c [31:31];
    }

    /// Request of MODIFY_CQ; the page list follows it.
    modify_cq_in(272) {
        CQN: 0x08 [23:0];
        MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT: 0x0c [31:0];
        CQ_CONTEXT: 0x10 (64);
    }

    /// Reply of QUERY_CQ.
    query_cq_out(272) {
        CQ_CONTEXT: 0x10 (64);
    }

    /// The beginning of an entry about a change of a list of tags.
    mlx5_tm_cqe(18) {
        SUCCESS: 0x00 [31:0];
        HW_PHASE_CNT: 0x04 [31:16];
    }

    /// A completion queue entry. That of a message which has matched a tag begins with the message's header.
    mlx5_cqe64(64) {
        ML_PATH: 0x10 [23:16];
        SLID: 0x14 [15:0];
        FLAGS_RQPN: 0x18 [31:0];
        HDS_IP_EXT: 0x1c [31:24];
        SRQN_UIDX: 0x20 [31:0];
        IMM_INVAL_PKEY: 0x24 [31:0];
        APP: 0x28 [31:24];
        APP_OP: 0x28 [23:16];
        APP_INFO: 0x28 [15:0];
        BYTE_CNT: 0x2c [31:0];
        TIMESTAMP: 0x30 wide;
        SOP_DROP_QPN: 0x38 [31:0];
        WQE_COUNTER: 0x3c [31:16];
        SIGNATURE: 0x3c [15:8];
        OP_OWN: 0x3c [7:0];
    }
}

/// In an entry about a packet in a receive queue of a network interface: the hash of its addresses and ports.
pub const RSS_HASH_RESULT: Field = Field::new(0x0c, 31, 0);
/// As above: what the hash is of; see [`hash_type`].
pub const RSS_HASH_TYPE: Field = Field::new(0x10, 31, 24);
/// As above: the sum of the IP packet, not inverted.
pub const CHECK_SUM: Field = Field::new(0x14, 31, 16);

/// Input of a hash.
pub mod hash_type {
    /// Addresses of version 4.
    pub const V4: u8 = 0b0101;
    /// Addresses of version 6.
    pub const V6: u8 = 0b1010;
    /// Ports of TCP.
    pub const TCP: u8 = 0b0101 << 4;
    /// Ports of UDP.
    pub const UDP: u8 = 0b1010 << 4;
}

/// In `HDS_IP_EXT`: the checksum of the network header is right.
pub const NETWORK_CHECKED: u32 = 1 << 1;
/// In `HDS_IP_EXT`: the checksum of TCP or UDP is right.
pub const TRANSPORT_CHECKED: u32 = 1 << 2;

/// In `OP_OWN`: the first 32 bytes of the entry are the message.
pub const HOLDS_32: u8 = 1 << 2;
/// In `OP_OWN`: the 64 bytes before the entry, which it has with a stride of 128 bytes, are the message.
pub const HOLDS_64: u8 = 2 << 2;

/// In `OP_OWN`: the entry is the title of several.
pub const COMPRESSED: u8 = 3 << 2;

/// Offset of the vendor's error syndrome in an error entry.
pub const VENDOR_SYNDROME: usize = 0x36;
/// Offset of the error syndrome in an error entry.
pub const SYNDROME: usize = 0x37;

codes! {
    /// Kind of a completion queue entry.
    CqeOpcode: u8 {
        Requester = 0,
        ResponderWriteImm = 1,
        ResponderSend = 2,
        ResponderSendImm = 3,
        ResponderSendInvalidate = 4,
        Resize = 5,
        NoPacket = 6,
        SignatureError = 12,
        RequesterError = 13,
        ResponderError = 14,
        Invalid = 15,
    }
}

codes! {
    /// Cause of an error, in an error entry.
    Syndrome: u8 {
        LocalLength = 0x01,
        LocalQpOperation = 0x02,
        LocalProtection = 0x04,
        Flushed = 0x05,
        MemoryWindowBind = 0x06,
        BadResponse = 0x10,
        LocalAccess = 0x11,
        RemoteInvalidRequest = 0x12,
        RemoteAccess = 0x13,
        RemoteOperation = 0x14,
        TransportRetryExceeded = 0x15,
        RnrRetryExceeded = 0x16,
    }
}

codes! {
    /// Closer cause of an error, in an error entry. For exceeded retries and remote operations the
    /// codes are what ConnectX devices are seen to give (logs of UCX); they have never been documented.
    /// The other codes are this device's own.
    VendorSyndrome: u8 {
        RetryExceeded = 0x81,
        RemoteAccess = 0x88,
        RemoteOperation = 0x89,
        RemoteInvalidRequest = 0x8a,
        Opcode = 0xe0,
        Segments = 0xe1,
        Counter = 0xe2,
        Transport = 0xe3,
        InlineAnswer = 0xe4,
        Length = 0xe5,
        AnswerLength = 0xe6,
        KeyUpdate = 0xe7,
        KeyInvalid = 0xe8,
        KeyProtection = 0xe9,
        KeyAccess = 0xea,
        KeyBounds = 0xeb,
        KeyUnmapped = 0xec,
        Pieces = 0xed,
    }
}

/// In `APP`: the entry is about tags.
pub const APP_TAG_MATCHING: u32 = 1;
/// In `SUCCESS`: the change was made.
pub const TAG_SUCCESS: u32 = 1 << 31;

codes! {
    /// Meaning of an entry about tags (`APP_OP`).
    TagOpcode: u8 {
        Consumed = 0x1,
        Expected = 0x2,
        Unexpected = 0x3,
        NoTag = 0x4,
        Append = 0x5,
        Remove = 0x6,
        Nop = 0x7,
        ConsumedMessage = 0xa,
        Canceled = 0xc,
    }
}

/// Arm word: notify for solicited entries only.
pub const ARM_SOLICITED: u32 = 1 << 24;
/// Counters of a completion queue have 24 bits.
pub const COUNTER_MASK: u32 = 0x00ff_ffff;
/// State of a queue in its context: armed for any entry.
pub const STATE_ARMED: u32 = 0x9;
/// State of a queue in its context: armed for solicited entries.
pub const STATE_SOLICITED_ARMED: u32 = 0x6;
/// State of a queue in its context: its event has been raised.
pub const STATE_FIRED: u32 = 0xa;
/// Status of a queue in its context: it overran.
pub const STATUS_OVERRUN: u32 = 0x9;
/// Modifier of MODIFY_CQ: another ring. Without it, single fields change.
pub const CQ_RESIZE: u32 = 1;
/// In CREATE_CQ and MODIFY_CQ: the memory object of the ring.
pub const CQ_UMEM_ID: Field = Field::new(0x58, 31, 0);
/// As above: where the ring begins in the object, in bytes.
pub const CQ_UMEM_OFFSET: Wide = Wide::new(0x50);
/// In the context: the memory object of the doorbell record.
pub const CQ_DBR_UMEM_ID: Field = Field::new(0x04, 31, 0);
