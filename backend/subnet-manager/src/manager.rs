//! The subnet manager.

mod configuration;
mod discovery;
mod dumps;
mod errand;
mod extended;
mod lanes;
mod mastery;
mod migration;
mod routes;
mod sweeps;
mod traps;
mod virtualization;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use wire::attribute::{NodeDescription, PortInfo, SmState, SwitchInfo};
use wire::mad::{AttributeId, Class, Method};
use wire::smp::{DATA, Destination, Request, Route};
use wire::{Guid, Lid, MadPacket, PKey, PortState, Sl};

use crate::config::cluster_levels::{ClusterLevels, ClusterShare};
use crate::config::partitions::Partitions;
use crate::config::{Config, ConfigError, Files};
use crate::congestion::Congestion;
use crate::keys::{KeySource, ManagementKeys};
use crate::model::Subnet;
use crate::requests::{Failure, Outcome, Requests};
use crate::routing::{ClusterTables, RoutingEngine};
use crate::sa::{Administration, Paths, View};
use crate::tables::Tables;
use configuration::Step;
pub use dumps::Dump;
pub use errand::Ticket;
use errand::{Errand, Purpose};
use extended::Extended;
use lanes::clusters::ClusterLanes;
use mastery::Mastery;
use migration::Migrations;
pub use routes::balance::Balance;
pub use routes::clusters::{ClusterRefusal, ClusterState, Clusters};
use routes::multipath::{self, Ranges};
pub use sweeps::Report;
use sweeps::Sweeps;
use traps::Traps;
use wire::Transport;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Discovering,
    Configuring(Step),
    LightSweep,
    /// Writes multicast forwarding tables between sweeps.
    Multicast,
    Migrating,
    /// Writes forwarding tables between sweeps: paths are spread anew, or clusters have theirs.
    Rebalancing,
    /// Gives the subnet to another manager.
    HandingOver,
}

/// A transport, and how many subnet management packets it has sent.
struct Counted<'a, T> {
    transport: &'a mut T,
    smps: u64,
}

impl<T: Transport> Transport for Counted<'_, T> {
    fn send(&mut self, packet: MadPacket) {
        self.smps += u64::from(packet.is_smp());
        self.transport.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.transport.receive()
    }
}

/// The subnet as the manager knows it, and as it is to be. No request is in it, and nothing that runs:
/// what is asked of it can be asked at any time.
#[derive(Debug)]
struct Knowledge {
    config: Config,
    routing: Box<dyn RoutingEngine>,
    /// The paths are those of another engine.
    outdated: bool,
    /// As the sweep that runs, or that ran last, finds it.
    subnet: Subnet,
    /// As the sweep before found it, while a sweep runs.
    before: Option<Subnet>,
    paths: Paths,
    clusters: Clusters,
    cluster_lanes: ClusterLanes,
    /// The paths of the subnet without gaps, while a part of it is away.
    whole: Option<Paths>,
    /// By port GUID: the service level by which it reaches the manager, where that is not 0.
    manager_levels: BTreeMap<Guid, Sl>,
    balance: Balance,
    /// Migrations have crowded a link.
    crowded: bool,
    lids: BTreeMap<Guid, Lid>,
    ranges: Ranges,
    tables: Tables,
    keys: ManagementKeys,
    key_source: KeySource,
    extended: Extended,
}

/// A subnet manager. See the [crate's description](crate).
#[derive(Debug)]
pub struct SubnetManager {
    known: Knowledge,
    requests: Requests<Errand>,
    phase: Phase,
    mastery: Mastery,
    traps: Traps,
    administration: Administration,
    congestion: Congestion,
    sweeps: Sweeps,
    /// Subnet management packets sent so far, whatever for.
    smps: u64,
    migrations: Migrations,
    /// Packets that nobody answers.
    outbox: Vec<MadPacket>,
    now: Duration,
}

