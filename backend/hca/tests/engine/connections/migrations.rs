//! Automatic path migration: connections with a second path go there when they are told to, and when the first one
//! fails.

use std::sync::Arc;

use hca::work::{Operation, Status};
use hca::{
    AddressPath, AlternatePath, Event, MigrationState, PortView, QpAttr, QpChange, QpState, Quota,
    Subnet, Transport, VerbError,
};
use wire::{Gid, Lid, PKey, Sl};

use crate::lab::net::{Loss, Net};
use crate::lab::{Lab, Qp, Subnets, TIMEOUT, TIMEOUT_NS, Way, base, remote, sent};

/// The first and the second LID of a function's port.
fn lids(node: usize) -> [Lid; 2] {
    let first = 2 * (node as u16 + 1);
    [Lid::new(first), Lid::new(first + 1)]
}

/// Two functions, with two LIDs each.
fn lab() -> Lab {
    let net = Net::default();
    let port = |node: usize| PortView {
        lid: lids(node)[0],
        lmc: 1,
        active: true,
        pkeys: vec![PKey::DEFAULT_FULL],
        gids: vec![Gid::from_bits(0xfe80 << 112 | (node as u128 + 1))],
        ..PortView::default()
    };
    let subnet = net.clone();
    let subnets = Subnets(Box::new(move || {
        Box::new(subnet.clone()) as Box<dyn Subnet>
    }));
    let ports = (0..2).map(port).collect();
    let lab = Lab::over(subnets, net, Arc::default(), ports, Quota::default());
    for node in 0..2 {
        let vf = lab.nodes[node].vf;
        lab.net.change(|net| {
            net.lids.insert(lids(node)[1], vf);
        });
    }
    lab
}

fn to(lid: Lid) -> AddressPath {
    AddressPath {
        dlid: lid,
        sl: Sl::default(),
        src_path_bits: 0,
        global: None,
    }
}

/// Arms both ends: each has the other's second LID.
fn arm<const N: usize>(lab: &mut Lab, qps: [&Qp; N]) {
    for qp in qps {
        let change = QpChange {
            alternate: Some(AlternatePath {
                path: to(lids(1 - qp.node)[1]),
                pkey_index: 0,
                timeout: TIMEOUT,
            }),
            migration: Some(MigrationState::Armed),
            ..QpChange::default()
        };
        lab.modify(qp, QpState::ReadyToSend, &change);
        assert!(attributes(lab, qp).is_armed());
    }
}

fn attributes(lab: &Lab, qp: &Qp) -> QpAttr {
    let engine = lab.look_home(qp.vf);
    engine.query_qp(qp.vf, qp.qpn).unwrap().attr
}

fn has_migrated(lab: &Lab, qp: &Qp) -> bool {
    let attr = attributes(lab, qp);
    assert_eq!(attr.migration == MigrationState::Migrated, !attr.is_armed());
    attr.path.unwrap().dlid == lids(1 - qp.node)[1]
}

fn migrations(lab: &Lab, qp: &Qp) -> usize {
    let events = lab.events(qp.node);
    let mut migrations = events.into_iter();
    let all = migrations
        .by_ref()
        .filter(|event| *event == Event::PathMigrated(qp.qpn));
    all.count()
}

/// A write of one page; how it ended.
fn write(lab: &mut Lab, from: &Qp, index: u16) -> Status {
    let (here, there) = (from.node, 1 - from.node);
    lab.memory(here).write(base(here), &[index as u8; 4096]);
    let key = lab.nodes[there].key;
    let sge = lab.sge(here, 0, 4096);
    let at = base(there) + 8192;
    lab.execute(from, remote(Operation::Write, index, &[sge], at, key));
    lab.advance(16 * TIMEOUT_NS);
    let ended = sent(&from.cq.poll());
    let [(_, status)] = ended[..] else {
        panic!("{ended:?}");
    };
    if status == Status::Success {
        assert_eq!(lab.memory(there).read(at, 4096), [index as u8; 4096]);
    }
    status
}

