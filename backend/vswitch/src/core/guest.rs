//! A guest's packets in the subnet: the steps of the crate's first page, in their order.
//!
//! Steps 1 to 3 of a packet that a guest sends change nothing here, and come before somebody has the
//! core: [`VSwitch::poll`](crate::VSwitch::poll) has them.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use fabric::{Injected, PortRef, SmpAccess, VPorts};
use hca::{PortView, VfId};
use tracing::debug;
use wire::mad::{Class, Mad, Method, Status};
use wire::smp::Smp;
use wire::{Lid, MadPacket, PortState};

use super::Core;
use super::cluster::Direction;
use super::registrations::refusal;
use super::shared_port::Addressee;
use crate::filter::{Finding, Own, Reason, Refusal, examine, hide_m_key, is_managers};

/// Whether a packet goes on to the next step. If not, with what its guest is sent for it.
pub(crate) type Step = ControlFlow<Vec<MadPacket>>;

/// The packet ends here.
pub(crate) const fn dropped() -> Step {
    Break(Vec::new())
}

impl Core {
    /// Step 2: whether what is inside a packet is its sender's to say.
    ///
    /// # Errors
    /// The reason why it must not enter the subnet.
    pub(crate) fn examine_contents(
        &self,
        vf: VfId,
        port: PortRef,
        packet: &mut MadPacket,
    ) -> Result<(), Reason> {
        if matches!(
            packet.header().class(),
            Class::SUBN_LID | Class::SUBN_DIRECTED
        ) {
            // These say nothing of their sender, and a sweep sends thousands of them.
            return Ok(());
        }
        // The contents are written as the guest sees things.
        let view = self.view(vf, port);
        let PortView { gids, pkeys, .. } = view;
        let own = Own {
            lids: &[(view.lid, view.lmc)],
            gids: &gids,
            pkeys: &self.clusters.pkeys(vf, &pkeys),
        };
        let manages = self.is_trusted(vf) || self.clusters.tenancy(vf).is_some();
        if !manages && is_managers(packet) {
            return Err(Reason::Manager);
        }
        examine(packet, &own, manages)
    }

    /// Steps 4 to 8: lets a guest's packet into the fabric, if all steps do. Breaks with what the guest
    /// is sent for it: further parts of a table, or what is answered in the subnet's place.
    pub(crate) fn outbound(&mut self, vf: VfId, port: PortRef, mut packet: MadPacket) -> Step {
        self.take_acknowledgement(vf, &packet)?;
        self.translate_to_wire(vf, &mut packet)?;
        self.note_request(vf, &packet)?;
        self.leave_shared_port(vf, &mut packet)?;
        self.enter_fabric(vf, port, &packet)
    }

    fn take_acknowledgement(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        let segments = self.tables.take_from_guest(vf, packet, self.now);
        segments.map_or(Continue(()), Break)
    }

    fn translate_to_wire(&mut self, vf: VfId, packet: &mut MadPacket) -> Step {
        match self.clusters.translate(vf, Direction::ToWire, packet) {
            Ok(()) => Continue(()),
            Err(reason) => {
                self.refuse(vf, reason, packet);
                dropped()
            }
        }
    }

    fn note_request(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        if self.clusters.tenancy(vf).is_some() {
            // What it is about is a matter of the cluster's own manager.
            return Continue(());
        }
        if let Some(vm) = self.vm_at(vf)
            && self.registrations.ask(vm, packet).is_err()
        {
            let mut refusal = refusal(packet);
            let clusters = &self.clusters;
            let seen = clusters.translate(vf, Direction::ToGuest, &mut refusal);
            return Break(seen.is_ok().then_some(refusal).into_iter().collect());
        }
        self.clusters.note(vf, packet);
        self.tables.keep(vf, packet, &self.clusters);
        Continue(())
    }

