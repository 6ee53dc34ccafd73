//! A VF as the vfio-user server serves it: registers by the connectx crate,
//! objects in the engine, guest memory and interrupts from the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use connectx::{
    Backend, Configuration, Effect, Function, Mlx5, Port, Prepared, Software, execute_on_port,
};
use hca::{Clock, Engine, VfId};
use nix::errno::Errno;
use vfio_user::{
    Device, Interrupts, IrqInfo, Mapping, MemoryLimits, Region, SharedMemory, SparseArea,
};

use crate::dma::GuestMemory;
use crate::engine::{Hints, SharedEngine};

/// The formats of the VFs' queues, over their guests' memory.
pub type Format = Mlx5<GuestMemory>;

/// One virtual function behind its socket.
pub struct VfDevice {
    name: String,
    vf: VfId,
    function: Function,
    engine: Arc<SharedEngine<Format>>,
    clock: Arc<dyn Clock>,
    port: Box<dyn Port + Send>,
    /// The guest's memory as the engine has it, to read commands and write replies without it.
    memory: GuestMemory,
    interrupts: Interrupts,
    /// BAR 0 as memory, where its doorbell pages are not trapped.
    pages: Option<Arc<SharedMemory>>,
    memory_limits: MemoryLimits,
    client: Arc<ClientState>,
    presence: Box<dyn Fn(Presence) + Send>,
}

/// What is known of a VF's client, for others to read.
#[derive(Debug, Default)]
pub struct ClientState {
    connected: AtomicBool,
    unshared: AtomicBool,
}

impl ClientState {
    /// Whether there is one.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether its guest's memory is out of the device's reach.
    #[must_use]
    pub fn has_unshared_memory(&self) -> bool {
        self.unshared.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for VfDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfDevice")
            .field("name", &self.name)
            .field("vf", &self.vf)
            .finish_non_exhaustive()
    }
}

/// What becomes of a VF's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It has connected.
    Connected,
    /// It is as new: it was reset, or its client will be gone.
    Reset,
    /// It is gone.
    Gone,
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
    /// Told when a client connects, when it goes, and of resets.
    pub presence: Box<dyn Fn(Presence) + Send>,
    /// Its doorbell pages, see [`doorbell_pages`].
    pub pages: Option<Arc<SharedMemory>>,
    /// How much memory a client may share.
    pub memory_limits: MemoryLimits,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("name", &self.name)
            .field("vf", &self.vf)
            .finish_non_exhaustive()
    }
}

/// Memory for the doorbell pages of a function, if it has such that its guest
/// may map: all of BAR 0, of which only these pages are ever touched.
///
/// # Errors
/// When the system has no memory or descriptors left.
pub fn doorbell_pages(
    name: &str,
    configuration: &Configuration,
) -> std::io::Result<Option<Arc<SharedMemory>>> {
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
            memory: GuestMemory::default(),
            interrupts: parts.interrupts,
            pages: parts.pages,
            memory_limits: parts.memory_limits,
            client: Arc::default(),
            presence: parts.presence,
        }
    }

    /// What is known of the client, for others to read.
    #[must_use]
    pub fn client(&self) -> Arc<ClientState> {
        Arc::clone(&self.client)
    }
}

/// The engine as one function's registers use it: for one command or doorbell at a time, so that others
/// have it between.
struct Shared<'a> {
    engine: &'a SharedEngine<Format>,
    vf: VfId,
    port: &'a mut dyn Port,
    memory: &'a GuestMemory,
}

impl Backend for Shared<'_> {
    type Dma = GuestMemory;

    fn dma(&self) -> &GuestMemory {
        self.memory
    }

    fn execute(&mut self, request: &[u8], reply: &mut [u8]) {
        let is_initialized = || {
            let (engine, vf) = (self.engine, self.vf);
            engine.inspect(|engine| engine.face(vf).is_initialized())
        };
        if execute_on_port(self.port, is_initialized, request, reply) {
            return;
        }
        let mut prepared = Prepared::of::<GuestMemory>(request);
        let (vf, port) = (self.vf, &mut *self.port);
        let (was_reset, lost) = self.engine.with_vf(vf, |engine| {
            let before = engine.memory_taken(vf);
            Software::new(engine, vf, port)
                .prepared(&mut prepared)
                .execute(request, reply);
            (engine.has_remains(vf), Lost::of(engine, vf, before))
        });
        if was_reset {
            self.engine.clear_away(vf);
        }
        lost.give_back();
    }

    fn has_command_events(&self) -> bool {
        let vf = self.vf;
        self.engine
            .inspect(|engine| engine.face(vf).has_command_events())
    }

    fn command_event(&mut self, entries: u32) {
        let (vf, port) = (self.vf, &mut *self.port);
        self.engine
            .with(|engine| Software::new(engine, vf, port).command_event(entries));
    }

    fn doorbell(&mut self, uar: u32, offset: usize, data: &[u8]) {
        let (vf, port) = (self.vf, &mut *self.port);
        self.engine.with_vf(vf, |engine| {
            Software::new(engine, vf, port).doorbell(uar, offset, data)
        });
    }

    fn reset(&mut self) {
        let (vf, port) = (self.vf, &mut *self.port);
        let lost = self.engine.with(|engine| {
            let before = engine.memory_taken(vf);
            Software::new(engine, vf, port).reset_objects();
            Lost::of(engine, vf, before)
        });
        self.port.reset();
        self.engine.clear_away(vf);
        lost.give_back();
    }
}

