//! A function with objects that an engine has.

pub(crate) mod firmware;
mod image;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hca::image::{Restoring, Saving};
use hca::{Clock, Dma, Engine, VfId};
use wire::Qpn;
use wire::vendor::FIRMWARE;

use crate::backend::{Backend, DoorbellPages, Registers};
use crate::bits::command::{AnyOpcode, alloc_pd_out as head_out, create_eq_in as head_in};
use crate::bits::event::EventType;
use crate::command::function::counter::ONLY_SET;
use crate::command::function::port::PortCommands;
use crate::command::memory::user_memory::resolved;
use crate::command::request::Head;
use crate::command::rule::Class;
use crate::command::{Command, Commands, Continuation};
use crate::configuration::Configuration;
use crate::function::image::{RestoreError, SoftwareImageV1};
use crate::port::Port;
use crate::queue::event::Entry;
use crate::queue_format::Mlx5;
use crate::refusal::{Outcome, Refusal, UNKNOWN};
use crate::state::doorbell::Doorbell;
use crate::state::{CONTEXTS_PER_STEP, Contexts};
use firmware::{FirmwareFaults, Late};

/// Ticks of the health counter are 2^24 ns, about 17 ms.
const HEALTH_SHIFT: u32 = 24;
/// Bytes of objects that are not worth the trouble of giving the heap's pages back.
const LITTLE: usize = 2 << 20;

/// When the work that an access leaves is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// When the engine runs next.
    Later,
    /// The function gets a turn at once, unless it has work from before.
    Now,
}

/// Where a function lives: an engine, which it shares with others, and the memory of its guest.
pub trait Host: Send {
    /// The guest's memory, as the engine reaches it.
    type Dma: Dma + 'static;
    /// As [`Backend::Mapping`].
    type Mapping;
    /// As [`Backend::Error`].
    type Error;

    /// The same memory, to reach it without the engine.
    fn dma(&self) -> &Self::Dma;

    /// As [`Backend::map`].
    ///
    /// # Errors
    /// As there.
    fn map(&mut self, mapping: Self::Mapping) -> Result<(), Self::Error>;

    /// As [`Backend::unmap`].
    ///
    /// # Errors
    /// As there.
    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), Self::Error>;

    /// As [`Backend::unmap_all`].
    fn unmap_all(&mut self);

    /// Does something with the engine, be it by the engine's own thread.
    fn with<R, A>(&self, turn: Turn, act: A) -> R
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<Mlx5<Self::Dma>>) -> R + Send + 'static;

    /// Takes away what the function had before it was reset ([`Engine::clear_away`]), with others at the
    /// engine between.
    fn clear_away(&self);

    /// The function has lost many objects: memory may go back to the system.
    fn release_memory(&self);
}

/// Parts of a [`Software`].
pub struct Parts<H> {
    /// Where it lives.
    pub host: H,
    /// Its number in the engine.
    pub vf: VfId,
    /// Its configuration; as given to its [`FunctionState`](crate::FunctionState).
    pub configuration: Configuration,
    /// Its doorbell pages, where they are memory.
    pub doorbell_pages: Option<DoorbellPages>,
    /// The engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Its port in the subnet.
    pub port: Box<dyn Port + Send>,
}

impl<H> std::fmt::Debug for Parts<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("vf", &self.vf)
            .field("configuration", &self.configuration)
            .finish_non_exhaustive()
    }
}

/// The backend of a function that is software: commands become verbs of an engine.
#[derive(Debug)]
pub struct Software<H> {
    parts: Parts<H>,
    /// The command that was executed last, and its reply, until it is taken.
    done: Option<u32>,
    reply: Vec<u8>,
    faults: Arc<FirmwareFaults>,
    late: Late,
}

/// Contents of the initialization segment of such a function at time `now` of its clock.
pub(crate) fn registers(now: u64) -> Registers {
    Registers {
        firmware: FIRMWARE,
        initializing: false,
        // The device's frequency is 1 GHz.
        timer: now,
        health_counter: (now >> HEALTH_SHIFT) as u32 & 0x00ff_ffff,
        health: [0; 64],
    }
}

