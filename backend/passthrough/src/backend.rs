//! What is behind a guest's function: a VF that has its memory, its interrupts and its programs'
//! doorbells, and, of its commands, those that pass.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use connectx::bits::command::{Status, alloc_pd_out, create_eq_in};
use connectx::bits::event::EventType;
use connectx::bits::initialization::mlx5_init_seg as segment;
use connectx::queue::event::Entry;
use connectx::{Backend, Configuration, DoorbellPages, Doorbells, Registers, TRAPPED_PAGES};
use hca::Dma;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use thiserror::Error;
use vfio_user::{DmaTable, DmaView, Interrupts, Mapping};
use vm_memory::VolatileSlice;

use crate::adapter::{Adapter, field_offset};
use crate::doorbell::Doorbell;
use crate::events::Event;
use crate::guest::{Guest, Kind};
use crate::mediation::{After, Facts, Verdict, judge, number_made};
use crate::physical::{Physical, PhysicalError};
use crate::window::Window;

/// Most interrupt vectors of a guest's function.
const MAX_VECTORS: u16 = 128;
/// Events that are taken at a time.
const EVENTS_AT_ONCE: usize = 1 << crate::window::LOG_EVENTS;
/// Bytes of the head of a reply.
const HEAD: usize = 16;
/// Where the VF's timer and its health are in BAR 0, and how much of both is read.
const HEALTH: u64 = 0x200;
const TIMER: u64 = field_offset(segment::INTERNAL_TIMER_H);
/// Bytes from the timer to the end of the health counter.
const TIMER_LEN: usize = 0x14;
/// In the health buffer: severity, of which the uppermost bit asks for recovery, and what is wrong.
const SEVERITY: usize = 0x38;
const SYNDROME: usize = 0x3d;
/// What is wrong with a VF that is gone: an error of firmware, as drivers understand it.
const FIRMWARE_ERROR: u8 = 1;

/// The guest's memory, as commands are fetched from it.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory(DmaView);

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
struct Raise(Interrupts);

impl connectx::Interrupts for Raise {
    fn raise(&mut self, vector: u16) {
        self.0.trigger(vector);
    }
}

/// Opens the VF, which comes reset.
pub type Open = Box<dyn Fn() -> Result<Box<dyn Physical>, PhysicalError> + Send>;

