//! The subnets, and the steps between them and the guests, as one state machine: no lock, no thread, no clock. The
//! owner sets the time, hands in events, and takes the outputs away.
//!
//! The embedded subnet managers are not in it: they work for seconds, while others need the subnet.
//! Methods that need them are lent them.

pub mod cluster;
pub(crate) mod guest;
pub(crate) mod hosts;
pub(crate) mod image;
pub(crate) mod link;
pub(crate) mod migration;
mod occupants;
pub(crate) mod output;
pub(crate) mod registrations;
pub(crate) mod shared_port;
pub(crate) mod subnets;
pub(crate) mod tenant;
#[cfg(test)]
mod tests;
pub(crate) mod traffic;
pub(crate) mod view;

use std::sync::Arc;
use std::time::Duration;

use fabric::{Fabric, Output as FromFabric, Owner, PortEvent, PortRef, VPorts};
use hca::{PortView, VfId};
use wire::mad::Class;
use wire::{MadPacket, PortState, vendor};

use crate::environment::{Environment, Error};
use crate::layout::Layout;
use crate::model::Model;
use crate::plan::Plan;
use cluster::{Clusters, Tables, Tenancy};
use hosts::Hosts;
use migration::Moving;
use output::{ForGuest, Output, Outputs};
use registrations::Registrations;
use shared_port::SharedPorts;
use subnets::{ManagedSubnet, Managers, change_presence, managed_at};
use tenant::{News, Turn};
use traffic::PortCounters;
use traffic::paths::PathCounters;

/// The fabric, and what is known of those at its ports.
#[derive(Debug)]
pub(crate) struct Core {
    /// The time of this turn. It may stand still, but does not go back.
    pub(crate) now: Duration,
    pub(crate) layout: Arc<Layout>,
    pub(crate) fabric: Fabric,
    /// In the order of [`Model::subnets`].
    pub(crate) subnets: Vec<ManagedSubnet>,
    /// Registrations of guests with the subnet administration.
    pub(crate) registrations: Registrations,
    /// LIDs and P_Keys that guests see.
    pub(crate) clusters: Clusters,
    /// Tables on their way to guests that do not see everything.
    tables: Tables,
    /// Counters of the data plane, as far as the fabric knows them.
    traffic: Vec<Option<PortCounters>>,
    pub(crate) paths: PathCounters,
    /// Functions that share ports.
    pub(crate) shared: SharedPorts,
    /// VMs that move.
    pub(crate) moves: Vec<Moving>,
    /// Programs of the host.
    pub(crate) hosts: Hosts,
    /// By VF, the configured VF whose rules hold there.
    rules: Vec<usize>,
    /// Carried out once the change that they come of is published.
    pub(crate) outputs: Outputs,
}

impl Core {
    /// The subnets of a model, not yet managed, and their managers. VFs are numbered in the order of
    /// [`Model::vfs`].
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new(
        model: &Model,
        plan: &Plan,
        environment: &Environment,
    ) -> Result<(Self, Managers), Error> {
        let mut fabric = Fabric::new(plan.topology())?;
        let layout = Arc::new(Layout::new(model, plan));
        for (&port, place) in layout.ports.iter().zip(&layout.places) {
            // A shared port is its physical function's, which manages nothing.
            fabric.set_owner(port, Owner::Consumer, place.smp);
        }
        let subnets = ManagedSubnet::all(model, plan, &mut fabric, environment)?;
        let (subnets, managers) = subnets.into_iter().unzip();
        let mut clusters = Clusters::new(model);
        for (vf, port) in layout.vfs() {
            clusters.refresh(vf, &fabric, &layout.sharing, port);
        }
        let core = Self {
            now: Duration::from_nanos(environment.clock.now()),
            subnets,
            registrations: Registrations::new(model),
            clusters,
            tables: Tables::default(),
            traffic: layout.ports.iter().map(|_| None).collect(),
            paths: PathCounters::default(),
            shared: SharedPorts::new(Arc::clone(&layout.sharing), model),
            moves: Vec::new(),
            hosts: Hosts::default(),
            rules: (0..layout.ports.len()).collect(),
            outputs: Outputs::default(),
            fabric,
            layout,
        };
        Ok((core, managers))
    }

