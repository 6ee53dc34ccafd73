//! Where objects are kept: their numbers, their places in the engine's tables, what they take of the
//! host's memory, and what becomes of it afterwards.

pub(crate) mod discarded;
pub mod numbers;
pub(crate) mod share;
pub(crate) mod slab;
pub(crate) mod spares;
