//! Counters of queue pairs: ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER.

use super::structures;

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
    }
}
