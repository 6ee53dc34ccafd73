//! The subnet in operation, shared by the thread that moves packets, the engines' and the devices'
//! threads, and management: the locks around [`Core`].
//!
//! | lock | guards | held |
//! |---|---|---|
//! | `managers` | the embedded subnet managers | by who manages, for seconds in large subnets; taken before `core`, never with the engine in hand |
//! | `core` | [`Core`], and the snapshots that were published | shortly; never while a manager works or a view is made |
//! | `inputs`, `outputs`, `paths`, `wrong_keys`, `held`, `links` | a queue or table each | for one entry, or while all are taken; also under `core`; no other lock is taken under them |
//! | one per guest in `filter` | its rules and accounts | for one packet; also under `core` |
//! | those of `views` | one view each | while a view is made, or a question is answered; never under `core` |
//!
//! To resolve a path, or to ask about a port, takes none of the first two: a [`Snapshot`] has what they
//! need, of the subnet as the last change has left it. The holder of the core never waits for the engine:
//! the guests' outputs are put into a queue, and handed to the engine after the lock is gone. Packets to
//! and from a manager are taken and given back a window at a time, and the subnet is free meanwhile.

mod congestion;
mod engine;
mod function;
mod guest;
mod links;
mod management;
mod path_numbers;
mod programs;
mod snapshot;
mod tenants;
mod views;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use fabric::{Fabric, PortRef, Tap};
use hca::{Clock, Envelope, PortView, Subnet, TrafficCounters, VfId, WrongKey};
use parking_lot::{Mutex, RwLock};
use wire::{Lid, MadPacket};

use crate::core::Core;
use crate::core::output::{ForGuest, Output, Outputs};
use crate::core::subnets::{ClusterStatus, Mail, Managers, note_presences};
use crate::environment::{Environment, Error};
use crate::filter::MadFilter;
use crate::layout::Layout;
use crate::model::{Bandwidth, Model};
use crate::plan::Plan;
use congestion::Held;
use engine::EngineSubnet;
pub use function::{Function, PortFacts};
use links::SharedLinks;
use path_numbers::PathNumbers;
use snapshot::{Change, Published, Snapshot};
use tenants::Tenants;
use views::Views;

/// Inputs that are taken before the fabric works.
const MAX_INPUTS_PER_POLL: usize = 1024;

/// Something from outside, for [`VSwitch::handle`].
#[derive(Debug)]
pub enum Input {
    /// A guest's packet, which the filter has let pass by its header.
    Packet(VfId, Box<MadPacket>),
    /// A packet of [`ForGuest::Packet`] for which the function has no queue pair.
    Unclaimed(VfId, Box<MadPacket>),
    /// A VMM has connected to a VF, or has gone.
    Presence(VfId, bool),
    /// A VF was reset, or its VMM is gone: what its guest has had entered is to be taken back.
    Reset(VfId),
}

/// The subnet, shared by its managers and its users.
///
/// Any thread may call [`VSwitch::handle`] with an event. It calls the waker when there is something to do; then, or
/// at [`VSwitch::deadline`], somebody calls [`VSwitch::poll`], and carries out what [`VSwitch::poll_output`] and
/// [`VSwitch::poll_guest`] give.
#[derive(Debug)]
pub struct VSwitch {
    layout: Arc<Layout>,
    clock: Arc<dyn Clock>,
    managers: Mutex<Managers>,
    core: RwLock<Published>,
    /// Part of the core: the tables that guests and engines need.
    snapshot: ArcSwap<Snapshot>,
    /// Generation of the snapshot.
    generation: Arc<AtomicU64>,
    /// The views that guests of clusters have of the subnet.
    views: Views,
    filter: MadFilter,
    paths: Mutex<PathNumbers>,
    /// The last packet with a wrong key that each port dropped and the subnet manager does not know of
    /// yet: however many there are, it learns of one at a time.
    wrong_keys: Mutex<HashMap<PortRef, (VfId, WrongKey, Envelope)>>,
    /// The links, where they share their bandwidth among lanes.
    links: Option<Arc<SharedLinks>>,
    /// Ports that have begun to hold back, as their logs do not know yet.
    held: Held,
    /// Not bounded, since the filter bounds what each guest puts into it.
    inputs: Mutex<VecDeque<Input>>,
    outputs: Mutex<Outputs>,
    waker: OnceLock<Waker>,
    /// The waker was called, and nobody has looked since.
    woken: AtomicBool,
    /// By VF: an [`Input::Reset`] waits.
    resets: Vec<AtomicBool>,
}

