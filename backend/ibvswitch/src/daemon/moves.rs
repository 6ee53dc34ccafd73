//! VMs that move while they run: to another VF or port, and to another program in this process.

pub mod places;
pub mod relocation;
pub mod upgrade;
pub mod vm_image;
