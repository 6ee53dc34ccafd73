//! Where objects are kept: their numbers, their places in the engine's tables, and what they take of the
//! host's memory.

pub mod numbers;
pub(crate) mod share;
pub(crate) mod slab;
