//! General objects, which differ by their type.

use super::structures;

structures! {
    /// Request of a command about an object.
    general_obj_in_cmd_hdr(16) {
        OBJ_TYPE: 0x04 [15:0];
        OBJ_ID: 0x08 [31:0];
    }

    /// Reply of CREATE_GENERAL_OBJECT.
    general_obj_out_cmd_hdr(16) {
        OBJ_ID: 0x08 [31:0];
    }
}

/// Of a request to create objects: how many in a row, as a power of two (rdma-core has it in `mlx5_ifc.h`).
pub const LOG_OBJ_RANGE: super::Field = super::Field::new(0x0c, 28, 24);

/// Type of an object: a number that no queue pair gets.
pub const RESERVED_QPN: u32 = 0x2c;
