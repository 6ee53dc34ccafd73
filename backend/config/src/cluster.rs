//! Virtual clusters given out: requests for VMs, the hosts that they go to, and what a cluster takes of the network.

pub mod network;
pub mod partitions;
pub mod placement;
pub mod request;
