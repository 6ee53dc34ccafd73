//! Signatures: forms of streams of bytes (BSF), and values under way (PSV).

use super::structures;

structures! {
    /// Request of CREATE_PSV.
    create_psv_in(16) {
        NUM_PSV: 0x08 [31:28];
        PD: 0x08 [23:0];
    }

    /// Reply of CREATE_PSV.
    create_psv_out(32) {
        PSV0_INDEX: 0x10 [23:0];
        PSV1_INDEX: 0x14 [23:0];
        PSV2_INDEX: 0x18 [23:0];
        PSV3_INDEX: 0x1c [23:0];
    }

    /// Request of DESTROY_PSV.
    destroy_psv_in(16) {
        PSVN: 0x08 [23:0];
    }

    /// Segment of a request that sets a value under way.
    mlx5_wqe_set_psv_seg(16) {
        PSV_INDEX: 0x00 [31:0];
    }

    /// The first part of a form.
    mlx5_bsf_basic(16) {
        BSF_SIZE_SBS: 0x00 [31:24];
        CHECK_BYTE_MASK: 0x00 [23:16];
        /// For the wire: which bytes go along as they are, or the size of blocks where structures differ.
        WIRE: 0x00 [15:8];
        /// For memory: the size of blocks.
        MEM: 0x00 [7:0];
        W_BFS_PSV: 0x08 [31:0];
        M_BFS_PSV: 0x0c [31:0];
    }

    /// The second part of a form: what is behind all blocks together.
    mlx5_bsf_ext(16) {
        T_INIT_GEN_PRO_SIZE: 0x00 [31:0];
        RSVD_EPI_SIZE: 0x04 [31:0];
        W_TFS_PSV: 0x08 [31:0];
        M_TFS_PSV: 0x0c [31:0];
    }

    /// Parameters of T10-DIF of one side, beside its algorithm.
    mlx5_bsf_inl(16) {
        VLD_REFRESH: 0x00 [31:16];
        DIF_APPTAG: 0x00 [15:0];
        DIF_REFTAG: 0x04 [31:0];
        SIG_TYPE: 0x08 [31:24];
        RP_INV_SEED: 0x08 [23:16];
        DIF_INC_REF_GUARD_CHECK: 0x0c [23:16];
        DIF_APP_BITMASK_CHECK: 0x0c [15:0];
    }

    /// A completion that tells of a block which is not as its signature says.
    mlx5_sigerr_cqe(64) {
        EXPECTED_TRANS_SIG: 0x10 [31:0];
        ACTUAL_TRANS_SIG: 0x14 [31:0];
        EXPECTED_REF_TAG: 0x18 [31:0];
        ACTUAL_REF_TAG: 0x1c [31:0];
        SYNDROME: 0x20 [31:16];
        SIG_TYPE: 0x20 [15:8];
        DOMAIN: 0x20 [7:0];
        MKEY: 0x24 [31:0];
        SIG_ERR_OFFSET: 0x28 wide;
        OP_OWN: 0x3c [7:0];
    }
}

/// Values under way that one command makes at most.
pub const MAX_PSVS: u32 = 4;

/// Bytes of a form: all of its parts, the last two of which are of the wire and of memory.
pub const FORM: usize = 64;
/// In `BSF_SIZE_SBS`: how long the form is, from this bit on.
pub const SIZE_SHIFT: u32 = 6;
/// Length of a form: all of its parts.
pub const SIZE_WITH_INLINE: u32 = 2;
/// In `BSF_SIZE_SBS`: both sides have the same structure.
pub const SAME_STRUCTURE: u32 = 1 << 4;
/// In a value under way with a selector above it: the value's number.
pub const PSV_MASK: u32 = 0x00ff_ffff;
/// Where the selector of the algorithm is.
pub const SELECTOR_SHIFT: u32 = 24;
/// Selector: CRC of 32 bits.
pub const SELECT_CRC32: u32 = 0x20;
/// Selector: CRC of 32 bits of iSCSI.
pub const SELECT_CRC32C: u32 = 0x40;
/// In a selector: block follows block.
pub const SELECT_REPEAT: u32 = 0x2;
/// In a selector: the computation begins with zeros.
pub const SELECT_ZEROS: u32 = 0x1;

/// In `VLD_REFRESH`: there is T10-DIF.
pub const DIF_VALID: u32 = 1 << 15;
/// In `VLD_REFRESH`: each use begins with the tags that are here.
pub const DIF_REFRESH: u32 = 1 << 14;
/// In `RP_INV_SEED`: block follows block.
pub const DIF_REPEAT: u32 = 1 << 7;
/// In `RP_INV_SEED`: the computation begins with ones.
pub const DIF_ONES: u32 = 1 << 3;
/// In `SIG_TYPE`: the block guard is a CRC.
pub const DIF_CRC: u32 = 1;
/// In `SIG_TYPE`: the block guard is a check sum of the Internet protocol.
pub const DIF_CHECKSUM: u32 = 2;
/// In `DIF_INC_REF_GUARD_CHECK`: reference tags count blocks.
pub const DIF_INCREMENT: u32 = 1 << 6;
/// In `DIF_INC_REF_GUARD_CHECK`: an application tag of ones says that a block is not to be looked at.
pub const DIF_ESCAPE_APPLICATION: u32 = 1;
/// In `DIF_INC_REF_GUARD_CHECK`: the same of both tags.
pub const DIF_ESCAPE_BOTH: u32 = 2;

/// Bytes of a block by their selector; zero where there is none.
pub const BLOCKS: [u16; 7] = [0, 512, 520, 4096, 4160, 0, 4048];

/// In `SYNDROME` of a completion: the reference tag.
pub const WRONG_REFERENCE: u32 = 1 << 11;
/// In `SYNDROME` of a completion: the application tag.
pub const WRONG_APPLICATION: u32 = 1 << 12;
/// In `SYNDROME` of a completion: the check value of the data.
pub const WRONG_GUARD: u32 = 1 << 13;
/// In `DOMAIN` of a completion: memory. The wire is zero.
pub const DOMAIN_MEMORY: u32 = 1;