    fn leave_shared_port(&mut self, vf: VfId, packet: &mut MadPacket) -> Step {
        let Self { shared, fabric, .. } = self;
        if self.clusters.tenancy(vf).is_none()
            && let Some(answer) = shared.end_subscription(vf, fabric, packet)
        {
            return Break(vec![answer]);
        }
        if !shared.mark(vf, fabric, packet) {
            self.refuse(vf, Reason::Transaction, packet);
            return dropped();
        }
        Continue(())
    }

    fn enter_fabric(&mut self, vf: VfId, port: PortRef, packet: &MadPacket) -> Step {
        if self.inject(vf, port, packet.clone()) == Injected::Denied {
            self.refuse(vf, Reason::Smp, packet);
        }
        Continue(())
    }

    /// Makes of a packet that has reached a port of functions the packets for each of them: itself, as its
    /// guest is to see it, or others when it is the last part of a table.
    pub(super) fn inbound(
        &mut self,
        port: PortRef,
        mut packet: Box<MadPacket>,
    ) -> Vec<(VfId, MadPacket)> {
        let mut functions = self.enter_shared_port(port, &mut packet);
        functions.retain(|&vf| self.is_up(vf, port));
        let mut packets = Vec::new();
        for vf in functions {
            let mut packet = (*packet).clone();
            let mut pass = || -> Step {
                self.note_answer(vf, &packet)?;
                self.clean(vf, &mut packet.mad);
                self.refuse_unknown(vf, &packet)?;
                self.take_table(vf, &packet)?;
                self.hide_event(vf, &packet)?;
                self.translate_to_guest(vf, &mut packet)
            };
            match pass() {
                Break(instead) => packets.extend(instead.into_iter().map(|it| (vf, it))),
                Continue(()) => packets.push((vf, packet)),
            }
        }
        packets
    }

