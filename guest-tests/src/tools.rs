//! Stock tools in guests, run and parsed.

pub mod diags;
pub mod ibacm;
pub mod ipoib;
pub mod path_cache;
pub mod perftest;
pub mod pingpong;
pub mod rds;
pub mod rxe;
pub mod tcp;
pub mod ucx;
