//! State of a function besides the engine's objects: event queues, doorbell
//! pages, capabilities, and the contexts that queries return.

pub(crate) mod capability;
pub(crate) mod device_memory;
pub(crate) mod doorbell;
pub(crate) mod network;
mod uar;
pub(crate) mod user_context;
pub(crate) mod user_memory;

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use hca::{Dma, Quota};
use serde::{Deserialize, Serialize};
use vm_memory::VolatileSlice;
use wire::Qpn;

use crate::bits::capability::{atomic_caps, cmd_hca_cap};
use crate::bits::dynamic::dctc;
use crate::bits::event::EventType;
use crate::bits::queue_pair::qpc;
use crate::bits::shared_receive::srqc;
use crate::configuration::Configuration;
use crate::queue::event::{Entry, EventQueue, EventQueueImageV1, Interrupts};

use capability::{ChosenImageV1, LOG_MAX_EQ};
use device_memory::DeviceMemory;
use doorbell::{Half, Halves};
use network::{Network, NetworkImageV1};
use uar::Uars;
use user_context::{UserContexts, UserContextsImageV1};
use user_memory::{UserMemory, UserMemoryImageV1};

/// Stage to which the driver has brought the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum Stage {
    /// Not enabled: nothing but ENABLE_HCA is understood.
    #[default]
    Disabled,
    /// Enabled: capabilities may be set.
    Enabled,
    /// Initialized: objects may be created.
    Initialized,
}

/// State of one function, kept by the engine beside its objects.
#[derive(Debug)]
pub struct FunctionState {
    pub(crate) configuration: Configuration,
    pub(crate) quota: Quota,
    interrupts: Box<dyn Interrupts>,
    pub(crate) events: EventQueues,
    pub(crate) uars: Uars,
    pub(crate) halves: Halves,
    pub(crate) stage: Stage,
    pub(crate) capabilities: Box<[u8; cmd_hca_cap::SIZE]>,
    pub(crate) atomic_capabilities: Box<[u8; atomic_caps::SIZE]>,
    pub(crate) contexts: Contexts,
    pub(crate) user_memory: UserMemory,
    pub(crate) user_contexts: UserContexts,
    pub(crate) network: Network,
    pub(crate) device_memory: DeviceMemory,
    /// Pages that the driver has given to firmware.
    pub(crate) firmware_pages: Vec<u64>,
    /// The version of the command interface that the driver has chosen (ISSI).
    pub(crate) interface: u32,
    unknown: HashSet<u32>,
}

/// Contexts that are saved, or looked for, while others wait.
pub(crate) const CONTEXTS_PER_STEP: usize = 256;

/// Contexts of objects as their creators gave them, for queries. In trees: a table that grows is
/// copied as a whole, while others wait.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    pub qps: BTreeMap<u32, Box<[u8; qpc::SIZE]>>,
    pub srqs: BTreeMap<u32, Box<[u8; srqc::SIZE]>>,
    pub dcts: BTreeMap<u32, Box<[u8; dctc::SIZE]>>,
}

/// Remains of a function's objects in its state. To drop it may take long.
#[derive(Debug)]
#[must_use]
pub struct Left {
    _events: EventQueues,
    _uars: Uars,
    _contexts: Contexts,
    _user_memory: UserMemory,
    _user_contexts: UserContexts,
    _network: Network,
}

impl FunctionState {
    /// State of a function that has just been powered on, whose guest may have as many objects as the
    /// quota says.
    #[must_use]
    pub fn new(
        configuration: Configuration,
        quota: Quota,
        interrupts: Box<dyn Interrupts>,
    ) -> Self {
        let configuration = configuration.checked();
        let mut state = Self {
            interrupts,
            events: EventQueues::default(),
            uars: Uars::new(&configuration),
            halves: Halves::default(),
            stage: Stage::Disabled,
            capabilities: Box::new([0; cmd_hca_cap::SIZE]),
            atomic_capabilities: Box::new([0; atomic_caps::SIZE]),
            contexts: Contexts::default(),
            user_memory: UserMemory::default(),
            user_contexts: UserContexts::default(),
            network: Network::default(),
            device_memory: DeviceMemory::default(),
            firmware_pages: Vec::new(),
            interface: 0,
            unknown: HashSet::new(),
            configuration,
            quota,
        };
        drop(state.reset());
        state
    }

