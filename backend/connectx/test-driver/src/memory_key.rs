//! Memory that the device may reach, by keys.

pub(crate) mod key_update;
pub(crate) mod paging;
pub(crate) mod region;
pub(crate) mod signature;
