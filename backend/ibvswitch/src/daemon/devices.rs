//! VFs as the vfio-user server serves them, and what their threads share with others.

pub mod alarm;
pub mod client;
pub mod device;
pub mod device_calls;
pub mod firmware;
pub mod function_port;
pub mod hardware;
