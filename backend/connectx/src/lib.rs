//! The ConnectX (mlx5) face of the host channel adapter.
