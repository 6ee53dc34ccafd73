//! Guest memory: windows of it, memory keys with their lists of pages, and the way from a key and an
//! address to windows.

pub(crate) mod access;
pub mod dma;
pub(crate) mod domain;
pub(crate) mod klm;
pub(crate) mod lending;
pub mod mr;
pub(crate) mod page_image;
pub(crate) mod pages;
pub(crate) mod sge;
pub mod signature;
pub mod uniform;
