//! Boots real QEMU guests and runs stock InfiniBand tools in them.