    /// A function's port as the engine is to know it.
    pub(crate) fn view(&self, vf: VfId, port: PortRef) -> PortView {
        self.clusters.view(vf, &self.fabric, &self.shared, port)
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

    /// Whether nothing has come for the embedded managers.
    pub(crate) fn has_no_mail(&self) -> bool {
        { self.subnets.iter() }.all(|subnet| subnet.received.is_empty())
    }

    /// Does what is due, and moves packets until the fabric rests. False: nothing has moved.
    pub(crate) fn turn(&mut self, managers: &mut Managers, now: Duration) -> bool {
        self.advance_moves(managers, now);
        self.shared.set_vports(&mut self.fabric);
        for (port, packet) in self.shared.poll(now, &self.fabric) {
            self.fabric.inject(port, packet);
        }
        for (vf, packet) in self.registrations.poll(now) {
            self.run_errand(vf, packet);
        }
        self.fabric.advance(now);
        self.fabric.run();
        let outputs = &mut self.outputs;
        self.tables.poll(now, |vf, packet| {
            outputs.put_guest(ForGuest::Packet(vf, Box::new(packet)));
        });
        self.drain(|_| {})
    }

    /// Sorts what the fabric put out; false when there was nothing. `look` sees every packet for
    /// somebody outside the fabric.
    pub(crate) fn drain(&mut self, mut look: impl FnMut(&MadPacket)) -> bool {
        let mut moved = false;
        while let Some(output) = self.fabric.poll_output() {
            moved = true;
            match output {
                FromFabric::Deliver { port, packet } => {
                    look(&packet);
                    self.deliver(port, packet);
                }
                FromFabric::Event { port, event } => self.note_event(port, event),
                FromFabric::VPortEvent { port, index, event } => {
                    let function = self.layout.sharing.function_at_vport(port, index);
                    function
                        .into_iter()
                        .for_each(|vf| self.tell(vf, port, event));
                }
                FromFabric::Tapped {
                    port,
                    direction,
                    packet,
                } => self.outputs.put(Output::Tapped {
                    port,
                    direction,
                    packet,
                }),
            }
        }
        moved
    }

    /// A packet has reached a port whose queue pairs are somebody's outside the fabric.
    fn deliver(&mut self, port: PortRef, packet: Box<MadPacket>) {
        let layout = &self.layout;
        let owner = layout.sharing.owner(port, &self.fabric, &packet);
        let is_functions =
            layout.sharing.functions(port).is_some() || layout.functions.contains_key(&port);
        if owner.is_none()
            && let Some(mailbox) = self.hosts.of(port, &packet)
        {
            self.outputs.mail(mailbox, packet);
        } else if is_functions {
            for (vf, packet) in self.inbound(port, packet) {
                self.hand_out(vf, Box::new(packet));
            }
        } else if self.answer_for(port, &packet) {
        } else if let Some(subnet) = managed_at(&mut self.subnets, port) {
            subnet.received.push_back(*packet);
        }
    }

    /// Hands a packet, as the VM at a VF sees it, to the VM or to a program of it.
    pub(crate) fn hand_out(&mut self, vf: VfId, packet: Box<MadPacket>) {
        match self.hosts.of_vm(vf, &packet) {
            Some(mailbox) => self.outputs.mail(mailbox, packet),
            None => self.outputs.put_guest(ForGuest::Packet(vf, packet)),
        }
    }

    /// Something has happened at a port: its functions may see other addresses, and are told.
    fn note_event(&mut self, port: PortRef, event: PortEvent) {
        for vf in self.layout.functions_at(port) {
            self.tell(vf, port, event);
        }
        if event == PortEvent::GidChange {
            occupants::warn_of_duplicates(&self.layout, &self.fabric, port);
        }
        if self.shared.functions(port).is_none() {
            return;
        }
        // If functions share it, their GUIDs may have to be registered.
        match event {
            PortEvent::SmChange | PortEvent::ClientReregister => self.shared.forget(port),
            PortEvent::StateChange(PortState::Down) => self.shared.forget(port),
            _ => {}
        }
        // The thread that moves packets now may not be the thread that asks.
        self.outputs.ask_for_turn();
    }

    /// Something has happened at a function's port, physical or virtual.
    fn tell(&mut self, vf: VfId, port: PortRef, event: PortEvent) {
        let (clusters, sharing) = (&mut self.clusters, &self.layout.sharing);
        if clusters.refresh(vf, &self.fabric, sharing, port) {
            // A virtual LID may lead elsewhere now.
            self.fabric.outdate_paths();
            self.tables.forget(vf);
        }
        let shows = matches!(event, PortEvent::StateChange(_) | PortEvent::GidChange);
        if self.clusters.tenancy(vf).is_some() && !shows {
            // Of the rest its cluster's own manager tells.
            return;
        }
        let event = match event {
            // Of the two states the lower one is the function's.
            PortEvent::StateChange(_) if VPorts::at(&self.fabric, port).is_some() => {
                PortEvent::StateChange(self.layout.sharing.state(vf, &self.fabric, port))
            }
            event => event,
        };
        let view = self.view(vf, port);
        self.outputs.put_guest(ForGuest::Port(vf, event, view));
    }

    /// A cluster's network is this one now, in full mode; `None`: it has none of its own. `turn`: the mode is another one.
    pub(crate) fn set_tenancy(
        &mut self,
        cluster: usize,
        tenancy: Option<Arc<Tenancy>>,
        turn: Option<Turn>,
    ) {
        self.clusters.set_tenancy(cluster, tenancy);
        self.fabric.outdate_paths();
        let layout = Arc::clone(&self.layout);
        for (vf, port) in layout.vfs() {
            if self.clusters.cluster_of(vf) != Some(cluster) {
                continue;
            }
            if turn == Some(Turn::Full) {
                self.depart(vf);
            }
            let (clusters, sharing) = (&mut self.clusters, &self.layout.sharing);
            if clusters.refresh(vf, &self.fabric, sharing, port) || turn.is_some() {
                self.tables.forget(vf);
            }
            if turn.is_some() {
                self.tell_of_mode(vf, port);
            }
        }
    }

    /// Tells a VM of all that another mode of its cluster may have changed at its port.
    pub(crate) fn tell_of_mode(&mut self, vf: VfId, port: PortRef) {
        let view = self.view(vf, port);
        let state = if view.active {
            PortState::Active
        } else {
            PortState::Initialize
        };
        for event in [
            PortEvent::StateChange(state),
            PortEvent::LidChange,
            PortEvent::PkeyChange,
            PortEvent::ClientReregister,
        ] {
            let output = ForGuest::Port(vf, event, view.clone());
            self.outputs.put_guest(output);
        }
    }

    /// Tells a VM what its cluster's network has for it.
    pub(crate) fn tell_tenant(&mut self, news: News) {
        match news {
            News::Packet(vf, packet) => self.hand_out(vf, packet),
            News::Event(vf, event) => {
                if let Some(port) = self.layout.port(vf) {
                    let view = self.view(vf, port);
                    self.outputs.put_guest(ForGuest::Port(vf, event, view));
                }
            }
        }
    }

    /// Answers a request that the node at `port` answers by itself although somebody else has its
    /// queue pairs: performance management and questions to the device, which a driver would leave to its
    /// device.
    fn answer_for(&mut self, port: PortRef, packet: &MadPacket) -> bool {
        let mad = packet.header();
        let of_device = [Class::PERFORMANCE, vendor::CLASS].contains(&mad.class());
        if !of_device || mad.method().is_response() {
            return false;
        }
        if let Some(answer) = self.fabric.local_mad(port, &packet.mad) {
            let mut reply = packet.reply();
            reply.mad = answer;
            self.fabric.inject(port, reply);
        }
        true
    }

    /// Answers in the place of a function without a driver, which still has a device that answers what
    /// it can by itself.
    pub(crate) fn answer_unclaimed(&mut self, vf: VfId, mut packet: MadPacket) {
        // The answer is of the wire, so what it answers has to be.
        self.clusters.undo(vf, &mut packet);
        if let Some(port) = self.layout.port(vf) {
            self.answer_for(port, &packet);
        }
    }

    /// Has the subnet manager give a LID to the VM at a VF where it starts, or take it back where it
    /// ends.
    pub(crate) fn change_presence(&mut self, managers: &mut Managers, vf: VfId, present: bool) {
        let at = self.layout.subnet_of(vf);
        let Some(guid) = self.vm_at(vf) else { return };
        if let Some(vm) = self.layout.configured_with(guid) {
            change_presence(&mut self.subnets[at], &mut managers[at], vm, present);
        }
    }
}
