//! A vfio-user server: framing, DMA maps, regions, interrupts, reset, client loss.
