//! Datagrams: to queue pairs, to groups, to and from management agents.

use std::sync::atomic::Ordering::Relaxed;

use hca::work::{GlobalRoute, Operation, RecvKind, SendWr, Side, Source, Status};
use hca::{PortView, QpChange, QpState, RecvSide, Transport, VerbError};
use wire::ipoib::Checked;
use wire::{Gid, Lid, MadPacket, Mtu, PKey, QKey, Qpn, Sl};

use crate::lab::{Lab, QKEY, Qp, base, datagram, pattern, received, request, sent};

fn up(lab: &mut Lab, node: usize, transport: Transport) -> Qp {
    let qp = lab.qp(node, transport);
    start(lab, &qp);
    qp
}

fn start(lab: &mut Lab, qp: &Qp) {
    let change = QpChange {
        pkey_index: Some(0),
        qkey: Some(QKEY),
        ..QpChange::default()
    };
    lab.bring_up(qp, &change);
}

fn global(dgid: Gid) -> GlobalRoute {
    GlobalRoute {
        dgid,
        sgid_index: 0,
        flow_label: 0x54321,
        traffic_class: 0xab,
        hop_limit: 7,
    }
}

#[test]
fn up_to_the_mtu_with_and_without_immediate_data() {
    let mut lab = Lab::new(2);
    let (a, b) = (
        up(&mut lab, 0, Transport::Ud),
        up(&mut lab, 1, Transport::Ud),
    );
    for (len, immediate) in [
        (0, None),
        (1, Some(5)),
        (1000, None),
        (4096, Some(0xffff_fff0)),
    ] {
        let data = pattern(u64::from(len), len as usize);
        lab.memory(0).write(base(0), &data);
        lab.memory(1).write(base(1), &[0xee; 5000]);
        lab.receive(&b, 3, &[lab.sge(1, 0, 40 + len)]);
        let mut wr = datagram(&lab, &b, 1, &[lab.sge(0, 0, len)]);
        if let Some(immediate) = immediate {
            (wr.operation, wr.immediate) = (Operation::SendImm, immediate);
        }
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        let entries = b.cq.poll();
        let kind = if immediate.is_some() {
            RecvKind::SendImm
        } else {
            RecvKind::Send
        };
        assert_eq!(
            received(&entries),
            [(3, Status::Success, 40 + len, kind, immediate.unwrap_or(0))]
        );
        let Side::Recv { source, .. } = entries[0].side else {
            panic!("a receive completion");
        };
        assert_eq!(
            source,
            Some(Source {
                slid: lab.nodes[0].lid,
                src_qp: a.qpn,
                sl: Sl::default(),
                grh: false,
                pkey: PKey::DEFAULT_FULL,
                path_bits: 0,
                checked: Checked::default(),
            })
        );
        assert_eq!(lab.memory(1).read(base(1) + 40, len as usize), data);
        // Without a GRH its room stays as it was.
        assert_eq!(lab.memory(1).read(base(1), 40), [0xee; 40]);
        assert_eq!(
            lab.memory(1).read(base(1) + 40 + u64::from(len), 4),
            [0xee; 4]
        );
    }
    // Longer than any packet, and longer than this queue pair's packets.
    for (mtu, len) in [(Mtu::B4096, 4097), (Mtu::B1024, 1025)] {
        let change = QpChange {
            mtu: Some(mtu),
            ..QpChange::default()
        };
        lab.modify(&a, QpState::ReadyToSend, &change);
        let wr = datagram(&lab, &b, 2, &[lab.sge(0, 0, len)]);
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(2, Status::LocalLength)]);
        assert_eq!(lab.state(&a), QpState::SendQueueError);
    }
    // Longer than the path carries: lost on the way.
    let change = QpChange {
        mtu: Some(Mtu::B4096),
        ..QpChange::default()
    };
    lab.modify(&a, QpState::ReadyToSend, &change);
    lab.net.change(|net| net.mtu = Some(Mtu::B2048));
    lab.receive(&b, 3, &[lab.sge(1, 0, 5000)]);
    let wr = datagram(&lab, &b, 3, &[lab.sge(0, 0, 2049)]);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    assert!(b.cq.poll().is_empty());
}

