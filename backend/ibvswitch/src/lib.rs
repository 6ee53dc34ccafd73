//! Virtual InfiniBand HCAs for QEMU guests.
