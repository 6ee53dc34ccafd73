//! Limits of the machine.

pub mod cache_line;
pub mod copy;
pub mod ring;

pub use cache_line::CacheLine;
pub use copy::Copy;
pub use ring::Ring;
