//! The server as a client on its socket sees it: one file per command, then
//! what goes across commands.
//!
//! Messages are written out byte by byte as the vfio-user specification has
//! them, apart from the crate's own encoder. Byte order is that of the host,
//! little endian here.
#![cfg(target_endian = "little")]

mod bind;
mod client;
mod client_loss;
mod device_feature;
mod harness;
mod malformed;
mod migration_data;
mod migration_state;
mod random;
mod version;

mod device {
    mod device_info;
    mod device_reset;
    mod irq_info;
    mod region_access;
    mod region_info;
    mod set_irqs;
}

mod memory {
    mod dma_logging;
    mod dma_map;
    mod dma_unmap;
    mod sigbus;
}
