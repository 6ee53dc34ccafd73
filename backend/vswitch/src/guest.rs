//! What a guest sends and what it gets: the steps of the crate's first page, in their order.

mod filter;
mod registrations;

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use fabric::{Injected, PortRef, SmpAccess};
use hca::{PortView, VfId};
use tracing::debug;
use wire::MadPacket;
use wire::mad::{Mad, Method};

use crate::cluster::Direction;
use crate::shared_port::Addressee;
use crate::vswitch::{SubnetState, VSwitch};
pub(crate) use filter::FilterImageV1;
pub use filter::{FilterReport, MadFilter, Own, Reason, Refusal};
use registrations::refusal;
pub(crate) use registrations::{GroupLids, RegistrationImageV1, Registrations};

/// Whether a packet goes on to the next step. If not, with what its guest is sent for it.
type Step = ControlFlow<Vec<MadPacket>>;

/// The packet ends here.
const fn dropped() -> Step {
    Break(Vec::new())
}

impl VSwitch {
    /// Lets a guest's packet into the fabric, if all steps do. Returns what the guest is sent for
    /// it: further parts of a table, or what is answered in the subnet's place.
    pub(crate) fn outbound(&self, vf: VfId, mut packet: MadPacket) -> Vec<MadPacket> {
        self.filter.taken(vf);
        let Some(port) = self.port(vf) else {
            return Vec::new();
        };
        let mut pass = || -> Step {
            self.filter_contents(vf, port, &mut packet)?;
            self.answer_from_view(vf, &packet)?;
            let state = &mut *self.change();
            self.take_acknowledgement(state, vf, &packet)?;
            self.translate_to_wire(state, vf, &mut packet)?;
            self.note_request(state, vf, &packet)?;
            self.leave_shared_port(state, vf, &mut packet)?;
            self.enter_fabric(state, vf, port, &packet)
        };
        match pass() {
            Break(answers) => answers,
            Continue(()) => Vec::new(),
        }
    }

    fn filter_contents(&self, vf: VfId, port: PortRef, packet: &mut MadPacket) -> Step {
        if self.examine_contents(&self.state.read(), vf, port, packet) {
            Continue(())
        } else {
            dropped()
        }
    }

    /// Whether what is inside a packet is its sender's to say.
    pub(crate) fn examine_contents(
        &self,
        state: &SubnetState,
        vf: VfId,
        port: PortRef,
        packet: &mut MadPacket,
    ) -> bool {
        // What is inside is written as the guest sees things.
        let view = state.view(vf, port);
        let PortView { gids, pkeys, .. } = view;
        let own = Own {
            lids: &[(view.lid, view.lmc)],
            gids: &gids,
            pkeys: &state.clusters.pkeys(vf, &pkeys),
        };
        self.filter.examine(self.now(), vf, packet, &own)
    }

    fn answer_from_view(&self, vf: VfId, packet: &MadPacket) -> Step {
        self.ask_view(vf, packet).map_or(Continue(()), Break)
    }

    fn take_acknowledgement(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        let segments = state.tables.take_from_guest(vf, packet, self.now());
        segments.map_or(Continue(()), Break)
    }

    fn translate_to_wire(&self, state: &SubnetState, vf: VfId, packet: &mut MadPacket) -> Step {
        match state.clusters.translate(vf, Direction::ToWire, packet) {
            Ok(()) => Continue(()),
            Err(reason) => {
                self.filter.refuse(self.now(), vf, reason, packet);
                dropped()
            }
        }
    }

    fn note_request(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        if let Some(vm) = self.vm_at(state, vf)
            && state.registrations.ask(vm, packet).is_err()
        {
            let mut refusal = refusal(packet);
            let clusters = &state.clusters;
            let seen = clusters.translate(vf, Direction::ToGuest, &mut refusal);
            return Break(seen.is_ok().then_some(refusal).into_iter().collect());
        }
        state.clusters.note(vf, packet);
        let SubnetState {
            tables, clusters, ..
        } = state;
        tables.keep(vf, packet, clusters);
        Continue(())
    }

    fn leave_shared_port(&self, state: &mut SubnetState, vf: VfId, packet: &mut MadPacket) -> Step {
        let SubnetState { shared, fabric, .. } = state;
        if let Some(answer) = shared.end_subscription(vf, fabric, packet) {
            return Break(vec![answer]);
        }
        if !shared.mark(vf, fabric, packet) {
            let reason = Reason::Transaction;
            self.filter.refuse(self.now(), vf, reason, packet);
            return dropped();
        }
        Continue(())
    }

    fn enter_fabric(
        &self,
        state: &mut SubnetState,
        vf: VfId,
        port: PortRef,
        packet: &MadPacket,
    ) -> Step {
        if state.inject(vf, port, packet.clone()) == Injected::Denied {
            self.filter.refuse(self.now(), vf, Reason::Smp, packet);
        }
        Continue(())
    }

