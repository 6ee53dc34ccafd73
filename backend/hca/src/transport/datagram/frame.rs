//! Datagrams in frames.

use wire::header::Service;
use wire::{Mtu, Psn, Qpn};

use crate::budget::Budget;
use crate::transport::datagram::{Datagram, global_route, grh};
use crate::transport::frame::{Address, Content, Frame};

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
        budget: Budget::NONE,
    })
}
