//! Congestion that an engine's queue pairs meet, and of which it tells senders.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::congestion::AdapterCongestionEvent;
use wire::{Qpn, Sl};

use super::Injection;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::attributes::AddressPath;
use crate::path::{Heading, Route, Shares};
use crate::queue_format::QueueFormat;
use crate::transport::endpoint::Destination;
use crate::transport::endpoint::links::Load;
use crate::transport::frame::{Address, Content, Frame, service};
use crate::transport::network::Network;

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

impl<F: QueueFormat> Network<F> {
    /// Rules by which a function's port holds back frames; `None` where it does not.
    pub fn injection(&mut self, vf: VfId, generation: u64) -> Option<Arc<Injection>> {
        let Self { exits, subnet, .. } = self;
        let kept = exits.injections.rules.get(&vf);
        if let Some((of, rules)) = kept
            && *of == generation
        {
            return rules.clone();
        }
        let rules = subnet.injection(vf);
        exits
            .injections
            .rules
            .insert(vf, (generation, rules.clone()));
        rules
    }

    /// Until when a queue pair has to wait before it sends on a way, for the congestion that it has met.
    pub(crate) fn held_until(&mut self, vf: VfId, qp: Qpn, sl: Sl, route: &Route) -> Option<u64> {
        if route.shares.is_none() || self.exits.injections.held.is_empty() {
            return None;
        }
        let generation = self.generation.load(Ordering::Acquire);
        let rules = self.injection(vf, generation)?;
        let now = self.clock.now();
        self.exits.injections.waits(now, rules.flow(vf, qp, sl))
    }

    /// A queue pair has its next turn then. `sent` says that it has sent something in this one.
    pub(crate) fn wait_until(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        until: u64,
        sent: bool,
    ) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        // Answers and doorbells give it turns meanwhile: it is on the list once.
        if std::mem::replace(&mut qp.req.held_until, until) == until {
            return;
        }
        let waiting = &mut self.exits.injections.waiting;
        waiting.push(Reverse((until, sent, index.0)));
        self.exits.look();
    }

    /// A queue pair sends a request or a datagram: the next one may have to wait.
    pub(crate) fn hold_back(&mut self, vf: VfId, qp: Qpn, route: &Route, frame: &Frame) {
        let Some(Shares { rate, .. }) = route.shares else {
            return;
        };
        let generation = self.generation.load(Ordering::Acquire);
        let Some(rules) = self.injection(vf, generation) else {
            return;
        };
        let bytes = Load::new(0, 0, frame).bytes();
        let time = u128::from(bytes) * SECOND / u128::from(rate.max(1));
        let flow = rules.flow(vf, qp, frame.address.sl);
        let now = self.clock.now();
        self.exits.injections.sent(now, flow, &rules, time as u64);
    }

    /// Tells the sender of a marked frame that it has met congestion.
    pub fn notify_sender(&mut self, objects: &mut Objects<F>, at: VfId, frame: &Frame) {
        if !frame.is_request() {
            return;
        }
        let notification =
            |address| Frame::new(address, frame.mtu, frame.psn, Content::Notification);
        let (sender, index) = match (&frame.content, &frame.session) {
            (Content::Datagram { source, .. }, _) => (*source, None),
            (_, Some(session)) => (session.source, None),
            _ => match objects.vf(at).qps.get(frame.address.dest_qp.value()) {
                Some(index) => (Qpn::new(0), Some(*index)),
                None => return,
            },
        };
        // A connection knows its way back.
        if let Some(index) = index {
            if let Some(address) = objects.address(index) {
                self.transmit(objects, index, notification(address), None);
            }
            return;
        }
        let Address {
            slid,
            dlid,
            global,
            sl,
            pkey,
            ..
        } = frame.address;
        let global = global.map(|(mut global, sgid)| {
            let own = std::mem::replace(&mut global.dgid, sgid);
            (global, own)
        });
        let port = &objects.vf(at).port;
        let path = AddressPath {
            dlid: slid,
            sl,
            src_path_bits: port.path_bits(dlid),
            global: global.map(|(global, _)| global),
        };
        let heading = Heading::new(path.dlid, sl, pkey, path.global);
        if !port.active {
            return;
        }
        let Ok(route) = self.subnet.resolve(at, &heading) else {
            return;
        };
        let back = Address {
            slid: dlid,
            dlid: slid,
            global,
            dest_qp: sender,
            ..frame.address
        };
        self.emit(
            objects,
            (at, &path, sender),
            route,
            notification(back),
            None,
        );
    }

    /// A notification has come to a function: the queue pair is held back from now on.
    pub fn notified(&mut self, objects: &mut Objects<F>, at: VfId, frame: &Frame) {
        let address = frame.address;
        let Some(&index) = objects.vf(at).qps.get(address.dest_qp.value()) else {
            return;
        };
        let Some(core) = objects.qps.get(index.0).map(|qp| &qp.core) else {
            return;
        };
        let (remote_qp, transport) = (core.attr.dest_qp, core.transport);
        // The way back may have another level.
        let sl = core.attr.path.map_or(address.sl, |path| path.sl);
        let generation = self.generation.load(Ordering::Acquire);
        let Some(rules) = self.injection(at, generation) else {
            return;
        };
        let now = self.clock.now();
        let flow = rules.flow(at, address.dest_qp, sl);
        if self.exits.injections.notified(now, flow, &rules) {
            let event = AdapterCongestionEvent {
                local_qp: address.dest_qp,
                sl,
                service: service(transport) as u8,
                remote_qp,
                local_lid: address.dlid,
                remote_lid: address.slid,
                time: 0,
            };
            self.subnet.held_back(at, event);
        }
    }

    /// Takes note of congestion that a frame tells of, which has arrived; whether it says nothing else.
    pub(crate) fn see_congestion(
        &mut self,
        objects: &mut Objects<F>,
        to: &Destination,
        frame: &Frame,
    ) -> bool {
        let Destination::Function(to) = *to else {
            return false;
        };
        if frame.marked {
            self.notify_sender(objects, to, frame);
        }
        let notifies = frame.content == Content::Notification;
        if notifies {
            self.notified(objects, to, frame);
        }
        notifies
    }
}
