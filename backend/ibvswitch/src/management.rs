//! The subnet in operation: the fabric, the embedded subnet manager, and the
//! thread that moves management packets between them and the guests.
//!
//! The fabric has a lock of its own. Who holds the engine may take it (to resolve
//! a path, to ask about a port); who holds it never waits for the engine: what
//! the fabric has for the guests is collected first and handed to the engine
//! after the lock is gone. Nobody holds it for long.
//!
//! The subnet managers have another lock, which is taken before the fabric's and
//! never by who holds the engine: a manager sweeps and routes, which takes
//! seconds in large subnets, while the fabric is free. Packets to and from it
//! are taken and given back a window at a time.

pub mod cluster;
mod datagram;
mod datapath;
mod delivery;
mod function;
mod hosts;
mod link;
mod memory;
mod migration;
mod paths;
mod proxy;
mod readdress;
mod registrations;
mod relocation;
mod settings;
mod shared_port;
mod slots;
mod sm;
mod subnets;
#[cfg(test)]
mod tests;
mod traffic;
mod twins;
mod views;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use fabric::{Fabric, Injected, Output, Owner, PortEvent, PortRef, SmpAccess, TopologyError};
use hca::{Envelope, Face, PortView, Subnet, TrafficCounters, VfId, WrongKey};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use subnet::{RoutingEngine, SubnetManager};
use tracing::{info, warn};
use wire::attribute::KeyViolation;
use wire::mad::{Mad, Method};
use wire::{Guid, Lid, MadPacket};

use crate::capture::Captures;
use crate::config::Config;
use crate::engine::SharedEngine;
use crate::status::Management as ManagerStatus;
use crate::topology::Plan;
pub use cluster::TABLES_OF_A_GUEST;
use cluster::{Clusters, Direction, Tables};
use datapath::EngineSubnet;
use delivery::{Delivery, deliver, port_view};
pub use function::FunctionPort;
use hosts::Hosts;
pub use hosts::{HostPort, HostTag, Mailbox, Sent, answers};
pub use link::LinkError;
pub use memory::{FileError, read_partitions};
pub use migration::MigrateError;
use migration::Pending;
use paths::Paths;
use proxy::Own;
pub use proxy::{Proxy, ProxyReport, Reason, Refusal};
use readdress::Readdress;
pub use readdress::ReaddressError;
use registrations::Registrations;
pub use relocation::NotActive;
use relocation::Relocation;
use shared_port::SharedPorts;
use slots::Slot;
pub use sm::SmError;
use subnets::{Mail, ManagedSubnet};
use traffic::Traffic;
use views::Views;

/// Messages that the management thread takes before it lets the fabric work.
const BATCH: usize = 1024;

