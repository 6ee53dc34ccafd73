//! Guest memory for tests.

use std::sync::{Arc, Mutex};

use crate::Interrupts;
use hca::Dma;
use hca::dma::{self, DEVICE_MEMORY};
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, VolatileSlice,
};

/// Where the device's memory is in BAR 0 of a function as it is by default, and its length.
const DEVICE: (u64, usize) = (0x7c_0000, 0x4_0000);

/// Memory from DMA address zero on, and the device's.
#[derive(Debug, Clone)]
pub struct Memory(Arc<GuestMemoryMmap>);

impl Memory {
    /// `len` bytes of zeros.
    pub fn new(len: usize) -> Self {
        Self(Arc::new(
            GuestMemoryMmap::from_ranges(&[
                (GuestAddress(0), len),
                (GuestAddress(DEVICE_MEMORY + DEVICE.0), DEVICE.1),
            ])
            .unwrap(),
        ))
    }

    /// Writes `data`, which must fit.
    pub fn write(&self, addr: u64, data: &[u8]) {
        dma::write(self, addr, data).unwrap();
    }

    /// Writes a big-endian dword.
    pub fn write32(&self, addr: u64, value: u32) {
        self.write(addr, &value.to_be_bytes());
    }

    /// Reads `N` bytes.
    pub fn read<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut data = [0; N];
        dma::read(self, addr, &mut data).unwrap();
        data
    }
}

impl Dma for Memory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let end = self.0.find_region(GuestAddress(addr))?.last_addr().0;
        let len = len.min(usize::try_from(end - addr + 1).ok()?);
        self.0.get_slice(GuestAddress(addr), len).ok()
    }

    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.read_window(addr, len)
    }
}

/// Interrupts that were raised, shared by clones.
#[derive(Debug, Clone, Default)]
pub struct Raised(Arc<Mutex<Vec<u16>>>);

impl Raised {
    /// Number of times that `vector` was raised.
    pub fn count(&self, vector: u16) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|&&raised| raised == vector)
            .count()
    }
}

impl Interrupts for Raised {
    fn raise(&mut self, vector: u16) {
        self.0.lock().unwrap().push(vector);
    }
}

/// Bytes that `vectors.c` printed under `name`.
pub fn vector(name: &str) -> Vec<u8> {
    let line = include_str!("vectors/vectors.txt")
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let hex = line.unwrap_or_else(|| panic!("no vector {name}"));
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}
