//! A VF's guest memory, as the engine reaches it, and the formats of what is there.

use std::sync::Arc;

use connectx::Mlx5;
use hca::{Dma, Readable};
use vfio_user::{DmaView, SharedView};
use vm_memory::VolatileSlice;

/// The mappings that a VF's client has made. To change them, the engine is
/// given another view, so that nothing is unmapped under an access and nobody
/// waits for what it takes to unmap.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory(pub DmaView);

impl Dma for GuestMemory {
    #[inline]
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.read_window(addr, len)
    }

    #[inline]
    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.write_window(addr, len)
    }

    fn share(&self) -> Option<Arc<dyn Readable>> {
        Some(Arc::new(SharedMemory(self.0.shared())))
    }
}

/// The same for the threads of other engines to read.
#[derive(Debug)]
struct SharedMemory(SharedView);

impl Readable for SharedMemory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.0.read_window(addr, len)
    }
}

/// The formats of the VFs' queues, over their guests' memory.
pub type Format = Mlx5<GuestMemory>;