#[test]
fn a_path_that_fails_is_left() {
    for way in [
        Way::Copied,
        Way::Frames,
        Way::Packets(0, 1),
        Way::Line,
        Way::Engines(0, 1),
    ] {
        let mut lab = lab();
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        arm(&mut lab, [&a, &b]);
        assert_eq!(write(&mut lab, &a, 1), Status::Success);
        assert!(!has_migrated(&lab, &a), "{way:?}");
        lab.net.change(|net| {
            net.lids.remove(&lids(1)[0]);
        });
        assert_eq!(write(&mut lab, &a, 2), Status::Success, "{way:?}");
        assert!(has_migrated(&lab, &a), "{way:?}");
        assert_eq!(migrations(&lab, &a), 1, "{way:?}");
        // The other end goes along.
        assert_eq!(migrations(&lab, &b), 1, "{way:?}");
        assert!(has_migrated(&lab, &b));
        assert_eq!(write(&mut lab, &b, 3), Status::Success, "{way:?}");
        // There is no third one.
        lab.net.change(|net| {
            net.lids.remove(&lids(1)[1]);
        });
        assert_eq!(write(&mut lab, &a, 4), Status::RetryExceeded, "{way:?}");
        assert_eq!(migrations(&lab, &a), 0);
    }
}

/// Frames get lost, be there a way or not: the packet and its three repetitions. What comes next is on the
/// second path.
#[test]
fn a_path_that_loses_everything_is_left() {
    for way in [Way::Frames, Way::Packets(0, 1), Way::Engines(0, 1)] {
        let mut lab = lab();
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        arm(&mut lab, [&a, &b]);
        let ends = (a.vf, b.vf);
        for lost in ["xxx", "xxxx"] {
            lab.net.change(|net| {
                net.losses.insert(ends, Loss::of(lost));
            });
            assert_eq!(write(&mut lab, &a, 2), Status::Success, "{way:?}");
            assert_eq!(has_migrated(&lab, &a), lost.len() > 3, "{way:?}");
        }
        assert_eq!(migrations(&lab, &a), 1, "{way:?}");
        lab.net.change(|net| {
            net.losses.insert(ends, Loss::of("xxxx"));
        });
        assert_eq!(write(&mut lab, &a, 3), Status::RetryExceeded, "{way:?}");
    }
}

#[test]
fn connections_migrate_when_they_are_told_to() {
    let mut lab = lab();
    let (a, b) = lab.pair(Transport::Rc);
    let ready = QpState::ReadyToSend;
    let now = |migration| QpChange {
        migration: Some(migration),
        ..QpChange::default()
    };
    // Without an alternate path there is nothing to arm, and nowhere to go.
    let refused = lab
        .engine
        .verbs(a.vf)
        .modify_qp(a.qpn, ready, &now(MigrationState::Armed));
    assert_eq!(refused, Err(VerbError::Invalid));
    lab.modify(&a, ready, &now(MigrationState::Migrated));
    assert_eq!(migrations(&lab, &a), 0);
    for armed in 0..2 {
        arm(&mut lab, [&a, &b]);
        lab.modify(&b, ready, &now(MigrationState::Migrated));
        assert_eq!((migrations(&lab, &a), migrations(&lab, &b)), (1, 1));
        assert!(has_migrated(&lab, &a) && has_migrated(&lab, &b));
        assert_eq!(write(&mut lab, &a, armed), Status::Success);
    }
    // A new connection has none of it.
    arm(&mut lab, [&a, &b]);
    lab.modify(&a, QpState::Reset, &QpChange::default());
    assert!(!attributes(&lab, &a).is_armed());
}

/// An end that has not heard that the other end may migrate does not take its packets for those of one that has.
#[test]
fn an_end_that_was_armed_first_stays() {
    for way in [Way::Frames, Way::Packets(0, 1), Way::Engines(0, 1)] {
        let mut lab = lab();
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        arm(&mut lab, [&a]);
        assert_eq!(write(&mut lab, &b, 1), Status::Success);
        assert_eq!(write(&mut lab, &a, 2), Status::Success);
        assert!(!has_migrated(&lab, &a), "{way:?}");
        arm(&mut lab, [&b]);
        assert_eq!(write(&mut lab, &b, 3), Status::Success);
        // It migrates when it is told to, and the other end with its next packet.
        let now = QpChange {
            migration: Some(MigrationState::Migrated),
            ..QpChange::default()
        };
        lab.modify(&b, QpState::ReadyToSend, &now);
        assert_eq!(write(&mut lab, &b, 4), Status::Success);
        assert!(has_migrated(&lab, &a) && has_migrated(&lab, &b), "{way:?}");
        assert_eq!((migrations(&lab, &a), migrations(&lab, &b)), (1, 1));
    }
}

#[test]
fn one_end_alone_migrates() {
    let mut lab = lab();
    let (a, b) = lab.pair(Transport::Rc);
    arm(&mut lab, [&a]);
    lab.net.change(|net| {
        net.lids.remove(&lids(1)[0]);
    });
    assert_eq!(write(&mut lab, &a, 1), Status::Success);
    assert!(has_migrated(&lab, &a) && !has_migrated(&lab, &b));
    assert_eq!(migrations(&lab, &b), 0);
}