impl<H: Host> Software<H> {
    /// Puts one together.
    #[must_use]
    pub fn new(parts: Parts<H>) -> Self {
        let configuration = parts.configuration.checked();
        Self {
            parts: Parts {
                configuration,
                ..parts
            },
            done: None,
            reply: Vec::new(),
            faults: Arc::default(),
            late: Late::default(),
        }
    }

    /// Faults of its firmware, to change them.
    #[must_use]
    pub fn faults(&self) -> Arc<FirmwareFaults> {
        Arc::clone(&self.faults)
    }

    /// Time until [`Backend::poll_reply`] has something to return; `None` where it has nothing to wait
    /// for. [`Backend::ready`] does not tell of it.
    #[must_use]
    pub fn next_reply(&self) -> Option<Duration> {
        let due = self.late.due()?;
        Some(Duration::from_nanos(
            due.saturating_sub(self.parts.clock.now()),
        ))
    }

    /// Has [`Backend::poll_reply`] return at once what it would return later.
    pub fn hasten(&mut self) {
        self.late.hasten();
    }

    /// Where it lives.
    #[must_use]
    pub const fn host(&self) -> &H {
        &self.parts.host
    }

    /// The same, to let the function rest and to log what it writes.
    pub const fn host_mut(&mut self) -> &mut H {
        &mut self.parts.host
    }

    /// Its port.
    pub fn port_mut(&mut self) -> &mut (dyn Port + Send) {
        self.parts.port.as_mut()
    }

    pub(crate) fn save(&self) -> SoftwareImageV1<H::Dma> {
        let Parts { host, vf, port, .. } = &self.parts;
        let vf = *vf;
        // In parts, so that others get the engine between them.
        let mut state = host.with(Turn::Later, move |engine| engine.vf(vf).face().save());
        let mut more = true;
        while more {
            (state, more) = host.with(Turn::Later, move |engine| {
                let more = engine.vf(vf).face().save_contexts(&mut state);
                (state, more)
            });
        }
        let mut saving = Saving::default();
        let mut more = true;
        while more {
            (saving, more) = host.with(Turn::Later, move |engine| {
                let more = engine.save_part(vf, &mut saving);
                (saving, more)
            });
        }
        SoftwareImageV1 {
            state,
            objects: saving.finish(),
            node_description: port.node_description().to_vec(),
            capability_mask: port.attributes().capability_mask,
        }
    }

    /// Takes over an image, after a reset.
    pub(crate) fn restore(&mut self, image: SoftwareImageV1<H::Dma>) -> Result<(), RestoreError> {
        let Parts { host, vf, port, .. } = &mut self.parts;
        let vf = *vf;
        let description = <[u8; 64]>::try_from(image.node_description)
            .map_err(|_| RestoreError::Invalid("a node description has 64 bytes".into()))?;
        let SoftwareImageV1 {
            state, mut objects, ..
        } = image;
        if state.has_only_set() {
            objects.count_all_in(ONLY_SET);
        }
        // In parts, so that others get the engine between them.
        let mut restoring = Restoring::new(objects)?;
        let state = host.with(Turn::Later, move |engine| {
            let held = engine.vf_mut(vf).face_mut().0.restore(&state);
            for held in held.map_err(RestoreError::Invalid)? {
                let taken = engine.vf_mut(vf).take_memory(held);
                taken.map_err(|error| RestoreError::Invalid(format!("event queues: {error}")))?;
            }
            Ok::<_, RestoreError>(state)
        })?;
        let mut more = true;
        while more {
            (restoring, more) = host.with(Turn::Later, move |engine| {
                let more = engine.restore_part(vf, &mut restoring)?;
                Ok::<_, RestoreError>((restoring, more))
            })?;
        }
        let (mut qps, mut srqs) = (BTreeSet::new(), BTreeSet::new());
        for numbers in state
            .qp_numbers()
            .collect::<Vec<u32>>()
            .chunks(CONTEXTS_PER_STEP)
        {
            let mut numbers = numbers.to_vec();
            qps.extend(host.with(Turn::Later, move |engine| {
                numbers.retain(|number| {
                    let number = Qpn::new(*number);
                    engine.query_qp(vf, number).is_ok() || engine.query_dct(vf, number).is_ok()
                });
                numbers
            }));
        }
        for numbers in state
            .srq_numbers()
            .collect::<Vec<u32>>()
            .chunks(CONTEXTS_PER_STEP)
        {
            let mut numbers = numbers.to_vec();
            srqs.extend(host.with(Turn::Later, move |engine| {
                numbers.retain(|number| engine.verbs(vf).srq_mut(*number).is_ok());
                numbers
            }));
        }
        let contexts = Contexts::restore(state, |it| qps.contains(&it), |it| srqs.contains(&it));
        let contexts = contexts.map_err(RestoreError::Invalid)?;
        host.with(Turn::Later, move |engine| {
            engine.vf_mut(vf).face_mut().0.take_contexts(contexts)
        });
        if port.node_description() != description {
            port.set_node_description(&description);
        }
        let writable = port.attributes().capability_mask_writable;
        port.set_capability_mask(image.capability_mask & writable, writable);
        Ok(())
    }

