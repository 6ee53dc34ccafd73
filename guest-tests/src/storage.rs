//! Disks of one guest that another uses.

pub mod disk;
pub mod iser;
pub mod nvme;
pub mod srp;
