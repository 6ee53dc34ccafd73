//! A VF as the vfio-user server serves it: registers by the connectx crate,
//! objects in the engine, guest memory and interrupts from the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use connectx::bits::initialization::PAGE_SIZE;
use connectx::{Configuration, Effect, Function, Mlx5, Port, Software};
use hca::{Clock, Engine, VfId};
use nix::errno::Errno;
use vfio_user::{Device, Interrupts, IrqInfo, Mapping, Region, SharedMemory, SparseArea};
use wire::Qpn;

use crate::dma::GuestMemory;
use crate::engine::{Hints, SharedEngine};

/// The formats of the VFs' queues, over their guests' memory.
pub type Format = Mlx5<GuestMemory>;

/// Raises interrupts through the client's event descriptors.
#[derive(Debug)]
pub struct Vectors(pub Interrupts);

impl connectx::Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        self.0.trigger(vector);
    }
}

/// One virtual function behind its socket.
pub struct VfDevice {
    name: String,
    vf: VfId,
    function: Function,
    engine: Arc<SharedEngine<Format>>,
    clock: Arc<dyn Clock>,
    port: Box<dyn Port + Send>,
    interrupts: Interrupts,
    /// BAR 0 as memory, where its doorbell pages are not trapped.
    pages: Option<Arc<SharedMemory>>,
    connected: Arc<AtomicBool>,
}

impl std::fmt::Debug for VfDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfDevice").field("name", &self.name).field("vf", &self.vf).finish_non_exhaustive()
    }
}

/// What a [`VfDevice`] is made of.
pub struct Parts {
    /// Its name in the configuration.
    pub name: String,
    /// Its number in the engine.
    pub vf: VfId,
    /// What the function is like; as given to its state in the engine.
    pub configuration: Configuration,
    /// The engine.
    pub engine: Arc<SharedEngine<Format>>,
    /// The engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Its port in the subnet.
    pub port: Box<dyn Port + Send>,
    /// The handle that its state in the engine raises.
    pub interrupts: Interrupts,
    /// Its doorbell pages, see [`doorbell_pages`].
    pub pages: Option<Arc<SharedMemory>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("name", &self.name).field("vf", &self.vf).finish_non_exhaustive()
    }
}

/// Memory for the doorbell pages of a function, if it has such that its guest
/// may map: all of BAR 0, of which only these pages are ever touched.
///
/// # Errors
/// When the system has no memory or descriptors left.
pub fn doorbell_pages(name: &str, configuration: &Configuration) -> std::io::Result<Option<Arc<SharedMemory>>> {
    configuration
        .mapped_area()
        .map(|_| SharedMemory::new(name, configuration.bar_size as usize).map(Arc::new))
        .transpose()
}

impl VfDevice {
    /// Puts a device together.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            function: Function::new(parts.configuration),
            name: parts.name,
            vf: parts.vf,
            engine: parts.engine,
            clock: parts.clock,
            port: parts.port,
            interrupts: parts.interrupts,
            pages: parts.pages,
            connected: Arc::default(),
        }
    }

    /// Whether a client is connected, for others to read.
    #[must_use]
    pub fn connected(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.connected)
    }
}

impl Device for VfDevice {
    fn regions(&self) -> Vec<Region> {
        self.connected.store(true, Ordering::Relaxed);
        [(0, connectx::Region::Bar0), (2, connectx::Region::Bar2), (7, connectx::Region::Config)]
            .into_iter()
            .map(|(index, region)| {
                let mut described = Region::trapped(index, self.function.region_size(region));
                if region == connectx::Region::Bar0
                    && let (Some((offset, size)), Some(pages)) =
                        (self.function.configuration().mapped_area(), &self.pages)
                {
                    described.areas = vec![SparseArea { offset, size }];
                    described.mmap = Some(Arc::clone(pages.fd()));
                }
                described
            })
            .collect()
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        vec![IrqInfo::msix(self.function.configuration().vectors)]
    }

