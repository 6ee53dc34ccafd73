//! Dynamic connections: initiators find their targets, and targets tell initiators apart.

use wire::{Mtu, Qpn};

use super::frame::{Address, Content, Frame, Session, Syndrome};
use crate::engine::completion::Completions;
use crate::memory::lending::Lending;
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::dynamic::{Context, Initiator, Role};
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::Paging;
use crate::objects::qp::attributes::{AddressPath, QpState, Transport};
use crate::objects::qp::{Core, Found, Qp, QueuePairs, RecvQueue, Requester, Responder};
use crate::objects::reason::Reason;
use crate::objects::vf::port::PortView;
use crate::objects::work::{AddressVector, GlobalRoute, SendWr};
use crate::queue_format::{Event, QueueFormat};
use crate::transport::arrived::Line;
use crate::transport::network::Network;
use crate::transport::responder::receiving::Receiving;
use crate::verbs::dynamic::MAX_CONTEXTS;

/// A request of an initiator at a target's door.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub initiator: Initiator,
    pub session: Session,
    pub mtu: Mtu,
    /// The way back.
    pub back: AddressPath,
}

impl Call {
    /// The call of an initiator that sends from and to this address; `None` where the port may not answer.
    pub fn new(address: &Address, session: Session, mtu: Mtu, port: &PortView) -> Option<Self> {
        let gid = address.global.map(|(_, sgid)| sgid).unwrap_or_default();
        let global = address.global.map(|(global, sgid)| {
            let own = port.gids.iter().position(|gid| *gid == global.dgid);
            GlobalRoute {
                dgid: sgid,
                sgid_index: own.unwrap_or(0) as u8,
                flow_label: 0,
                traffic_class: 0,
                hop_limit: 0,
            }
        });
        Some(Self {
            initiator: Initiator {
                lid: address.slid,
                gid,
                qpn: session.source,
            },
            session,
            mtu,
            back: AddressPath {
                dlid: address.slid,
                sl: port.service_levels.admit(address.sl)?,
                src_path_bits: port.path_bits(address.dlid),
                global,
            },
        })
    }
}

/// Why a call is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Another key than the target's.
    Key,
    /// The target takes nothing, or has too many initiators at present, or the connection is over.
    Unheard,
}

/// A target has let an initiator in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LetIn {
    pub context: QpIndex,
    /// A connection begins.
    pub begins: bool,
}

impl<F: QueueFormat> Completions<F> {
    /// The context of a target that takes a call.
    pub fn let_in(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        call: &Call,
    ) -> Result<LetIn, Denied> {
        let now = self.scheduler.clock.now();
        let Some(Qp { core, resp, .. }) = objects.qps.get_mut(index.0) else {
            return Err(Denied::Unheard);
        };
        let Role::Target(target) = &mut resp.role else {
            return Err(Denied::Unheard);
        };
        if !core.state.receives() {
            return Err(Denied::Unheard);
        }
        if call.session.key != target.key {
            target.violations = target.violations.wrapping_add(1);
            let (vf, dctn) = (core.vf, core.qpn);
            if std::mem::take(&mut target.armed) {
                objects.notify(vf, Event::DctKeyViolation(dctn));
            }
            return Err(Denied::Key);
        }
        let mut call = *call;
        if let Some(global) = &mut call.back.global {
            global.flow_label = target.route.flow_label;
            global.traffic_class = target.route.traffic_class;
            global.hop_limit = target.route.hop_limit;
        }
        call.mtu = call.mtu.min(core.attr.mtu);
        match target.context(&call.initiator) {
            Some(context) => objects.qps.call_again(context, &call, now),
            None => self.connect(objects, index, &call, now),
        }
    }

    /// A context for an initiator that the target does not know.
    pub fn connect(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        call: &Call,
        now: u64,
    ) -> Result<LetIn, Denied> {
        let contexts = objects
            .qps
            .target(index)
            .map_or(0, |it| it.contexts().len());
        if contexts >= MAX_CONTEXTS && !self.make_way(objects, index, now) {
            return Err(Denied::Unheard);
        }
        let Some(vf) = objects.qps.get(index.0).map(|qp| qp.core.vf) else {
            return Err(Denied::Unheard);
        };
        let own = Objects::<F>::OF_CONTEXT;
        let room = objects.vf_mut(vf).memory.take(own)
            || self.make_way(objects, index, now) && objects.vf_mut(vf).memory.take(own);
        let context = room.then(|| objects.qps.add_context(index, call, now));
        let context = context.flatten().ok_or(Denied::Unheard)?;
        let begins = true;
        Ok(LetIn { context, begins })
    }
}

impl<F: QueueFormat> Network<F> {
    /// Says that a key is wrong. All of the connection is refused with its first packet.
    #[cold]
    pub fn turn_away(&mut self, objects: &mut Objects<F>, at: VfId, call: &Call, pkey_index: u16) {
        let Call {
            session, mtu, back, ..
        } = *call;
        let port = &objects.vf(at).port;
        let gid = |global: GlobalRoute| port.gids.get(usize::from(global.sgid_index));
        let address = Address {
            slid: port.source(back.src_path_bits),
            dlid: back.dlid,
            sl: back.sl,
            global: back
                .global
                .map(|global| (global, gid(global).copied().unwrap_or_default())),
            service: wire::header::Service::Dc,
            pkey: port.pkey(pkey_index),
            dest_qp: session.source,
        };
        let content = Content::Acknowledge(Syndrome::RemoteAccess, 0);
        let answer = Frame {
            reason: Reason::AccessKey,
            ..Frame::new(address, mtu, session.start, content)
        };
        let way = AddressVector {
            dlid: back.dlid,
            sl: back.sl,
            src_path_bits: back.src_path_bits,
            dest_qp: session.source,
            qkey: Default::default(),
            global: back.global,
        };
        if let Ok(route) = self.datagram_route(objects, at, &way, address.pkey) {
            self.emit(objects, (at, &back, session.source), route, answer, None);
        }
    }

