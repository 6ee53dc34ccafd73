//! Completion queues: events, arming, resizing, overrun.

use crate::daemon::{Daemon, HALF, Peer, connected, peers};
use test_driver::{
    AddressVector, CompletionQueue, Config, CqeKind, Data, EventType, QueuePair, SendRequest, Sge,
    Syndrome, Transport,
};

with_both_doorbells!(
    an_armed_queue_raises_one_event,
    only_solicited_entries_raise_a_solicited_event,
    a_queue_is_resized_with_entries_in_it,
    completions_have_the_time_of_the_devices_clock,
);

const QKEY: u32 = 0x77;

fn write_word(peer: &Peer) -> SendRequest<'static> {
    SendRequest::write(peer.remote(HALF), Data::Inline(b"eight by"))
}

fn an_armed_queue_raises_one_event(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    // Not armed: entries, but no event. A new queue whose first arming the
    // device cannot see counts as armed.
    for _ in 0..3 {
        a.execute(&mut qa, &write_word(&b));
    }
    if !daemon.traps {
        assert_eq!(a.device.wait_completion(0).unwrap(), a.cq.number());
        a.cq.acknowledge();
    }
    assert_eq!(a.device.poll_completion(0).unwrap(), None);
    for _ in 0..20 {
        a.cq.arm(false).unwrap();
        qa.post_send(&write_word(&b)).unwrap();
        qa.post_send(&write_word(&b)).unwrap();
        assert_eq!(a.device.wait_completion(0).unwrap(), a.cq.number());
        a.cq.acknowledge();
        a.sent(&mut qa);
        a.sent(&mut qa);
        assert_eq!(a.device.poll_completion(0).unwrap(), None);
    }
    // Armed when there is an entry already: the event comes at once.
    qa.post_send(&write_word(&b)).unwrap();
    while a.cq.peek_next().is_none() {
        std::thread::yield_now();
    }
    a.cq.arm(false).unwrap();
    assert_eq!(a.device.wait_completion(0).unwrap(), a.cq.number());
    a.cq.acknowledge();
    a.sent(&mut qa);
}

fn only_solicited_entries_raise_a_solicited_event(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let plain = SendRequest::send(Data::Inline(b"plain"));
    for _ in 0..5 {
        for _ in 0..3 {
            qb.post_receive(&[b.sge(HALF, 64)]).unwrap();
        }
        b.cq.arm(true).unwrap();
        a.execute(&mut qa, &plain);
        a.execute(&mut qa, &plain);
        for _ in 0..2 {
            qb.complete_receive(&b.cq.wait().unwrap());
        }
        assert_eq!(b.device.poll_completion(0).unwrap(), None);
        a.execute(&mut qa, &plain.solicited());
        assert_eq!(b.device.wait_completion(0).unwrap(), b.cq.number());
        b.cq.acknowledge();
        qb.complete_receive(&b.cq.wait().unwrap());
    }
}

fn completions_have_the_time_of_the_devices_clock(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let clock = a.device.clone();
    let now = || clock.timer().unwrap();
    let mut last = now();
    for len in [8, 1 << 20, 8] {
        // One side's completion, then both sides'.
        let list = [a.sge(0, len)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&list));
        let entry = a.execute(&mut qa, &write);
        let after = now();
        assert!((last..=after).contains(&entry.timestamp()), "{entry:?}");
        qb.post_receive(&[b.sge(HALF, len)]).unwrap();
        let posted = now();
        let sent = a.execute(&mut qa, &SendRequest::send(Data::Memory(&list)));
        let received = b.cq.wait().unwrap();
        qb.complete_receive(&received);
        last = now();
        for entry in [sent, received] {
            assert!((posted..=last).contains(&entry.timestamp()), "{entry:?}");
        }
    }
    // Many at once: in the order of the queue, and none before it was posted.
    let mut posted = Vec::new();
    for _ in 0..20 {
        for _ in 0..10 {
            posted.push(now());
            qa.post_send(&write_word(&b)).unwrap();
        }
        for posted in posted.drain(..) {
            let time = a.sent(&mut qa).timestamp();
            assert!(posted.max(last) <= time && time <= now(), "{posted} {time}");
            last = time;
        }
    }
    // Datagrams.
    let (mut from, mut to) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    from.activate(0, QKEY).unwrap();
    to.activate(0, QKEY).unwrap();
    to.post_receive(&[b.sge(HALF, 1024)]).unwrap();
    let address = AddressVector {
        lid: b.port.lid,
        qpn: to.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    let before = now();
    let sent = a.execute(
        &mut from,
        &SendRequest::send(Data::Inline(b"hello")).to(&address),
    );
    let received = b.cq.wait().unwrap();
    let after = now();
    for entry in [sent, received] {
        assert!((before..=after).contains(&entry.timestamp()), "{entry:?}");
    }
}