    /// Back to the state of power-on. Interrupts stay connected.
    pub fn reset(&mut self) -> Left {
        self.stage = Stage::Disabled;
        self.interface = 0;
        self.firmware_pages = Vec::new();
        self.capabilities = capability::general(&self.configuration, &self.quota);
        self.atomic_capabilities = capability::atomic();
        self.drop_objects()
    }

    /// Forgets everything that objects have left here, and returns it.
    pub(crate) fn drop_objects(&mut self) -> Left {
        let uars = Uars::new(&self.configuration);
        self.device_memory = DeviceMemory::default();
        self.halves = Halves::default();
        Left {
            _events: std::mem::take(&mut self.events),
            _uars: std::mem::replace(&mut self.uars, uars),
            _contexts: std::mem::take(&mut self.contexts),
            _user_memory: std::mem::take(&mut self.user_memory),
            _user_contexts: std::mem::take(&mut self.user_contexts),
            _network: std::mem::take(&mut self.network),
        }
    }

    /// Finds a doorbell page that was rung since this was asked last, and returns
    /// the queue pair that the last doorbell in it was for. `area` is the memory
    /// behind [`Configuration::doorbell_area`]. Ask until there is none; but no
    /// more often than there are pages, since a guest may ring faster than that.
    ///
    /// This is a hint: queue pairs of one program overwrite each other's
    /// doorbells.
    #[inline]
    pub fn next_rung(&mut self, area: &VolatileSlice<'_>) -> Option<Qpn> {
        self.uars.next_rung(area)
    }

    /// Whether the driver has initialized the function.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.stage >= Stage::Initialized
    }

    /// Number of event queues.
    #[must_use]
    pub fn event_queues(&self) -> usize {
        self.events.slots.iter().flatten().count()
    }

    /// Whether something the driver asked for is unknown and has not been
    /// logged yet.
    pub(crate) fn first_unknown(&mut self, what: u32) -> bool {
        const MAX_LOGGED: usize = 4096;
        self.unknown.len() < MAX_LOGGED && self.unknown.insert(what)
    }

    /// An event queue, and what raises its interrupt.
    pub(crate) fn event_queue(
        &mut self,
        eqn: u8,
    ) -> Option<(&mut EventQueue, &mut dyn Interrupts)> {
        Some((self.events.get_mut(eqn)?, self.interrupts.as_mut()))
    }

    /// Tells the driver that completion queue `cqn` has entries.
    pub(crate) fn completion_event<D: Dma>(&mut self, dma: &D, eqn: u8, cqn: u32) {
        let entry = Entry::new(EventType::Completion).with(0x18, cqn);
        self.push(dma, eqn, &entry);
    }

    /// Whether the driver has a queue for such events.
    pub(crate) fn hears_of(&self, kind: EventType) -> bool {
        self.events.subscriber(kind).is_some()
    }

    /// Pages of the guest's memory that its firmware has.
    #[must_use]
    pub fn firmware_pages(&self) -> usize {
        self.firmware_pages.len()
    }

    /// Tells the driver about `entry`, if it has a queue for such events.
    pub(crate) fn event<D: Dma>(&mut self, dma: &D, entry: &Entry) {
        if let Some(eqn) = self.events.subscriber(entry.kind) {
            self.push(dma, eqn, entry);
        }
    }

    fn push<D: Dma>(&mut self, dma: &D, eqn: u8, entry: &Entry) {
        if let Some((queue, interrupts)) = self.event_queue(eqn)
            && let Err(error) = queue.push(dma, entry, interrupts)
        {
            tracing::debug!(eqn, "event dropped: {error}");
        }
    }
}