/// What a [`Passthrough`] is made of.
pub struct Parts {
    /// Name of the guest's VF, for the log.
    pub name: String,
    /// Opens the VF behind it, now and when it was lost.
    pub open: Open,
    /// Makes the interrupts of a function with so many vectors.
    pub interrupts: fn(u16) -> std::io::Result<Interrupts>,
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

/// A command that waits for room in the VF's queue.
#[derive(Debug)]
struct Waiting {
    slot: u32,
    request: Vec<u8>,
    reply_len: usize,
    after: After,
}

/// A command that the VF has.
#[derive(Debug)]
struct Flight {
    slot: u32,
    after: After,
}

/// Everything that accesses change.
#[derive(Debug)]
struct Core {
    /// `None` when it is lost.
    adapter: Option<Adapter>,
    guest: Guest,
    waiting: VecDeque<Waiting>,
    flights: HashMap<u32, Flight>,
    done: VecDeque<(u32, Vec<u8>)>,
    /// The VF was given commands since it was brought up.
    touched: bool,
}

/// The backend of a function that is a VF's.
pub struct Passthrough {
    name: String,
    open: Open,
    window: Arc<Window>,
    configuration: Configuration,
    interrupts: Interrupts,
    /// Vector 0 of the VF.
    wake: EventFd,
    table: DmaTable,
    memory: GuestMemory,
    core: Mutex<Core>,
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
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags).map_err(std::io::Error::from)?;
        let adapter = start(&parts.open, &window, &wake)?;
        let configuration = configuration(adapter.physical.as_ref());
        Ok(Self {
            interrupts: (parts.interrupts)(configuration.vectors)?,
            name: parts.name,
            open: parts.open,
            window,
            configuration,
            wake,
            table: DmaTable::new(),
            memory: GuestMemory::default(),
            core: Mutex::new(Core {
                adapter: Some(adapter),
                guest: Guest::default(),
                waiting: VecDeque::new(),
                flights: HashMap::new(),
                done: VecDeque::new(),
                touched: false,
            }),
        })
    }

    /// The guest's interrupts.
    #[must_use]
    pub const fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Whether the VF is there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.core.lock().adapter.is_some()
    }

    /// A guest's monitor has come: where the VF was lost, it is opened again. Not while a monitor is
    /// there, which has mapped the doorbell pages of the VF that was.
    pub fn revive(&self) {
        let mut core = self.core.lock();
        if core.adapter.is_some() {
            return;
        }
        match start(&self.open, &self.window, &self.wake) {
            Ok(adapter) if configuration(adapter.physical.as_ref()) == self.configuration => {
                tracing::info!(vf = self.name, "the VF behind it is there again");
                core.adapter = Some(adapter);
                core.touched = false;
            }
            Ok(_) => {
                let remedy = "restart ibvswitch to serve it as it is";
                tracing::warn!(
                    vf = self.name,
                    "the VF behind it is another one now; {remedy}"
                );
            }
            Err(error) => {
                tracing::warn!(vf = self.name, "the VF behind it cannot be opened: {error}");
            }
        }
    }

    /// Does something with the VF; an error is its end.
    fn with<R>(
        name: &str,
        core: &mut Core,
        wake: &EventFd,
        act: impl FnOnce(&mut Adapter) -> Result<R, PhysicalError>,
    ) -> Option<R> {
        let outcome = act(core.adapter.as_mut()?);
        outcome
            .inspect_err(|error| {
                tracing::error!(
                    vf = name,
                    "the VF behind it is lost: {error}; restart its server, then the VM"
                );
                core.fail();
                // The commands that it had are answered by who serves the guest.
                let _ = wake.write(1);
            })
            .ok()
    }

    /// Takes the VF's events, and hands out what they tell.
    fn take_events(&mut self) {
        let core = self.core.get_mut();
        let mut taken = 0;
        while taken < EVENTS_AT_ONCE
            && let Some(event) = core.adapter.as_mut().and_then(Adapter::event)
        {
            taken += 1;
            deliver(&mut core.guest, &self.memory, &self.interrupts, &event);
        }
        if taken > 0 {
            Self::with(&self.name, core, &self.wake, Adapter::arm);
        }
    }

    /// Takes the replies of the VF, and gives it commands that wait.
    fn take_replies(&mut self) {
        let pages = self.configuration.pages();
        let core = self.core.get_mut();
        let slots: Vec<u32> = core.flights.keys().copied().collect();
        for entry in slots {
            let mut reply = Vec::new();
            let Some(adapter) = core.adapter.as_mut() else {
                return;
            };
            let Some(done) = adapter.finish(entry, &mut reply) else {
                continue;
            };
            let Some(flight) = core.flights.remove(&entry) else {
                continue;
            };
            if let Err(code) = done {
                tracing::warn!(vf = self.name, code, "the VF could not take a command");
                reply = refusal(Status::Internal);
            }
            if alloc_pd_out::STATUS.get(&reply) == 0 {
                core.guest.conclude(flight.after, &mut reply, pages);
            }
            core.done.push_back((flight.slot, reply));
        }
        while let Some(waiting) = core.waiting.pop_front() {
            match Self::with(&self.name, core, &self.wake, |adapter| {
                adapter.begin(&waiting.request, waiting.reply_len)
            }) {
                None => core
                    .done
                    .push_back((waiting.slot, refusal(Status::Internal))),
                Some(None) => {
                    core.waiting.push_front(waiting);
                    break;
                }
                Some(Some(entry)) => {
                    let Waiting { slot, after, .. } = waiting;
                    core.flights.insert(entry, Flight { slot, after });
                }
            }
        }
    }

    /// Takes everything away that the guest has made, by resetting the VF, if there is something.
    fn clear(&mut self) {
        let core = self.core.get_mut();
        core.guest = Guest::default();
        core.waiting.clear();
        core.flights.clear();
        core.done.clear();
        let Some(adapter) = core.adapter.take_if(|_| core.touched) else {
            return;
        };
        core.touched = false;
        let mut physical = adapter.physical;
        let started = physical
            .reset()
            .and_then(|()| Adapter::start(physical, Arc::clone(&self.window), &self.wake));
        match started {
            Ok(adapter) => core.adapter = Some(adapter),
            Err(error) => tracing::error!(
                vf = self.name,
                "the VF behind it does not come back from a reset: {error}; restart its server, then \
                 the VM"
            ),
        }
    }

    fn show_memory(&mut self) {
        self.memory = GuestMemory(self.table.view());
    }
}

impl Core {
    /// The VF is lost: its commands are answered.
    fn fail(&mut self) {
        self.adapter = None;
        let flights = self.flights.drain().map(|(_, flight)| flight.slot);
        let waiting = self.waiting.drain(..).map(|waiting| waiting.slot);
        for slot in flights.chain(waiting) {
            self.done.push_back((slot, refusal(Status::Internal)));
        }
    }
}

