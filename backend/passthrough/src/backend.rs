//! Backend of a guest's function: a VF that has its memory, its interrupts and its programs' doorbells, and
//! gets those of its commands that pass.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use connectx::bits::command::{Status, create_eq_in};
use connectx::bits::event::EventType;
use connectx::bits::initialization::mlx5_init_seg as segment;
use connectx::bits::port::mad_ifc_out;
use connectx::queue::event::Entry;
use connectx::{Backend, Configuration, DoorbellPages, Doorbells, Registers, TRAPPED_PAGES};
use nix::errno::Errno;
use parking_lot::Mutex;
use thiserror::Error;
use vfio_user::{DmaTable, Interrupts, Journal, Mapping};

use crate::cluster::Membership;
use crate::core::{Core, HEAD, refusal};
use crate::doorbell::Doorbell;
use crate::driver::adapter::{Adapter, field_offset};
use crate::driver::window::Window;
use crate::mediation::guest::{Guest, Kind};
use crate::mediation::memory_key::covered;
use crate::mediation::partitions;
use crate::mediation::{After, Verdict};
use crate::memory::{GuestMemory, Raise};
use crate::policy::Policy;
use crate::report::{Fate, Report};
use crate::vf::physical::{Physical, PhysicalError};
use crate::vf::wake::Wake;

/// Most interrupt vectors of a guest's function.
const MAX_VECTORS: u16 = 128;
/// Where the VF's timer and its health are in BAR 0, and how much of both is read.
const HEALTH: u64 = 0x200;
const TIMER: u64 = field_offset(segment::INTERNAL_TIMER_H);
/// Bytes from the timer to the end of the health counter.
const TIMER_LEN: usize = 0x14;
/// In the health buffer: severity, of which the uppermost bit asks for recovery, and what is wrong.
const SEVERITY: usize = 0x38;
const SYNDROME: usize = 0x3d;
/// In the severity: the device has to be reset.
const ASKS_FOR_RESET: u8 = 1 << 7;
/// Fault of a VF that is gone: an error of firmware, as drivers understand it.
const FIRMWARE_ERROR: u8 = 1;

/// Opens the VF, which comes reset.
pub type Open = Box<dyn Fn() -> Result<Box<dyn Physical>, PhysicalError> + Send>;

/// Components of a [`Passthrough`].
pub struct Parts {
    /// Name of the guest's VF, for the log.
    pub name: String,
    /// Opens the VF behind it, now and when it was lost.
    pub open: Open,
    /// Makes the interrupts of a function with so many vectors.
    pub interrupts: fn(u16) -> std::io::Result<Interrupts>,
    /// Time limit of the VF for a command of the guest. Drivers give up after 60 s.
    pub time_limit: Duration,
    /// Rights of the guest.
    pub policy: Policy,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why a VF cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The VF.
    #[error(transparent)]
    Physical(#[from] PhysicalError),
    /// The system has no memory or descriptors left.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The backend of a function that is a VF's.
pub struct Passthrough {
    name: String,
    open: Open,
    window: Arc<Window>,
    configuration: Configuration,
    interrupts: Interrupts,
    wake: Arc<Wake>,
    table: DmaTable,
    memory: GuestMemory,
    /// Where keys over all memory end.
    covered: u64,
    report: Arc<Mutex<Report>>,
    core: Mutex<Core>,
    /// Lines that monitors can cause.
    journal: Mutex<Journal>,
}

impl std::fmt::Debug for Passthrough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passthrough")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Passthrough {
    /// Opens the VF and brings it up.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(parts: Parts) -> Result<Self, OpenError> {
        let window = Arc::new(Window::new()?);
        let wake = Arc::new(Wake::new()?);
        let adapter = start(&parts.open, &window, &wake)?;
        let configuration = configuration(adapter.physical.as_ref());
        let report = Arc::new(Mutex::new(Report {
            doorbells_mapped: configuration.doorbells == Doorbells::Poll,
            ..Report::default()
        }));
        if let Some(Membership { cluster, lid }) = &parts.policy.membership {
            cluster.join(*lid, Arc::clone(&report));
        }
        let mut core = Core::new(
            parts.name.clone(),
            parts.time_limit,
            parts.policy,
            Arc::clone(&window),
            Arc::clone(&wake),
            Arc::clone(&report),
        );
        core.begin(adapter);
        Ok(Self {
            interrupts: (parts.interrupts)(configuration.vectors)?,
            name: parts.name,
            open: parts.open,
            window,
            configuration,
            wake,
            table: DmaTable::new(),
            memory: GuestMemory::default(),
            covered: covered(std::iter::empty()),
            report,
            core: Mutex::new(core),
            journal: Mutex::default(),
        })
    }