/// State of a function in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateImageV1 {
    stage: Stage,
    event_queues: Vec<EventQueueImageV1>,
    /// Doorbell pages in use, in the order in which they are looked at, and whether there ever were any.
    uars: Vec<u32>,
    any_uar: bool,
    #[serde(default)]
    halves: Vec<Half>,
    chosen: ChosenImageV1,
    qp_contexts: Vec<(u32, Vec<u8>)>,
    srq_contexts: Vec<(u32, Vec<u8>)>,
    #[serde(default)]
    dct_contexts: Vec<(u32, Vec<u8>)>,
    /// Values of counters when the function's only set was allocated. Later images have sets with the objects.
    #[serde(default, skip_serializing)]
    counter_set: Option<[u32; 10]>,
    #[serde(default)]
    user_memory: Vec<UserMemoryImageV1>,
    /// Allocated pieces of the device's memory: where in BAR 0, and how long, in bytes.
    #[serde(default)]
    device_memory: Vec<(u64, u64)>,
    #[serde(default)]
    user_contexts: UserContextsImageV1,
    #[serde(default)]
    network: NetworkImageV1,
    #[serde(default)]
    firmware_pages: Vec<u64>,
    #[serde(default)]
    interface: u32,
}

impl StateImageV1 {
    /// The function had one set of counters, for all of its queue pairs.
    pub(crate) const fn has_only_set(&self) -> bool {
        self.counter_set.is_some()
    }

    /// Queue pairs, targets of dynamic connections, and queues of network interfaces, that contexts are of.
    pub(crate) fn qp_numbers(&self) -> impl Iterator<Item = u32> {
        let contexts = self.qp_contexts.iter().chain(&self.dct_contexts);
        let numbers = contexts.map(|(number, _)| *number);
        numbers.chain(self.network.queues())
    }

    /// Shared receive queues that contexts are of.
    pub(crate) fn srq_numbers(&self) -> impl Iterator<Item = u32> {
        self.srq_contexts.iter().map(|(number, _)| *number)
    }
}

/// Saves further contexts; whether more may be left.
fn save_more<const N: usize>(
    contexts: &BTreeMap<u32, Box<[u8; N]>>,
    saved: &mut Vec<(u32, Vec<u8>)>,
) -> bool {
    let last = saved.last().map(|(number, _)| *number);
    let after = last.map_or(Bound::Unbounded, Bound::Excluded);
    let before = saved.len();
    let more = contexts
        .range((after, Bound::Unbounded))
        .take(CONTEXTS_PER_STEP);
    saved.extend(more.map(|(number, context)| (*number, context.to_vec())));
    saved.len() - before == CONTEXTS_PER_STEP
}

fn restore_contexts<const N: usize>(
    images: Vec<(u32, Vec<u8>)>,
) -> Result<BTreeMap<u32, Box<[u8; N]>>, String> {
    let restore = |(number, context): (u32, Vec<u8>)| {
        let len = context.len();
        let context = Box::<[u8; N]>::try_from(context.into_boxed_slice());
        let wrong = |_| format!("the context of object {number:#x} has {len} bytes and not {N}");
        Ok((number, context.map_err(wrong)?))
    };
    images.into_iter().map(restore).collect()
}

impl FunctionState {
    /// Its part of an image, without contexts.
    pub(crate) fn save(&self) -> StateImageV1 {
        let numbered = self.events.slots.iter().zip(1_u8..);
        StateImageV1 {
            stage: self.stage,
            event_queues: numbered
                .filter_map(|(queue, eqn)| Some(queue.as_ref()?.save(eqn)))
                .collect(),
            uars: self.uars.pages(),
            any_uar: self.uars.any(),
            halves: self.halves.save(),
            chosen: ChosenImageV1::save(&self.capabilities[..], &self.atomic_capabilities[..]),
            qp_contexts: Vec::new(),
            srq_contexts: Vec::new(),
            dct_contexts: Vec::new(),
            counter_set: None,
            user_memory: self.user_memory.save(),
            user_contexts: self.user_contexts.save(),
            network: self.network.save(),
            device_memory: self.device_memory.save(),
            firmware_pages: self.firmware_pages.clone(),
            interface: self.interface,
        }
    }

