//! Memory keys and their translation entries.

use super::{Field, Wide, structures};

structures! {
    /// Context of a memory key; also a segment of an update request.
    mkc(64) {
        FREE: 0x00 [30:30];
        ACCESS_MODE_4_2: 0x00 [28:26];
        UMR_EN: 0x00 [15:15];
        A: 0x00 [14:14];
        RW: 0x00 [13:13];
        RR: 0x00 [12:12];
        LW: 0x00 [11:11];
        LR: 0x00 [10:10];
        ACCESS_MODE_1_0: 0x00 [9:8];
        QPN: 0x04 [31:8];
        MKEY_7_0: 0x04 [7:0];
        LENGTH64: 0x0c [31:31];
        BSF_EN: 0x0c [30:30];
        EXPECTED_SIGERR_COUNT: 0x0c [26:26];
        EN_RINVAL: 0x0c [24:24];
        PD: 0x0c [23:0];
        START_ADDR: 0x10 wide;
        LEN: 0x18 wide;
        BSF_OCTWORD_SIZE: 0x20 [31:0];
        TRANSLATIONS_OCTWORD_SIZE: 0x34 [31:0];
        LOG_PAGE_SIZE: 0x38 [5:0];
    }

    /// Request of CREATE_MKEY; the translation entries follow it.
    create_mkey_in(272) {
        PG_ACCESS: 0x0c [31:31];
        MKEY_UMEM_VALID: 0x0c [30:30];
        MEMORY_KEY_MKEY_ENTRY: 0x10 (64);
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x60 [31:0];
    }

    /// Reply of QUERY_SPECIAL_CONTEXTS.
    query_special_contexts_out(32) {
        NULL_MKEY: 0x10 [31:0];
    }

    /// Reply of QUERY_MKEY.
    query_mkey_out(304) {
        MEMORY_KEY_MKEY_ENTRY: 0x10 (64);
    }

    /// Segment of an update request that says what changes.
    mlx5_wqe_umr_ctrl_seg(48) {
        FLAGS: 0x00 [31:24];
        XLT_OCTOWORDS: 0x04 [31:16];
        XLT_OFFSET: 0x04 [15:0];
        /// In place of the offset: octwords of the form of the key's bytes.
        BSF_OCTOWORDS: 0x04 [15:0];
        MKEY_MASK: 0x08 wide;
        XLT_OFFSET_47_16: 0x10 [31:0];
    }
}

/// Access mode: addresses are DMA addresses.
pub const MODE_PHYSICAL: u32 = 0;
/// Access mode: a table of pages.
pub const MODE_MTT: u32 = 1;
/// Access mode: a list of stretches of other keys.
pub const MODE_KLM: u32 = 2;
/// Access mode: stretches of other keys, all of the same size.
pub const MODE_KSM: u32 = 3;
/// Access mode: memory of the device.
pub const MODE_MEMIC: u32 = 5;

/// The access mode in the context of a memory key.
#[must_use]
pub fn access_mode(context: &[u8]) -> u32 {
    mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context)
}

/// In an entry of a list of pages: the page may be read.
pub const MTT_READ: u64 = 1 << 0;
/// In an entry of a list of pages: the page may be written.
pub const MTT_WRITE: u64 = 1 << 1;

/// The local key that ends a scatter list.
pub const TERMINATOR_LKEY: u32 = 0x100;
/// Queue pair number of a key that any queue pair may use.
pub const ANY_QPN: u32 = 0x00ff_ffff;

/// Update: translation entries are inline in the request.
pub const UMR_INLINE: u32 = 1 << 7;
/// Update: fail unless the key is free.
pub const UMR_CHECK_FREE: u32 = 1 << 5;
/// Update: fail unless the key is restricted to the queue pair that asks.
pub const UMR_CHECK_QPN: u32 = 1 << 3;
/// Update: entries replace those from an offset on.
pub const UMR_TRANSLATION_OFFSET: u32 = 1 << 4;

/// In the mask of an update: the length changes.
pub const MASK_LEN: u64 = 1 << 0;
/// The page size.
pub const MASK_PAGE_SIZE: u64 = 1 << 1;
/// The start address.
pub const MASK_START_ADDR: u64 = 1 << 6;
/// The protection domain.
pub const MASK_PD: u64 = 1 << 7;
/// Whether peers may invalidate.
pub const MASK_EN_RINVAL: u64 = 1 << 8;
/// The number of signature errors after the next one changes.
pub const MASK_EXPECTED_SIGERR_COUNT: u64 = 1 << 9;
/// Whether there are signatures, and which.
pub const MASK_BSF_EN: u64 = 1 << 12;
/// The variant byte.
pub const MASK_KEY: u64 = 1 << 13;
/// The queue pair.
pub const MASK_QPN: u64 = 1 << 14;
/// Local read.
pub const MASK_LR: u64 = 1 << 17;
/// Local write.
pub const MASK_LW: u64 = 1 << 18;
/// Remote read.
pub const MASK_RR: u64 = 1 << 19;
/// Remote write.
pub const MASK_RW: u64 = 1 << 20;
/// Atomic.
pub const MASK_A: u64 = 1 << 21;
/// Whether the key is free.
pub const MASK_FREE: u64 = 1 << 29;

/// In CREATE_MKEY: the memory object of the region.
pub const MKEY_UMEM_ID: Field = Field::new(0x64, 31, 0);
/// As above: where the region begins in the object, in bytes.
pub const MKEY_UMEM_OFFSET: Wide = Wide::new(0x68);
