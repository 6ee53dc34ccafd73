//! IP packets (RFC 4391) of queue pairs that leave checksums and segments of TCP to the HCA.

use hca::work::{CompletionEntry, Offload, Segmentation, SendWr, Side, Status};
use hca::{QpChange, QpState, Transport};
use wire::Mtu;
use wire::ipoib::{Checked, check, fill};

use crate::lab::{Lab, QKEY, Qp, base, datagram, pattern, sent};

/// Bytes of the headers: the type, IPv4 and TCP.
const HEADER: usize = 4 + 20 + 20;
const GRH: u64 = 40;
const RIGHT: Checked = Checked {
    network: true,
    transport: true,
};

fn up(lab: &mut Lab, node: usize, offloads: bool) -> Qp {
    let qp = lab.qp_with(node, Transport::Ud, |desc| desc.offloads = offloads);
    let change = QpChange {
        pkey_index: Some(0),
        qkey: Some(QKEY),
        ..QpChange::default()
    };
    lab.bring_up(&qp, &change);
    qp
}

/// Headers of a segment with number 0xffff_ff00, the flags FIN, PSH, ACK and CWR, and no lengths or checksums yet.
fn header() -> Vec<u8> {
    let mut header = vec![8, 0, 0, 0, 0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0];
    header.extend([10, 9, 0, 1, 10, 9, 0, 2]);
    header.extend([
        0x13, 0x88, 0, 80, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0,
    ]);
    assert_eq!(header.len(), HEADER);
    header
}

/// A request whose first bytes are inline, and those that follow in the memory of the node 0.
fn stretch(lab: &Lab, to: &Qp, len: u32, mss: u16) -> SendWr {
    let mut wr = datagram(lab, to, 1, &[]);
    wr.push_inline(&header()).unwrap();
    wr.push_memory(lab.sge(0, 0, len)).unwrap();
    wr.offload = Some(Offload {
        segmentation: Some(Segmentation {
            header: HEADER as u16,
            mss,
        }),
        ..Offload::default()
    });
    wr
}

fn checked(entry: &CompletionEntry) -> Checked {
    match entry.side {
        Side::Recv {
            source: Some(source),
            ..
        } => source.checked,
        _ => panic!("{entry:?} is not of a datagram that was received"),
    }
}

#[test]
fn a_stretch_of_tcp_is_cut() {
    let mut lab = Lab::new(2);
    let (a, b) = (up(&mut lab, 0, true), up(&mut lab, 1, true));
    let data = pattern(1, 10_000);
    lab.memory(0).write(base(0), &data);
    for index in 0..7_u16 {
        lab.receive(&b, index, &[lab.sge(1, u64::from(index) * 0x2000, 0x2000)]);
    }
    // In turns of some bytes each, as long as others wait, or at once: it is the same.
    lab.execute(&a, stretch(&lab, &b, 10_000, 1500));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    let entries = b.cq.poll();
    assert_eq!(entries.len(), 7);
    for (number, entry) in entries.iter().enumerate() {
        let len = if number == 6 { 1000 } else { 1500 };
        assert_eq!(entry.byte_len as usize, GRH as usize + HEADER + len);
        assert_eq!(checked(entry), RIGHT);
        let at = base(1) + number as u64 * 0x2000 + GRH;
        let packet = lab.memory(1).read(at, HEADER + len);
        assert_eq!(check(&packet), RIGHT);
        let half = |at: usize| usize::from(packet[at]) << 8 | usize::from(packet[at + 1]);
        assert_eq!(half(4 + 2), 40 + len);
        assert_eq!(half(4 + 4), (0xfffe + number) & 0xffff);
        let sequence = u32::from_be_bytes(packet[28..32].try_into().unwrap());
        assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(1500 * number as u32));
        // CWR is the first one's, FIN and PSH are the last one's.
        let flags = match number {
            0 => 0x90,
            6 => 0x19,
            _ => 0x10,
        };
        assert_eq!(packet[4 + 20 + 13], flags);
        assert_eq!(packet[HEADER..], data[number * 1500..][..len]);
    }
}