    /// Whether a frame is of the partition of a queue pair at this port.
    pub(crate) fn shares_partition(
        &mut self,
        objects: &Objects<F>,
        at: VfId,
        frame: &Frame,
        pkey_index: u16,
    ) -> bool {
        let Address {
            slid,
            dlid,
            sl,
            pkey,
            dest_qp,
            ..
        } = frame.address;
        let vf = objects.vf(at);
        if pkey.matches(vf.port.pkey(pkey_index)) {
            return true;
        }
        TrafficCounters::add(&vf.counters.pkey_violations, 1);
        let envelope = crate::path::Envelope {
            slid,
            dlid,
            sl,
            // A connected packet does not say where it comes from.
            src_qp: Qpn::new(0),
            dest_qp,
        };
        let key = crate::path::WrongKey::Partition(pkey);
        self.subnet.wrong_key(at, key, &envelope);
        false
    }
}

impl<F: QueueFormat> QueuePairs<F> {
    /// Whether a request is for another far end than the one that its initiator has now.
    pub(crate) fn turns_away(&self, index: QpIndex, wr: &SendWr) -> bool {
        let Some(Qp { core, req, .. }) = self.get(index.0) else {
            return false;
        };
        let is = |vector| req.far.is(vector, wr.access_key);
        core.transport == Transport::Dci && !wr.address.as_ref().is_some_and(is)
    }

    /// An initiator calls that has a context.
    fn call_again(&mut self, index: QpIndex, call: &Call, now: u64) -> Result<LetIn, Denied> {
        let Some(qp) = self.get_mut(index.0) else {
            return Err(Denied::Unheard);
        };
        let Role::Context(context) = &mut qp.resp.role else {
            return Err(Denied::Unheard);
        };
        let number = call.session.number;
        if context.earlier == Some(number) {
            return Err(Denied::Unheard);
        }
        context.used = now;
        let begins = context.session != number;
        if !begins && !qp.core.state.receives() {
            return Err(Denied::Unheard);
        }
        if begins {
            context.earlier = Some(context.session);
            context.session = number;
            qp.begin(call);
            self.forget_as_peer(index);
        }
        Ok(LetIn {
            context: index,
            begins,
        })
    }

    /// A context has refused a request: it takes nothing more of this connection of its initiator's.
    #[cold]
    pub(crate) fn refuse_session(&mut self, index: QpIndex) {
        if let Some(qp) = self.get_mut(index.0) {
            qp.core.state = QpState::Error;
            qp.resp.lending = Lending::default();
            qp.resp.received = 0;
            qp.resp.receiving = Receiving::default();
            qp.req.line = Line::default();
        }
        self.forget_as_peer(index);
    }

    /// Gives a target a context, as its template says.
    pub(crate) fn add_context(&mut self, index: QpIndex, call: &Call, now: u64) -> Option<QpIndex> {
        let Qp { core, resp, .. } = self.get_mut(index.0)?;
        let Role::Target(target) = &mut resp.role else {
            return None;
        };
        let RecvQueue::Shared(srq) = &resp.queue else {
            return None;
        };
        let mut own = Responder::new(RecvQueue::Shared(*srq), resp.cq);
        own.inbound = target.left_behind.pop();
        // The owner of a target is not told of initiators.
        own.established = true;
        own.role = Role::Context(Box::new(Context {
            of: index,
            initiator: call.initiator,
            session: call.session.number,
            earlier: None,
            used: now,
        }));
        let mut qp = Qp {
            core: Core {
                vf: core.vf,
                qpn: core.qpn,
                user_index: core.user_index,
                in_completion: core.in_completion,
                transport: Transport::Dct,
                pd: core.pd,
                state: core.state,
                attr: core.attr,
                set: core.set.clone(),
                source_qpn: core.qpn,
                block_multicast_loopback: false,
                offloads: false,
                polled: false,
                hot: false,
                polled_at: 0,
                errored_at: 0,
            },
            req: Requester::new(None, None),
            resp: own,
        };
        qp.begin(call);
        let context = QpIndex(self.insert(qp));
        if let Some(target) = self.target_mut(index) {
            target.insert(call.initiator, context);
        }
        Some(context)
    }
}

impl<F: QueueFormat> Qp<F> {
    /// A connection of an initiator begins at its context.
    fn begin(&mut self, call: &Call) {
        let Self { core, req, resp } = self;
        core.state = QpState::ReadyToReceive;
        core.attr.path = Some(call.back);
        core.attr.mtu = call.mtu;
        core.attr.dest_qp = call.initiator.qpn;
        req.found = Found::default();
        req.line = Line::default();
        resp.psn = call.session.start;
        (resp.msn, resp.received) = (0, 0);
        resp.receiving = Receiving::default();
        resp.lending = Lending::default();
        if resp.paging == Paging::Denied {
            resp.paging = Paging::None;
        }
    }
}
