//! Guests, and what of a subnet they see and may change.

mod cluster;
mod full_mode;
mod hostile;
mod managers;
mod shared_port;
mod subnets;
