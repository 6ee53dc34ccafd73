//! Targets of dynamic connections: their context and commands.

use super::structures;

structures! {
    /// Context of a target.
    dctc(64) {
        STATE: 0x00 [27:24];
        USER_INDEX: 0x04 [23:0];
        CQN: 0x08 [23:0];
        COUNTER_SET_ID: 0x0c [31:24];
        RRE: 0x0c [19:19];
        RWE: 0x0c [18:18];
        RAE: 0x0c [17:17];
        RLKY: 0x0c [14:14];
        /// Longest message that completions hold.
        CS_RES: 0x10 [23:16];
        MIN_RNR_NAK: 0x10 [12:8];
        SRQN_XRQN: 0x14 [23:0];
        PD: 0x18 [23:0];
        TCLASS: 0x1c [31:24];
        FLOW_LABEL: 0x1c [19:0];
        DC_ACCESS_KEY: 0x20 wide;
        MTU: 0x28 [26:24];
        PORT: 0x28 [23:16];
        PKEY_INDEX: 0x28 [15:0];
        MY_ADDR_INDEX: 0x2c [23:16];
        HOP_LIMIT: 0x2c [7:0];
        DC_ACCESS_KEY_VIOLATION_COUNT: 0x30 [31:0];
    }

    /// Request of CREATE_DCT.
    create_dct_in(128) {
        DCT_CONTEXT_ENTRY: 0x10 (64);
    }

    /// Reply of QUERY_DCT.
    query_dct_out(128) {
        DCT_CONTEXT_ENTRY: 0x10 (64);
    }
}

/// State of a target in its context: it takes what initiators send.
pub const STATE_ACTIVE: u32 = 0;
/// State of a target in its context: it has no initiators any more, and lets none in.
pub const STATE_DRAINED: u32 = 2;

/// Kind of a work queue in its event: a target.
pub const EVENT_QUEUE_TYPE: u32 = 6;
