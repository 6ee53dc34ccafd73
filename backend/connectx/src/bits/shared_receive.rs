//! Shared receive queues, basic and XRC.

use super::{Field, structures};

structures! {
    /// Context of a shared receive queue.
    srqc(64) {
        STATE: 0x00 [31:28];
        LOG_SRQ_SIZE: 0x00 [27:24];
        WQ_SIGNATURE: 0x04 [31:31];
        RLKY: 0x04 [28:28];
        LOG_RQ_STRIDE: 0x04 [26:24];
        XRCD: 0x04 [23:0];
        PAGE_OFFSET: 0x08 [31:26];
        CQN: 0x08 [23:0];
        LOG_PAGE_SIZE: 0x10 [29:24];
        PD: 0x18 [23:0];
        LWM: 0x1c [31:16];
        WQE_CNT: 0x1c [15:0];
        DBR_ADDR: 0x28 wide;
    }

    /// Further fields of the context of a queue of XRC.
    xrc_srqc(64) {
        USER_INDEX_EQUAL_XRC_SRQN: 0x10 [31:31];
        USER_INDEX: 0x10 [23:0];
    }

    /// Request of CREATE_SRQ; the page list follows it.
    create_srq_in(272) {
        SRQ_CONTEXT_ENTRY: 0x10 (64);
    }

    /// Reply of QUERY_SRQ.
    query_srq_out(272) {
        SRQ_CONTEXT_ENTRY: 0x10 (64);
    }

    /// List of tags of a queue (XRQ), in its context.
    tag_matching_topology_context(16) {
        LOG_MATCHING_LIST_SZ: 0x00 [31:28];
        APPEND_NEXT_INDEX: 0x00 [15:0];
        SW_PHASE_CNT: 0x04 [31:16];
        HW_PHASE_CNT: 0x04 [15:0];
    }

    /// Context of a queue whose messages have tags.
    xrqc(320) {
        STATE: 0x00 [31:28];
        TOPOLOGY: 0x00 [11:8];
        OFFLOAD: 0x00 [3:0];
        USER_INDEX: 0x04 [23:0];
        CQN: 0x08 [23:0];
        TAG_MATCHING_TOPOLOGY_CONTEXT: 0x20 (16);
        WQ: 0x80 (192);
    }

    /// Request of CREATE_XRQ; the page list follows it.
    create_xrq_in(336) {
        XRQ_CONTEXT: 0x10 (320);
    }

    /// Reply of QUERY_XRQ.
    query_xrq_out(336) {
        XRQ_CONTEXT: 0x10 (320);
    }

    /// Request of ARM_RQ.
    arm_rq_in(16) {
        SRQ_NUMBER: 0x08 [23:0];
        LWM: 0x0c [15:0];
    }
}

/// In `TOPOLOGY`: messages are matched with tags.
pub const TOPOLOGY_TAG_MATCHING: u32 = 1;
/// In `OFFLOAD`: the device reads what a rendezvous says.
pub const OFFLOAD_RENDEZVOUS: u32 = 1;
/// Modifier of ARM_RQ: of a shared receive queue.
pub const ARM_SRQ: u32 = 1;
/// Modifier of ARM_RQ: of one with tags.
pub const ARM_XRQ: u32 = 2;

/// State of a receive memory pool: it works.
pub const RMP_READY: u32 = 1;

/// Context of a receive memory pool. The description of the interface that others are held against has it not, nor
/// those below.
pub mod rmpc {
    use crate::bits::{Field, Span};

    /// Its bytes.
    pub const SIZE: usize = 0xf0;
    /// The state.
    pub const STATE: Field = Field::new(0x00, 23, 20);
    /// The queue ([`wq`](crate::bits::network::wq)).
    pub const WQ: Span = Span::new(0x30, 0xc0);
}

/// Request of CREATE_RMP and MODIFY_RMP, and reply of QUERY_RMP.
pub mod modify_rmp_in {
    use crate::bits::{Field, Span};

    /// The state that a change begins with.
    pub const STATE: Field = Field::new(0x08, 31, 24);
    /// The limit changes.
    pub const CHANGES_LIMIT: Field = Field::new(0x14, 0, 0);
    /// The context.
    pub const CTX: Span = Span::new(0x20, super::rmpc::SIZE);
}

/// Memory objects of a work queue ([`wq`](crate::bits::network::wq)).
pub mod wq_umem {
    use crate::bits::{Field, Wide};

    /// The object of the doorbell record.
    pub const DBR_UMEM_ID: Field = Field::new(0x28, 31, 0);
    /// The object of the queue.
    pub const WQ_UMEM_ID: Field = Field::new(0x2c, 31, 0);
    /// Where the queue begins in the object, in bytes.
    pub const WQ_UMEM_OFFSET: Wide = Wide::new(0x30);
}

/// Memory objects in a request for a queue of XRC, and in one of version 0 that was made of a pool's.
pub mod srqc_umem {
    use crate::bits::{Field, Wide};

    /// The queue lies in an object.
    pub const VALID: Field = Field::new(0x5c, 31, 31);
    /// Number of that object.
    pub const NUMBER: Field = Field::new(0x58, 31, 0);
    /// Where the queue begins in the object, in bytes.
    pub const OFFSET: Wide = Wide::new(0x50);
    /// In the context: the doorbell record lies in an object.
    pub const RECORD_VALID: Field = Field::new(0x08, 24, 24);
    /// In the context: that object.
    pub const RECORD_NUMBER: Field = Field::new(0x0c, 31, 0);
}

/// Tags in a request of version 0 that was made of one for a queue with tags, and in the reply to a query of one.
pub mod srqc_tags {
    use super::Field;

    /// Topology.
    pub const TOPOLOGY: Field = Field::new(0x60, 11, 8);
    /// Offload.
    pub const OFFLOAD: Field = Field::new(0x60, 3, 0);
    /// Entries of the list, as a power of two.
    pub const LOG_SIZE: Field = Field::new(0x64, 31, 28);
    /// The entry that is added next.
    pub const NEXT: Field = Field::new(0x64, 15, 0);
    /// Unexpected messages that software has seen.
    pub const SEEN: Field = Field::new(0x68, 31, 16);
    /// Unexpected messages.
    pub const UNEXPECTED: Field = Field::new(0x68, 15, 0);
    /// Index of its completions.
    pub const USER_INDEX: Field = Field::new(0x6c, 23, 0);
}