#[test]
fn the_grh_that_a_receiver_sees() {
    let mut lab = Lab::new(2);
    let (a, b) = (
        up(&mut lab, 0, Transport::Ud),
        up(&mut lab, 1, Transport::Ud),
    );
    let dgid = Gid::from_bits(0xfe80 << 112 | 2);
    lab.memory(0).write(base(0), &[1, 2, 3, 4, 5]);
    lab.receive(&b, 1, &[lab.sge(1, 0, 17), lab.sge(1, 0x100, 100)]);
    let mut wr = datagram(&lab, &b, 1, &[lab.sge(0, 0, 5)]);
    wr.operation = Operation::SendImm;
    if let Some(address) = &mut wr.address {
        address.global = Some(global(dgid));
    }
    lab.execute(&a, wr);
    assert!(matches!(
        b.cq.poll()[0].side,
        Side::Recv { source: Some(source), .. } if source.grh
    ));
    let mut bytes = lab.memory(1).read(base(1), 17);
    bytes.extend(lab.memory(1).read(base(1) + 0x100, 28));
    // Version 6, class, label; length: BTH 12, DETH 8, immediate 4, payload 5
    // and pad 3, ICRC 4; next header; hop limit.
    assert_eq!(bytes[..8], [0x6a, 0xb5, 0x43, 0x21, 0, 36, 0x1b, 7]);
    assert_eq!(bytes[8..24], (0xfe80_u128 << 112 | 1).to_be_bytes());
    assert_eq!(bytes[24..40], (0xfe80_u128 << 112 | 2).to_be_bytes());
    assert_eq!(bytes[40..], [1, 2, 3, 4, 5]);
}

#[test]
fn keys_decide_and_violations_are_counted() {
    let mut lab = Lab::new(2);
    let (a, b) = (
        up(&mut lab, 0, Transport::Ud),
        up(&mut lab, 1, Transport::Ud),
    );
    let counters = lab.engine.vf(b.vf).counters();
    let arrives = |lab: &mut Lab, qkey: u32| {
        lab.receive(&b, 1, &[lab.sge(1, 0, 100)]);
        let mut wr = datagram(lab, &b, 1, &[lab.sge(0, 0, 10)]);
        if let Some(address) = &mut wr.address {
            address.qkey = QKey::new(qkey);
        }
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        !b.cq.poll().is_empty()
    };
    assert!(arrives(&mut lab, 0x1111_1111));
    assert!(!arrives(&mut lab, 0x1111_1112));
    assert_eq!(counters.qkey_violations.load(Relaxed), 1);
    // With the controlled bit the queue pair's own is sent.
    assert!(arrives(&mut lab, 0x8000_0000));
    let change = QpChange {
        qkey: Some(QKey::new(0x2222_2222)),
        ..QpChange::default()
    };
    lab.modify(&a, QpState::ReadyToSend, &change);
    assert!(!arrives(&mut lab, 0xffff_ffff));
    assert_eq!(counters.qkey_violations.load(Relaxed), 2);
    // Partitions.
    let port = PortView {
        pkeys: vec![PKey::new(0x8123)],
        ..lab.engine.vf(b.vf).port().clone()
    };
    lab.engine.vf_mut(b.vf).set_port(port);
    assert!(!arrives(&mut lab, 0x1111_1111));
    assert_eq!(counters.pkey_violations.load(Relaxed), 1);
    assert_eq!(counters.qkey_violations.load(Relaxed), 2);
}

