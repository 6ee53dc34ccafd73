//! The subnet in operation: the fabric, the embedded subnet managers, and what stands between them and
//! the guests.
//!
//! The fabric has a lock of its own. Who resolves a path or asks about a port does not take it: a
//! [`Snapshot`] has what they need, of the subnet as the last change has left it. Who holds the lock never
//! waits for the engine: what the fabric has for the guests is put into a queue, and handed to the engine
//! after the lock is gone. Nobody holds it for long.
//!
//! The subnet managers have another lock, which is taken before the fabric's and
//! never by who holds the engine: a manager sweeps and routes, which takes
//! seconds in large subnets, while the fabric is free. Packets to and from it
//! are taken and given back a window at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwap;
use fabric::{Fabric, Output as FromFabric, Owner, PortEvent, PortRef, Tap, TopologyError};
use hca::{Clock, Envelope, PortView, Subnet, TrafficCounters, VfId, WrongKey};
use parking_lot::{Mutex, RwLock};
use subnet_manager::{Partitions, RoutingEngine};
use wire::attribute::KeyViolation;
use wire::{Guid, Lid, MadPacket};

use crate::cluster::{Clusters, Tables};
use crate::data::{EngineSubnet, Held, PathCounters, PathNumbers, PortCounters, SharedLinks};
use crate::guest::{MadFilter, Registrations};
use crate::host_programs::Hosts;
use crate::managers::{Mail, ManagedSubnet, Managers, settings};
use crate::migration::Moving;
use crate::model::{Bandwidth, Manager, Model};
use crate::output::{ForGuest, Output, Outputs};
use crate::places::{PlacedVf, places};
use crate::plan::Plan;
use crate::shared_port::{SharedPorts, Sharing};
use crate::snapshot::{Change, Publications, Snapshot, view};
use crate::view::Views;

/// Inputs that are taken before the fabric works.
const BATCH: usize = 1024;

/// Why there is no subnet.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes do not make a fabric.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The settings of a subnet manager are wrong.
    #[error(transparent)]
    Manager(#[from] subnet_manager::ConfigError),
}

/// Computes the paths of a subnet manager with these settings.
pub type Routing = Box<dyn Fn(&Manager) -> Box<dyn RoutingEngine>>;

/// What a vSwitch does not make itself.
pub struct Environment {
    /// What times are taken from.
    pub clock: Arc<dyn Clock>,
    /// Draws management keys: numbers that nobody can guess.
    pub keys: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The partitions of a partition configuration file.
    pub partitions: Option<Partitions>,
    /// By subnet, the LIDs of an earlier life.
    pub known_lids: Vec<BTreeMap<Guid, Lid>>,
    /// VMs that run from the beginning, where VMs have LIDs only then.
    pub running: BTreeSet<Guid>,
    /// The routing engines.
    pub routing: Routing,
}

