//! A packet as the kernel's MAD device has it: `struct ib_user_mad_hdr` of `include/uapi/rdma/ib_user_mad.h`, and the MAD.

use wire::header::GlobalRoute;
use wire::{Gid, Lid, MadPacket, QKey, Qpn, Sl, mad};

/// Bytes of the header.
pub(super) const HEADER: usize = 64;
/// Bytes of the header without its last fields, the P_Key's index among them.
pub(super) const SHORT_HEADER: usize = 56;

/// A packet of this process.
#[derive(Debug, Clone)]
pub(super) struct Datagram {
    /// The agent that sends it.
    pub(super) agent: u32,
    /// Time in ms that the kernel waits for an answer; 0 if nobody answers.
    pub(super) timeout_ms: u32,
    /// Index of its P_Key.
    pub(super) pkey: u16,
    /// It.
    pub(super) packet: MadPacket,
}

impl Datagram {
    /// Its bytes, with a header of this length.
    pub(super) fn emit(&self, header: usize) -> Vec<u8> {
        let mut bytes = vec![0; header];
        let Self { packet, .. } = self;
        bytes[..4].copy_from_slice(&self.agent.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        bytes[16..20].copy_from_slice(&((header + mad::SIZE) as u32).to_ne_bytes());
        bytes[20..24].copy_from_slice(&packet.dst_qp.value().to_be_bytes());
        bytes[24..28].copy_from_slice(&packet.qkey.value().to_be_bytes());
        bytes[28..30].copy_from_slice(&packet.dlid.value().to_be_bytes());
        bytes[30] = packet.sl.value();
        if let Some(grh) = &packet.grh {
            // Sent from the port's first GID.
            (bytes[32], bytes[34], bytes[35]) = (1, grh.hop_limit, grh.traffic_class);
            bytes[36..52].copy_from_slice(&grh.dgid.to_bytes());
            bytes[52..56].copy_from_slice(&grh.flow_label.to_be_bytes());
        }
        if let Some(pkey) = bytes.get_mut(56..58) {
            pkey.copy_from_slice(&self.pkey.to_ne_bytes());
        }
        bytes.extend_from_slice(&packet.mad);
        bytes
    }
}

/// A packet that came.
#[derive(Debug)]
pub(super) struct Arrival {
    /// It is a request of this process that nobody answered.
    pub(super) is_timed_out: bool,
    /// Index of its P_Key.
    pub(super) pkey: u16,
    /// It, with the default P_Key.
    pub(super) packet: MadPacket,
}

impl Arrival {
    /// Reads what came, with a header of this length; `None` if it is none.
    pub(super) fn parse(bytes: &[u8], header: usize) -> Option<Self> {
        let (head, mad) = bytes.split_at_checked(header)?;
        // A request that nobody answered may come back without its data.
        let mut whole = [0; mad::SIZE];
        whole.get_mut(..mad.len())?.copy_from_slice(mad);
        let word = |at: usize| head.get(at..at + 4)?.try_into().ok();
        let slid = Lid::new(u16::from_be_bytes([head[28], head[29]]));
        let packet = MadPacket::smp(slid, Lid::PERMISSIVE, whole);
        let packet = if packet.header().class().is_subnet_management() {
            packet
        } else {
            MadPacket {
                sl: Sl::new(head[30] & 0xf),
                src_qp: Qpn::new(u32::from_be_bytes(word(20)?)),
                dst_qp: Qpn::QP1,
                qkey: QKey::QP1,
                grh: (head[32] != 0).then(|| global_route(head)).flatten(),
                ..packet
            }
        };
        let pkey = head
            .get(56..58)
            .map_or(0, |it| u16::from_ne_bytes([it[0], it[1]]));
        Some(Self {
            is_timed_out: u32::from_ne_bytes(word(4)?) != 0,
            pkey,
            packet,
        })
    }
}

/// The global route of a packet that came, by its header; the destination is this port.
fn global_route(head: &[u8]) -> Option<GlobalRoute> {
    Some(GlobalRoute {
        ip_version: 6,
        traffic_class: head[35],
        flow_label: u32::from_be_bytes(head.get(52..56)?.try_into().ok()?),
        next_header: GlobalRoute::IBA_TRANSPORT,
        hop_limit: head[34],
        sgid: Gid::from_bytes(head.get(36..52)?.try_into().ok()?),
        ..GlobalRoute::default()
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use wire::mad::{Class, Mad};

    use super::*;

    /// Offsets as a C compiler lays `struct ib_user_mad_hdr` out, of which no field needs padding.
    #[test]
    fn layout_of_a_header() {
        let mut mad = [7; mad::SIZE];
        let mut header = Mad::new_checked(&mut mad[..]).expect("is long enough");
        header.set_class(Class::SUBN_ADM);
        let packet = MadPacket {
            dst_qp: Qpn::new(0x1234),
            qkey: QKey::QP1,
            sl: Sl::new(3),
            ..MadPacket::smp(Lid::NONE, Lid::new(0x5678), mad)
        };
        let datagram = Datagram {
            agent: 2,
            timeout_ms: 150,
            pkey: 5,
            packet,
        };
        let bytes = datagram.emit(HEADER);
        assert_eq!(bytes.len(), 320);
        let native = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4"));
        assert_eq!([0, 4, 8, 12, 16].map(native), [2, 0, 150, 0, 320]);
        assert_eq!(
            bytes[20..32],
            [0, 0, 0x12, 0x34, 0x80, 1, 0, 0, 0x56, 0x78, 3, 0]
        );
        assert_eq!(bytes[32..56], [0; 24]);
        assert_eq!(bytes[56..58], 5u16.to_ne_bytes());
        assert_eq!(bytes[64..], datagram.packet.mad);
        assert_eq!(datagram.emit(SHORT_HEADER)[56..], datagram.packet.mad);

        let arrival = Arrival::parse(&bytes, HEADER).expect("is one");
        assert!(!arrival.is_timed_out && !arrival.packet.is_smp());
        assert_eq!((arrival.pkey, arrival.packet.slid), (5, Lid::new(0x5678)));
        assert_eq!(arrival.packet.src_qp, Qpn::new(0x1234));
        let grh = GlobalRoute {
            dgid: Gid::new(0xfec0 << 48, wire::Guid::new(0x11)),
            flow_label: 0x12345,
            hop_limit: 64,
            traffic_class: 9,
            ..GlobalRoute::default()
        };
        let mut routed = datagram.clone();
        routed.packet.grh = Some(grh);
        let routed = routed.emit(HEADER);
        assert_eq!(routed[32..40], [1, 0, 64, 9, 0xfe, 0xc0, 0, 0]);
        assert_eq!(routed[51..56], [0x11, 0, 1, 0x23, 0x45]);
        let arrival = Arrival::parse(&routed, HEADER).expect("is one");
        let came = arrival.packet.grh.expect("a global route");
        assert_eq!((came.sgid, came.flow_label), (grh.dgid, grh.flow_label));
        assert_eq!(
            arrival.packet.reply().grh.expect("a global route").dgid,
            grh.dgid
        );

        let mut late = bytes;
        late[4..8].copy_from_slice(&110u32.to_ne_bytes());
        let arrival = Arrival::parse(&late[..HEADER + 24], HEADER).expect("is one");
        assert!(arrival.is_timed_out);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in vec(any::<u8>(), 0..400)) {
            for header in [HEADER, SHORT_HEADER] {
                let fits = (header..=header + mad::SIZE).contains(&bytes.len());
                prop_assert_eq!(Arrival::parse(&bytes, header).is_some(), fits);
            }
        }
    }
}
