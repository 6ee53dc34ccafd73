//! Memory of functions, of which parts can be missing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use super::ManualClock;
use hca::{Clock, Dma, Readable};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes of ordinary memory that a function has, from [`base`] on.
const MEMORY: usize = 8 << 20;
/// Where memory lies that is all one page, a large range of it.
pub const ALIAS: u64 = 1 << 40;
/// Bytes that the aliased range repeats.
pub const ALIAS_PERIOD: u64 = 1 << 20;
/// Length of that range.
const ALIAS_LEN: u64 = 4 << 30;

/// DMA address of the first byte of a function's memory.
pub const fn base(node: usize) -> u64 {
    0x1000_0000 * (node as u64 + 1)
}

/// Guest memory: one region, and one aliased many times; parts can be unmapped.
#[derive(Debug, Clone)]
pub struct Memory {
    base: u64,
    region: Arc<MmapRegion>,
    alias: Arc<MmapRegion>,
    holes: Arc<RwLock<Vec<(u64, u64)>>>,
    /// Longest window given out, to see that copies cope with short ones.
    pub longest: usize,
    /// Windows given out so far, and bytes in them.
    given: Arc<[AtomicU64; 2]>,
    /// The clock that an access takes time on, and nanoseconds for each byte.
    takes: Arc<OnceLock<(Arc<ManualClock>, u64)>>,
}

impl Memory {
    pub fn new(node: usize) -> Self {
        Self {
            base: base(node),
            region: Arc::new(MmapRegion::new(MEMORY).unwrap()),
            alias: Arc::new(MmapRegion::new(ALIAS_PERIOD as usize).unwrap()),
            holes: Arc::default(),
            longest: usize::MAX,
            given: Arc::default(),
            takes: Arc::default(),
        }
    }

    fn window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let window = self.find(addr, len)?;
        for (count, more) in self.given.iter().zip([1, window.len() as u64]) {
            count.fetch_add(more, Ordering::Relaxed);
        }
        if let Some((clock, time)) = self.takes.get() {
            clock.turn_to(clock.now() + time * window.len() as u64);
        }
        Some(window)
    }

    /// From now on an access takes so many nanoseconds for each byte.
    pub fn is_slow(&self, clock: &Arc<ManualClock>, time: u64) {
        self.takes.get_or_init(|| (Arc::clone(clock), time));
    }

    /// Windows given out so far, and bytes in them.
    pub fn given(&self) -> [u64; 2] {
        [0, 1].map(|at| self.given[at].load(Ordering::Relaxed))
    }

    fn find(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let mut len = len.min(self.longest);
        for &(start, end) in self.holes.read().unwrap().iter() {
            if (start..end).contains(&addr) {
                return None;
            }
            if addr < start {
                len = len.min((start - addr) as usize);
            }
        }
        if (ALIAS..ALIAS + ALIAS_LEN).contains(&addr) {
            let at = (addr - ALIAS) % ALIAS_PERIOD;
            let len = len.min((ALIAS_PERIOD - at) as usize);
            return self.alias.get_slice(at as usize, len).ok();
        }
        let at = addr.checked_sub(self.base)? as usize;
        let len = len.min(MEMORY.checked_sub(at)?);
        (len > 0).then(|| self.region.get_slice(at, len).ok())?
    }

    /// Takes memory away.
    pub fn unmap(&self, addr: u64, len: u64) {
        self.holes.write().unwrap().push((addr, addr + len));
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        hca::dma::write(self, addr, bytes).unwrap();
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        hca::dma::read(self, addr, &mut bytes).unwrap();
        bytes
    }

    /// All ordinary memory.
    pub fn snapshot(&self) -> Vec<u8> {
        self.read(self.base, MEMORY)
    }
}

impl Readable for Memory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }
}

impl Dma for Memory {
    fn share(&self) -> Option<Arc<dyn Readable>> {
        Some(Arc::new(self.clone()))
    }

    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }

    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }
}
