//! The daemon: its life, its threads, its sockets, and what they share.

pub mod abort;
pub mod afterwards;
pub mod assembly;
pub mod client;
mod desk;
pub mod device;
pub mod dma;
pub mod engine;
pub mod engines;
pub mod errands;
pub mod external;
pub mod failures;
pub mod hardware;
pub mod limits;
pub mod logging;
pub mod machine;
pub mod management;
pub mod manager_files;
pub mod placement;
pub mod port;
pub mod ports;
pub mod relocation;
pub mod run;
pub mod sockets;
pub mod upgrade;
pub mod vf_host;
mod whole;
