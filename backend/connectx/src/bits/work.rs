//! Work queue entries, as rings of 64-byte blocks made of 16-byte segments.

use super::command::codes;
use super::structures;

structures! {
    /// First segment of every send request.
    mlx5_wqe_ctrl_seg(16) {
        OPMOD_IDX_OPCODE: 0x00 [31:0];
        QPN_DS: 0x04 [31:0];
        FM_CE_SE: 0x08 [7:0];
        IMM: 0x0c [31:0];
    }

    /// Remote address of a one-sided operation.
    mlx5_wqe_raddr_seg(16) {
        RADDR: 0x00 wide;
        RKEY: 0x08 [31:0];
    }

    /// Operands of an atomic operation.
    mlx5_wqe_atomic_seg(16) {
        SWAP_ADD: 0x00 wide;
        COMPARE: 0x08 wide;
    }

    /// Operands of a masked compare and swap.
    mlx5_wqe_masked_atomic_seg(32) {
        SWAP_ADD: 0x00 wide;
        COMPARE: 0x08 wide;
        SWAP_ADD_MASK: 0x10 wide;
        COMPARE_MASK: 0x18 wide;
    }

    /// Shared receive queue at the responder.
    mlx5_wqe_xrc_seg(16) {
        XRC_SRQN: 0x00 [31:0];
    }

    /// Destination of a datagram, whose first four bytes are the Q_Key, or of a dynamic connection, whose first
    /// eight are the access key.
    mlx5_wqe_av(48) {
        DQP_DCT: 0x08 [31:0];
        STAT_RATE_SL: 0x0c [31:24];
        FL_MLID: 0x0c [23:16];
        RLID: 0x0c [15:0];
        TCLASS: 0x18 [15:8];
        HOP_LIMIT: 0x18 [7:0];
        GRH_GID_FL: 0x1c [31:0];
        RGID: 0x20 (16);
    }

    /// Offloads of the IP packet in a datagram. Its headers follow, where they are inline, and begin
    /// within the segment.
    mlx5_wqe_eth_seg(16) {
        CS_FLAGS: 0x04 [31:24];
        MSS: 0x04 [15:0];
        INLINE_HDR_SZ: 0x0c [31:16];
        INLINE_HDR_START: 0x0c [15:0];
    }

    /// A change of a list of tags.
    mlx5_wqe_tm_seg(32) {
        OPCODE: 0x00 [31:24];
        FLAGS: 0x00 [23:16];
        INDEX: 0x00 [15:0];
        SW_CNT: 0x04 [15:0];
        APPEND_TAG: 0x10 wide;
        APPEND_MASK: 0x18 wide;
    }

    /// An element of a gather or scatter list.
    mlx5_wqe_data_seg(16) {
        BYTE_COUNT: 0x00 [31:0];
        LKEY: 0x04 [31:0];
        ADDR: 0x08 wide;
    }

    /// First segment of a request in a shared receive queue.
    mlx5_wqe_srq_next_seg(16) {
        NEXT_WQE_INDEX: 0x00 [15:0];
    }
}

/// Bytes of a block of a send queue.
pub const BLOCK: usize = 64;
/// Bytes of a segment.
pub const SEGMENT: usize = 16;
/// Most bytes of a send request: 63 segments.
pub const MAX_SEND: usize = 63 * SEGMENT;
/// In the byte count of a data segment: the data follows.
pub const INLINE: u32 = 1 << 31;
/// In the byte count of an inline segment: the length.
pub const INLINE_LENGTH: u32 = 0x3ff;
/// Bits of `FL_MLID` that are of the source LID; the topmost one asks for a loopback.
pub const PATH_BITS: u8 = 0x7f;
/// In the destination of an address vector: it has 48 bytes, not 16.
pub const AV_EXTENDED: u32 = 1 << 31;
/// In the flow label of an address vector: it has a global route.
pub const AV_GRH: u32 = 1 << 30;

/// In `CS_FLAGS`: the checksum of the network header is to be computed.
pub const NETWORK_CHECKSUM: u32 = 1 << 6;
/// In `CS_FLAGS`: the checksum of TCP or UDP is to be computed.
pub const TRANSPORT_CHECKSUM: u32 = 1 << 7;

codes! {
    /// Kinds of send requests.
    SendOpcode: u8 {
        Nop = 0x00,
        SendInvalidate = 0x01,
        RdmaWrite = 0x08,
        RdmaWriteImm = 0x09,
        Send = 0x0a,
        SendImm = 0x0b,
        SendStretch = 0x0e,
        RdmaRead = 0x10,
        CompareSwap = 0x11,
        FetchAdd = 0x12,
        MaskedCompareSwap = 0x14,
        MaskedFetchAdd = 0x15,
        LocalInvalidate = 0x1b,
        SetPsv = 0x20,
        KeyUpdate = 0x25,
        TagMatching = 0x28,
    }
}

codes! {
    /// Change of a list of tags: the upper half of `OPCODE`.
    TagChangeOpcode: u32 {
        Nop = 0,
        Append = 1,
        Remove = 2,
    }
}

/// In the `FLAGS` of such a change: software says how many unexpected messages it has seen.
pub const TAG_COUNT: u32 = 1 << 6;
/// In the `FLAGS` of such a change: it completes.
pub const TAG_COMPLETES: u32 = 1 << 7;