    /// The guest's interrupts.
    #[must_use]
    pub const fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Returns the report on the VF, which is kept up to date. To read it, no one waits for the VF.
    #[must_use]
    pub fn report(&self) -> Arc<Mutex<Report>> {
        Arc::clone(&self.report)
    }

    /// A guest's monitor has come: where the VF was lost, it is opened again. Not while a monitor is
    /// there, which has mapped the doorbell pages of the VF that was.
    pub fn revive(&self) {
        let mut core = self.core.lock();
        if core.adapter().is_some() {
            return;
        }
        match start(&self.open, &self.window, &self.wake) {
            Ok(adapter) if configuration(adapter.physical.as_ref()) == self.configuration => {
                tracing::info!(vf = self.name, "the VF behind it is there again");
                core.begin(adapter);
            }
            Ok(_) => {
                let remedy = "restart ibvswitch to serve it as it is";
                self.warn(format_args!(
                    "the VF behind it is another one now; {remedy}"
                ));
            }
            Err(error) => {
                self.warn(format_args!("the VF behind it cannot be opened: {error}"));
            }
        }
    }

    /// Writes a warning that a monitor can cause again and again.
    fn warn(&self, what: std::fmt::Arguments<'_>) {
        if let Some(omitted) = self.journal.lock().admit("behind") {
            tracing::warn!(vf = self.name, "{what}{omitted}");
        }
    }

    /// Takes everything away that the guest has made, by resetting the VF, if there is something.
    fn clear(&mut self) {
        let core = self.core.get_mut();
        let Some(adapter) = core.clear() else {
            return;
        };
        let mut physical = adapter.physical;
        let started = physical
            .reset()
            .and_then(|()| Adapter::start(physical, Arc::clone(&self.window), self.wake.event()));
        match started {
            Ok(adapter) => core.begin(adapter),
            Err(error) => tracing::error!(
                vf = self.name,
                "the VF behind it does not come back from a reset: {error}; restart its server, then \
                 the VM"
            ),
        }
    }

    fn show_memory(&mut self) {
        self.memory = GuestMemory(self.table.view());
        let mapped = self.table.iter().filter(|mapping| mapping.has_memory());
        self.covered = covered(mapped.map(|mapping| mapping.addr().saturating_add(mapping.size())));
    }

    fn raise(&self) -> Raise {
        Raise(self.interrupts.clone())
    }
}

fn start(open: &Open, window: &Arc<Window>, wake: &Wake) -> Result<Adapter, PhysicalError> {
    let mut physical = open()?;
    let mappings = window.mappings();
    for mapping in mappings.map_err(|error| PhysicalError::Unfit(error.to_string()))? {
        physical.map(&mapping)?;
    }
    Adapter::start(physical, Arc::clone(window), wake.event())
}

/// Returns the configuration of the guest's function: the VF's, as far as guests see it.
fn configuration(physical: &dyn Physical) -> Configuration {
    let mapped = physical.doorbell_pages(TRAPPED_PAGES).is_some();
    Configuration {
        bar_size: physical.bar_size(),
        // Memory of the VF itself is not offered.
        device_memory: 0,
        vectors: physical.vectors().min(MAX_VECTORS),
        doorbells: if mapped {
            Doorbells::Poll
        } else {
            Doorbells::Trap
        },
        ..Configuration::default()
    }
    .checked()
}