    /// Executes a command: parses it without the engine, and carries it out by the port or with the engine, in as
    /// many turns as it takes.
    fn execute(&mut self, request: &mut Vec<u8>, reply: &mut Vec<u8>) -> Outcome {
        let vf = self.parts.vf;
        let mut head = Head::read(request, &self.parts.configuration).inspect_err(|_| {
            let code = head_in::OPCODE.get(request);
            self.parts.host.with(Turn::Now, move |engine| {
                Commands { engine, vf }.log_unknown(code)
            });
        })?;
        if head.names_memory {
            self.resolve(&mut head, request)?;
        }
        let mut command = Command::parse(&head, request, &self.parts.configuration);
        if head.rule.class == Class::Port {
            return self.act_at_port(head, command, reply);
        }
        let resets = head.rule.opcode == AnyOpcode::DisableHca;
        loop {
            let mut answer = std::mem::take(reply);
            let turn = self.parts.host.with(Turn::Now, move |engine| {
                let before = engine.vf(vf).memory_taken();
                let rest = Commands { engine, vf }.act(&head, command, &mut answer);
                Answer {
                    rest,
                    was_reset: engine.vf(vf).has_remains(),
                    lost: has_lost_much(engine, vf, before),
                    buffers: (head, answer),
                }
            });
            (head, *reply) = turn.buffers;
            if turn.was_reset {
                self.parts.host.clear_away();
            }
            if resets && turn.rest.is_ok() {
                self.parts.port.reset();
            }
            if turn.lost {
                self.parts.host.release_memory();
            }
            match turn.rest? {
                Some(rest) => command = Ok(rest),
                None => return Ok(()),
            }
        }
    }

    /// Replaces the memory objects that a request names by their pages.
    fn resolve(&self, head: &mut Head, request: &mut Vec<u8>) -> Outcome {
        let (vf, asked) = (self.parts.vf, request.clone());
        let (rule, uid) = (head.rule, head.uid);
        let resolve = move |engine: &mut Engine<Mlx5<H::Dma>>| {
            let state = engine.vf(vf).face();
            let may = |number| uid == 0 || state.user_contexts.has_memory(uid, number);
            resolved(&state.user_memory, rule, asked, may)
        };
        (*request, head.named) = self.parts.host.with(Turn::Later, resolve)?;
        Ok(())
    }

    /// Carries a command out by the port. The engine is asked only whether the function may have it.
    fn act_at_port(
        &mut self,
        head: Head,
        command: Result<Command<H::Dma>, Refusal>,
        reply: &mut [u8],
    ) -> Outcome {
        let Parts { host, vf, port, .. } = &mut self.parts;
        let vf = *vf;
        host.with(Turn::Later, move |engine| head.admit(engine.vf(vf).face()))?;
        let Command::Port(command) = command? else {
            return Err(UNKNOWN);
        };
        let turns_up = command.turns_up();
        PortCommands(port.as_mut()).act(command, reply)?;
        if turns_up {
            host.with(Turn::Now, move |engine| {
                Commands { engine, vf }.port_is_up()
            });
        }
        Ok(())
    }
}