impl VfDevice {
    /// The registers, and what is behind them.
    fn parts(&mut self) -> (&mut Function, Shared<'_>) {
        let shared = Shared {
            engine: &self.engine,
            vf: self.vf,
            port: self.port.as_mut(),
            memory: &self.memory,
        };
        (&mut self.function, shared)
    }
}

impl Device for VfDevice {
    fn regions(&self) -> Vec<Region> {
        if !self.client.connected.swap(true, Ordering::Relaxed) {
            (self.presence)(Presence::Connected);
        }
        [
            (0, connectx::Region::Bar0),
            (2, connectx::Region::Bar2),
            (7, connectx::Region::Config),
        ]
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

    fn memory_limits(&self) -> MemoryLimits {
        self.memory_limits
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        self.function.read(region, offset, data, self.clock.now());
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        let (function, mut backend) = self.parts();
        let effect = function.write(region, offset, data, &mut backend);
        if effect == Effect::Reset {
            (self.presence)(Presence::Reset);
            tracing::debug!(vf = self.name, "reset by its guest");
        }
        Ok(())
    }

    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        if mapping.is_unshared_ram() {
            self.client.unshared.store(true, Ordering::Relaxed);
        }
        self.memory.0.map(mapping.clone())?;
        self.engine
            .with(|engine| engine.dma_mut(self.vf).0.map(mapping))?;
        Ok(())
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        let gone = self
            .engine
            .with(|engine| engine.dma_mut(self.vf).0.unmap(addr, size))?;
        // The last user: what is behind it goes away without the engine.
        let last = self.memory.0.unmap(addr, size)?;
        drop((gone, last));
        Ok(())
    }

    fn reset(&mut self) {
        let (function, mut backend) = self.parts();
        function.reset(&mut backend);
        (self.presence)(Presence::Reset);
    }

    fn disconnected(&mut self) {
        self.reset();
        let gone = self
            .engine
            .with(|engine| std::mem::take(engine.dma_mut(self.vf)));
        drop((gone, self.memory.0.clear()));
        self.client.connected.store(false, Ordering::Relaxed);
        self.client.unshared.store(false, Ordering::Relaxed);
        (self.presence)(Presence::Gone);
    }
}

/// Whether a function has just lost so many objects that their memory is worth giving back.
#[derive(Debug)]
#[must_use]
struct Lost(bool);

impl Lost {
    /// What is not worth the trouble, in bytes.
    const LITTLE: usize = 2 << 20;

    /// Of a function that had taken `before` bytes.
    fn of(engine: &Engine<Format>, vf: VfId, before: usize) -> Self {
        Self(before > Self::LITTLE && engine.memory_taken(vf) < Self::LITTLE / 2)
    }

    /// Gives it back, without any lock: the heap keeps what lies below lists that others use, too.
    fn give_back(self) {
        if self.0 {
            vfio_user::release_heap();
        }
    }
}

/// Looks at the doorbell pages of the functions that have them in memory.
#[derive(Debug, Default)]
pub struct DoorbellPages {
    functions: Vec<Pages>,
}

#[derive(Debug)]
struct Pages {
    vf: VfId,
    memory: Arc<SharedMemory>,
    offset: usize,
    len: usize,
}

impl DoorbellPages {
    /// Adds a function and the memory of its pages.
    pub fn add(&mut self, vf: VfId, configuration: &Configuration, memory: Arc<SharedMemory>) {
        if let Some((offset, len)) = configuration.mapped_area() {
            let (offset, len) = (offset as usize, len as usize);
            self.functions.push(Pages {
                vf,
                memory,
                offset,
                len,
            });
        }
    }
}

impl Hints<Format> for DoorbellPages {
    #[inline]
    fn look(&mut self, engine: &mut Engine<Format>) {
        for pages in &self.functions {
            let Some(area) = pages.memory.slice(pages.offset, pages.len) else {
                continue;
            };
            // One page per turn: a guest that rings without pause must not keep
            // the engine here.
            if let Some(qpn) = engine.face_mut(pages.vf).0.next_rung(&area) {
                engine.hint(pages.vf, qpn);
            }
        }
    }
}