/// Why there is no subnet.
#[derive(Debug, thiserror::Error)]
pub enum ManagementError {
    /// The nodes do not make a fabric.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The subnet manager's files are of no use.
    #[error(transparent)]
    File(#[from] FileError),
    /// The subnet manager's configuration is wrong.
    #[error(transparent)]
    Manager(#[from] subnet::ConfigError),
}

/// Finds what is wrong with a configuration beyond its text: the nodes do not make a fabric, or a file
/// that it names cannot be used.
///
/// # Errors
/// [`ManagementError`], as [`Management::new`] would return it.
pub fn check(config: &Config) -> Result<(), ManagementError> {
    Management::new(config, &Plan::new(config)).map(drop)
}

#[derive(Debug)]
enum Message {
    /// A guest sends a packet.
    Send(VfId, Box<MadPacket>),
    /// VMs are to move.
    Migrate(Vec<Pending>),
    /// A VM that shares a LID is to move.
    Readdress(Readdress),
    /// A VMM has connected to a VF, or has gone.
    Presence(VfId, bool),
    /// A VF was reset: what its guest has had entered is to be taken back.
    Reset(VfId),
    /// The fabric has outputs that nobody asked the thread for.
    Look,
    /// Ends the thread.
    Stop,
}

/// The fabric and its manager.
#[derive(Debug)]
pub struct SubnetState {
    /// The fabric.
    pub fabric: Fabric,
    /// In the order of [`Config::subnets`].
    subnets: Vec<ManagedSubnet>,
    /// When the management thread looks again by itself.
    wakes: Option<Duration>,
    /// What guests have had the subnet administration enter.
    registrations: Registrations,
    /// What guests see in place of what is.
    clusters: Clusters,
    /// Tables on their way to guests that do not see everything.
    tables: Tables,
    /// Counters of the data plane, and what of them the fabric knows.
    traffic: Vec<Option<Traffic>>,
    /// With a lock of their own, so that paths can be found by several at a time.
    paths: Mutex<Paths>,
    /// Functions that share ports.
    shared: SharedPorts,
    readdresses: Vec<Readdress>,
    relocations: Vec<Relocation>,
}

/// The embedded managers of the subnets, in their order.
type Managers = Vec<Option<SubnetManager>>;

/// The subnet, shared by those who manage it and those who use it.
#[derive(Debug)]
pub struct Management {
    /// Never locked by who holds `state`, or the engine.
    managers: Mutex<Managers>,
    state: RwLock<SubnetState>,
    /// What guests of clusters see of the subnet.
    views: Views,
    generation: Arc<AtomicU64>,
    ports: Vec<PortRef>,
    /// The last packet with a wrong key that each port dropped and the subnet manager has not been
    /// told of: however many there are, one is told at a time.
    wrong_keys: Mutex<HashMap<PortRef, (VfId, WrongKey, Envelope)>>,
    functions: HashMap<PortRef, VfId>,
    proxy: Proxy,
    captures: Arc<Captures>,
    /// When the subnet was made: what times are counted from.
    epoch: Instant,
    /// The ports of the subnet managers' hosts.
    manager_ports: Vec<PortRef>,
    names: HashMap<String, PortRef>,
    hosts: Hosts,
    slots: Vec<Slot>,
    /// Whether VFs with a LID of their own have it only while a VM runs.
    dynamic: bool,
    /// Not bounded, since the proxy bounds what each guest puts into it and
    /// a wish to look waits there once at most.
    sender: Sender<Message>,
    receiver: Receiver<Message>,
    looking: AtomicBool,
    /// By VF: a [`Message::Reset`] waits.
    resets: Vec<AtomicBool>,
}

impl Management {
    /// The subnet of `config`, not yet managed. VFs are numbered in the order
    /// of [`Config::vfs`].
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn new(config: &Config, plan: &Plan) -> Result<Arc<Self>, ManagementError> {
        Self::routed(config, plan, settings::routing)
    }

    /// The same, with routing engines from elsewhere.
    fn routed(
        config: &Config,
        plan: &Plan,
        routing: impl Fn(&Config) -> Box<dyn RoutingEngine>,
    ) -> Result<Arc<Self>, ManagementError> {
        let mut fabric = Fabric::new(plan.topology())?;
        let ports: Vec<PortRef> = plan.vfs().collect();
        for (&port, (_, vf)) in ports.iter().zip(config.vfs()) {
            // A shared port is its physical function's, which manages nothing.
            fabric.set_owner(port, Owner::Consumer, vf.smp);
        }
        let subnets = ManagedSubnet::all(config, plan, &mut fabric, routing)?;
        let (subnets, managers) = subnets.into_iter().unzip();
        let generation = Arc::clone(fabric.generation());
        // Of those that share a port the first: the engine knows the others.
        let functions = ports
            .iter()
            .enumerate()
            .rev()
            .map(|(at, &port)| (port, VfId(at as u16)))
            .collect();
        let shared = SharedPorts::new(config, plan);
        let mut clusters = Clusters::new(config);
        for (index, &port) in ports.iter().enumerate() {
            let vf = VfId(index as u16);
            clusters.refresh(vf, &fabric, &shared, port);
        }
        let (sender, receiver) = unbounded();
        let state = SubnetState {
            fabric,
            subnets,
            wakes: None,
            registrations: Registrations::new(config),
            clusters,
            tables: Tables::default(),
            traffic: ports.iter().map(|_| None).collect(),
            paths: Mutex::default(),
            shared,
            readdresses: Vec::new(),
            relocations: Vec::new(),
        };
        Ok(Arc::new(Self {
            resets: ports.iter().map(|_| AtomicBool::default()).collect(),
            managers: Mutex::new(managers),
            state: RwLock::new(state),
            views: Views::new(config),
            generation,
            ports,
            wrong_keys: Mutex::default(),
            functions,
            proxy: Proxy::new(config),
            captures: Arc::default(),
            epoch: Instant::now(),
            manager_ports: plan.managers().collect(),
            names: plan.host_ports().collect(),
            hosts: Hosts::default(),
            slots: slots::slots(config),
            dynamic: config.has_dynamic_lids(),
            sender,
            receiver,
            looking: AtomicBool::new(false),
        }))
    }

    /// The subnet as the engine sees it.
    #[must_use]
    pub fn for_engine(self: &Arc<Self>) -> Box<dyn Subnet> {
        Box::new(EngineSubnet(Arc::clone(self)))
    }

    /// The port of a function.
    #[must_use]
    pub fn port(&self, vf: VfId) -> Option<PortRef> {
        self.ports.get(usize::from(vf.0)).copied()
    }

    /// The functions that share ports, port by port.
    #[must_use]
    pub fn sharers(&self) -> Vec<Vec<VfId>> {
        let state = self.state.read();
        let ports = state.shared.ports();
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
        let state = self.state.read();
        let port = self.port(vf);
        port.map_or(Lid::NONE, |port| {
            state.shared.address(vf, &state.fabric, port).0
        })
    }

    /// Counter that changes with every change of the subnet that could alter a path.
    #[must_use]
    pub fn generation(&self) -> &AtomicU64 {
        &self.generation
    }

    /// Those who capture packets.
    #[must_use]
    pub fn captures(&self) -> &Arc<Captures> {
        &self.captures
    }

    /// Where the data plane counts a function's traffic.
    pub fn count_traffic(&self, vf: VfId, counters: Arc<TrafficCounters>) {
        if let Some(slot) = self.state.write().traffic.get_mut(usize::from(vf.0)) {
            *slot = Some(Traffic {
                counters,
                told: [0; 9],
            });
        }
    }

    /// Looks at the subnet, with the counters of the data plane up to date.
    pub fn with<R>(&self, act: impl FnOnce(&mut SubnetState) -> R) -> R {
        let mut state = self.state.write();
        state.tell_traffic(&self.ports, self.now());
        act(&mut state)
    }

    /// The same for who changes nothing: others may look meanwhile, however long it takes.
    pub fn inspect<R>(&self, look: impl FnOnce(&SubnetState) -> R) -> R {
        let mut state = self.state.write();
        state.tell_traffic(&self.ports, self.now());
        look(&RwLockWriteGuard::downgrade(state))
    }

    /// What the embedded managers of the subnets have done, in the order of the configuration; nothing
    /// where there are none.
    #[must_use]
    pub fn manager_status(&self) -> Vec<ManagerStatus> {
        let managers = self.managers.lock();
        { managers.iter() }
            .flatten()
            .map(|manager| ManagerStatus {
                sweeps: manager.report().sweeps,
                smps: manager.smps_sent(),
            })
            .collect()
    }

    /// Has the management thread look for what the fabric put out.
    pub fn look(&self) {
        if !self.looking.swap(true, Ordering::AcqRel) {
            // The thread that would receive it may have ended.
            let _ = self.sender.send(Message::Look);
        }
    }

    /// Has ports tell of packets whose keys were wrong.
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

    /// Moves packets until the fabric rests, and returns what is for guests.
    fn settle(&self, now: Duration) -> (Vec<Delivery>, Option<Duration>) {
        let managers = &mut *self.managers.lock();
        {
            let mut state = self.state.write();
            state.tell_traffic(&self.ports, now);
            self.tell_wrong_keys(&mut state);
        }
        let mut deliveries = Vec::new();
        let (next, mut state) = self.manage(managers, now, &mut deliveries);
        state.wakes = next;
        self.answer_migrations(managers, &mut state);
        for (subnet, manager) in state.subnets.iter_mut().zip(managers) {
            subnet.after_sweep(manager.as_ref());
        }
        drop(state);
        self.renew_views();
        (deliveries, next)
    }

    /// Has the embedded managers do what they can, and moves packets until the fabric rests; when
    /// there will be something to do again, and the state in which nothing is left to do. While a
    /// manager works, and between windows of packets, the state is anybody's.
    fn manage(
        &self,
        managers: &mut Managers,
        now: Duration,
        deliveries: &mut Vec<Delivery>,
    ) -> (Option<Duration>, RwLockWriteGuard<'_, SubnetState>) {
        loop {
            let mut next = None;
            for (index, manager) in managers.iter_mut().enumerate() {
                let Some(manager) = manager else {
                    continue;
                };
                let mut mail = Mail::default();
                std::mem::swap(
                    &mut mail.received,
                    &mut self.state.write().subnets[index].received,
                );
                let due = manager.poll(now, &mut mail);
                next = next.into_iter().chain(due).min();
                let SubnetState {
                    fabric, subnets, ..
                } = &mut *self.state.write();
                for packet in mail.sent {
                    fabric.inject(subnets[index].port, packet);
                }
            }
            let mut guard = self.state.write();
            let state = &mut *guard;
            self.advance_readdresses(state, now);
            self.advance_relocations(state, now);
            let SubnetState { shared, fabric, .. } = &mut *state;
            for (port, packet) in shared.poll(now, fabric) {
                fabric.inject(port, packet);
            }
            for (vf, packet) in state.registrations.poll(now) {
                self.take_back(state, vf, packet);
            }
            state.fabric.advance(now);
            state.fabric.run();
            state.tables.poll(now, |vf, packet| {
                deliveries.push(Delivery::Packet(vf, Box::new(packet)));
            });
            let moved = self.drain(state, deliveries, |_| {});
            // Others may have moved packets for a manager meanwhile.
            let mut subnets = state.subnets.iter();
            if !moved && subnets.all(|subnet| subnet.received.is_empty()) {
                let next = next.into_iter().chain(state.deadline()).min();
                return (next, guard);
            }
            // To whoever waits for it.
            RwLockWriteGuard::unlock_fair(guard);
        }
    }

    /// Sorts what the fabric put out; false when there was nothing. `look` sees every packet for
    /// somebody outside the fabric.
    fn drain(
        &self,
        state: &mut SubnetState,
        deliveries: &mut Vec<Delivery>,
        mut look: impl FnMut(&MadPacket),
    ) -> bool {
        let mut moved = false;
        while let Some(output) = state.fabric.poll_output() {
            moved = true;
            match output {
                Output::Deliver { port, packet } => {
                    look(&packet);
                    let SubnetState { shared, fabric, .. } = &*state;
                    let owner = shared.owner(port, fabric, &packet);
                    if owner.is_none()
                        && let Some(mailbox) = self.hosts.of(port, &packet)
                    {
                        mailbox.put(&packet);
                        let last = deliveries.last();
                        if !last.is_some_and(|last| last.is_for(&mailbox)) {
                            deliveries.push(Delivery::Host(mailbox));
                        }
                    } else if state.shared.functions(port).is_some() {
                        deliveries.extend(self.to_shared_port(state, port, packet));
                    } else if let Some(&vf) = self.functions.get(&port) {
                        for packet in self.to_guest(state, vf, *packet) {
                            deliveries.push(Delivery::Packet(vf, Box::new(packet)));
                        }
                    } else if state.answer_for(port, &packet) {
                    } else if let Some(subnet) = state.managed_at(port) {
                        subnet.received.push_back(*packet);
                    }
                }
                Output::Event { port, event } => {
                    for vf in self.functions_at(state, port) {
                        let SubnetState {
                            clusters,
                            fabric,
                            shared,
                            ..
                        } = state;
                        if clusters.refresh(vf, fabric, shared, port) {
                            // A virtual LID may lead elsewhere now.
                            self.generation.fetch_add(1, Ordering::Release);
                            state.tables.forget(vf);
                        }
                        let view = state.view(vf, port);
                        deliveries.push(Delivery::Change(vf, event, view));
                    }
                    if event == PortEvent::GidChange {
                        self.warn_of_twins(state, port);
                    }
                    self.note_shared_port(state, port, event);
                }
                Output::Tapped {
                    port,
                    direction,
                    packet,
                } => self.captures.mad(port, direction, &packet),
            }
        }
        moved
    }

    /// What a packet for a guest becomes: itself, as the guest is to see it, or that and others when
    /// it is the last part of something.
    fn to_guest(&self, state: &mut SubnetState, vf: VfId, mut packet: MadPacket) -> Vec<MadPacket> {
        let now = self.now();
        if state.registrations.take_answer(vf, &packet) {
            state.clusters.note(vf, &packet);
            return Vec::new();
        }
        if let Some(vm) = self.vm_at(state, vf) {
            state.registrations.answered(vm, &packet);
        }
        self.proxy.clean(vf, &mut packet.mad);
        let SubnetState {
            tables, clusters, ..
        } = state;
        if !clusters.knows(vf, &packet) {
            self.proxy.refuse(now, vf, Reason::Attribute, &packet);
            return Vec::new();
        }
        if let Some(outgoing) = tables.take_from_wire(vf, &packet, clusters, now) {
            if let (Some(packet), Some(port)) = (outgoing.to_wire, self.port(vf)) {
                state.fabric.inject(port, packet);
            }
            return outgoing.to_guest;
        }
        if clusters.hides(vf, &packet) {
            // Whoever reports it waits to hear that it has arrived.
            if let Some(port) = self.port(vf) {
                state.fabric.inject(port, receipt(&packet));
            }
            return Vec::new();
        }
        let sent = packet.clone();
        if let Err(reason) = clusters.translate(vf, Direction::ToGuest, &mut packet) {
            self.proxy.refuse(now, vf, reason, &packet);
            return Vec::new();
        }
        clusters.note(vf, &sent);
        vec![packet]
    }

    /// Hands out what the fabric put out. A function without a driver still has a device, which
    /// answers what it can by itself.
    fn deliver<F: Face>(&self, engine: &SharedEngine<F>, deliveries: Vec<Delivery>) {
        let unclaimed = deliver(engine, deliveries);
        if unclaimed.is_empty() {
            return;
        }
        let mut state = self.state.write();
        for (vf, mut packet) in unclaimed {
            // The answer is of the wire, so what it answers has to be.
            state.clusters.undo(vf, &mut packet);
            if let Some(port) = self.port(vf) {
                state.answer_for(port, &packet);
            }
        }
        drop(state);
        self.look();
    }

    /// The port of a function as the engine is to know it.
    #[must_use]
    pub fn port_view(&self, vf: VfId) -> PortView {
        match self.port(vf) {
            Some(port) => self.state.read().view(vf, port),
            None => PortView::default(),
        }
    }

    /// Brings the subnet up where nobody will use it: to see what becomes of it.
    pub fn bring_up(&self) {
        self.settle(Duration::ZERO);
    }

    /// Brings the subnet up, before anybody uses it, and starts the thread that
    /// manages it from then on.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<F: Face>(
        self: &Arc<Self>,
        engine: Arc<SharedEngine<F>>,
    ) -> io::Result<ManagementThread> {
        let started = self.epoch;
        let (deliveries, next) = self.settle(started.elapsed());
        self.deliver(&engine, deliveries);
        {
            let managers = self.managers.lock();
            let state = self.state.read();
            for (subnet, manager) in state.subnets.iter().zip(&*managers) {
                let name = subnet.name.as_deref();
                let Some(manager) = manager else {
                    info!("the subnet waits for a subnet manager from outside");
                    continue;
                };
                let report = manager.report();
                info!(
                    name,
                    switches = report.switches,
                    adapters = report.adapters,
                    active = report.active,
                    smps = report.packets,
                    "subnet up"
                );
                for error in &report.errors {
                    warn!(name, "subnet manager: {error}");
                }
            }
        }
        let management = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("management".to_owned())
            .spawn(move || management.serve(&engine, started, next))?;
        Ok(ManagementThread {
            management: Arc::clone(self),
            thread: Some(thread),
        })
    }

    fn serve<F: Face>(
        &self,
        engine: &SharedEngine<F>,
        started: Instant,
        mut next: Option<Duration>,
    ) {
        loop {
            let message = match next {
                Some(next) => match self.receiver.recv_deadline(started + next) {
                    Ok(message) => Some(message),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
                None => match self.receiver.recv() {
                    Ok(message) => Some(message),
                    Err(_) => return,
                },
            };
            let mut further = Vec::new();
            for message in message
                .into_iter()
                .chain(self.receiver.try_iter().take(BATCH))
            {
                match message {
                    Message::Send(vf, packet) => {
                        let segments = self.send(vf, *packet).into_iter();
                        further.extend(segments.map(|s| Delivery::Packet(vf, Box::new(s))));
                    }
                    Message::Migrate(all) => self.begin_migrations(all),
                    Message::Readdress(readdress) => {
                        self.state.write().readdresses.push(readdress);
                    }
                    Message::Presence(vf, present) => {
                        if !present && self.state.read().registrations.is_leaving() {
                            // Who has no LID any more is not answered.
                            further.extend(self.settle(started.elapsed()).0);
                        }
                        self.change_presence(vf, present);
                    }
                    Message::Reset(vf) => self.depart(vf),
                    Message::Look => self.looking.store(false, Ordering::Release),
                    Message::Stop => return,
                }
            }
            let (mut deliveries, then) = self.settle(started.elapsed());
            next = then;
            deliveries.extend(further);
            self.deliver(engine, deliveries);
        }
    }

    /// Lets a guest's packet into the fabric, if the proxy does. Returns what the guest is sent for
    /// it: further parts of a table, or what its view of the subnet answers.
    fn send(&self, vf: VfId, mut packet: MadPacket) -> Vec<MadPacket> {
        self.proxy.taken(vf);
        let Some(port) = self.port(vf) else {
            return Vec::new();
        };
        let now = self.now();
        {
            let state = self.state.read();
            // What is inside is written as the guest sees things.
            let view = state.view(vf, port);
            let PortView { gids, pkeys, .. } = view;
            let own = Own {
                lid: view.lid,
                lmc: view.lmc,
                gids: &gids,
                pkeys: &state.clusters.pkeys(vf, &pkeys),
            };
            if !self.proxy.examine(now, vf, &mut packet, &own) {
                return Vec::new();
            }
        }
        if let Some(answers) = self.ask_view(vf, &packet) {
            return answers;
        }
        let mut state = self.state.write();
        if let Some(segments) = state.tables.take_from_guest(vf, &packet, now) {
            return segments;
        }
        let translated = state.clusters.translate(vf, Direction::ToWire, &mut packet);
        if let Err(reason) = translated {
            self.proxy.refuse(now, vf, reason, &packet);
            return Vec::new();
        }
        if let Some(vm) = self.vm_at(&state, vf)
            && state.registrations.ask(vm, &packet).is_err()
        {
            let mut refusal = registrations::refusal(&packet);
            let clusters = &state.clusters;
            let seen = clusters.translate(vf, Direction::ToGuest, &mut refusal);
            return seen.is_ok().then_some(refusal).into_iter().collect();
        }
        state.clusters.note(vf, &packet);
        let SubnetState {
            tables, clusters, ..
        } = &mut *state;
        tables.keep(vf, &packet, clusters);
        let SubnetState { shared, fabric, .. } = &mut *state;
        if let Some(answer) = shared.end_subscription(vf, fabric, &packet) {
            return vec![answer];
        }
        if !shared.mark(vf, fabric, &mut packet) {
            self.proxy.refuse(now, vf, Reason::Transaction, &packet);
            return Vec::new();
        }
        let sent = packet.clone();
        let injected = match state.shared.place(vf) {
            Some(_) => state.fabric.inject_for_function(port, packet),
            None => state.fabric.inject(port, packet),
        };
        if injected == Injected::Denied {
            self.proxy.refuse(now, vf, Reason::Smp, &sent);
        }
        Vec::new()
    }

    /// How far the subnet management packets of a function's guest go.
    #[must_use]
    pub fn smp_access(&self, vf: VfId) -> SmpAccess {
        self.proxy.smp_access(vf)
    }

    /// What became of the management packets of a function's guest.
    #[must_use]
    pub fn proxy_report(&self, vf: VfId) -> ProxyReport {
        self.proxy.report(vf)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

impl SubnetState {
    /// A function's port as the engine is to know it.
    fn view(&self, vf: VfId, port: PortRef) -> PortView {
        let mut view = port_view(&self.fabric, port);
        self.shared.adapt(vf, &self.fabric, &mut view);
        self.clusters.adapt(vf, &mut view);
        view
    }

    /// When there is something to do that nobody asks for.
    fn deadline(&self) -> Option<Duration> {
        let due = [
            self.fabric.deadline(),
            self.tables.deadline(),
            self.shared.deadline(),
            self.readdresses.iter().map(Readdress::due).min(),
            self.relocations.iter().map(Relocation::due).min(),
            self.registrations.deadline(),
        ];
        due.into_iter().flatten().min()
    }
}

/// The answer to a report of an event.
fn receipt(report: &MadPacket) -> MadPacket {
    let mut reply = report.reply();
    reply.mad = report.mad;
    if let Ok(mut header) = Mad::new_checked(&mut reply.mad[..]) {
        header.set_method(Method::REPORT_RESPONSE);
    }
    reply
}

/// Whose addresses are at a function's port.
fn guid_at(fabric: &Fabric, shared: &SharedPorts, vf: VfId, port: PortRef) -> Option<Guid> {
    match shared.place(vf) {
        Some(place) => place.guid(fabric),
        None => fabric.guids(port)?.first().copied(),
    }
}

/// The running management thread; stops when dropped.
#[derive(Debug)]
pub struct ManagementThread {
    management: Arc<Management>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ManagementThread {
    fn drop(&mut self) {
        let _ = self.management.sender.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