#[test]
fn checksums_are_written_where_they_are_asked_for_and_looked_at_where_they_are_wanted() {
    let mut lab = Lab::new(2);
    let a = up(&mut lab, 0, true);
    let receivers = [up(&mut lab, 1, true), up(&mut lab, 1, false)];
    let mut packet = header();
    packet.extend(pattern(2, 101));
    packet[4 + 3] = (packet.len() - 4) as u8;
    for (network, transport) in [(true, true), (true, false), (false, true), (false, false)] {
        for (receiver, looks) in receivers.iter().zip([true, false]) {
            lab.memory(0).write(base(0), &packet);
            lab.receive(receiver, 1, &[lab.sge(1, 0, 0x1000)]);
            let mut wr = datagram(&lab, receiver, 1, &[lab.sge(0, 0, packet.len() as u32)]);
            wr.offload = Some(Offload {
                network_checksum: network,
                transport_checksum: transport,
                segmentation: None,
            });
            lab.execute(&a, wr);
            let received = lab.memory(1).read(base(1) + GRH, packet.len());
            let mut wanted = packet.clone();
            fill(&mut wanted, network, transport);
            assert_eq!(received, wanted);
            let found = Checked {
                network: looks && network,
                transport: looks && network && transport,
            };
            assert_eq!(checked(&receiver.cq.poll()[0]), found);
        }
    }
}

#[test]
fn stretches_that_cannot_be_cut_fail() {
    let mut lab = Lab::new(2);
    let (a, b) = (up(&mut lab, 0, true), up(&mut lab, 1, true));
    lab.memory(0).write(base(0), &pattern(1, 0x4000));
    let change = |change: fn(&mut SendWr)| {
        let mut wr = stretch(&lab, &b, 10_000, 1500);
        change(&mut wr);
        wr
    };
    let headers_of = |wr: &mut SendWr, header| {
        if let Some(Segmentation { header: of, .. }) = wr
            .offload
            .as_mut()
            .and_then(|offload| offload.segmentation.as_mut())
        {
            *of = header;
        }
    };
    let mut short = change(|_| {});
    headers_of(&mut short, HEADER as u16 - 1);
    let mut long = change(|_| {});
    headers_of(&mut long, 0xffff);
    let requests = [
        // No segments of nothing, and none of fewer bytes than any TCP has.
        (stretch(&lab, &b, 10_000, 0), Status::LocalQpOperation),
        (stretch(&lab, &b, 10_000, 1), Status::LocalQpOperation),
        (short, Status::LocalQpOperation),
        (long, Status::LocalQpOperation),
        (change(|wr| wr.inline[4 + 9] = 17), Status::LocalQpOperation),
        (
            change(|wr| wr.inline[4 + 20 + 12] = 0xf0),
            Status::LocalQpOperation,
        ),
        // With its headers a segment would be longer than the MTU.
        (
            stretch(&lab, &b, 10_000, 4096 - HEADER as u16 + 1),
            Status::LocalLength,
        ),
        (
            change(|wr| wr.sges.iter_mut().for_each(|sge| sge.len = 1 << 19)),
            Status::LocalLength,
        ),
    ];
    for (number, (wr, status)) in requests.into_iter().enumerate() {
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(1, status)], "request {number}");
        assert_eq!(lab.state(&a), QpState::SendQueueError);
        let again = QpChange {
            mtu: Some(Mtu::B4096),
            ..QpChange::default()
        };
        lab.modify(&a, QpState::ReadyToSend, &again);
    }
    assert!(b.cq.poll().is_empty());
    // As long as it may be.
    lab.execute(&a, stretch(&lab, &b, 10_000, 4096 - HEADER as u16));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}
