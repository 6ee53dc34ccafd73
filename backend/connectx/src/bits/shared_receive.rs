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

    /// Request of CREATE_SRQ; the page list follows it.
    create_srq_in(272) {
        SRQ_CONTEXT_ENTRY: 0x10 (64);
    }

    /// Reply of QUERY_SRQ.
    query_srq_out(272) {
        SRQ_CONTEXT_ENTRY: 0x10 (64);
    }

    /// Request of ARM_RQ.
    arm_rq_in(16) {
        SRQ_NUMBER: 0x08 [23:0];
        LWM: 0x0c [15:0];
    }
}
