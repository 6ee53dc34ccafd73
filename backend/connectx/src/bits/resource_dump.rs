//! Dumps of resources: the register by which they are asked for, and the segments that they are made of.

use super::{Field, structures};

structures! {
    /// The register, as it is written and read.
    resource_dump(256) {
        MORE_DUMP: 0x00 [31:31];
        INLINE_DUMP: 0x00 [30:30];
        SEQ_NUM: 0x00 [19:16];
        SEGMENT_TYPE: 0x00 [15:0];
        VHCA_ID: 0x04 [15:0];
        INDEX1: 0x08 [31:0];
        INDEX2: 0x0c [31:0];
        NUM_OF_OBJ1: 0x10 [31:16];
        NUM_OF_OBJ2: 0x10 [15:0];
        DEVICE_OPAQUE: 0x18 wide;
        MKEY: 0x20 [31:0];
        ADDRESS: 0x28 wide;
        INLINE_DATA: 0x30 (208);
    }

    /// Header of a segment: its length in dwords and its kind.
    resource_dump_segment_header(4) {
        LENGTH_DW: 0x00 [31:16];
        SEGMENT_TYPE: 0x00 [15:0];
    }

    /// Segment that each dump begins with.
    resource_dump_info_segment(16) {
        DUMP_VERSION: 0x04 [7:0];
        HW_VERSION: 0x08 [31:0];
        FW_VERSION: 0x0c [31:0];
    }

    /// Segment that says what was asked for.
    resource_dump_command_segment(20) {
        SEGMENT_CALLED: 0x04 [31:16];
        VHCA_ID: 0x04 [15:0];
        INDEX1: 0x08 [31:0];
        INDEX2: 0x0c [31:0];
        NUM_OF_OBJ1: 0x10 [31:16];
        NUM_OF_OBJ2: 0x10 [15:0];
    }

    /// Segment that lists what may be asked for; records follow it.
    resource_dump_menu_segment(8) {
        NUM_OF_RECORDS: 0x04 [15:0];
    }

    /// One of these.
    resource_dump_menu_record(52) {
        SUPPORT_NUM_OF_OBJ1: 0x00 [20:20];
        MUST_HAVE_INDEX1: 0x00 [17:17];
        SUPPORT_INDEX1: 0x00 [16:16];
        SEGMENT_TYPE: 0x00 [15:0];
        SEGMENT_NAME: 0x04 (16);
        INDEX1_NAME: 0x14 (16);
    }

    /// Segment of a resource; what there is of it follows.
    resource_dump_resource_segment(16) {
        INDEX1: 0x08 [31:0];
        INDEX2: 0x0c [31:0];
    }

    /// Segment that says why there is none.
    resource_dump_error_segment(48) {
        SYNDROME_ID: 0x04 [15:0];
        ERROR: 0x10 (32);
    }
}

/// In the register: how many bytes there is room for, and how many were written.
pub const DUMP_SIZE: Field = Field::new(0x24, 31, 0);
/// Register: dumps of resources.
pub const REGISTER_RESOURCE_DUMP: u32 = 0xc000;
/// Kind of a segment: what was asked for.
pub const COMMAND: u32 = 0xfffa;
/// Kind of a segment: the last one.
pub const TERMINATE: u32 = 0xfffb;
/// Kind of a segment: why there is nothing.
pub const ERROR: u32 = 0xfffc;
/// Kind of a segment: the first one.
pub const INFO: u32 = 0xfffe;
/// Kind of a segment: the list of resources, which is also asked for by this number.
pub const MENU: u32 = 0xffff;