    /// The functions that a packet is for.
    fn enter_shared_port(&mut self, port: PortRef, packet: &mut MadPacket) -> Vec<VfId> {
        if self.layout.sharing.functions(port).is_none() {
            return self.layout.functions_at(port);
        }
        if self.answer_for(port, packet) {
            return Vec::new();
        }
        let Self { shared, fabric, .. } = self;
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
                shared.answered(port, packet, self.now);
                self.outputs.ask_for_turn();
                Vec::new()
            }
        }
    }

    fn note_answer(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        let known = Arc::clone(self.registrations.group_lids());
        let step = self.match_answer(vf, packet);
        if !Arc::ptr_eq(&known, self.registrations.group_lids()) {
            // Packets of the VM to the group go elsewhere now.
            self.fabric.outdate_paths();
        }
        step
    }

    fn match_answer(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        if self.registrations.take_answer(vf, packet) {
            self.clusters.note(vf, packet);
            return dropped();
        }
        if let Some(vm) = self.vm_at(vf) {
            self.registrations.answered(vm, packet);
        }
        Continue(())
    }

    /// Takes out of an answer what its guest has no claim to: a port's M_Key.
    fn clean(&self, vf: VfId, mad: &mut [u8; 256]) {
        if !self.is_trusted(vf) {
            hide_m_key(mad);
        }
    }

    fn refuse_unknown(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        if self.clusters.knows(vf, packet) {
            return Continue(());
        }
        self.refuse(vf, Reason::Attribute, packet);
        dropped()
    }

    fn take_table(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        let (tables, clusters) = (&mut self.tables, &self.clusters);
        let Some(outgoing) = tables.take_from_wire(vf, packet, clusters, self.now) else {
            return Continue(());
        };
        if let (Some(packet), Some(port)) = (outgoing.to_wire, self.layout.port(vf)) {
            self.fabric.inject(port, packet);
        }
        Break(outgoing.to_guest)
    }

    fn hide_event(&mut self, vf: VfId, packet: &MadPacket) -> Step {
        if !self.clusters.hides(vf, packet) {
            return Continue(());
        }
        // The sender of the report waits for its acknowledgement.
        if let Some(port) = self.layout.port(vf) {
            self.fabric.inject(port, receipt(packet));
        }
        dropped()
    }

    fn translate_to_guest(&mut self, vf: VfId, packet: &mut MadPacket) -> Step {
        let sent = packet.clone();
        if let Err(reason) = self.clusters.translate(vf, Direction::ToGuest, packet) {
            self.refuse(vf, reason, packet);
            return dropped();
        }
        self.clusters.note(vf, &sent);
        Continue(())
    }

    /// The answer of the agents of a guest's own port; `None` where they do not answer.
    pub(crate) fn ask_own_port(
        &mut self,
        vf: VfId,
        port: PortRef,
        mad: &[u8; 256],
    ) -> Option<[u8; 256]> {
        let mut asked = *mad;
        if !{ &self.clusters }.translate_local(vf, Direction::ToWire, &mut asked) {
            let packet = MadPacket::smp(Lid::NONE, Lid::NONE, *mad);
            self.refuse(vf, Reason::Attribute, &packet);
            return Some(unsupported(mad));
        }
        let mut answer = self.fabric.local_mad(port, &asked)?;
        if !{ &self.clusters }.translate_local(vf, Direction::ToGuest, &mut answer) {
            return Some(unsupported(mad));
        }
        self.clean(vf, &mut answer);
        Some(answer)
    }

    /// Whether a function's packets pass: at a virtual port that is not Active none do.
    fn is_up(&self, vf: VfId, port: PortRef) -> bool {
        let fabric = &self.fabric;
        VPorts::at(fabric, port).is_none()
            || self.layout.sharing.state(vf, fabric, port) == PortState::Active
    }

    /// A function's packet leaves its port.
    fn inject(&mut self, vf: VfId, port: PortRef, packet: MadPacket) -> Injected {
        match self.shared.place(vf) {
            Some(_) if !self.is_up(vf, port) => Injected::Dropped,
            Some(_) => self.fabric.inject_for_function(port, packet),
            None => self.fabric.inject(port, packet),
        }
    }

    /// Begins to take back what the guest at a VF has had entered.
    pub(crate) fn depart(&mut self, vf: VfId) {
        if let Some(vm) = self.vm_at(vf) {
            self.registrations.depart(vm, vf, self.now);
        }
    }

    /// Sends what enters something for a VF's guest, or takes it back, in the guest's place.
    pub(super) fn run_errand(&mut self, vf: VfId, mut packet: MadPacket) {
        let Some(port) = self.layout.port(vf) else {
            return;
        };
        let Self { shared, fabric, .. } = self;
        // The subscriber may have had another LID, from another manager.
        let info = fabric.port_info(port).unwrap_or_default();
        (packet.slid, _) = shared.address(vf, fabric, port);
        (packet.dlid, packet.sl) = (info.master_sm_lid, info.master_sm_sl);
        self.clusters.note(vf, &packet);
        if shared.end_subscription(vf, fabric, &packet).is_some() {
            self.registrations.take_answer(vf, &packet);
        } else if shared.mark(vf, fabric, &mut packet) {
            self.inject(vf, port, packet);
        }
    }

    /// Whether a VF's guest manages the subnet, and sees everything.
    fn is_trusted(&self, vf: VfId) -> bool {
        self.rules(vf).is_some_and(|vm| vm.smp == SmpAccess::Fabric)
    }

    /// Enters a refused packet in the filter's accounts.
    pub(super) fn refuse(&mut self, vf: VfId, reason: Reason, packet: &MadPacket) {
        let refusal = Refusal::new(self.now, reason, packet);
        self.outputs.find(vf, Finding::Refused(refusal));
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

/// The answer of an agent that does not know the attribute.
fn unsupported(asked: &[u8; 256]) -> [u8; 256] {
    let mut answer = *asked;
    if let Ok(mut smp) = Smp::new_checked(&mut answer[..]) {
        smp.respond(Status::UNSUPPORTED_ATTRIBUTE);
    }
    answer
}
