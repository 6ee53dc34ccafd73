//! Shared receive queues, basic and XRC.

use super::structures;

structures! {
    /// Context of a shared receive queue.
    srqc(64) {
        STATE: 0x00 [31:28];
        LOG_SRQ_SIZE: 0x00 [27:24];
        WQ_SIGNATURE: 0x04 [31:31];
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

    /// What the context of a queue of XRC has besides.
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