#[test]
fn receivers_that_cannot_take_it() {
    let mut lab = Lab::new(2);
    let (a, b) = (
        up(&mut lab, 0, Transport::Ud),
        up(&mut lab, 1, Transport::Ud),
    );
    let send = |lab: &mut Lab, to: &Qp| {
        let wr = datagram(lab, to, 1, &[lab.sge(0, 0, 10)]);
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    };
    // Nothing posted, nobody there, a connected queue pair, a cut path.
    send(&mut lab, &b);
    let ghost = Qp {
        qpn: Qpn::new(0xabcdef),
        ..b.clone()
    };
    send(&mut lab, &ghost);
    let connected = lab.qp(1, Transport::Rc);
    lab.receive(&connected, 1, &[lab.sge(1, 0, 100)]);
    send(&mut lab, &connected);
    lab.net.cut(a.vf, b.vf);
    lab.receive(&b, 1, &[lab.sge(1, 0, 100)]);
    send(&mut lab, &b);
    assert!(b.cq.poll().is_empty());
    assert_eq!((b.recv.len(), connected.recv.len()), (1, 1));
    // No answer is kept as well, until the subnet changes.
    let asked = lab.net.look().resolved;
    send(&mut lab, &b);
    assert_eq!(lab.net.look().resolved, asked);
    lab.net.restore();
    send(&mut lab, &b);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    // A port that is down neither sends nor receives.
    for node in [0, 1] {
        let vf = lab.nodes[node].vf;
        let up = lab.engine.vf(vf).port().clone();
        lab.engine.vf_mut(vf).set_port(PortView {
            active: false,
            ..up.clone()
        });
        lab.receive(&b, 1, &[lab.sge(1, 0, 100)]);
        send(&mut lab, &b);
        assert!(b.cq.poll().is_empty());
        lab.engine.vf_mut(vf).set_port(up);
    }
    // Too short a buffer, the room for the GRH counted: the receiver's error.
    let c = up(&mut lab, 1, Transport::Ud);
    lab.receive(&c, 1, &[lab.sge(1, 0, 49)]);
    lab.receive(&c, 2, &[]);
    send(&mut lab, &c);
    let statuses: Vec<_> = received(&c.cq.poll()).iter().map(|e| (e.0, e.1)).collect();
    assert_eq!(statuses, [(1, Status::LocalLength), (2, Status::Flushed)]);
    assert_eq!(lab.state(&c), QpState::Error);
    // A bad list of the sender's is the sender's error.
    let mut bad = lab.sge(0, 0, 8);
    bad.lkey ^= 1;
    let wr = datagram(&lab, &b, 1, &[bad]);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::LocalProtection)]);
    assert_eq!(lab.state(&a), QpState::SendQueueError);
}

#[test]
fn datagrams_from_a_shared_receive_queue() {
    let mut lab = Lab::new(2);
    let a = up(&mut lab, 0, Transport::Ud);
    let shared = lab.qp(1, Transport::Ud).recv;
    let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
    let srqn = lab
        .engine
        .verbs(vf)
        .create_srq(pd, None, shared.clone())
        .unwrap();
    let b = lab.qp_with(1, Transport::Ud, |desc| desc.recv = RecvSide::Shared(srqn));
    start(&mut lab, &b);
    shared.push(Ok(hca::work::RecvWr {
        index: 4,
        sges: vec![lab.sge(1, 0, 100)],
        ..hca::work::RecvWr::default()
    }));
    lab.engine.verbs(vf).arm_srq(srqn, 1).unwrap();
    let wr = datagram(&lab, &b, 1, &[lab.sge(0, 0, 10)]);
    lab.execute(&a, wr);
    assert!(matches!(
        b.cq.poll()[0],
        hca::work::CompletionEntry { index: 4, side: Side::Recv { srqn: Some(n), .. }, .. } if n == srqn
    ));
    assert_eq!(lab.events(1), [hca::Event::SrqLimit(srqn)]);
}

/// Each end may use any of its port's LIDs; bits that the mask leaves no room for do not count.
#[test]
fn a_port_has_as_many_lids_as_its_mask_says() {
    let mut lab = Lab::new(2);
    let (own, to) = (Lid::new(8), Lid::new(19));
    for (node, lid, lmc) in [(0, own, 1), (1, Lid::new(16), 2)] {
        let vf = lab.nodes[node].vf;
        let port = lab.engine.vf(vf).port().clone();
        lab.engine
            .vf_mut(vf)
            .set_port(PortView { lid, lmc, ..port });
    }
    let receiver = lab.nodes[1].vf;
    lab.net.change(|net| {
        net.lids.insert(to, receiver);
    });
    let (a, b) = (
        up(&mut lab, 0, Transport::Ud),
        up(&mut lab, 1, Transport::Ud),
    );
    for (bits, slid) in [(0, own), (1, Lid::new(9)), (0x7e, own), (0x7f, Lid::new(9))] {
        lab.receive(&b, 3, &[lab.sge(1, 0, 40 + 64)]);
        let mut wr = datagram(&lab, &b, 1, &[lab.sge(0, 0, 64)]);
        if let Some(address) = &mut wr.address {
            (address.dlid, address.src_path_bits) = (to, bits);
        }
        lab.execute(&a, wr);
        let Side::Recv {
            source: Some(source),
            ..
        } = b.cq.poll()[0].side
        else {
            panic!("a receive completion with a source");
        };
        assert_eq!((source.slid, source.path_bits), (slid, 3));
    }
}

const MGID: Gid = Gid::from_bits(0xff12_401b_ffff << 80 | 0xffff_ffff);
const MLID: Lid = Lid::new(0xc001);

