//! General objects, which differ by their type. rdma-core's `mlx5_ifc.h` has their layouts; the description of the
//! interface that the others are held against has not.

use super::Field;

/// Request of a command about an object.
pub mod general_obj_in_cmd_hdr {
    use super::Field;

    /// The object's type.
    pub const OBJ_TYPE: Field = Field::new(0x04, 15, 0);
    /// Its number.
    pub const OBJ_ID: Field = Field::new(0x08, 31, 0);
}

/// Reply of CREATE_GENERAL_OBJECT.
pub mod general_obj_out_cmd_hdr {
    use super::Field;

    /// The object's number.
    pub const OBJ_ID: Field = Field::new(0x08, 31, 0);
}

/// Of a request to create objects: how many in a row, as a power of two.
pub const LOG_OBJ_RANGE: Field = Field::new(0x0c, 28, 24);

/// Type of an object: a number that no queue pair gets.
pub const RESERVED_QPN: u32 = 0x2c;