    fn interrupts(&self) -> Interrupts {
        self.interrupts.clone()
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        self.function.read(region, offset, data, self.clock.now());
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        let (function, port, vf) = (&mut self.function, self.port.as_mut(), self.vf);
        let effect = self.engine.with(|engine| {
            let mut backend = Software::new(engine, vf, port);
            function.write(region, offset, data, &mut backend)
        });
        if effect == Effect::Reset {
            tracing::debug!(vf = self.name, "reset by its guest");
        }
        Ok(())
    }

    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        if !mapping.has_memory() {
            tracing::debug!(vf = self.name, addr = mapping.addr(), size = mapping.size(), "mapping without memory");
        }
        Ok(self.engine.with(|engine| engine.dma_mut(self.vf).0.map(mapping))?)
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        self.engine.with(|engine| engine.dma_mut(self.vf).0.unmap(addr, size))?;
        Ok(())
    }

    fn reset(&mut self) {
        let (function, port, vf) = (&mut self.function, self.port.as_mut(), self.vf);
        self.engine.with(|engine| function.reset(&mut Software::new(engine, vf, port)));
    }

    fn disconnected(&mut self) {
        self.reset();
        self.engine.with(|engine| engine.dma_mut(self.vf).0.clear());
        self.connected.store(false, Ordering::Relaxed);
        tracing::info!(vf = self.name, "client gone");
    }
}

/// Looks at the doorbell pages of polled functions: a page is rung when the
/// eight bytes at its send doorbell have changed since the last look.
#[derive(Debug, Default)]
pub struct PageHints {
    functions: Vec<Pages>,
    turn: usize,
}

#[derive(Debug)]
struct Pages {
    vf: VfId,
    memory: Arc<SharedMemory>,
    /// Offset of the send doorbell of each page and what was last seen there.
    seen: Vec<(usize, u64)>,
    /// Pages that were rung lately are at the front.
    busy: usize,
}

/// Pages looked at per turn beside the busy ones.
const COLD_STEP: usize = 4;
/// Most pages looked at on every turn.
const MOST_BUSY: usize = 8;
/// Offset of the send doorbell in a page: libmlx5 and the kernel ring at the
/// start of the send register area when they do not use BlueFlame.
const SEND_DOORBELL: usize = 0x800;

impl PageHints {
    /// Adds a function whose doorbell pages are polled.
    pub fn add(&mut self, vf: VfId, configuration: &Configuration, memory: Arc<SharedMemory>) {
        let Some((start, size)) = configuration.mapped_area() else { return };
        let page = PAGE_SIZE as usize;
        let seen = (start as usize..(start + size) as usize).step_by(page).map(|at| (at + SEND_DOORBELL, 0)).collect();
        self.functions.push(Pages { vf, memory, seen, busy: 0 });
    }
}

impl Pages {
    /// Whether the page was rung, and for which queue pair.
    #[inline]
    fn rung(&mut self, at: usize) -> Option<Qpn> {
        use vm_memory::Bytes;
        let (offset, last) = self.seen[at];
        let word: u64 = self.memory.slice(offset, 8)?.load(0, Ordering::Acquire).ok()?;
        if word == last {
            return None;
        }
        self.seen[at].1 = word;
        // The doorbell is the start of the request's control segment, big
        // endian: index and opcode, then queue pair number and size.
        let qpn = (u64::from_be(word) as u32) >> 8;
        Some(Qpn::new(qpn))
    }
}

impl Hints<Format> for PageHints {
    #[inline]
    fn look(&mut self, engine: &mut Engine<Format>) {
        self.turn = self.turn.wrapping_add(COLD_STEP);
        for pages in &mut self.functions {
            for at in 0..pages.busy {
                if let Some(qpn) = pages.rung(at) {
                    engine.hint(pages.vf, qpn);
                }
            }
            let cold = pages.seen.len() - pages.busy;
            for step in 0..COLD_STEP.min(cold) {
                let at = pages.busy + (self.turn + step) % cold;
                if let Some(qpn) = pages.rung(at) {
                    engine.hint(pages.vf, qpn);
                    // The busiest pages are where the look begins; the oldest
                    // of them makes room.
                    let front = if pages.busy < MOST_BUSY {
                        pages.busy += 1;
                        pages.busy - 1
                    } else {
                        self.turn % MOST_BUSY
                    };
                    pages.seen.swap(at, front);
                }
            }
        }
    }
}