impl VSwitch {
    /// The subnets of `model`, not yet managed. VFs are numbered in the order
    /// of [`Model::vfs`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(model: &Model, plan: &Plan, environment: Environment) -> Result<Arc<Self>, Error> {
        let (core, managers) = Core::new(model, plan, &environment)?;
        let layout = Arc::clone(&core.layout);
        Ok(Arc::new(Self {
            resets: layout.ports.iter().map(|_| AtomicBool::default()).collect(),
            managers: Mutex::new(managers),
            snapshot: ArcSwap::from_pointee(Snapshot::of(&core)),
            generation: Arc::new(AtomicU64::new(core.fabric.generation())),
            core: RwLock::new(Published::new(core)),
            paths: Mutex::default(),
            views: Views::new(model, &environment.clock),
            wrong_keys: Mutex::default(),
            filter: MadFilter::new(model),
            held: Held::default(),
            links: (model.fabric.bandwidth == Bandwidth::Model).then(Arc::default),
            clock: environment.clock,
            layout,
            inputs: Mutex::default(),
            outputs: Mutex::default(),
            waker: OnceLock::new(),
            woken: AtomicBool::new(false),
        }))
    }

    /// Says who is called when [`VSwitch::poll`] has something to do. The first one stays.
    pub fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Returns the subnet as the engine sees it. The engine's thread calls `waker` instead of the one of
    /// [`VSwitch::set_waker`]: it may leave the wake-up to other threads, which then call [`VSwitch::wake_now`].
    #[must_use]
    pub fn for_engine(self: &Arc<Self>, waker: Waker) -> Box<dyn Subnet> {
        Box::new(EngineSubnet {
            vswitch: Arc::clone(self),
            waker,
        })
    }

    /// Takes something in. It is looked at by [`VSwitch::poll`].
    pub fn handle(&self, input: Input) {
        if let Input::Reset(vf) = input {
            let waits = self.resets.get(usize::from(vf.0));
            if waits.is_none_or(|waits| waits.swap(true, Ordering::AcqRel)) {
                return;
            }
        }
        self.inputs.lock().push_back(input);
        self.wake();
    }

    /// Takes in what a guest sends, and has [`VSwitch::poll`] called by `waker`.
    pub(crate) fn take_packet(&self, from: VfId, packet: MadPacket, waker: &Waker) {
        let packet = Input::Packet(from, Box::new(packet));
        self.inputs.lock().push_back(packet);
        self.wake_by(waker);
    }

    /// Has [`VSwitch::poll`] called.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            self.wake_by(waker);
        }
    }

    /// Has [`VSwitch::poll`] called by this waker.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            waker.wake_by_ref();
        }
    }

    /// Calls the waker in place of one of [`VSwitch::for_engine`] that was called before.
    pub fn wake_now(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Looks at what was taken in, has the subnet managers do what they can, and moves packets until the
    /// fabric rests. While a manager works, others find paths and ask about ports.
    pub fn poll(&self) {
        self.woken.store(false, Ordering::Release);
        let inputs: Vec<Input> = {
            let mut inputs = self.inputs.lock();
            let some = inputs.len().min(MAX_INPUTS_PER_POLL);
            if inputs.len() > MAX_INPUTS_PER_POLL {
                self.wake();
            }
            inputs.drain(..some).collect()
        };
        let mut answers = Vec::new();
        for input in inputs {
            match input {
                Input::Packet(vf, packet) => {
                    let packets = self.outbound(vf, *packet).into_iter();
                    answers.extend(packets.map(|packet| (vf, packet)));
                }
                Input::Unclaimed(vf, packet) => self.change().answer_unclaimed(vf, *packet),
                Input::Presence(vf, present) => {
                    if !present && self.read().registrations.has_errands() {
                        // A port that has no LID any more gets no answer.
                        self.settle();
                    }
                    if self.layout.has_dynamic_lid(vf) {
                        let managers = &mut *self.managers.lock();
                        self.change().change_presence(managers, vf, present);
                    }
                }
                Input::Reset(vf) => {
                    if let Some(waits) = self.resets.get(usize::from(vf.0)) {
                        waits.store(false, Ordering::Release);
                    }
                    self.change().depart(vf);
                    Tenants(self).reset(vf);
                }
            }
        }
        self.settle();
        let mut outputs = self.outputs.lock();
        for (vf, packet) in answers {
            outputs.put_guest(ForGuest::Packet(vf, Box::new(packet)));
        }
    }

    /// When to call [`VSwitch::poll`] at the latest, on the clock.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.read().wakes
    }

    /// The next output for anybody but guests.
    #[must_use]
    pub fn poll_output(&self) -> Option<Output> {
        self.outputs.lock().poll()
    }

    /// Whether [`VSwitch::poll_guest`] has something.
    #[must_use]
    pub fn has_guest_output(&self) -> bool {
        self.outputs.lock().has_guest()
    }

    /// The next output for a guest. To be called by who holds the engine and hands it out: so it stays in
    /// order, whoever does that.
    #[must_use]
    pub fn poll_guest(&self) -> Option<ForGuest> {
        self.outputs.lock().poll_guest()
    }

    /// The port of a function.
    #[must_use]
    pub fn port(&self, vf: VfId) -> Option<PortRef> {
        self.layout.port(vf)
    }

    /// The port of a function, as its device asks about it; `None` where there is no such function.
    #[must_use]
    pub fn function(self: &Arc<Self>, vf: VfId) -> Option<Function> {
        Some(Function {
            vswitch: Arc::clone(self),
            vf,
            port: self.port(vf)?,
        })
    }

    /// The functions that share ports, port by port.
    #[must_use]
    pub fn sharers(&self) -> Vec<Vec<VfId>> {
        let ports = self.layout.sharing.ports();
        ports.map(|(_, functions)| functions.to_vec()).collect()
    }

    /// The ports of the subnet managers' hosts.
    #[must_use]
    pub fn manager_ports(&self) -> &[PortRef] {
        &self.layout.manager_ports
    }

    /// The LID of a function's port in the subnet, whatever its guest is told.
    #[must_use]
    pub fn physical_lid(&self, vf: VfId) -> Lid {
        let port = self.port(vf);
        port.map_or(Lid::NONE, |port| self.snapshot().physical_lid(vf, port))
    }

    /// Number that rises with every change of the subnet that could alter a path, once the change is
    /// to be seen.
    #[must_use]
    pub fn generation(&self) -> &AtomicU64 {
        &self.generation
    }

    /// Where the data plane counts a function's traffic.
    pub fn count_traffic(&self, vf: VfId, counters: Arc<TrafficCounters>) {
        self.change().count_traffic(vf, counters);
    }

    /// Sets the ports whose packets [`Output::Tapped`] shows.
    pub fn set_tap(&self, tap: Option<Tap>) {
        self.change().fabric.set_tap(tap);
    }

    /// The subnet, to be changed, with the counters of the data plane up to date.
    fn up_to_date(&self) -> Change<'_> {
        let mut core = self.change();
        let counted = self.paths.lock().counted();
        core.take_traffic(counted, self.now());
        core
    }

    /// Looks at the fabric, with the counters of the data plane up to date. Others may look meanwhile,
    /// however long it takes.
    pub fn inspect<R>(&self, look: impl FnOnce(&Fabric) -> R) -> R {
        look(&self.up_to_date().downgrade().core.fabric)
    }

    /// Has the logs of nodes know of congestion until now.
    fn take_congestion(&self, core: &mut Core) {
        if let Some(links) = &self.links {
            core.take_congestion(links.take_marks(), self.held.take());
        }
    }

    /// Does something with the subnet, with the counters and logs of the data plane up to date.
    fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.up_to_date();
        self.take_congestion(&mut core);
        act(&mut core)
    }

    /// Moves packets until the fabric rests.
    fn settle(&self) {
        let now = self.now();
        let managers = &mut *self.managers.lock();
        self.with(|core| {
            let wrong = std::mem::take(&mut *self.wrong_keys.lock());
            core.take_wrong_keys(wrong);
        });
        let (next, mut core) = self.manage(managers, now);
        core.set_wakes(next);
        note_presences(&mut core.subnets, managers);
        let Core {
            subnets, outputs, ..
        } = &mut *core;
        for (index, (subnet, manager)) in subnets.iter_mut().zip(&*managers).enumerate() {
            if let Some(manager) = manager {
                subnet.after_sweep(index, manager, outputs);
            }
        }
        drop(core);
        self.renew_views();
        if let Some(due) = Tenants(self).tend(managers) {
            let mut core = self.change();
            let wakes = core.wakes().map_or(due, |wakes| wakes.min(due));
            core.set_wakes(Some(wakes));
        }
    }

    /// Has the embedded managers do what they can, and moves packets until the fabric rests; when
    /// there will be something to do again, and the subnet in which nothing is left to do. While a
    /// manager works, and between windows of packets, the subnet is anybody's.
    fn manage(&self, managers: &mut Managers, now: Duration) -> (Option<Duration>, Change<'_>) {
        loop {
            let mut next = None;
            for (index, manager) in managers.iter_mut().enumerate() {
                let Some(manager) = manager else {
                    continue;
                };
                let mut mail = Mail::default();
                std::mem::swap(
                    &mut mail.received,
                    &mut self.change().subnets[index].received,
                );
                let due = manager.poll(now, &mut mail);
                next = next.into_iter().chain(due).min();
                let Core {
                    fabric, subnets, ..
                } = &mut *self.change();
                for packet in mail.sent {
                    fabric.inject(subnets[index].port, packet);
                }
            }
            let mut core = self.change();
            let moved = core.turn(managers, now);
            // Others may have moved packets for a manager meanwhile.
            if !moved && core.has_no_mail() {
                let next = next.into_iter().chain(core.deadline()).min();
                return (next, core);
            }
            core.hand_over();
        }
    }

    /// The state of clusters that have service levels of their own, or may be managed by their VMs.
    pub fn cluster_status(&self) -> Vec<ClusterStatus> {
        Tenants(self).status()
    }

    /// The port of a function as the engine is to know it.
    #[must_use]
    pub fn port_view(&self, vf: VfId) -> PortView {
        match self.port(vf) {
            Some(port) => self.snapshot().view(vf, port),
            None => PortView::default(),
        }
    }

    /// Time on the clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now())
    }
}
