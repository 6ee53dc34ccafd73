//! A guest's packets on their way into the subnet: the steps of the crate's first page, in their order.

use std::ops::ControlFlow::{Break, Continue};

use fabric::{PortRef, SmpAccess};
use hca::VfId;
use wire::MadPacket;

use super::VSwitch;
use crate::core::guest::{Step, dropped};
use crate::filter::{FilterReport, Finding};

impl VSwitch {
    /// Lets a guest's packet into the fabric, if all steps do. Returns what the guest is sent for
    /// it: further parts of a table, or what is answered in the subnet's place.
    pub(super) fn outbound(&self, vf: VfId, packet: MadPacket) -> Vec<MadPacket> {
        self.filter.taken(vf);
        pass_out(self, vf, packet)
    }

    fn filter_contents(&self, vf: VfId, port: PortRef, packet: &mut MadPacket) -> Step {
        match self.read().examine_contents(vf, port, packet) {
            Ok(()) => {
                self.filter.enter(&self.layout.places, vf, Finding::Passed);
                Continue(())
            }
            Err(reason) => {
                self.filter.refuse(self.now(), vf, reason, packet);
                dropped()
            }
        }
    }

    fn answer_from_view(&self, vf: VfId, packet: &MadPacket) -> Step {
        self.ask_view(vf, packet).map_or(Continue(()), Break)
    }

    /// The reach of the subnet management packets of a function's guest.
    #[must_use]
    pub fn smp_access(&self, vf: VfId) -> SmpAccess {
        self.filter.smp_access(vf)
    }

    /// The report about the management packets of a function's guest.
    #[must_use]
    pub fn filter_report(&self, vf: VfId) -> FilterReport {
        self.filter.report(vf)
    }
}

/// Lets a guest's packet that has not waited into the fabric, as [`VSwitch::outbound`] does.
pub(super) fn pass_out(vswitch: &VSwitch, vf: VfId, mut packet: MadPacket) -> Vec<MadPacket> {
    let Some(port) = vswitch.port(vf) else {
        return Vec::new();
    };
    let pass = || -> Step {
        vswitch.filter_contents(vf, port, &mut packet)?;
        vswitch.answer_from_view(vf, &packet)?;
        vswitch.change().outbound(vf, port, packet)
    };
    match pass() {
        Break(answers) => answers,
        Continue(()) => Vec::new(),
    }
}