    /// What a packet that has reached the port of functions becomes, and for which of them: itself, as a
    /// guest is to see it, or that and others when it is the last part of something.
    pub(crate) fn inbound(
        &self,
        state: &mut SubnetState,
        port: PortRef,
        mut packet: Box<MadPacket>,
    ) -> Vec<(VfId, MadPacket)> {
        let functions = self.enter_shared_port(state, port, &mut packet);
        let mut packets = Vec::new();
        for vf in functions {
            let mut packet = (*packet).clone();
            let mut pass = || -> Step {
                self.note_answer(state, vf, &packet)?;
                self.filter.clean(vf, &mut packet.mad);
                self.refuse_unknown(state, vf, &packet)?;
                self.take_table(state, vf, &packet)?;
                self.hide_event(state, vf, &packet)?;
                self.translate_to_guest(state, vf, &mut packet)
            };
            match pass() {
                Break(instead) => packets.extend(instead.into_iter().map(|it| (vf, it))),
                Continue(()) => packets.push((vf, packet)),
            }
        }
        packets
    }

    /// The functions that a packet is for.
    fn enter_shared_port(
        &self,
        state: &mut SubnetState,
        port: PortRef,
        packet: &mut MadPacket,
    ) -> Vec<VfId> {
        if self.sharing.functions(port).is_none() {
            return self.functions.get(&port).copied().into_iter().collect();
        }
        if state.answer_for(port, packet) {
            return Vec::new();
        }
        let SubnetState { shared, fabric, .. } = state;
        match shared.addressee(port, fabric, packet) {
            Addressee::Functions(functions) => {
                for &vf in &functions {
                    shared.note_answer(port, vf, fabric, packet);
                }
                if functions.is_empty() {
                    debug!(%port, packet = %packet.header(), "for nobody at this shared port");
                }
                functions
            }
            Addressee::Registrar => {
                shared.answered(port, packet, self.now());
                self.wake();
                Vec::new()
            }
        }
    }

    fn note_answer(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        let known = Arc::clone(state.registrations.group_lids());
        let step = self.match_answer(state, vf, packet);
        if !Arc::ptr_eq(&known, state.registrations.group_lids()) {
            // What the VM sends to the group goes elsewhere now.
            state.fabric.outdate_paths();
        }
        step
    }

    fn match_answer(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        if state.registrations.take_answer(vf, packet) {
            state.clusters.note(vf, packet);
            return dropped();
        }
        if let Some(vm) = self.vm_at(state, vf) {
            state.registrations.answered(vm, packet);
        }
        Continue(())
    }

    fn refuse_unknown(&self, state: &SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        if state.clusters.knows(vf, packet) {
            return Continue(());
        }
        let reason = Reason::Attribute;
        self.filter.refuse(self.now(), vf, reason, packet);
        dropped()
    }

    fn take_table(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        let now = self.now();
        let SubnetState {
            tables, clusters, ..
        } = state;
        let Some(outgoing) = tables.take_from_wire(vf, packet, clusters, now) else {
            return Continue(());
        };
        if let (Some(packet), Some(port)) = (outgoing.to_wire, self.port(vf)) {
            state.fabric.inject(port, packet);
        }
        Break(outgoing.to_guest)
    }

    fn hide_event(&self, state: &mut SubnetState, vf: VfId, packet: &MadPacket) -> Step {
        if !state.clusters.hides(vf, packet) {
            return Continue(());
        }
        // Whoever reports it waits to hear that it has arrived.
        if let Some(port) = self.port(vf) {
            state.fabric.inject(port, receipt(packet));
        }
        dropped()
    }

    fn translate_to_guest(
        &self,
        state: &mut SubnetState,
        vf: VfId,
        packet: &mut MadPacket,
    ) -> Step {
        let sent = packet.clone();
        if let Err(reason) = state.clusters.translate(vf, Direction::ToGuest, packet) {
            self.filter.refuse(self.now(), vf, reason, packet);
            return dropped();
        }
        state.clusters.note(vf, &sent);
        Continue(())
    }

    /// How far the subnet management packets of a function's guest go.
    #[must_use]
    pub fn smp_access(&self, vf: VfId) -> SmpAccess {
        self.filter.smp_access(vf)
    }

    /// What became of the management packets of a function's guest.
    #[must_use]
    pub fn filter_report(&self, vf: VfId) -> FilterReport {
        self.filter.report(vf)
    }
}

impl SubnetState {
    /// A function's packet leaves its port.
    fn inject(&mut self, vf: VfId, port: PortRef, packet: MadPacket) -> Injected {
        match self.shared.place(vf) {
            Some(_) => self.fabric.inject_for_function(port, packet),
            None => self.fabric.inject(port, packet),
        }
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