impl Guest {
    /// What a command that the VF has executed has changed.
    fn conclude(&mut self, after: After, reply: &mut Vec<u8>, pages: u32) {
        match after {
            After::Nothing => {}
            After::Made(kind) => self.made(kind, number_made(kind, reply)),
            After::Gone(kind, number) => {
                self.gone(kind, number);
                if kind == Kind::EventQueue {
                    self.events.remove(&(number as u8));
                    self.on_vector_0.remove(&(number as u8));
                }
            }
            After::Page => {
                let physical = alloc_pd_out::PD.get(reply);
                match self.add_page(physical, pages) {
                    Some(page) => alloc_pd_out::PD.set(reply, page),
                    None => *reply = refusal(Status::NoResources),
                }
            }
            After::PageGone(page) => self.remove_page(page),
            After::EventQueue(queue, vector) => {
                let eqn = number_made(Kind::EventQueue, reply);
                self.made(Kind::EventQueue, eqn);
                match queue {
                    Some(queue) => {
                        self.events.insert(eqn as u8, *queue);
                    }
                    None if vector == 0 => {
                        self.on_vector_0.insert(eqn as u8);
                    }
                    None => {}
                }
            }
            After::ShowPage(field, at) => {
                if let Some(context) = reply.get_mut(at..) {
                    let shown = self.page_of(field.get(context)).unwrap_or(0);
                    field.set(context, shown);
                }
            }
        }
    }

    /// Tells the driver of an event, by all of its queues that want to hear of such.
    fn event(&mut self, memory: &GuestMemory, interrupts: &Interrupts, entry: &Entry) {
        let mut raise = Raise(interrupts.clone());
        let wants = |mask: u64| mask >> entry.kind.code() & 1 != 0;
        if let Some(queue) = self.events.values_mut().find(|queue| wants(queue.mask)) {
            // A guest that has taken the queue's memory away hears of nothing.
            let _ = queue.push(memory, entry, &mut raise);
        }
    }
}

/// Tells the guest what the VF tells.
fn deliver(guest: &mut Guest, memory: &GuestMemory, interrupts: &Interrupts, event: &Event) {
    match EventType::from_code(event.kind) {
        // Replies are found in the entries, and there is no such queue of the daemon's.
        Some(EventType::Command | EventType::Completion) => {}
        Some(kind) => {
            let entry = Entry {
                kind,
                subtype: event.subtype,
                data: event.data,
            };
            guest.event(memory, interrupts, &entry);
        }
        None => tracing::debug!(kind = event.kind, "an event that no guest hears of"),
    }
}

fn refusal(status: Status) -> Vec<u8> {
    let mut reply = vec![0; HEAD];
    alloc_pd_out::STATUS.set(&mut reply, status.code().into());
    reply
}

fn start(open: &Open, window: &Arc<Window>, wake: &EventFd) -> Result<Adapter, PhysicalError> {
    let mut physical = open()?;
    let mapping = window.mapping();
    let mapping = mapping.map_err(|error| PhysicalError::Unfit(error.to_string()))?;
    physical.map(&mapping)?;
    Adapter::start(physical, Arc::clone(window), wake)
}

