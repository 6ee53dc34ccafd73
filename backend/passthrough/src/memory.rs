//! The guest's memory and interrupts, as far as the daemon has to do with them.

use hca::Dma;
use vfio_user::{DmaView, Interrupts};
use vm_memory::VolatileSlice;

/// The guest's memory, as commands are fetched from it.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory(pub(crate) DmaView);

impl Dma for GuestMemory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.read_window(addr, len)
    }

    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.write_window(addr, len)
    }
}

/// Raises interrupts of the guest's function.
#[derive(Debug, Clone)]
pub(crate) struct Raise(pub Interrupts);

impl connectx::Interrupts for Raise {
    fn raise(&mut self, vector: u16) {
        self.0.trigger(vector);
    }
}