fn a_queue_is_resized_with_entries_in_it(daemon: &Daemon) {
    let (a, b) = peers(daemon);
    let mut cq = CompletionQueue::new(&a.device, &a.uar, 4, 0).unwrap();
    let config = Config {
        send_cq: cq.number(),
        ..a.config(Transport::Rc)
    };
    let (mut qa, _qb) =
        crate::daemon::connected_by(&config, &b.config(Transport::Rc), &a, &b, |_| {});
    let mut expected = 0u16;
    for log_size in [6, 3, 8, 4] {
        let room = cq.size().min(1 << log_size) - 2;
        let mut numbers = Vec::new();
        for _ in 0..room {
            numbers.push(qa.post_send(&write_word(&b)).unwrap());
        }
        // All of them lie in the old ring.
        while cq.pending() < room {
            std::thread::yield_now();
        }
        cq.resize(log_size).unwrap();
        assert_eq!(cq.size(), 1 << log_size);
        for number in numbers {
            assert_eq!(number, expected);
            expected = expected.wrapping_add(1);
            let entry = cq.wait().unwrap();
            assert!(entry.is_ok());
            assert_eq!((entry.qpn(), entry.wqe_counter()), (qa.number(), number));
            qa.complete(&entry);
        }
        // And once around the new one.
        for _ in 0..(3 << log_size) {
            qa.post_send(&write_word(&b)).unwrap();
            let entry = cq.wait().unwrap();
            assert_eq!(entry.wqe_counter(), expected);
            expected = expected.wrapping_add(1);
            qa.complete(&entry);
        }
    }
}

#[test]
fn a_queue_that_overruns_fails_alone() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let small = CompletionQueue::new(&a.device, &a.uar, 2, 0).unwrap();
    let config = Config {
        send_cq: small.number(),
        ..a.config(Transport::Rc)
    };
    let (mut doomed, _qb) =
        crate::daemon::connected_by(&config, &b.config(Transport::Rc), &a, &b, |_| {});
    let (mut well, _qc) = connected(Transport::Rc, &a, &b);
    for _ in 0..8 {
        doomed.post_send(&write_word(&b)).unwrap();
    }
    let (cqn, syndrome) = a.event(EventType::CqError).cq_error();
    assert_eq!((cqn, syndrome), (small.number(), 1));
    // Those that use it are in error; others do not notice.
    assert_eq!(doomed.state().unwrap(), 6);
    a.execute(&mut well, &write_word(&b));
    assert_eq!(well.state().unwrap(), 3);
}

#[test]
fn events_of_many_queues_name_them() {
    let daemon = Daemon::start("trap");
    let (a, b) = peers(&daemon);
    let b_config = b.config(Transport::Rc);
    let mut rigs: Vec<(CompletionQueue, QueuePair, QueuePair)> = (0..16)
        .map(|_| {
            let cq = CompletionQueue::new(&a.device, &a.uar, 4, 0).unwrap();
            let config = Config {
                send_cq: cq.number(),
                ..a.config(Transport::Rc)
            };
            let (qa, qb) = crate::daemon::connected_by(&config, &b_config, &a, &b, |_| {});
            (cq, qa, qb)
        })
        .collect();
    for round in 0..4 {
        for (cq, _, _) in &mut rigs {
            cq.arm(false).unwrap();
        }
        let mut expected = Vec::new();
        for (cq, qa, _) in rigs.iter_mut().skip(round) {
            qa.post_send(&write_word(&b)).unwrap();
            expected.push(cq.number());
        }
        let mut named: Vec<u32> = expected
            .iter()
            .map(|_| a.device.wait_completion(0).unwrap())
            .collect();
        named.sort_unstable();
        expected.sort_unstable();
        assert_eq!(named, expected);
        for (cq, qa, _) in rigs.iter_mut().skip(round) {
            cq.acknowledge();
            let entry = cq.wait().unwrap();
            assert!(entry.is_ok());
            qa.complete(&entry);
        }
    }
}

#[test]
fn an_error_entry_counts_as_solicited() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    a.cq.arm(true).unwrap();
    let nowhere = [Sge {
        addr: 0,
        len: 8,
        key: 0x00ab_cd00,
    }];
    let read = SendRequest::read(b.remote(HALF), &nowhere);
    qa.post_send(&read.unsignaled()).unwrap();
    assert_eq!(a.device.wait_completion(0).unwrap(), a.cq.number());
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.kind(), CqeKind::RequesterError);
    assert_eq!(entry.syndrome(), Syndrome::LocalProtection);
}