impl SubnetManager {
    /// A manager that sweeps as soon as it is polled.
    ///
    /// # Errors
    /// What [`Config::check`] finds.
    pub fn new(config: Config, routing: Box<dyn RoutingEngine>) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            requests: Requests::new(config.window, config.timeout, config.retries),
            known: Knowledge {
                routing,
                outdated: false,
                whole: None,
                subnet: Subnet::default(),
                before: None,
                paths: Paths::default(),
                clusters: Clusters::new(&config.known_cluster_tables),
                cluster_lanes: ClusterLanes::default(),
                manager_levels: BTreeMap::new(),
                balance: Balance::default(),
                crowded: false,
                lids: { config.known_lids.iter() }
                    .map(|(&guid, &(first, _))| (guid, first))
                    .collect(),
                ranges: Ranges::new(&config),
                tables: Tables::default(),
                keys: config.known_m_keys.clone(),
                key_source: KeySource(Box::new(|| 0)),
                extended: Extended::default(),
                config,
            },
            phase: Phase::Idle,
            mastery: Mastery::default(),
            traps: Traps::default(),
            administration: Administration::default(),
            congestion: Congestion::default(),
            sweeps: Sweeps::default(),
            smps: 0,
            migrations: Migrations::default(),
            outbox: Vec::new(),
            now: Duration::ZERO,
        })
    }

    /// Whether this manager is the master, a full sweep of it has ended, and no other one is due.
    pub fn is_up(&self) -> bool {
        self.state() == SmState::Master
            && self.sweeps.report.sweeps > 0
            && !self.sweeps.changed
            && !matches!(self.phase, Phase::Discovering | Phase::Configuring(_))
    }

    /// Has management keys drawn from here, which [`KeyPolicy::PerNode`](crate::KeyPolicy::PerNode) needs: numbers that nobody
    /// can guess.
    #[must_use]
    pub fn with_key_source(mut self, source: Box<dyn FnMut() -> u64 + Send>) -> Self {
        self.known.key_source = KeySource(source);
        self
    }

    /// The management keys of the ports, to be kept, kept secret, and given back as
    /// [`Config::known_m_keys`].
    pub fn management_keys(&self) -> &ManagementKeys {
        &self.known.keys
    }

    /// Result of the last full sweep.
    pub fn report(&self) -> &Report {
        &self.sweeps.report
    }

    /// Requests sent so far, by method and attribute, repetitions included.
    pub fn requests(&self) -> impl Iterator<Item = (Method, AttributeId, u64)> {
        self.requests.counts()
    }

    /// Subnet management packets sent so far: requests, repetitions, and answers to other managers and
    /// traps.
    pub fn smps_sent(&self) -> u64 {
        self.smps
    }

    /// Traps that came so far, repetitions included, by number.
    pub fn traps(&self) -> impl Iterator<Item = (u16, u64)> {
        self.traps.counts()
    }

    /// Sets the forwarding tables of a cluster in place of those that it had; tables without entries clear them. The next
    /// [`SubnetManager::poll`] writes the blocks that differ.
    ///
    /// An entry acts for a LID of the cluster's VMs where the walk along the cluster's entries reaches the LID; all others
    /// leave the provider's in place, and the state says why. Each change of topology and each move of a VM has them checked
    /// anew. Of two clusters that name a LID the one acts that was set earlier.
    ///
    /// # Errors
    /// With these tables packets, also those of others, could wait for each other for ever. The cluster keeps the tables
    /// that it had. Before the first sweep nothing is refused: [`Clusters::get`] tells then.
    pub fn set_cluster_tables(
        &mut self,
        cluster: &str,
        tables: ClusterTables,
    ) -> Result<ClusterState, ClusterRefusal> {
        routes::clusters::set(self, cluster, tables)
    }

    /// Forwarding tables of clusters, and their effect since the last [`SubnetManager::poll`].
    pub const fn clusters(&self) -> &Clusters {
        &self.known.clusters
    }

    /// Has `change` alter which clusters share links ([`Config::cluster_shares`]), and tell whether it has done so. Clusters of
    /// the same name keep their service levels, if they can. The next [`SubnetManager::poll`] writes the tables that differ.
    pub fn change_cluster_shares(
        &mut self,
        change: impl FnOnce(&mut Vec<ClusterShare>) -> bool,
    ) -> bool {
        let changed = change(&mut self.known.config.cluster_shares);
        self.known.cluster_lanes.is_outdated |= changed;
        changed
    }

    /// Service levels of clusters, where [`Config::cluster_lanes`] gives them some.
    pub const fn cluster_levels(&self) -> &ClusterLevels {
        &self.known.cluster_lanes.levels
    }

    /// The name of the routing engine that is to compute paths, or of the scheme by which LIDs are given to them.
    pub fn routing(&self) -> &'static str {
        multipath::engine(&self.known)
    }

    /// The name of the engine that has computed the paths there are: another one than
    /// [`SubnetManager::routing`] where that one cannot route the subnet. `None` before the first
    /// sweep, and where no engine could.
    pub fn routed_by(&self) -> Option<&'static str> {
        self.known.paths.engine
    }

    /// Data lanes that keep the paths from waiting for each other: 1 for engines that need no more.
    pub fn lanes(&self) -> u8 {
        self.known.paths.levels.lanes()
    }

    /// Base LIDs by port GUID, those of absent ports included: to be kept with [`SubnetManager::lmc`] and given back as
    /// [`Config::known_lids`].
    pub fn lids(&self) -> &BTreeMap<Guid, Lid> {
        &self.known.lids
    }

    /// The LIDs of a port that [`SubnetManager::lids`] tells the first of: 2 to the power of this.
    pub fn lmc(&self, port: Guid) -> u8 {
        self.known.lmc_of(port)
    }

    /// Descriptions of all nodes found, by node GUID.
    pub fn nodes(&self) -> impl Iterator<Item = (Guid, NodeDescription)> {
        let nodes = self.known.subnet.nodes.iter();
        nodes.map(|node| (node.info.node_guid, node.description))
    }

    /// Has the next [`SubnetManager::poll`] begin a full sweep, unless another manager is the master.
    pub fn request_sweep(&mut self) {
        self.sweeps.changed = true;
    }

    /// Gives a port another P_Key table; takes effect with the sweep that this begins.
    pub fn set_partitions(&mut self, port: Guid, table: Vec<PKey>) {
        self.known.config.partitions.insert(port, table);
        self.sweeps.changed = true;
    }

    /// Takes over the contents of other files: ports without a table of their own have the partitions of these, and
    /// requests their policy. The subnet gets the paths of another engine, if there is one. Takes effect with the sweep
    /// that this begins.
    pub fn set_files(&mut self, files: Files, routing: Option<Box<dyn RoutingEngine>>) {
        if let Some(routing) = routing {
            self.known.routing = routing;
            self.known.outdated = true;
        }
        self.known.config.partition_file = files.partitions;
        self.known.config.policy = files.policy;
        self.known.config.roles = Arc::new(files.roles);
        self.known.config.congestion = files.congestion;
        self.sweeps.changed = true;
    }

    /// Names and full members' P_Keys of the partitions of the partition configuration file.
    pub fn partition_names(&self) -> impl Iterator<Item = (&str, PKey)> {
        let file = self.known.config.partition_file.iter();
        file.flat_map(Partitions::names)
    }

    /// Takes in what came, sends what is to be sent. Returns when to call again if nothing comes
    /// before: `None` for "not until something comes".
    ///
    /// `now` is the time since any fixed moment.
    pub fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> Option<Duration> {
        let mut counted = Counted { transport, smps: 0 };
        let next = self.work(now, &mut counted);
        self.smps += counted.smps;
        next
    }

    fn work(&mut self, now: Duration, transport: &mut impl Transport) -> Option<Duration> {
        self.now = now;
        self.mastery.polled();
        loop {
            let mut progress = false;
            while let Some(packet) = transport.receive() {
                progress = true;
                self.receive(&packet, transport);
            }
            for outcome in self.requests.overdue(now, transport) {
                progress = true;
                self.take(outcome);
            }
            if self.requests.is_empty() {
                progress |= self.advance(transport);
            }
            self.requests.send(now, transport);
            for packet in self.outbox.drain(..) {
                transport.send(packet);
            }
            if !progress {
                break;
            }
        }
        let administration = match self.state() {
            SmState::Master => {
                let (administration, view) = self.administration();
                administration.poll(&view, now, transport)
            }
            _ => None,
        };
        let congestion = sweeps::control_congestion(self, transport);
        let due = [
            self.requests.deadline(),
            administration,
            congestion,
            self.next(),
        ];
        due.into_iter().flatten().min()
    }

    /// When to do something unasked.
    fn next(&self) -> Option<Duration> {
        match (self.phase, self.state()) {
            (Phase::Idle, SmState::Master) if !self.mastery.waits() => self
                .sweeps
                .due()
                .into_iter()
                .chain(self.traps.due(self.known.config.trap_interval))
                .min(),
            (Phase::Idle, _) => self.mastery.due(),
            _ => None,
        }
    }

    /// The subnet administration, and what it may look at.
    fn administration(&mut self) -> (&mut Administration, View<'_>) {
        let view = View {
            config: &self.known.config,
            subnet: self.known.before.as_ref().unwrap_or(&self.known.subnet),
            paths: &self.known.paths,
            levels: &self.known.cluster_lanes.levels,
            tables: &self.known.tables,
        };
        (&mut self.administration, view)
    }

    fn receive(&mut self, packet: &MadPacket, transport: &mut impl Transport) {
        let now = self.now;
        if !packet.is_smp() {
            if packet.header().class() == Class::SUBN_ADM && self.state() == SmState::Master {
                let (administration, view) = self.administration();
                administration.receive(packet, &view, now, transport);
                self.set_changed_aliases();
            } else if packet.header().class() == wire::congestion::CLASS {
                self.congestion.receive(packet);
            }
            return;
        }
        if let Some(outcome) = self.requests.answered(packet) {
            self.take(outcome);
            return;
        }
        let header = packet.header();
        match (header.method(), header.attribute()) {
            (Method::GET | Method::SET, AttributeId::SM_INFO) => {
                self.answer_sm_info(packet, transport);
            }
            (Method::TRAP, AttributeId::NOTICE) => self.take_trap(packet, transport),
            _ => debug!(packet = %header, "not for the subnet manager"),
        }
    }

    /// Begins what comes next when no request is left; false when there is nothing to do.
    fn advance(&mut self, transport: &mut impl Transport) -> bool {
        match self.phase {
            Phase::Idle => return self.begin(),
            Phase::Discovering => {
                self.settle_links();
                self.decide_mastery();
            }
            Phase::Migrating => {
                self.administration.release_paths();
                let ended = self.end_round();
                let now = self.now;
                let (administration, view) = self.administration();
                let is_told = administration.moved(&view, &ended.places);
                if ended.all_done && (ended.more_changed || !is_told) {
                    administration.swept(&view, now, transport);
                }
            }
            Phase::Configuring(step) => match step.next() {
                Some(step) => self.enter(step),
                None => {
                    self.end_sweep();
                    self.traps.news = false;
                    let now = self.now;
                    let (administration, view) = self.administration();
                    administration.swept(&view, now, transport);
                }
            },
            Phase::LightSweep => {
                self.phase = Phase::Idle;
                self.schedule();
                if std::mem::take(&mut self.traps.news) {
                    let (administration, view) = self.administration();
                    administration.refresh(&view);
                }
            }
            Phase::Multicast => self.phase = Phase::Idle,
            Phase::Rebalancing => {
                self.phase = Phase::Idle;
                self.schedule();
                let now = self.now;
                let (administration, view) = self.administration();
                administration.swept(&view, now, transport);
            }
            Phase::HandingOver => self.stand_by_for_heir(),
        }
        true
    }

    /// Begins what is due; false when nothing is.
    fn begin(&mut self) -> bool {
        let now = self.now;
        match self.state() {
            SmState::NotActive | SmState::Standby if self.migrations.has_unanswered() => {
                self.migrations.refuse(&mut self.known);
            }
            SmState::NotActive => return false,
            SmState::Standby => return self.poll_master(),
            SmState::Discovering => self.begin_sweep(),
            SmState::Master if self.sweeps.changed => self.begin_sweep(),
            SmState::Master if self.mastery.waits() => return self.poll_master(),
            SmState::Master if self.administration.multicast_changed() => {
                self.phase = Phase::Multicast;
                self.set_multicast();
            }
            SmState::Master if routes::clusters::begin(self) => {}
            SmState::Master if self.migrations.has_waiting() => self.begin_round(),
            SmState::Master if self.known.crowded => self.rebalance(),
            SmState::Master if self.sweeps.due().is_some_and(|due| due <= now) => {
                self.begin_light_sweep();
            }
            SmState::Master => return self.look_after_traps(),
        }
        true
    }

    fn begin_sweep(&mut self) {
        self.phase = Phase::Discovering;
        self.mastery.forget_others();
        self.traps.swept(self.now);
        self.known.extended.forget();
        let found = mem::take(&mut self.known.subnet);
        if self.sweeps.report.sweeps > 0 {
            // The result of a sweep that was cut short is not the subnet.
            self.known.before.get_or_insert(found);
        }
        self.sweeps.begin(self.now, self.requests.sent());
        self.explore(Route::default(), None);
    }

    fn end_sweep(&mut self) {
        self.phase = Phase::Idle;
        self.known.before = None;
        self.schedule();
        let sent = self.requests.sent();
        self.sweeps.end(self.now, sent, &self.known.subnet);
        self.migrations.settle(&self.known);
        sweeps::begin_congestion_control(self);
    }

    fn schedule(&mut self) {
        let interval = self.known.config.sweep_interval;
        self.sweeps.schedule(self.now, interval);
    }

    /// Asks whether anything changed: every switch for its change bit, the own port, and the other
    /// managers.
    fn begin_light_sweep(&mut self) {
        self.phase = Phase::LightSweep;
        self.sweeps.begin_light();
        let switches: Vec<Route> = self
            .known
            .subnet
            .switches()
            .filter_map(|(_, node)| node.route().cloned())
            .collect();
        for route in switches {
            self.get(route, AttributeId::SWITCH_INFO, 0, Purpose::LightSwitch);
        }
        self.get(
            Route::default(),
            AttributeId::PORT_INFO,
            0,
            Purpose::LightPort,
        );
        virtualization::ask_all(self);
        self.ask_others();
    }

    fn get(&mut self, route: Route, attribute: AttributeId, modifier: u32, purpose: Purpose) {
        self.request(route, Method::GET, attribute, modifier, [0; DATA], purpose);
    }

    fn set(
        &mut self,
        route: Route,
        attribute: AttributeId,
        modifier: u32,
        data: [u8; DATA],
        errand: impl Into<Errand>,
    ) {
        self.sweeps.report.sets += 1;
        self.request(route, Method::SET, attribute, modifier, data, errand);
    }

    fn request(
        &mut self,
        route: Route,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        data: [u8; DATA],
        errand: impl Into<Errand>,
    ) {
        let destination = Destination::Directed(route);
        self.request_to(destination, method, attribute, modifier, data, errand);
    }

    fn request_to(
        &mut self,
        destination: Destination,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        data: [u8; DATA],
        errand: impl Into<Errand>,
    ) {
        let m_key = match &destination {
            Destination::Directed(route) => self.known.keys.along(route),
            Destination::Lid(lid) => {
                let at = self.known.subnet.port_of(*lid);
                at.map_or(0, |at| self.known.keys.of(self.known.subnet.key_holder(at)))
            }
        };
        let request = Request {
            destination,
            method,
            attribute,
            modifier,
            transaction: 0,
            m_key,
            data,
        };
        let errand = errand.into();
        if let Some(ticket) = errand.migration {
            self.migrations.opens(ticket);
        }
        self.requests.push(request, errand);
    }

    /// Takes in how a request came out.
    fn take(&mut self, outcome: Outcome<Errand>) {
        let Outcome {
            purpose: errand,
            request,
            answer,
            sent,
        } = outcome;
        let Errand { purpose, migration } = errand;
        if let Some(ticket) = migration {
            self.migrations
                .closes(ticket, &purpose, sent, answer.is_ok());
        }
        match answer {
            Ok(data) => self.take_answer(errand, &request, data),
            Err(failure) => self.failed(errand, &request, failure),
        }
        if let Some(ticket) = migration {
            self.proceed(ticket);
        }
    }

    fn take_answer(&mut self, errand: Errand, request: &Request, data: [u8; DATA]) {
        match errand.purpose {
            Purpose::NodeInfo { from } => self.take_node_info(request, from, &data),
            Purpose::NodeDescription(node) => {
                if let Some(node) = self.known.subnet.nodes.get_mut(node) {
                    let description = NodeDescription::from_bytes(data);
                    let former = std::mem::replace(&mut node.description, description);
                    self.traps.news |= former != description;
                }
            }
            Purpose::SwitchInfo(node) => self.take_switch_info(request, node, &data),
            Purpose::PortInfo(at) => self.take_port_info(request, at, &data),
            Purpose::ChangedPort(at) => self.take_changed_port(at, &data),
            Purpose::SmInfo(at) => self.take_sm_info(at, &data),
            Purpose::Partitions(at, block) => self.known.take_partitions(at, block, &data),
            Purpose::Enforcement { switch, place } => {
                self.known.take_enforcement(switch, place, &data)
            }
            Purpose::Setting { node, place } => self.known.take_setting(node, place, &request.data),
            Purpose::Identity(at, guid) => {
                self.take_identity(at, guid, &data, errand.migration);
            }
            Purpose::Extension(node) => self.known.take_extension(node, &data),
            Purpose::Virtualization(at) => {
                virtualization::take_virtualization(self, request, at, &data)
            }
            Purpose::VPortStates(at, block) => {
                virtualization::take_vport_states(self, at, block, &data)
            }
            Purpose::VPort(at, index) => {
                virtualization::take_vport(self, request, at, index, &data)
            }
            Purpose::VNode(at, index) => {
                virtualization::take_vnode(&mut self.known, at, index, &data)
            }
            Purpose::VNodeDescription(at, index) => {
                virtualization::take_description(&mut self.known, at, index, &data)
            }
            Purpose::LightVirtualization(at) => virtualization::take_vport_change(self, at, &data),
            Purpose::Linear { switch, number } => self.known.take_linear(switch, number, &data),
            Purpose::Multicast { switch, at } => self.known.take_multicast(switch, at, &data),
            Purpose::LightSwitch => match SwitchInfo::parse(&data) {
                Ok(info) if !info.port_state_change => {}
                _ => self.sweeps.changed = true,
            },
            Purpose::LightPort => match PortInfo::parse(&data) {
                Ok(info) if info.port_state == PortState::Active => {}
                _ => self.sweeps.changed = true,
            },
            Purpose::Poll => self.take_poll(&data),
            Purpose::Handover | Purpose::Acknowledge => {}
        }
    }

    fn failed(&mut self, errand: Errand, request: &Request, failure: Failure) {
        let Errand { purpose, migration } = errand;
        match purpose {
            Purpose::LightSwitch | Purpose::LightPort | Purpose::ChangedPort(_) => {
                self.sweeps.changed = true;
                return;
            }
            Purpose::Poll => {
                self.missed_poll();
                return;
            }
            Purpose::NodeInfo { from } if request.m_key != 0 => {
                // Another node may be there now.
                if let Destination::Directed(route) = &request.destination {
                    self.known.keys.lost(route);
                    self.explore(route.clone(), from);
                }
                return;
            }
            Purpose::PortInfo(at)
                if request.method == Method::GET
                    && failure != Failure::TimedOut
                    && request.modifier & PortInfo::SPEEDS_REQUESTED != 0 =>
            {
                // An agent from before extended speeds.
                if let (Some(port), Destination::Directed(route)) =
                    (self.known.subnet.port_mut(at), &request.destination)
                {
                    port.refuses_speeds = true;
                    let modifier = port.info_modifier(at.1);
                    self.get(route.clone(), AttributeId::PORT_INFO, modifier, purpose);
                }
                return;
            }
            Purpose::PortInfo(at)
                if request.method == Method::SET && failure == Failure::TimedOut =>
            {
                self.known.assume_key(at, request);
                self.sweeps.unanswered = true;
            }
            Purpose::Extension(node)
                if request.method == Method::GET && failure != Failure::TimedOut =>
            {
                let node = self.known.subnet.nodes.get(node);
                let guid = node.map_or(Guid::NONE, |node| node.info.node_guid);
                self.known.extended.lacks(guid);
                return;
            }
            // Nothing manages there, whatever the port's capability mask says.
            Purpose::SmInfo(_) => return,
            Purpose::Virtualization(at)
            | Purpose::VPortStates(at, _)
            | Purpose::VPort(at, _)
            | Purpose::VNode(at, _)
            | Purpose::VNodeDescription(at, _)
            | Purpose::LightVirtualization(at) => {
                virtualization::failed(self, at, purpose, request, failure);
                return;
            }
            _ => self.sweeps.unanswered = true,
        }
        let Request {
            method,
            attribute,
            modifier,
            ref destination,
            ..
        } = *request;
        let target = match destination {
            Destination::Directed(route) => {
                let place = discovery::place(&self.known, route, &purpose);
                format!("{route}{place}")
            }
            Destination::Lid(lid) => lid.to_string(),
        };
        let what = format!("{method}({attribute}) 0x{modifier:x} at {target}");
        let message = match failure {
            Failure::TimedOut => format!("{what}: no answer; is the link sound?"),
            Failure::Refused(status) => format!("{what}: {status}"),
        };
        if let Purpose::Linear { switch, .. } = purpose {
            // The answer may be lost, not the request.
            self.known.tables.forget(switch);
        }
        self.migration_failed(migration, message);
    }
}