impl Backend for Passthrough {
    type Dma = GuestMemory;
    type Mapping = Mapping;
    type Error = Errno;

    fn configuration(&self) -> Configuration {
        self.configuration
    }

    fn registers(&self) -> Registers {
        let mut core = self.core.lock();
        let firmware = core.adapter().map_or((0, 0, 0), |it| it.firmware);
        let mut health = [0; 64];
        let mut timer = [0; TIMER_LEN];
        let read = core.with(|adapter| {
            adapter.physical.read(HEALTH, &mut health)?;
            adapter.physical.read(TIMER, &mut timer)
        });
        if read.is_some() {
            core.heard(health[SEVERITY] & ASKS_FOR_RESET != 0 || health[SYNDROME] != 0);
        } else {
            health = [0; 64];
            health[SEVERITY] = ASKS_FOR_RESET;
            health[SYNDROME] = FIRMWARE_ERROR;
            timer = [0; TIMER_LEN];
        }
        let (ticks, counter) = timer.split_at(0x10);
        Registers {
            firmware,
            initializing: false,
            timer: ticks.first_chunk().map_or(0, |it| u64::from_be_bytes(*it)),
            health_counter: counter
                .first_chunk()
                .map_or(0, |it| u32::from_be_bytes(*it)),
            health,
        }
    }

    fn doorbell_pages(&self) -> Option<DoorbellPages> {
        let core = self.core.lock();
        let adapter = core.adapter()?;
        adapter.physical.doorbell_pages(TRAPPED_PAGES)
    }

    fn connect(&mut self, vector: u16, eventfd: Option<BorrowedFd<'_>>) {
        // Vector 0 of the VF is the daemon's, and the guest's is raised here.
        if vector == 0 {
            return;
        }
        self.core
            .get_mut()
            .with(|adapter| adapter.physical.connect(vector, eventfd));
    }

    fn dma(&self) -> &GuestMemory {
        &self.memory
    }

