//! Where a VF of software lives: an engine, which it shares with others, and the memory of its guest.

use std::sync::Arc;

use connectx::{Host, Turn};
use hca::{Engine, VfId};
use nix::errno::Errno;
use vfio_user::{DmaTable, Mapping};

use crate::daemon::engines::Engines;
use crate::daemon::engines::dma::{DeviceMemory, Format, GuestMemory};

/// A VF's place in the engine.
#[derive(Debug)]
pub struct VfHost {
    engines: Arc<Engines<Format>>,
    vf: VfId,
    table: DmaTable,
    /// The guest's memory as the engine has it, to read commands and write replies without it.
    memory: GuestMemory,
    device: Option<DeviceMemory>,
}

impl VfHost {
    /// Returns the host of `vf`. Its guest has no memory yet but that of the device, if there is any.
    #[must_use]
    pub fn new(engines: Arc<Engines<Format>>, vf: VfId, device: Option<DeviceMemory>) -> Self {
        let mut host = Self {
            engines,
            vf,
            table: DmaTable::new(),
            memory: GuestMemory::default(),
            device,
        };
        host.show();
        host
    }

    /// Lets the function rest.
    pub fn quiesce(&self) {
        self.engines.quiesce(self.vf);
    }

    /// The function, which rests, goes on.
    pub fn resume(&self) {
        self.engines.resume(self.vf);
    }

    /// Waits for what is on its way to the function, which rests.
    pub fn drain(&self) {
        self.engines.drain(self.vf);
    }

    /// Bytes of the function's objects.
    #[must_use]
    pub fn memory_taken(&self) -> usize {
        let vf = self.vf;
        self.engines
            .with(vf, move |engine| engine.vf(vf).memory_taken())
    }

    /// Queue pairs of the function.
    #[must_use]
    pub fn queue_pairs(&self) -> u64 {
        let vf = self.vf;
        let counts = self
            .engines
            .with(vf, move |engine| engine.vf(vf).object_counts());
        let queue_pairs = counts.iter().find(|(kind, _)| *kind == "qp");
        queue_pairs.map_or(0, |&(_, count)| count as u64)
    }

    /// About how many bytes an image of the function has.
    #[must_use]
    pub fn image_size(&self) -> u64 {
        /// Bytes of an object with a short queue.
        const OBJECT: u64 = 4096;
        let vf = self.vf;
        let objects: usize = self.engines.with(vf, move |engine| {
            let counts = engine.vf(vf).object_counts();
            counts.iter().map(|(_, count)| count).sum()
        });
        (objects as u64 + 8) * OBJECT
    }

    /// Changes the table of mappings, which everybody has from then on.
    pub fn with_mappings(&mut self, act: &mut dyn FnMut(&mut DmaTable)) {
        let logged = self.table.is_logging();
        act(&mut self.table);
        if self.table.is_logging() != logged {
            self.show();
        }
    }

    /// Gives everybody the memory as it is now. When this returns, nobody reaches what was unmapped: who
    /// did had the engine, and has given it back.
    fn show(&mut self) {
        self.memory = GuestMemory::new(self.table.view(), self.device.clone());
        let memory = self.memory.clone();
        let vf = self.vf;
        let before = self.engines.with(vf, move |engine| {
            std::mem::replace(engine.vf_mut(vf).dma_mut(), memory)
        });
        // Perhaps the last user of what is behind it, which goes away without the engine.
        drop(before);
    }
}

impl Host for VfHost {
    type Dma = GuestMemory;
    type Mapping = Mapping;
    type Error = Errno;

    fn dma(&self) -> &GuestMemory {
        &self.memory
    }

    fn map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        self.table.map(mapping)?;
        self.show();
        Ok(())
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        let gone = self.table.unmap(addr, size)?;
        self.show();
        drop(gone);
        Ok(())
    }

    fn unmap_all(&mut self) {
        let gone = self.table.clear();
        self.show();
        drop(gone);
    }

    fn with<R, A>(&self, turn: Turn, act: A) -> R
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<Format>) -> R + Send + 'static,
    {
        self.engines.act(self.vf, turn, act)
    }

    fn clear_away(&self) {
        self.engines.clear_away(self.vf);
    }

    fn release_memory(&self) {
        vfio_user::release_heap();
    }
}