fn to_group(lab: &Lab, len: u32) -> SendWr {
    let mut wr = request(Operation::Send, 1, &[lab.sge(0, 0, len)]);
    wr.address = Some(hca::work::AddressVector {
        dlid: MLID,
        sl: Sl::default(),
        src_path_bits: 0,
        dest_qp: Qpn::MULTICAST,
        qkey: QKEY,
        global: Some(global(MGID)),
    });
    wr
}

#[test]
fn groups_reach_those_attached_wherever_they_are() {
    let mut lab = Lab::new(3);
    let qps: Vec<_> = [0, 0, 1, 1, 2]
        .into_iter()
        .map(|node| up(&mut lab, node, Transport::Ud))
        .collect();
    let outsider = up(&mut lab, 1, Transport::Ud);
    for qp in &qps {
        lab.engine
            .verbs(qp.vf)
            .attach_multicast(qp.qpn, MGID)
            .unwrap();
        // Twice is once.
        lab.engine
            .verbs(qp.vf)
            .attach_multicast(qp.qpn, MGID)
            .unwrap();
    }
    let (near, far) = (lab.nodes[0].vf, lab.nodes[1].vf);
    lab.net.change(|net| {
        // The sender's own port, if the tables name it, is not served twice.
        net.groups.insert(MLID, vec![near, far]);
    });
    let reached = |lab: &mut Lab, wr: SendWr| {
        for qp in qps.iter().chain([&outsider]) {
            while qp.recv.len() < 2 {
                lab.receive(qp, 1, &[lab.sge(qp.node, 0x1000, 200)]);
            }
        }
        lab.execute(&qps[0], wr);
        assert_eq!(
            sent(
                &qps[0]
                    .cq
                    .poll()
                    .into_iter()
                    .filter(|e| matches!(e.side, Side::Send { .. }))
                    .collect::<Vec<_>>()
            ),
            [(1, Status::Success)]
        );
        qps.iter()
            .map(|qp| 2 - qp.recv.len())
            .chain([2 - outsider.recv.len()])
            .collect::<Vec<_>>()
    };
    lab.memory(0).write(base(0), b"to all");
    let wr = to_group(&lab, 6);
    assert_eq!(reached(&mut lab, wr.clone()), [1, 1, 1, 1, 0, 0]);
    assert_eq!(lab.memory(1).read(base(1) + 0x1028, 6), b"to all");
    // Asked once, and again after a change.
    let asked = lab.net.look().resolved;
    assert_eq!(reached(&mut lab, wr.clone()), [1, 1, 1, 1, 0, 0]);
    assert_eq!(lab.net.look().resolved, asked);
    let all: Vec<_> = lab.nodes.iter().map(|node| node.vf).collect();
    lab.net.change(|net| {
        net.groups.insert(MLID, all);
    });
    assert_eq!(reached(&mut lab, wr.clone()), [1, 1, 1, 1, 1, 0]);
    // Without the group's GID, or to one queue pair, it is no multicast packet.
    let mut bare = wr.clone();
    let mut single = wr.clone();
    if let (Some(a), Some(b)) = (&mut bare.address, &mut single.address) {
        a.global = None;
        b.dest_qp = qps[2].qpn;
    }
    assert_eq!(reached(&mut lab, bare), [0; 6]);
    assert_eq!(reached(&mut lab, single), [0; 6]);
    // Detached, destroyed.
    lab.engine
        .verbs(qps[1].vf)
        .detach_multicast(qps[1].qpn, MGID)
        .unwrap();
    assert_eq!(
        lab.engine
            .verbs(qps[1].vf)
            .detach_multicast(qps[1].qpn, MGID),
        Err(VerbError::NotFound)
    );
    lab.engine.verbs(qps[3].vf).destroy_qp(qps[3].qpn).unwrap();
    assert_eq!(reached(&mut lab, wr), [1, 0, 1, 0, 1, 0]);
}

