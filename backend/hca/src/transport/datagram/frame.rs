//! Datagrams in frames.

use wire::header::Service;
use wire::{Mtu, Psn, Qpn};

use crate::engine::Engine;
use crate::local::datagram::{global_route, grh};
use crate::objects::counters::TrafficCounters;
use crate::objects::ids::VfId;
use crate::objects::work::AddressVector;
use crate::path::Route;
use crate::queue_format::QueueFormat;
use crate::transport::datagram::Datagram;
use crate::transport::endpoint::{Destination, InFlight};
use crate::transport::frame::{Address, Content, Frame};

impl<F: QueueFormat> Engine<F> {
    /// Sends a datagram in a frame. `psn` is its number.
    #[cold]
    pub(crate) fn launch_datagram(
        &mut self,
        from: VfId,
        to: Destination,
        route: Route,
        address: &AddressVector,
        datagram: &Datagram<'_>,
        psn: Psn,
    ) {
        if !self.objects.vf(from).has_slots() {
            return TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
        }
        let mut frame = framed(datagram, address.dest_qp);
        frame.psn = psn;
        self.network
            .hold_back(from, datagram.src_qp, &route, &frame);
        let in_flight = InFlight::new(&self.objects.vf(from).in_flight, 1);
        self.network
            .send_routed(&self.objects, from, to, route, frame, Some(in_flight));
        // A datagram that takes no time arrives before the sender knows that it has left.
        if self.network.exits.have_arrivals() {
            self.arrivals(self.requests.completions.scheduler.clock.now());
        }
    }

    /// A datagram has come in a frame. `budget` is charged with what it costs its receivers.
    pub(crate) fn datagram_arrives(
        &mut self,
        from: VfId,
        to: Destination,
        path_bits: [u8; 2],
        mut frame: Frame,
        budget: &mut i64,
    ) {
        let (seen, dest_qp) = (frame.clone(), frame.address.dest_qp);
        let Some(mut datagram) = unframed(&mut frame) else {
            return;
        };
        match to {
            Destination::Function(to) => self.receive_for(to, dest_qp, &mut datagram),
            Destination::Away => {}
            Destination::Group(routes, group, cluster) => {
                for to in routes.iter().filter_map(Route::here) {
                    self.network
                        .show_at_port(&self.objects, (from, to), cluster, path_bits, &seen);
                    let group = (group, cluster);
                    self.receive_multicast(to, group, &mut datagram, budget);
                }
            }
        }
        *budget -= datagram.cost;
    }
}

/// The frame of a datagram to this queue pair, whose number in the sender's sequence nobody asks for.
pub(crate) fn framed(datagram: &Datagram<'_>, dest_qp: Qpn) -> Frame {
    let content = Content::Datagram {
        qkey: datagram.qkey,
        source: datagram.src_qp,
        immediate: datagram.immediate,
    };
    let address = Address {
        slid: datagram.slid,
        dlid: datagram.dlid,
        sl: datagram.sl,
        global: (datagram.grh.as_ref()).map(|header| (global_route(header), datagram.sgid)),
        service: Service::Ud,
        pkey: datagram.pkey,
        dest_qp,
    };
    Frame {
        solicited: datagram.solicited,
        payload: datagram.payload.to_vec(),
        ..Frame::new(address, Mtu::B4096, Psn::default(), content)
    }
}

/// The datagram that a frame is, if it is one.
pub(crate) fn unframed(frame: &mut Frame) -> Option<Datagram<'_>> {
    let Content::Datagram {
        qkey,
        source,
        immediate,
    } = frame.content
    else {
        return None;
    };
    if !frame.is_well_formed() || frame.train.is_some() {
        return None;
    }
    let Address {
        slid,
        dlid,
        sl,
        global,
        pkey,
        ..
    } = frame.address;
    let payload = &mut frame.payload[..];
    Some(Datagram {
        slid,
        dlid,
        sl,
        pkey,
        src_qp: source,
        qkey,
        sgid: global.map_or(wire::Gid::NONE, |(_, sgid)| sgid),
        grh: global.map(|(global, sgid)| grh(&global, sgid, payload.len(), immediate.is_some())),
        immediate,
        solicited: frame.solicited,
        payload,
        cost: 0,
    })
}