/// What the guest's function is like: as the VF, as far as guests see it.
fn configuration(physical: &dyn Physical) -> Configuration {
    let mapped = physical.doorbell_pages(TRAPPED_PAGES).is_some();
    Configuration {
        bar_size: physical.bar_size(),
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
        let firmware = core.adapter.as_ref().map_or((0, 0, 0), |it| it.firmware);
        let mut health = [0; 64];
        let mut timer = [0; TIMER_LEN];
        let read = Self::with(&self.name, &mut core, &self.wake, |adapter| {
            adapter.physical.read(HEALTH, &mut health)?;
            adapter.physical.read(TIMER, &mut timer)
        });
        if read.is_none() {
            health = [0; 64];
            health[SEVERITY] = 1 << 7;
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
        let adapter = core.adapter.as_ref()?;
        adapter.physical.doorbell_pages(TRAPPED_PAGES)
    }

    fn connect(&mut self, vector: u16, eventfd: Option<BorrowedFd<'_>>) {
        // Vector 0 of the VF is the daemon's, and the guest's is raised here.
        if vector == 0 {
            return;
        }
        Self::with(&self.name, self.core.get_mut(), &self.wake, |adapter| {
            adapter.physical.connect(vector, eventfd)
        });
    }

    fn dma(&self) -> &GuestMemory {
        &self.memory
    }

    fn map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        let (addr, size) = (mapping.addr(), mapping.size());
        if Window::overlaps(addr, size) {
            tracing::warn!(
                vf = self.name,
                addr,
                size,
                "guest memory lies where the daemon has its own"
            );
            return Err(Errno::EINVAL);
        }
        self.table.map(mapping.clone())?;
        self.show_memory();
        // What is refused is an error of this mapping, anything else the VF's end.
        let core = self.core.get_mut();
        let refused = Self::with(&self.name, core, &self.wake, |adapter| {
            match adapter.physical.map(&mapping) {
                Ok(()) => Ok(None),
                Err(error) => error.refused().map_or(Err(error), |errno| Ok(Some(errno))),
            }
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
            Self::with(&self.name, self.core.get_mut(), &self.wake, |adapter| {
                adapter.physical.unmap(mapping.addr(), mapping.size())
            });
        }
        Ok(())
    }

    fn unmap_all(&mut self) {
        let gone = self.table.clear();
        self.show_memory();
        let core = self.core.get_mut();
        for mapping in gone.iter().filter(|mapping| mapping.has_memory()) {
            Self::with(&self.name, core, &self.wake, |adapter| {
                adapter.physical.unmap(mapping.addr(), mapping.size())
            });
        }
        for vector in 1..self.configuration.vectors {
            Self::with(&self.name, core, &self.wake, |adapter| {
                adapter.physical.connect(vector, None)
            });
        }
    }

    fn submit(&mut self, slot: u32, request: &mut Vec<u8>, reply_len: usize) {
        let core = self.core.get_mut();
        let Some(adapter) = core.adapter.as_ref() else {
            core.done.push_back((slot, refusal(Status::Internal)));
            return;
        };
        let facts = Facts {
            general: &adapter.general,
            atomic: &adapter.atomic,
            vectors: self.configuration.vectors,
            own_page: adapter.page,
        };
        match judge(&mut core.guest, &facts, request) {
            Err(refused) => {
                let opcode = create_eq_in::OPCODE.get(request);
                let reason = refused.reason;
                tracing::debug!(status = ?refused.status, "command {opcode:#05x} refused: {reason}");
                core.done.push_back((slot, refusal(refused.status)));
            }
            Ok(Verdict::Answer(mut reply)) => {
                reply.resize(reply_len.max(HEAD), 0);
                core.done.push_back((slot, reply));
            }
            Ok(Verdict::OwnPage) => {
                let own = adapter.page;
                let page = core.guest.add_page(own, self.configuration.pages());
                let mut reply = refusal(Status::Ok);
                alloc_pd_out::PD.set(&mut reply, page.unwrap_or(0));
                core.done.push_back((slot, reply));
            }
            Ok(Verdict::Clear(stage)) => {
                if core.guest.is_empty() {
                    core.guest = Guest::default();
                } else {
                    self.clear();
                }
                let core = self.core.get_mut();
                core.guest.stage = stage;
                core.done.push_back((slot, refusal(Status::Ok)));
            }
            Ok(Verdict::Forward(after)) => {
                core.touched = true;
                core.waiting.push_back(Waiting {
                    slot,
                    request: std::mem::take(request),
                    reply_len,
                    after,
                });
                self.take_replies();
            }
        }
    }

    fn poll_reply(&mut self, reply: &mut Vec<u8>) -> Option<u32> {
        if self.core.get_mut().done.is_empty() {
            if self.wake.read().is_ok() {
                self.take_events();
                if !self.core.get_mut().guest.on_vector_0.is_empty() {
                    self.interrupts.trigger(0);
                }
            }
            self.take_replies();
        }
        let (slot, done) = self.core.get_mut().done.pop_front()?;
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
        let guest = &mut self.core.get_mut().guest;
        guest.event(&self.memory, &self.interrupts, &entry);
    }

    fn doorbell(&mut self, page: u32, offset: usize, data: &[u8]) {
        let core = self.core.get_mut();
        let Some(physical) = core.guest.page(page) else {
            return;
        };
        match Doorbell::new(offset, data) {
            None => return,
            Some(Doorbell::Queue) => {}
            Some(Doorbell::Events { word, arm }) => {
                let eqn = (word >> 24) as u8;
                if let Some(queue) = core.guest.events.get_mut(&eqn) {
                    let mut raise = Raise(self.interrupts.clone());
                    queue.update(word, arm, &mut raise);
                    return;
                }
                if !core.guest.has(Kind::EventQueue, eqn.into()) {
                    return;
                }
            }
        }
        Self::with(&self.name, core, &self.wake, |adapter| {
            adapter.ring(physical, offset, data)
        });
    }

    fn reset(&mut self) {
        self.clear();
    }
}
