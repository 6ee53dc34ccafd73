//! The initialization segment at the start of BAR 0, and the doorbells in the
//! pages behind it.

use super::structures;

structures! {
    /// The initialization segment.
    mlx5_init_seg(8208) {
        FW_REV: 0x000 [31:0];
        CMDIF_REV_FW_SUB: 0x004 [31:0];
        CMDQ_ADDR_H: 0x010 [31:0];
        CMDQ_ADDR_L_SZ: 0x014 [31:0];
        CMD_DBELL: 0x018 [31:0];
        INITIALIZING: 0x1fc [31:0];
        HEALTH: 0x200 (64);
        INTERNAL_TIMER_H: 0x1000 [31:0];
        INTERNAL_TIMER_L: 0x1004 [31:0];
        HEALTH_COUNTER: 0x1010 [31:0];
    }
}

/// Bytes of a page of BAR 0, which is one UAR.
pub const PAGE_SIZE: u64 = 4096;
/// First of the pages behind the initialization segment.
pub const FIRST_UAR: u32 = 4;

/// Offset within a UAR of the doorbell that arms a completion queue.
pub const UAR_CQ: usize = 0x20;
/// Offset within a UAR of the doorbell that updates and arms an event queue.
pub const UAR_EQ_ARM: usize = 0x40;
/// Offset within a UAR of the doorbell that updates an event queue.
pub const UAR_EQ_UPDATE: usize = 0x48;
/// Offset within a UAR from which on there are send doorbells.
pub const UAR_SEND: usize = 0x800;
