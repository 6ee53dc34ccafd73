//! A VF's guest memory, as the engine reaches it.

use hca::Dma;
use vfio_user::DmaTable;
use vm_memory::VolatileSlice;

/// The mappings that a VF's client has made. The engine owns it, so nothing is
/// unmapped under an access.
#[derive(Debug, Default)]
pub struct GuestMemory(pub DmaTable);

impl Dma for GuestMemory {
    #[inline]
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.read_window(addr, len)
    }

    #[inline]
    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.write_window(addr, len)
    }
}
