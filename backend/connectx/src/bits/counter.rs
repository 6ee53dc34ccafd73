//! Counters of queue pairs: ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER.

use super::{Field, structures};

structures! {
    /// Reply of ALLOC_Q_COUNTER.
    alloc_q_counter_out(16) {
        COUNTER_SET_ID: 0x08 [7:0];
    }

    /// Request of DEALLOC_Q_COUNTER.
    dealloc_q_counter_in(16) {
        COUNTER_SET_ID: 0x08 [7:0];
    }

    /// Request of QUERY_Q_COUNTER.
    query_q_counter_in(32) {
        OTHER_VPORT: 0x08 [31:31];
        CLEAR: 0x18 [31:31];
        AGGREGATE: 0x18 [30:30];
        COUNTER_SET_ID: 0x1c [7:0];
    }

    /// Reply of QUERY_Q_COUNTER.
    query_q_counter_out(256) {
        RX_WRITE_REQUESTS: 0x10 [31:0];
        RX_READ_REQUESTS: 0x18 [31:0];
        RX_ATOMIC_REQUESTS: 0x20 [31:0];
        OUT_OF_BUFFER: 0x30 [31:0];
        OUT_OF_SEQUENCE: 0x38 [31:0];
        DUPLICATE_REQUEST: 0x40 [31:0];
        RNR_NAK_RETRY_ERR: 0x48 [31:0];
        PACKET_SEQ_ERR: 0x50 [31:0];
        IMPLIED_NAK_SEQ_ERR: 0x58 [31:0];
        LOCAL_ACK_TIMEOUT_ERR: 0x60 [31:0];
        RESP_LOCAL_LENGTH_ERROR: 0x78 [31:0];
        REQ_LOCAL_LENGTH_ERROR: 0x7c [31:0];
        RESP_LOCAL_QP_ERROR: 0x80 [31:0];
        LOCAL_OPERATION_ERROR: 0x84 [31:0];
        RESP_LOCAL_PROTECTION: 0x88 [31:0];
        REQ_LOCAL_PROTECTION: 0x8c [31:0];
        RESP_CQE_ERROR: 0x90 [31:0];
        REQ_CQE_ERROR: 0x94 [31:0];
        REQ_MW_BINDING: 0x98 [31:0];
        REQ_BAD_RESPONSE: 0x9c [31:0];
        REQ_REMOTE_INVALID_REQUEST: 0xa0 [31:0];
        RESP_REMOTE_INVALID_REQUEST: 0xa4 [31:0];
        REQ_REMOTE_ACCESS_ERRORS: 0xa8 [31:0];
        RESP_REMOTE_ACCESS_ERRORS: 0xac [31:0];
        REQ_REMOTE_OPERATION_ERRORS: 0xb0 [31:0];
        REQ_TRANSPORT_RETRIES_EXCEEDED: 0xb4 [31:0];
        CQ_OVERFLOW: 0xb8 [31:0];
        RESP_CQE_FLUSH_ERROR: 0xbc [31:0];
        REQ_CQE_FLUSH_ERROR: 0xc0 [31:0];
    }
}

/// In the reply of QUERY_Q_COUNTER, by later descriptions of the interface than Linux 6.12 began with.
pub const REQ_RNR_RETRIES_EXCEEDED: Field = Field::new(0x70, 31, 0);
