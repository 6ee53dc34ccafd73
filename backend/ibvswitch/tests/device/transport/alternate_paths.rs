//! Connections with an alternate path: they migrate when it is asked, and when the first path leads nowhere.

use crate::daemon::{Daemon, HALF, Peer, connected_by, peers};
use test_driver::bits::{ads, qpc};
use test_driver::{Connection, Data, EventType, QueuePair, SendRequest, Syndrome, Transport};

with_both_doorbells!(
    a_path_that_leads_nowhere_is_left,
    connections_migrate_when_they_are_told_to,
);

/// No port has this LID.
const NOWHERE: u16 = 0x0bad;
const ARMED: u32 = 0;
const MIGRATED: u32 = 3;

/// Whether it is armed, and where its first path leads.
fn shown(qp: &QueuePair) -> (u32, u32) {
    let context = qp.query().unwrap();
    let path = &context[qpc::PRIMARY_PATH..];
    (qpc::PM_STATE.get(&context), ads::RLID.get(path))
}

fn impatient(connection: &mut Connection) {
    connection.ack_timeout = 1;
    connection.retry_count = 2;
}

fn arm(qp: &QueuePair, to: &Peer, peer: &QueuePair) {
    let mut alternate = Connection::to(to.port.lid, peer.number());
    impatient(&mut alternate);
    qp.arm(&alternate).unwrap();
}

fn a_path_that_leads_nowhere_is_left(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (from, to) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let there = b.port.lid;
    let astray = |connection: &mut Connection| {
        impatient(connection);
        if connection.lid == there {
            connection.lid = NOWHERE;
        }
    };
    let (mut qa, mut qb) = connected_by(&from, &to, &a, &b, astray);
    arm(&qa, &b, &qb);
    arm(&qb, &a, &qa);
    assert_eq!(shown(&qa), (ARMED, NOWHERE.into()));
    a.fill(0, 10_000, 3);
    let data = [a.sge(0, 10_000)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
    a.execute(&mut qa, &write);
    b.verify(HALF, 10_000, 3);
    assert_eq!(a.event(EventType::PathMigrated).queue_number(), qa.number());
    assert_eq!(b.event(EventType::PathMigrated).queue_number(), qb.number());
    assert_eq!(shown(&qa), (MIGRATED, there.into()));
    assert_eq!(shown(&qb), (MIGRATED, a.port.lid.into()));
    let back = SendRequest::write(a.remote(HALF), Data::Inline(b"and back"));
    b.execute(&mut qb, &back);

    // Another one that is not armed.
    let (from, to) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, _qb) = connected_by(&from, &to, &a, &b, astray);
    qa.post_send(&write).unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::RetryExceeded);
}

fn connections_migrate_when_they_are_told_to(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (from, to) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, qb) = connected_by(&from, &to, &a, &b, impatient);
    let mut alternate = Connection::to(NOWHERE, qb.number());
    impatient(&mut alternate);
    qa.arm(&alternate).unwrap();
    let write = SendRequest::write(b.remote(HALF), Data::Inline(b"payload"));
    a.execute(&mut qa, &write);
    qa.migrate().unwrap();
    assert_eq!(a.event(EventType::PathMigrated).queue_number(), qa.number());
    assert_eq!(shown(&qa), (MIGRATED, NOWHERE.into()));
    // And from there back again, with something under way.
    arm(&qa, &b, &qb);
    a.execute(&mut qa, &write);
    assert_eq!(a.event(EventType::PathMigrated).queue_number(), qa.number());
    assert_eq!(shown(&qa), (MIGRATED, b.port.lid.into()));
}
