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

    /// Data of a page fault that is about a work request.
    wqe_associated_page_fault_event(28) {
        BYTES_COMMITTED: 0x00 [31:0];
        WQE_INDEX: 0x04 [15:0];
        LEN: 0x08 [15:0];
    }

    /// Data of a page fault that is about memory which no request of the queue pair names.
    rdma_page_fault_event(28) {
        BYTES_COMMITTED: 0x00 [31:0];
        R_KEY: 0x04 [31:0];
        PACKET_LEN: 0x08 [15:0];
        RDMA_OP_LEN: 0x0c [31:0];
        RDMA_VA: 0x10 wide;
        QP_NUMBER: 0x18 [23:0];
    }

    /// Request of PAGE_FAULT_RESUME.
    page_fault_resume_in(16) {
        ERROR: 0x08 [31:31];
        PAGE_FAULT_TYPE: 0x08 [26:24];
        WQ_NUMBER: 0x08 [23:0];
        TOKEN: 0x0c [23:0];
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
        PageFault = 0x0c,
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

codes! {
    /// Subtype of a page fault: what the page is for.
    PageFaultSubtype: u8 {
        Wqe = 0,
        Rdma = 1,
    }
}

/// Waiting for a page, in the type of a page fault: requests of a shared receive queue.
pub const PAGE_FAULT_SHARED: u32 = 0;
/// The same: a requester that sends or writes.
pub const PAGE_FAULT_REQUESTER_WRITE: u32 = 1;
/// The same: a responder that receives.
pub const PAGE_FAULT_RESPONDER: u32 = 2;
/// The same: a requester that reads, or has an atomic done.
pub const PAGE_FAULT_REQUESTER_READ: u32 = 3;
/// Bit of the type: a requester.
pub const PAGE_FAULT_REQUESTER: u32 = 1 << 0;
/// Bit of the type, of memory that no request names: it is written.
pub const PAGE_FAULT_WRITE: u32 = 1 << 1;
/// Bit of the type: memory that no request of the queue pair names.
pub const PAGE_FAULT_RDMA: u32 = 1 << 2;

/// Syndrome of a completion queue error event: the queue overran.
pub const CQ_ERROR_OVERRUN: u8 = 0x01;
/// Syndrome of a completion queue error event: its memory cannot be accessed.
pub const CQ_ERROR_ACCESS: u8 = 0x02;
