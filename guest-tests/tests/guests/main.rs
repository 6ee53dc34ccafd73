//! Stock guests on the device.

mod ethernet;
mod harness;
mod life;
mod live;
mod passthrough;
mod programs;
mod subnet;
mod vfio;
