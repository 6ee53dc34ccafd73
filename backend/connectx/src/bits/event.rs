//! Event queues: their context and entries.

use super::command::codes;
use super::structures;

structures! {
    /// Context of an event queue.
    eqc(64) {
        STATUS: 0x00 [31:28];
        OI: 0x00 [17:17];
        ST: 0x00 [11:8];
        PAGE_OFFSET: 0x08 [11:6];
        LOG_EQ_SIZE: 0x0c [28:24];
        UAR_PAGE: 0x0c [23:0];
        INTR: 0x14 [11:0];
        LOG_PAGE_SIZE: 0x18 [28:24];
        CONSUMER_COUNTER: 0x28 [23:0];
        PRODUCER_COUNTER: 0x2c [23:0];
    }

    /// Reply of CREATE_EQ.
    create_eq_out(16) {
        EQ_NUMBER: 0x08 [7:0];
    }

    /// Request of DESTROY_EQ and QUERY_EQ.
    destroy_eq_in(16) {
        EQ_NUMBER: 0x08 [7:0];
    }

    /// Reply of QUERY_EQ.
    query_eq_out(272) {
        EQ_CONTEXT_ENTRY: 0x10 (64);
        EVENT_BITMASK: 0x58 wide;
    }
}

/// State of an event queue in its context: armed.
pub const STATE_ARMED: u32 = 0x9;
/// State of an event queue in its context: its interrupt has been raised.
pub const STATE_FIRED: u32 = 0xa;

/// Bytes of an event queue entry.
pub const EQE_SIZE: usize = 64;
/// Offset of the event type in an entry.
pub const EQE_TYPE: usize = 0x01;
/// Offset of the event subtype in an entry.
pub const EQE_SUBTYPE: usize = 0x03;
/// Offset of the event's data in an entry.
pub const EQE_DATA: usize = 0x20;
/// Bytes of the event's data.
pub const EQE_DATA_SIZE: usize = 28;

codes! {
    /// Kind of an event.
    EventType: u8 {
        Completion = 0x00,
        PathMigrated = 0x01,
        CommunicationEstablished = 0x02,
        SendQueueDrained = 0x03,
        CqError = 0x04,
        WqCatastrophic = 0x05,
        PortChange = 0x09,
        Command = 0x0a,
        PageRequest = 0x0b,
        WqInvalidRequest = 0x10,
        WqAccess = 0x11,
        SrqCatastrophic = 0x12,
        SrqLastWqe = 0x13,
        SrqLimit = 0x14,
        DctDrained = 0x1c,
        DctKeyViolation = 0x1d,
    }
}

codes! {
    /// Subtype of a port change.
    PortSubtype: u8 {
        Down = 1,
        Active = 4,
        Initialized = 5,
        Lid = 6,
        Pkey = 7,
        Guid = 8,
        ClientReregister = 9,
    }
}

/// Syndrome of a completion queue error event: the queue overran.
pub const CQ_ERROR_OVERRUN: u8 = 0x01;
/// Syndrome of a completion queue error event: its memory cannot be accessed.
pub const CQ_ERROR_ACCESS: u8 = 0x02;