    /// Becomes the state of an image, after a reset. Contexts are restored when the objects are that
    /// they are of. Returns the bytes that event queues take of the host's memory, each.
    pub(crate) fn restore(&mut self, image: &StateImageV1) -> Result<Vec<usize>, String> {
        self.stage = image.stage;
        let mut held = Vec::new();
        for queue in &image.event_queues {
            let eqn = queue.eqn;
            let restored = EventQueue::restore(queue.clone(), self.configuration.vectors)?;
            let slot = eqn.checked_sub(1).map(usize::from);
            let slot = slot.and_then(|at| self.events.slots.get_mut(at));
            let free = slot.filter(|slot| slot.is_none());
            let Some(slot) = free else {
                return Err(format!("event queue {eqn} is there twice, or cannot be"));
            };
            held.push(restored.held());
            *slot = Some(restored);
        }
        self.uars.restore(&image.uars, image.any_uar)?;
        self.halves = Halves::restore(&image.halves);
        self.user_memory = UserMemory::restore(&image.user_memory, &mut held)?;
        self.user_contexts = UserContexts::restore(&image.user_contexts, &mut held)?;
        self.network = Network::restore(&image.network, &mut held)?;
        self.device_memory = DeviceMemory::restore(&image.device_memory, &self.configuration)?;
        self.firmware_pages.clone_from(&image.firmware_pages);
        self.interface = image.interface.min(1);
        let (general, atomic) = (
            &mut self.capabilities[..],
            &mut self.atomic_capabilities[..],
        );
        image.chosen.restore(general, atomic)?;
        Ok(held)
    }

    /// Adds further contexts to an image, some at a time. Whether more are left.
    pub(crate) fn save_contexts(&self, image: &mut StateImageV1) -> bool {
        save_more(&self.contexts.qps, &mut image.qp_contexts)
            || save_more(&self.contexts.srqs, &mut image.srq_contexts)
            || save_more(&self.contexts.dcts, &mut image.dct_contexts)
    }

    /// Takes contexts over.
    pub(crate) fn take_contexts(&mut self, contexts: Contexts) {
        self.contexts = contexts;
    }
}

impl Contexts {
    /// The contexts of an image. There has to be a queue pair, or a shared receive queue, of each number.
    pub(crate) fn restore(
        image: StateImageV1,
        qps: impl Fn(u32) -> bool,
        srqs: impl Fn(u32) -> bool,
    ) -> Result<Self, String> {
        let queue = image.network.queues().find(|number| !qps(*number));
        let contexts = Self {
            qps: restore_contexts(image.qp_contexts)?,
            srqs: restore_contexts(image.srq_contexts)?,
            dcts: restore_contexts(image.dct_contexts)?,
        };
        let mut qp_numbers = contexts.qps.keys().chain(contexts.dcts.keys());
        let stray = qp_numbers.find(|number| !qps(**number));
        let stray = stray.or(queue.as_ref());
        let stray = stray.or_else(|| contexts.srqs.keys().find(|number| !srqs(**number)));
        match stray {
            None => Ok(contexts),
            Some(number) => Err(format!(
                "there is a context of {number:#x}, and no such object"
            )),
        }
    }
}

/// Event queues by number. Numbers begin at one.
#[derive(Debug)]
pub(crate) struct EventQueues {
    slots: Vec<Option<EventQueue>>,
}

impl Default for EventQueues {
    fn default() -> Self {
        Self {
            slots: std::iter::repeat_with(|| None)
                .take(1 << LOG_MAX_EQ)
                .collect(),
        }
    }
}

impl EventQueues {
    /// Adds a queue and returns its number, if there is room.
    pub fn insert(&mut self, queue: EventQueue) -> Option<u8> {
        let free = self.slots.iter().position(Option::is_none)?;
        self.slots[free] = Some(queue);
        Some(free as u8 + 1)
    }

    /// Removes a queue.
    pub fn remove(&mut self, eqn: u8) -> Option<EventQueue> {
        self.slots.get_mut(usize::from(eqn.checked_sub(1)?))?.take()
    }

    /// The queue with this number.
    pub fn get(&self, eqn: u8) -> Option<&EventQueue> {
        self.slots.get(usize::from(eqn.checked_sub(1)?))?.as_ref()
    }

    fn get_mut(&mut self, eqn: u8) -> Option<&mut EventQueue> {
        self.slots
            .get_mut(usize::from(eqn.checked_sub(1)?))?
            .as_mut()
    }

    /// The queue that events of a kind go to.
    pub fn subscriber(&self, kind: EventType) -> Option<u8> {
        let wants = |slot: &Option<EventQueue>| {
            slot.as_ref()
                .is_some_and(|eq| eq.mask >> kind.code() & 1 != 0)
        };
        self.slots.iter().position(wants).map(|at| at as u8 + 1)
    }
}
