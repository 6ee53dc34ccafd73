//! Management packets: as guests' queue pairs know them, and as the fabric does.

use hca::MadDatagram;
use hca::work::GlobalRoute;
use wire::MadPacket;

pub(super) fn packet(datagram: &MadDatagram) -> MadPacket {
    MadPacket {
        slid: datagram.slid,
        dlid: datagram.dlid,
        sl: datagram.sl,
        pkey: datagram.pkey,
        src_qp: datagram.src_qp,
        dst_qp: datagram.dest_qp,
        qkey: datagram.qkey,
        grh: datagram
            .global
            .map(|(global, sgid)| wire::header::GlobalRoute {
                ip_version: 6,
                traffic_class: global.traffic_class,
                flow_label: global.flow_label,
                payload_length: 0,
                next_header: wire::header::GlobalRoute::IBA_TRANSPORT,
                hop_limit: global.hop_limit,
                sgid,
                dgid: global.dgid,
            }),
        mad: datagram.mad,
    }
}

/// A management packet as a queue pair gets it.
#[must_use]
pub fn datagram(packet: &MadPacket) -> MadDatagram {
    MadDatagram {
        slid: packet.slid,
        dlid: packet.dlid,
        sl: packet.sl,
        pkey: packet.pkey,
        src_qp: packet.src_qp,
        dest_qp: packet.dst_qp,
        qkey: packet.qkey,
        global: packet.grh.as_ref().map(|grh| {
            let global = GlobalRoute {
                dgid: grh.dgid,
                sgid_index: 0,
                flow_label: grh.flow_label,
                traffic_class: grh.traffic_class,
                hop_limit: grh.hop_limit,
            };
            (global, grh.sgid)
        }),
        mad: packet.mad,
    }
}
