//! VFs of this host and of other processes: their kinds, where they are, and what stands in their way.

pub mod address;
pub mod device;
pub mod host;
pub(crate) mod kernel;
pub(crate) mod msix;
pub mod obstacle;
pub mod physical;
pub mod socket;
pub mod vfio;
pub(crate) mod wake;