    fn map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        let (addr, size) = (mapping.addr(), mapping.size());
        if Window::overlaps(addr, size) {
            self.warn(format_args!(
                "guest memory of {size} bytes at {addr:#x} lies where the daemon has its own"
            ));
            return Err(Errno::EINVAL);
        }
        self.table.map(mapping.clone())?;
        self.show_memory();
        // A refusal is an error of this mapping, anything else the VF's end.
        let core = self.core.get_mut();
        let refused = core.with(|adapter| match adapter.physical.map(&mapping) {
            Ok(()) => Ok(None),
            Err(error) => error.refused().map_or(Err(error), |errno| Ok(Some(errno))),
        });
        let Some(errno) = refused.flatten() else {
            return Ok(());
        };
        let gone = self.table.unmap(addr, size)?;
        self.show_memory();
        drop(gone);
        Err(errno)
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        let gone = self.table.unmap(addr, size)?;
        self.show_memory();
        let shared = gone.iter().filter(|mapping| mapping.has_memory());
        for mapping in shared {
            self.core
                .get_mut()
                .with(|adapter| adapter.physical.unmap(mapping.addr(), mapping.size()));
        }
        Ok(())
    }

    fn unmap_all(&mut self) {
        let gone = self.table.clear();
        self.show_memory();
        let core = self.core.get_mut();
        for mapping in gone.iter().filter(|mapping| mapping.has_memory()) {
            core.with(|adapter| adapter.physical.unmap(mapping.addr(), mapping.size()));
        }
        for vector in 1..self.configuration.vectors {
            core.with(|adapter| adapter.physical.connect(vector, None));
        }
    }

    fn submit(&mut self, slot: u32, request: &mut Vec<u8>, reply_len: usize) {
        let core = self.core.get_mut();
        let opcode = create_eq_in::OPCODE.get(request) as u16;
        core.look_before(&self.memory);
        let Some(verdict) = core.judge(self.configuration.vectors, self.covered, request) else {
            core.answer(slot, opcode, Fate::Lost, refusal(Status::Internal));
            return;
        };
        match verdict {
            Err(refused) => {
                let reason = refused.reason;
                tracing::debug!(status = ?refused.status, "command {opcode:#05x} refused: {reason}");
                core.answer(slot, opcode, Fate::Refused, refusal(refused.status));
            }
            Ok(Verdict::Answer(mut reply)) => {
                reply.resize(reply_len.max(HEAD), 0);
                core.answer(slot, opcode, Fate::Answered, reply);
            }
            Ok(Verdict::Clear(stage)) => {
                if core.guest.is_empty() {
                    core.guest = Guest::default();
                } else {
                    self.clear();
                }
                let core = self.core.get_mut();
                core.guest.stage = stage;
                core.answer(slot, opcode, Fate::Answered, refusal(Status::Ok));
            }
            Ok(Verdict::Forward(_)) if !core.has_room(request.len()) => {
                core.answer(slot, opcode, Fate::Refused, refusal(Status::NoResources));
            }
            Ok(Verdict::Forward(after)) => {
                let reply_len = match after {
                    After::ShowPartitions(_) => reply_len.max(partitions::REPLY),
                    After::ShowAgent => reply_len.max(mad_ifc_out::SIZE),
                    _ => reply_len,
                };
                core.forward(slot, after, std::mem::take(request), reply_len);
                core.exchange(self.configuration.pages());
                core.keep_looking();
            }
        }
    }

    fn poll_reply(&mut self, reply: &mut Vec<u8>) -> Option<u32> {
        let mut raise = self.raise();
        let core = self.core.get_mut();
        if !core.has_done() {
            let woken = self.wake.take();
            if woken.signalled || woken.expired {
                core.take_events(&self.memory, &mut raise);
                if woken.signalled && !core.guest.on_vector_0.is_empty() {
                    self.interrupts.trigger(0);
                }
            }
            core.exchange(self.configuration.pages());
            if woken.expired {
                core.check_time();
            }
            if woken.looks {
                core.look(&self.memory, self.configuration.pages());
            }
        }
        let (slot, done) = core.done()?;
        *reply = done;
        Some(slot)
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn has_command_events(&self) -> bool {
        let core = self.core.lock();
        let mut queues = core.guest.events.values();
        queues.any(|queue| queue.mask >> EventType::Command.code() & 1 != 0)
    }

    fn command_event(&mut self, entries: u32) {
        let entry = Entry::new(EventType::Command).with(0, entries);
        let mut raise = self.raise();
        let guest = &mut self.core.get_mut().guest;
        guest.event(&self.memory, &mut raise, &entry);
    }

    fn doorbell(&mut self, page: u32, offset: usize, data: &[u8]) {
        let mut raise = self.raise();
        let core = self.core.get_mut();
        let Some(physical) = core.guest.page(page) else {
            return;
        };
        match Doorbell::new(offset, data) {
            None => return,
            Some(Doorbell::Queue) => {
                let pages = self.configuration.pages();
                if core.rings_for_datagrams(offset, data, &self.memory, pages) {
                    return;
                }
            }
            Some(Doorbell::Events { word, arm }) => {
                let eqn = (word >> 24) as u8;
                if let Some(queue) = core.guest.events.get_mut(&eqn) {
                    queue.update(word, arm, &mut raise);
                    return;
                }
                if !core.guest.has(Kind::EventQueue, eqn.into()) {
                    return;
                }
            }
        }
        core.with(|adapter| adapter.ring(physical, offset, data));
    }

    fn reset(&mut self) {
        self.clear();
    }
}