/// Outcome of a command's turn.
struct Answer<D: Dma + 'static> {
    rest: Continuation<D>,
    /// The command's head and its reply.
    buffers: (Head, Vec<u8>),
    /// The function was reset.
    was_reset: bool,
    /// As [`has_lost_much`].
    lost: bool,
}

/// Whether a function that had taken `before` bytes has lost so many objects that it is worth giving
/// their memory back. To be done without any lock: the heap keeps what lies below lists that others
/// use, too.
fn has_lost_much<D: Dma + 'static>(engine: &Engine<Mlx5<D>>, vf: VfId, before: usize) -> bool {
    before > LITTLE && engine.vf(vf).memory_taken() < LITTLE / 2
}

impl<H: Host> Backend for Software<H> {
    type Dma = H::Dma;
    type Mapping = H::Mapping;
    type Error = H::Error;

    fn configuration(&self) -> Configuration {
        self.parts.configuration
    }

    fn registers(&self) -> Registers {
        registers(self.parts.clock.now())
    }

    fn doorbell_pages(&self) -> Option<DoorbellPages> {
        self.parts.doorbell_pages.clone()
    }

    fn dma(&self) -> &H::Dma {
        self.parts.host.dma()
    }

    fn map(&mut self, mapping: H::Mapping) -> Result<(), H::Error> {
        self.parts.host.map(mapping)
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), H::Error> {
        self.parts.host.unmap(addr, size)
    }

    fn unmap_all(&mut self) {
        self.parts.host.unmap_all();
    }

    fn submit(&mut self, slot: u32, request: &mut Vec<u8>, reply_len: usize) {
        let mut reply = std::mem::take(&mut self.reply);
        reply.clear();
        reply.resize(reply_len, 0);
        if let Err(refusal) = self.execute(request, &mut reply) {
            let opcode = head_in::OPCODE.get(request);
            let Refusal { status, reason } = refusal;
            tracing::debug!(?status, "command {opcode:#05x} refused: {reason}");
            #[cfg(test)]
            crate::command::refusals::check(opcode as u16, refusal);
            reply.fill(0);
            head_out::STATUS.set(&mut reply, u32::from(refusal.status.code()));
        }
        if self.faults.loses() {
            return;
        }
        let longest = self.faults.delay().as_nanos() as u64;
        if longest > 0 {
            let now = self.parts.clock.now();
            self.late.keep(now, longest, slot, reply);
            return;
        }
        self.reply = reply;
        self.done = Some(slot);
    }

    fn poll_reply(&mut self, reply: &mut Vec<u8>) -> Option<u32> {
        if let Some(done) = self.done.take() {
            std::mem::swap(reply, &mut self.reply);
            return Some(done);
        }
        let (slot, late) = self.late.take(self.parts.clock.now())?;
        *reply = late;
        Some(slot)
    }

    fn has_command_events(&self) -> bool {
        let vf = self.parts.vf;
        let look = move |engine: &mut Engine<Mlx5<H::Dma>>| {
            engine.vf(vf).face().hears_of(EventType::Command)
        };
        self.parts.host.with(Turn::Later, look)
    }

    fn command_event(&mut self, entries: u32) {
        let vf = self.parts.vf;
        self.parts.host.with(Turn::Later, move |engine| {
            let (state, dma) = engine.vf_mut(vf).face_mut();
            state.event(dma, &Entry::new(EventType::Command).with(0, entries));
        });
    }

    fn doorbell(&mut self, uar: u32, offset: usize, data: &[u8]) {
        let vf = self.parts.vf;
        if let Some(doorbell) = Doorbell::new(offset, data) {
            self.parts.host.with(Turn::Now, move |engine| {
                Commands { engine, vf }.doorbell(uar, doorbell)
            });
        }
    }

    fn reset(&mut self) {
        let Parts { host, vf, port, .. } = &mut self.parts;
        let vf = *vf;
        let lost = host.with(Turn::Later, move |engine| {
            let before = engine.vf(vf).memory_taken();
            Commands { engine, vf }.reset_objects();
            has_lost_much(engine, vf, before)
        });
        port.reset();
        host.clear_away();
        if lost {
            host.release_memory();
        }
        self.done = None;
        self.late.clear();
    }
}
