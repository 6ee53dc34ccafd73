//! The daemon, in rooms: its life, its engines, its devices, its ports, its management, VMs that move, and
//! programs of the host.

pub mod devices;
pub mod engines;
pub mod external;
pub mod life;
pub mod management;
pub mod moves;
pub mod ports;
