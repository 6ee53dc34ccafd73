//! Subscriptions of the functions at a port to events.
//!
//! A report without a global route header is for the port: the subnet administration holds all who
//! subscribe without one for the same subscriber. Each function that wants the event is told of it, and
//! no function ends what another one still wants.

use hca::VfId;
use wire::attribute::Notice;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::sa::{self, InformInfo};
use wire::{MadPacket, Qpn};

/// Subscriptions of a function at most.
const MAX_SUBSCRIPTIONS: usize = 32;

/// Subscriptions that were made without a global route.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Vec<(VfId, InformInfo)>);

/// The subscription of a packet with InformInfo, without the fields that tell its beginning from its end;
/// whether it begins one.
fn subscription(packet: &MadPacket, method: Method) -> Option<(InformInfo, bool)> {
    let header = packet.header();
    let of_kind = (header.class(), header.method(), header.attribute())
        == (Class::SUBN_ADM, method, AttributeId::INFORM_INFO);
    let info = InformInfo::parse(packet.mad.get(sa::DATA).filter(|_| of_kind)?).ok()?;
    let what = InformInfo {
        subscribe: 0,
        qpn: Qpn::QP0,
        resp_time_value: 0,
        ..info
    };
    Some((what, info.subscribe != 0))
}

impl Subscribers {
    /// Takes note of what the subnet administration has answered a function.
    pub(super) fn answered(&mut self, vf: VfId, packet: &MadPacket) {
        if packet.grh.is_some() || packet.header().status() != Status::OK {
            return;
        }
        let Some((what, begins)) = subscription(packet, Method::GET_RESPONSE) else {
            return;
        };
        self.0.retain(|own| *own != (vf, what));
        let of_function = self.0.iter().filter(|(of, _)| *of == vf);
        if begins && of_function.count() < MAX_SUBSCRIPTIONS {
            self.0.push((vf, what));
        }
    }

    /// The answer to a function's request to end a subscription that another function has as well: the
    /// request must not reach the subnet administration, which has only one.
    pub(super) fn end(&mut self, vf: VfId, packet: &MadPacket) -> Option<MadPacket> {
        let (what, begins) = subscription(packet, Method::SET)?;
        let shared = |(of, info): &(VfId, InformInfo)| *of != vf && *info == what;
        if begins || !self.0.iter().any(shared) {
            return None;
        }
        let before = self.0.len();
        self.0.retain(|own| *own != (vf, what));
        let mut answer = packet.reply();
        let mut header = Mad::new_checked(&mut answer.mad[..]).ok()?;
        header.set_method(Method::GET_RESPONSE);
        header.set_status(if self.0.len() < before {
            Status::OK
        } else {
            Status::SA_REQUEST_INVALID
        });
        Some(answer)
    }

    /// The functions that a report is for.
    pub(super) fn of(&self, packet: &MadPacket) -> Vec<VfId> {
        let header = packet.header();
        if (header.class(), header.method()) != (Class::SUBN_ADM, Method::REPORT) {
            return Vec::new();
        }
        let Some(event) = Notice::parse(&packet.mad[sa::DATA]).ok() else {
            return Vec::new();
        };
        // Which port it is about, whoever sent the report has looked at.
        let wants = |info: &InformInfo| info.wants(&event, Some(info.gid));
        let wanting = self.0.iter().filter(|(_, info)| wants(info));
        let mut functions: Vec<VfId> = wanting.map(|(vf, _)| *vf).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    /// There is somebody else at a function now.
    pub(super) fn forget(&mut self, vf: VfId) {
        self.0.retain(|(of, _)| *of != vf);
    }

    /// The subnet administration knows nothing any more.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}
