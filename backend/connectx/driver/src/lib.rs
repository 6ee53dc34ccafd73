//! A small user-space mlx5 driver over vfio-user, for tests and benches.