impl Environment {
    /// Nothing is remembered, no partitions are configured, and all management keys are the same.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            keys: Arc::new(|| 1),
            partitions: None,
            known_lids: Vec::new(),
            running: BTreeSet::new(),
            routing: Box::new(settings::routing),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

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

/// The fabric, and what is known of those at its ports.
#[derive(Debug)]
pub(crate) struct SubnetState {
    /// The fabric.
    pub(crate) fabric: Fabric,
    /// In the order of [`Model::subnets`].
    pub(crate) subnets: Vec<ManagedSubnet>,
    /// When something is to be done that nobody asks for.
    wakes: Option<Duration>,
    /// What guests have had the subnet administration enter.
    pub(crate) registrations: Registrations,
    /// What guests see in place of what is.
    pub(crate) clusters: Clusters,
    /// Tables on their way to guests that do not see everything.
    pub(crate) tables: Tables,
    /// Counters of the data plane, and what of them the fabric knows.
    pub(crate) traffic: Vec<Option<PortCounters>>,
    pub(crate) paths: PathCounters,
    /// Functions that share ports.
    pub(crate) shared: SharedPorts,
    /// VMs that move.
    pub(crate) moves: Vec<Moving>,
    /// What is put out once the change that it comes of is published.
    pub(crate) outputs: Outputs,
    pub(crate) publications: Publications,
}

/// The subnet, shared by those who manage it and those who use it.
///
/// Whoever has something for it calls [`VSwitch::handle`], from any thread. It calls the waker when
/// there is something to do; then, or at [`VSwitch::deadline`], somebody calls [`VSwitch::poll`], and
/// carries out what [`VSwitch::poll_output`] and [`VSwitch::poll_guest`] give.
#[derive(Debug)]
pub struct VSwitch {
    /// Never locked by who holds `state`, or the engine.
    pub(crate) managers: Mutex<Managers>,
    pub(crate) state: RwLock<SubnetState>,
    /// What guests of clusters see of the subnet.
    pub(crate) views: Views,
    /// Of `state`: what guests need.
    pub(crate) snapshot: ArcSwap<Snapshot>,
    /// Of the snapshot.
    pub(crate) generation: Arc<AtomicU64>,
    pub(crate) paths: Mutex<PathNumbers>,
    pub(crate) sharing: Arc<Sharing>,
    pub(crate) ports: Vec<PortRef>,
    /// The last packet with a wrong key that each port dropped and the subnet manager has not been
    /// told of: however many there are, one is told at a time.
    pub(crate) wrong_keys: Mutex<HashMap<PortRef, (VfId, WrongKey, Envelope)>>,
    pub(crate) functions: HashMap<PortRef, VfId>,
    pub(crate) filter: MadFilter,
    /// The links, where they share their bandwidth among lanes.
    pub(crate) links: Option<Arc<SharedLinks>>,
    /// What ports have begun to hold back, which their logs do not know yet.
    pub(crate) held: Held,
    clock: Arc<dyn Clock>,
    /// The ports of the subnet managers' hosts.
    pub(crate) manager_ports: Vec<PortRef>,
    pub(crate) names: HashMap<String, PortRef>,
    pub(crate) hosts: Hosts,
    pub(crate) places: Vec<PlacedVf>,
    /// Whether VFs with a LID of their own have it only while a VM runs.
    pub(crate) dynamic: bool,
    /// Not bounded, since the filter bounds what each guest puts into it.
    inputs: Mutex<VecDeque<Input>>,
    pub(crate) outputs: Mutex<Outputs>,
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
        let mut fabric = Fabric::new(plan.topology())?;
        let ports: Vec<PortRef> = plan.vfs().collect();
        for (&port, (_, vf)) in ports.iter().zip(model.vfs()) {
            // A shared port is its physical function's, which manages nothing.
            fabric.set_owner(port, Owner::Consumer, vf.smp);
        }
        let subnets = ManagedSubnet::all(model, plan, &mut fabric, &environment)?;
        let (subnets, managers) = subnets.into_iter().unzip();
        // Of those that share a port the first: the engine knows the others.
        let functions = ports
            .iter()
            .enumerate()
            .rev()
            .map(|(at, &port)| (port, VfId(at as u16)))
            .collect();
        let sharing = Arc::new(Sharing::new(model, plan));
        let mut clusters = Clusters::new(model);
        for (index, &port) in ports.iter().enumerate() {
            let vf = VfId(index as u16);
            clusters.refresh(vf, &fabric, &sharing, port);
        }
        let generation = Arc::new(AtomicU64::new(fabric.generation()));
        let state = SubnetState {
            subnets,
            wakes: None,
            registrations: Registrations::new(model),
            clusters,
            tables: Tables::default(),
            traffic: ports.iter().map(|_| None).collect(),
            paths: PathCounters::default(),
            shared: SharedPorts::new(Arc::clone(&sharing), model),
            moves: Vec::new(),
            outputs: Outputs::default(),
            publications: Publications::new(fabric.revision()),
            fabric,
        };
        Ok(Arc::new(Self {
            resets: ports.iter().map(|_| AtomicBool::default()).collect(),
            managers: Mutex::new(managers),
            snapshot: ArcSwap::from_pointee(Snapshot::of(&state)),
            state: RwLock::new(state),
            paths: Mutex::default(),
            sharing,
            views: Views::new(model, &environment.clock),
            generation,
            ports,
            wrong_keys: Mutex::default(),
            functions,
            filter: MadFilter::new(model),
            held: Held::default(),
            links: (model.fabric.bandwidth == Bandwidth::Model).then(Arc::default),
            clock: environment.clock,
            manager_ports: plan.managers().collect(),
            names: plan.host_ports().collect(),
            hosts: Hosts::default(),
            places: places(model),
            dynamic: model.has_dynamic_lids(),
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

    /// The subnet as the engine sees it. Who has the engine calls `waker` instead of that of
    /// [`VSwitch::set_waker`]: it may leave it to others to wake somebody, who then call
    /// [`VSwitch::wake_now`].
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
            let some = inputs.len().min(BATCH);
            if inputs.len() > BATCH {
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
                Input::Unclaimed(vf, packet) => self.answer_unclaimed(vf, *packet),
                Input::Presence(vf, present) => {
                    if !present && self.state.read().registrations.has_errands() {
                        // Who has no LID any more is not answered.
                        self.settle();
                    }
                    self.change_presence(vf, present);
                }
                Input::Reset(vf) => {
                    if let Some(waits) = self.resets.get(usize::from(vf.0)) {
                        waits.store(false, Ordering::Release);
                    }
                    self.depart(vf);
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
        self.state.read().wakes
    }

    /// What is to be done for anybody but guests.
    #[must_use]
    pub fn poll_output(&self) -> Option<Output> {
        self.outputs.lock().poll()
    }

    /// Whether [`VSwitch::poll_guest`] has something.
    #[must_use]
    pub fn has_guest_output(&self) -> bool {
        self.outputs.lock().has_guest()
    }

    /// What is next for a guest. To be called by who holds the engine and hands it out: so it stays in
    /// order, whoever does that.
    #[must_use]
    pub fn poll_guest(&self) -> Option<ForGuest> {
        self.outputs.lock().poll_guest()
    }

    /// The port of a function.
    #[must_use]
    pub fn port(&self, vf: VfId) -> Option<PortRef> {
        self.ports.get(usize::from(vf.0)).copied()
    }

    /// The functions that share ports, port by port.
    #[must_use]
    pub fn sharers(&self) -> Vec<Vec<VfId>> {
        let ports = self.sharing.ports();
        ports.map(|(_, functions)| functions.to_vec()).collect()
    }

    /// The ports of the subnet managers' hosts.
    #[must_use]
    pub fn manager_ports(&self) -> &[PortRef] {
        &self.manager_ports
    }

    /// The LID of a function's port in the subnet, whatever its guest is told.
    #[must_use]
    pub fn physical_lid(&self, vf: VfId) -> Lid {
        let port = self.port(vf);
        port.map_or(Lid::NONE, |port| self.snapshot().physical_lid(vf, port))
    }

    /// The LID of a function's port in the subnet, in the midst of a change.
    pub(crate) fn physical_lid_in(&self, state: &SubnetState, vf: VfId) -> Lid {
        let port = self.port(vf);
        port.map_or(Lid::NONE, |port| {
            self.sharing.address(vf, &state.fabric, port).0
        })
    }

    /// Number that rises with every change of the subnet that could alter a path, once the change is
    /// to be seen.
    #[must_use]
    pub fn generation(&self) -> &AtomicU64 {
        &self.generation
    }

    /// Where the data plane counts a function's traffic.
    pub fn count_traffic(&self, vf: VfId, counters: Arc<TrafficCounters>) {
        if let Some(place) = self.change().traffic.get_mut(usize::from(vf.0)) {
            *place = Some(PortCounters::new(counters));
        }
    }

    /// Whose packets [`Output::Tapped`] shows.
    pub fn set_tap(&self, tap: Option<Tap>) {
        self.change().fabric.set_tap(tap);
    }

    /// Looks at the fabric, with the counters of the data plane up to date. Others may look meanwhile,
    /// however long it takes.
    pub fn inspect<R>(&self, look: impl FnOnce(&Fabric) -> R) -> R {
        let mut state = self.change();
        state.tell_traffic(&self.paths, &self.ports, self.now());
        look(&state.downgrade().fabric)
    }

    /// Does something with the subnet, with the counters of the data plane up to date.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut SubnetState) -> R) -> R {
        let mut state = self.change();
        state.tell_traffic(&self.paths, &self.ports, self.now());
        self.tell_congestion(&mut state);
        act(&mut state)
    }

    /// Has ports tell of packets with wrong keys.
    fn tell_wrong_keys(&self, state: &mut SubnetState) {
        let wrong = std::mem::take(&mut *self.wrong_keys.lock());
        for (port, (at, key, packet)) in wrong {
            let on_the_wire = |lid| state.clusters.physical(at, lid).unwrap_or_default();
            let (partition, key) = match key {
                WrongKey::Partition(key) => (true, u32::from(key.value())),
                WrongKey::Queue(key) => (false, key.value()),
            };
            let violation = KeyViolation {
                source: on_the_wire(packet.slid),
                destination: on_the_wire(packet.dlid),
                key,
                sl: packet.sl,
                source_qp: packet.src_qp,
                destination_qp: packet.dest_qp,
                ..KeyViolation::default()
            };
            state.fabric.tell_wrong_key(port, partition, violation);
        }
    }

    /// Moves packets until the fabric rests.
    fn settle(&self) {
        let now = self.now();
        let managers = &mut *self.managers.lock();
        {
            let mut state = self.change();
            state.tell_traffic(&self.paths, &self.ports, now);
            self.tell_wrong_keys(&mut state);
            self.tell_congestion(&mut state);
        }
        let (next, mut state) = self.manage(managers, now);
        state.wakes = next;
        self.note_presences(managers, &mut state);
        let SubnetState {
            subnets, outputs, ..
        } = &mut *state;
        for (index, (subnet, manager)) in subnets.iter_mut().zip(managers).enumerate() {
            if let Some(manager) = manager {
                subnet.after_sweep(index, manager, outputs);
            }
        }
        drop(state);
        self.renew_views();
    }

    /// Has the embedded managers do what they can, and moves packets until the fabric rests; when
    /// there will be something to do again, and the state in which nothing is left to do. While a
    /// manager works, and between windows of packets, the state is anybody's.
    pub(crate) fn manage(
        &self,
        managers: &mut Managers,
        now: Duration,
    ) -> (Option<Duration>, Change<'_>) {
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
                let SubnetState {
                    fabric, subnets, ..
                } = &mut *self.change();
                for packet in mail.sent {
                    fabric.inject(subnets[index].port, packet);
                }
            }
            let mut change = self.change();
            let state = &mut *change;
            self.advance_moves(managers, state, now);
            let SubnetState { shared, fabric, .. } = &mut *state;
            for (port, packet) in shared.poll(now, fabric) {
                fabric.inject(port, packet);
            }
            for (vf, packet) in state.registrations.poll(now) {
                self.run_errand(state, vf, packet);
            }
            state.fabric.advance(now);
            state.fabric.run();
            let SubnetState {
                tables, outputs, ..
            } = &mut *state;
            tables.poll(now, |vf, packet| {
                outputs.put_guest(ForGuest::Packet(vf, Box::new(packet)));
            });
            let moved = self.drain(state, |_| {});
            // Others may have moved packets for a manager meanwhile.
            let mut subnets = state.subnets.iter();
            if !moved && subnets.all(|subnet| subnet.received.is_empty()) {
                let next = next.into_iter().chain(state.deadline()).min();
                return (next, change);
            }
            change.hand_over();
        }
    }

    /// Sorts what the fabric put out; false when there was nothing. `look` sees every packet for
    /// somebody outside the fabric.
    pub(crate) fn drain(&self, state: &mut SubnetState, mut look: impl FnMut(&MadPacket)) -> bool {
        let mut moved = false;
        while let Some(output) = state.fabric.poll_output() {
            moved = true;
            match output {
                FromFabric::Deliver { port, packet } => {
                    look(&packet);
                    self.deliver(state, port, packet);
                }
                FromFabric::Event { port, event } => {
                    for vf in self.functions_at(port) {
                        let SubnetState {
                            clusters, fabric, ..
                        } = state;
                        if clusters.refresh(vf, fabric, &self.sharing, port) {
                            // A virtual LID may lead elsewhere now.
                            fabric.outdate_paths();
                            state.tables.forget(vf);
                        }
                        let view = state.view(vf, port);
                        state.outputs.put_guest(ForGuest::Port(vf, event, view));
                    }
                    if event == PortEvent::GidChange {
                        self.warn_of_duplicates(state, port);
                    }
                    self.note_shared_port(state, port, event);
                }
                FromFabric::Tapped {
                    port,
                    direction,
                    packet,
                } => state.outputs.put(Output::Tapped {
                    port,
                    direction,
                    packet,
                }),
            }
        }
        moved
    }

    /// A packet has reached a port whose queue pairs are somebody's outside the fabric.
    fn deliver(&self, state: &mut SubnetState, port: PortRef, packet: Box<MadPacket>) {
        let owner = self.sharing.owner(port, &state.fabric, &packet);
        if owner.is_none()
            && let Some(mailbox) = self.hosts.of(port, &packet)
        {
            state.outputs.mail(mailbox, packet);
        } else if self.sharing.functions(port).is_some() || self.functions.contains_key(&port) {
            for (vf, packet) in self.inbound(state, port, packet) {
                let packet = ForGuest::Packet(vf, Box::new(packet));
                state.outputs.put_guest(packet);
            }
        } else if state.answer_for(port, &packet) {
        } else if let Some(subnet) = state.managed_at(port) {
            subnet.received.push_back(*packet);
        }
    }

    /// Answers in the place of a function without a driver, which still has a device that answers what
    /// it can by itself.
    fn answer_unclaimed(&self, vf: VfId, mut packet: MadPacket) {
        let mut state = self.change();
        // The answer is of the wire, so what it answers has to be.
        state.clusters.undo(vf, &mut packet);
        if let Some(port) = self.port(vf) {
            state.answer_for(port, &packet);
        }
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

impl SubnetState {
    /// A function's port as the engine is to know it.
    pub(crate) fn view(&self, vf: VfId, port: PortRef) -> PortView {
        view(&self.fabric, &self.shared, &self.clusters, vf, port)
    }

    /// When there is something to do that nobody asks for.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = [
            self.fabric.deadline(),
            self.tables.deadline(),
            self.shared.deadline(),
            self.moves.iter().filter_map(Moving::due).min(),
            self.registrations.deadline(),
        ];
        due.into_iter().flatten().min()
    }

    /// When somebody is to look again by himself.
    pub(crate) fn wakes(&self) -> Option<Duration> {
        self.wakes
    }
}
