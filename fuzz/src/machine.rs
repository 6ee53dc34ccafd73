//! Parts of the machine: memory of guests, their subnet, and objects that targets begin with.

pub mod guest;
pub mod scene;
pub mod subnet;
pub mod work;
