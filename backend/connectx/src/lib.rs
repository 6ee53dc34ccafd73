//! The ConnectX (mlx5) face of the host channel adapter.
#![forbid(unsafe_code)]

pub mod bits;
