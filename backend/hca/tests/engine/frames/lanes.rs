//! Links that share their bandwidth among lanes, as the engine sees them: frames wait, requests wait for
//! room, and nothing is lost or sent twice for that.

use std::sync::atomic::Ordering;

use hca::work::{Operation, SendWr, Status};
use hca::{QpState, Quota, Transport};
use wire::Sl;

use crate::lab::net::Net;
use crate::lab::{
    ALIAS, Lab, Qp, TIMEOUT_NS, base, datagram, pattern, received, remote, request, sent,
};

/// Bytes of each packet besides payload.
const HEADERS: u64 = 24;
/// Bytes that a function may have waiting in one lane, and still send.
const BACKLOG: u64 = 256 << 10;

/// A laboratory with a line on which a byte takes so many nanoseconds.
fn lab(byte: u64) -> Lab {
    let net = Net::default();
    net.change(|net| net.line = Some(byte));
    Lab::on(net, 2, Quota::default())
}

/// A WRITE from memory that repeats itself.
fn write(lab: &Lab, index: u16, len: u32) -> SendWr {
    let mut sge = lab.sge(0, 0, len);
    sge.addr = ALIAS;
    remote(Operation::Write, index, &[sge], ALIAS, lab.nodes[1].key)
}

fn on_lane(lab: &mut Lab, lane: u8) -> (Qp, Qp) {
    lab.pair_with(Transport::Rc, |change| {
        if let Some(path) = &mut change.path {
            path.sl = Sl::new(lane);
        }
    })
}

#[test]
fn a_message_takes_as_long_as_its_bytes() {
    let mut lab = lab(3);
    let (a, b) = lab.pair(Transport::Rc);
    let payload = pattern(1, 10_000);
    lab.memory(0).write(base(0), &payload);
    lab.receive(&b, 7, &[lab.sge(1, 0, 10_000)]);
    let wr = request(Operation::Send, 1, &[lab.sge(0, 0, 10_000)]);
    lab.execute(&a, wr);
    let there = (10_000 + 3 * HEADERS) * 3;
    assert_eq!(lab.engine.next_deadline(), Some(there));
    lab.advance(there - 1);
    assert!(b.cq.poll().is_empty());
    lab.advance(1);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    assert_eq!(lab.memory(1).read(base(1), 10_000), payload);
    assert!(a.cq.poll().is_empty());
    lab.advance(HEADERS * 3);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.engine.next_deadline(), None);
}

/// Much more than passes within the timeout is sent at once, and no timer fires: what has no room on
/// the way is not sent yet.
#[test]
fn who_waits_for_room_is_not_overdue() {
    const LEN: u32 = 4 << 20;
    let mut lab = lab(1);
    let (a, _b) = lab.pair(Transport::Rc);
    for index in 0..8 {
        let wr = write(&lab, index, LEN);
        lab.post(&a, wr);
    }
    lab.settle();
    let whole = u64::from(LEN) * 8;
    assert!(whole > 4 * TIMEOUT_NS);
    let mut done = Vec::new();
    lab.advance(whole);
    done.extend(sent(&a.cq.poll()));
    assert!(done.len() < 8, "faster than the line");
    // The headers take their time, and so do answers; the line is never idle.
    let answers = whole / (64 << 10) + BACKLOG / HEADERS;
    lab.advance((whole / 4096 + answers) * HEADERS);
    done.extend(sent(&a.cq.poll()));
    let expected: Vec<_> = (0..8).map(|index| (index, Status::Success)).collect();
    assert_eq!(done, expected);
    let retries = &lab.engine.vf(a.vf).counters().retries;
    assert_eq!(retries.local_ack_timeout_err.load(Ordering::Relaxed), 0);
}

#[test]
fn other_lanes_have_room() {
    let mut lab = lab(1);
    let ((a, _), (c, _)) = (on_lane(&mut lab, 0), on_lane(&mut lab, 1));
    let wr = write(&lab, 1, 64 << 20);
    lab.execute(&a, wr);
    let wr = write(&lab, 2, 64);
    lab.execute(&c, wr);
    // It waits behind what was on the line before it, and so does its answer; not behind the whole message.
    lab.advance(3 * BACKLOG);
    assert_eq!(sent(&c.cq.poll()), [(2, Status::Success)]);
    assert!(a.cq.poll().is_empty());
}

#[test]
fn those_who_wait_for_room_have_it_in_turn() {
    let mut lab = lab(1);
    let pairs = [0; 4].map(|lane| on_lane(&mut lab, lane));
    for (a, _) in &pairs {
        for index in 0..4 {
            let wr = write(&lab, index, 1 << 20);
            lab.post(a, wr);
        }
    }
    lab.settle();
    // One of them goes while it waits.
    lab.engine
        .verbs(pairs[1].0.vf)
        .destroy_qp(pairs[1].0.qpn)
        .unwrap();
    lab.advance(3 * (5 << 20));
    for at in [0, 2, 3] {
        assert_eq!(sent(&pairs[at].0.cq.poll()).len(), 4, "queue pair {at}");
    }
}

#[test]
fn datagrams_wait_instead_of_being_dropped() {
    let mut lab = lab(1);
    let (a, b) = lab.pair(Transport::Ud);
    for index in 0..200 {
        lab.receive(&b, index, &[lab.sge(1, 0, 40 + 4096)]);
        let wr = datagram(&lab, &b, index, &[lab.sge(0, 0, 4096)]);
        lab.post(&a, wr);
    }
    lab.settle();
    // Sent is what the port has taken.
    let taken = sent(&a.cq.poll()).len() as u64;
    assert_eq!(taken, BACKLOG.div_ceil(4096 + 32));
    lab.advance(200 * (4096 + 32));
    assert_eq!(sent(&a.cq.poll()).len() as u64, 200 - taken);
    assert_eq!(received(&b.cq.poll()).len(), 200);
    let counters = lab.engine.vf(a.vf).counters();
    assert_eq!(counters.xmit_discards.load(Ordering::Relaxed), 0);
}

#[test]
fn answers_do_not_wait_for_room() {
    let mut lab = lab(1);
    let (a, b) = lab.pair(Transport::Rc);
    // What b sends fills its lane, and a reads from b.
    let wr = write(&lab, 1, 64 << 20);
    let mut back = wr.clone();
    back.rkey = lab.nodes[0].key;
    back.sges[0].lkey = lab.nodes[1].key;
    lab.execute(&b, back);
    let mut read = remote(Operation::Read, 2, &wr.sges, ALIAS, lab.nodes[1].key);
    read.sges[0].len = 1 << 20;
    lab.execute(&a, read);
    lab.advance(4 << 20);
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    assert_eq!(lab.state(&b), QpState::ReadyToSend);
}
