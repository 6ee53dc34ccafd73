//! Packages of Debian, fetched and unpacked beside the system.

pub mod apt;
pub mod architecture;
pub mod sources;
pub mod sysroot;
