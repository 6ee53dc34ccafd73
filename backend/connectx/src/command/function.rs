//! Commands about the function itself, its port and what it allocates.

pub(crate) mod capability;
pub(crate) mod counter;
pub(crate) mod device;
pub(crate) mod firmware_pages;
pub(crate) mod general_object;
mod management;
pub(crate) mod paging;
pub(crate) mod port;
pub(crate) mod resource;
pub(crate) mod resource_dump;
pub(crate) mod user_context;