#[test]
fn who_blocks_the_loop_back_does_not_hear_itself() {
    let mut lab = Lab::new(1);
    let a = lab.qp_with(0, Transport::Ud, |desc| {
        desc.block_multicast_loopback = true
    });
    start(&mut lab, &a);
    let b = up(&mut lab, 0, Transport::Ud);
    for qp in [&a, &b] {
        lab.engine
            .verbs(qp.vf)
            .attach_multicast(qp.qpn, MGID)
            .unwrap();
        lab.receive(qp, 1, &[lab.sge(0, 0x1000, 100)]);
    }
    let wr = to_group(&lab, 6);
    lab.execute(&a, wr);
    assert_eq!((a.recv.len(), b.recv.len()), (1, 0));
    let rc = lab.qp(0, Transport::Rc);
    assert_eq!(
        lab.engine.verbs(rc.vf).attach_multicast(rc.qpn, MGID),
        Err(VerbError::Invalid)
    );
}

#[test]
fn management_datagrams_go_through_the_subnet() {
    let mut lab = Lab::new(1);
    let mad = pattern(9, 256);
    lab.memory(0).write(base(0), &mad);
    let vf = lab.nodes[0].vf;
    let port = PortView {
        active: false,
        ..lab.engine.vf(vf).port().clone()
    };
    lab.engine.vf_mut(vf).set_port(port.clone());
    let (smi, gsi) = (up(&mut lab, 0, Transport::Smi), lab.qp(0, Transport::Gsi));
    let change = QpChange {
        qkey: Some(QKey::QP1),
        ..QpChange::default()
    };
    lab.bring_up(&gsi, &change);
    let user = up(&mut lab, 0, Transport::Ud);
    let send = |lab: &mut Lab, qp: &Qp, dest: Qpn, qkey: QKey| {
        let mut wr = request(Operation::Send, 1, &[lab.sge(0, 0, 256)]);
        wr.address = Some(hca::work::AddressVector {
            dlid: Lid::new(0xffff),
            sl: Sl::default(),
            src_path_bits: 0,
            dest_qp: dest,
            qkey,
            global: None,
        });
        lab.execute(qp, wr);
        assert_eq!(sent(&qp.cq.poll()), [(1, Status::Success)]);
        std::mem::take(&mut lab.net.look().mads)
    };
    // Subnet management passes a port that is not up, general services do not.
    let seen = send(&mut lab, &smi, Qpn::QP0, QKey::new(0));
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].0, &seen[0].1.mad[..]), (vf, &mad[..]));
    assert_eq!((seen[0].1.src_qp, seen[0].1.dst_qp), (Qpn::QP0, Qpn::QP0));
    assert!(send(&mut lab, &gsi, Qpn::QP1, QKey::new(0x8001_0000)).is_empty());
    lab.engine.vf_mut(vf).set_port(PortView {
        active: true,
        ..port
    });
    let seen = send(&mut lab, &gsi, Qpn::QP1, QKey::new(0x8001_0000));
    assert_eq!((seen[0].1.src_qp, seen[0].1.qkey), (Qpn::QP1, QKey::QP1));
    // An ordinary user reaches neither.
    assert!(send(&mut lab, &user, Qpn::QP0, QKey::new(0)).is_empty());
    assert!(send(&mut lab, &user, Qpn::QP1, QKey::QP1).is_empty());

    // And the other way.
    let incoming = |dst_qp: Qpn, qkey: QKey| MadPacket {
        slid: Lid::new(7),
        dlid: Lid::new(1),
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        src_qp: Qpn::QP1,
        dst_qp,
        qkey,
        grh: None,
        mad: mad.clone().try_into().unwrap(),
    };
    for (qp, dest, good, bad) in [
        (&smi, Qpn::QP0, QKey::new(0), None),
        (&gsi, Qpn::QP1, QKey::QP1, Some(QKEY)),
        (&user, user.qpn, QKEY, Some(QKey::QP1)),
    ] {
        lab.receive(qp, 1, &[lab.sge(0, 0x4000, 296)]);
        if let Some(bad) = bad {
            lab.engine.deliver_mad(vf, &incoming(dest, bad));
            assert!(qp.cq.poll().is_empty());
        }
        lab.engine.deliver_mad(vf, &incoming(dest, good));
        assert_eq!(
            received(&qp.cq.poll()),
            [(1, Status::Success, 296, RecvKind::Send, 0)]
        );
        assert_eq!(lab.memory(0).read(base(0) + 0x4028, 256), mad);
    }
    // The device's own number of queue pair 0 is no way around its guard.
    lab.receive(&smi, 1, &[lab.sge(0, 0x4000, 296)]);
    let wr = datagram(&lab, &smi, 1, &[lab.sge(0, 0, 16)]);
    lab.execute(&user, wr);
    assert_eq!(smi.recv.len(), 1);
}
