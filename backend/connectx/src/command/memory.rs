//! Commands about memory: keys, signatures, memory of the device and of programs.

pub(crate) mod device_memory;
pub(crate) mod memory_key;
pub(crate) mod signature;
pub(crate) mod user_memory;
