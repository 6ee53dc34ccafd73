//! Links that are slow, without credits, or with buffers that overrun, as the data plane, the counters
//! and the subnet manager see them.

use std::time::{Duration, Instant};

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::{AddressVector, Connection, Data, QueuePair, SendRequest, Syndrome, Transport};
use testing::wait_until;

const GRH: usize = 40;
const QKEY: u32 = 0x77;

/// An error counter of a port.
fn errors(daemon: &Daemon, node: &str, port: u64, counter: &str) -> u64 {
    let counters = daemon.ask(&["counters", node]);
    let ports = counters["nodes"][0]["ports"].as_array().expect("a list");
    let port = ports.iter().find(|found| found["port"] == port);
    port.expect("a port")["errors"][counter]
        .as_u64()
        .unwrap_or(0)
}

/// Returns the number of traps of a kind that the subnet manager has heard.
fn traps(daemon: &Daemon, number: u64) -> u64 {
    let status = daemon.ask(&["sm", "status"]);
    let traps = status["traps"].as_array().expect("a list").iter();
    let mut of = traps.filter(|of| of["trap"] == number);
    of.next()
        .map_or(0, |of| of["count"].as_u64().expect("a number"))
}

/// Sends datagrams from one to the other; how many arrive before what others send after them.
fn datagrams(from: &mut Peer, to: &mut Peer, count: usize, others: &Bystanders) -> usize {
    let (mut qa, mut qb) = (from.qp(Transport::Ud), to.qp(Transport::Ud));
    qa.activate(0, QKEY).expect("becomes ready");
    qb.activate(0, QKEY).expect("becomes ready");
    let address = AddressVector {
        lid: to.port.lid,
        qpn: qb.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    let mut arrived = 0;
    for at in 1..=count {
        qb.post_receive(&[to.sge(HALF, GRH + 64)]).unwrap();
        let request = SendRequest::send(Data::Inline(b"hello")).to(&address);
        from.execute(&mut qa, &request);
        // As many as the receive queue holds besides those that lost ones leave there.
        if at % 32 == 0 || at == count {
            others.overtake();
            while let Some(entry) = to.cq.poll() {
                qb.complete_receive(&entry);
                arrived += 1;
            }
        }
    }
    arrived
}

/// A connection that gives up soon.
fn impatient(from: &Peer, to: &Peer) -> (QueuePair, QueuePair) {
    let (config, other) = (from.config(Transport::Rc), to.config(Transport::Rc));
    connected_by(&config, &other, from, to, |connection: &mut Connection| {
        connection.ack_timeout = 1;
        connection.retry_count = 2;
    })
}

#[test]
fn data_is_stuck_where_no_credits_arrive() {
    let daemon = Daemon::start("trap");
    let (mut vm1, mut vm2) = peers(&daemon);
    let others = Bystanders::start(&daemon);
    let (mut lasting, _peer) = connected(Transport::Rc, &vm1, &vm2);
    let (mut giving_up, _other) = impatient(&vm1, &vm2);
    let stall = daemon.ask(&["link", "stall", "hv1:2", "in"]);
    assert_eq!(stall["stalled"], "in");
    assert_eq!(daemon.ask(&["link", "show", "vm1:1"])["stalled"], "out");
    assert_eq!(datagrams(&mut vm1, &mut vm2, 4, &others), 0);
    assert_eq!(
        datagrams(&mut vm2, &mut vm1, 4, &others),
        4,
        "the other way is free"
    );
    let hello = SendRequest::write(vm2.remote(HALF), Data::Inline(b"hello"));
    giving_up.post_send(&hello).expect("is posted");
    let syndrome = vm1.sent(&mut giving_up).syndrome();
    assert_eq!(syndrome, Syndrome::RetryExceeded);
    // Four datagrams, and one message three times.
    assert_eq!(errors(&daemon, "vm1", 1, "xmit_discards"), 7);
    assert!(errors(&daemon, "vm1", 1, "xmit_wait") > 0);
    wait_until("trap 131", || traps(&daemon, 131) != 0);
    // At a switch, too.
    daemon.ask(&["link", "stall", "hv1:2", "out"]);
    assert_eq!(datagrams(&mut vm2, &mut vm1, 4, &others), 0);
    assert_eq!(errors(&daemon, "hv1", 2, "xmit_discards"), 4);
    assert!(errors(&daemon, "hv1", 2, "xmit_wait") > 0);
    let restored = daemon.ask(&["link", "restore", "hv1:2"]);
    assert_eq!(restored["stalled"], "off");
    vm1.execute(&mut lasting, &hello);
    assert_eq!(datagrams(&mut vm2, &mut vm1, 4, &others), 4);
    others.stop();
}

#[test]
fn acknowledgements_are_stuck_too() {
    let daemon = Daemon::start("trap");
    let (mut vm1, mut vm2) = peers(&daemon);
    let (config, other) = (vm1.config(Transport::Rc), vm2.config(Transport::Rc));
    // A second, eight times.
    let patient = |connection: &mut Connection| connection.ack_timeout = 18;
    let (mut qa, mut qb) = connected_by(&config, &other, &vm1, &vm2, patient);
    daemon.ask(&["link", "stall", "vm2:1", "out"]);
    qb.post_receive(&[vm2.sge(HALF, 64)]).unwrap();
    qb.post_receive(&[vm2.sge(HALF + 64, 64)]).unwrap();
    qa.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    let entry = vm2.cq.wait().expect("a completion");
    qb.complete_receive(&entry);
    assert!(entry.is_ok());
    assert!(vm1.cq.poll().is_none(), "nobody has said that it arrived");
    daemon.ask(&["link", "stall", "vm2:1", "off"]);
    assert!(vm1.sent(&mut qa).is_ok());
    // What is sent again has been received once.
    vm1.execute(&mut qa, &SendRequest::send(Data::Inline(b"again")));
    let entry = vm2.cq.wait().expect("a completion");
    qb.complete_receive(&entry);
    let mut found = [0; 5];
    vm2.buffer.read(HALF + 64, &mut found);
    assert_eq!(&found, b"again");
    assert!(vm2.cq.poll().is_none());
    // Who gives up has been heard all the same; what brings a result is not carried out.
    let (mut giving_up, _peer) = impatient(&vm1, &vm2);
    daemon.ask(&["link", "stall", "vm2:1", "out"]);
    let write = SendRequest::write(vm2.remote(HALF + 128), Data::Inline(b"heard"));
    giving_up.post_send(&write).expect("is posted");
    let syndrome = vm1.sent(&mut giving_up).syndrome();
    assert_eq!(syndrome, Syndrome::RetryExceeded);
    // The other side may have an engine that comes to it after 24 µs, by which the sender has given up.
    wait_until("heard", || {
        vm2.buffer.read(HALF + 128, &mut found);
        found == *b"heard"
    });
}

#[test]
fn buffers_overrun() {
    let daemon = Daemon::start("trap");
    let (mut vm1, mut vm2) = peers(&daemon);
    let others = Bystanders::start(&daemon);
    let overrun = daemon.ask(&["link", "overrun", "vm1:1", "5"]);
    assert_eq!(overrun["overrun_every"], 5);
    assert_eq!(datagrams(&mut vm1, &mut vm2, 100, &others), 80);
    assert_eq!(errors(&daemon, "hv1", 2, "rcv_errors"), 20);
    let counter = "excessive_buffer_overrun_errors";
    // Beyond a threshold of 8, at every ninth.
    assert_eq!(errors(&daemon, "hv1", 2, counter), 2);
    wait_until("trap 130", || traps(&daemon, 130) != 0);
    // A connection tries again. What is sent again is shorter than from one loss to the next: where it is as
    // long, its first packet is lost each time.
    daemon.ask(&["link", "overrun", "vm1:1", "50"]);
    let (mut qa, _qb) = connected(Transport::Rc, &vm1, &vm2);
    vm1.fill(0, 300_000, 7);
    let from = [vm1.sge(0, 300_000)];
    let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
    vm1.execute(&mut qa, &write);
    vm2.verify(HALF, 300_000, 7);
    daemon.ask(&["link", "overrun", "vm1:1", "0"]);
    assert_eq!(datagrams(&mut vm1, &mut vm2, 20, &others), 20);
    others.stop();
}

#[test]
fn slow_links_delay_data() {
    const DELAY: Duration = Duration::from_millis(20);
    let daemon = Daemon::start("poll");
    let (mut vm1, mut vm2) = peers(&daemon);
    let others = Bystanders::start(&daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &vm1, &vm2);
    let delay = daemon.ask(&["link", "delay", "vm1:1", "20"]);
    assert_eq!(delay["delay_us"], 20_000);
    // Written before, sent after: in order, and the second not before its time.
    vm1.fill(0, 100_000, 5);
    let from = [vm1.sge(0, 100_000)];
    let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
    qb.post_receive(&[vm2.sge(HALF + 100_000, 64)]).unwrap();
    let begun = Instant::now();
    qa.post_send(&write).expect("is posted");
    qa.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    assert!(vm1.cq.poll().is_none());
    let entry = vm2.cq.wait().expect("a completion");
    assert!(begun.elapsed() >= DELAY, "{:?}", begun.elapsed());
    qb.complete_receive(&entry);
    vm2.verify(HALF, 100_000, 5);
    for _ in 0..2 {
        assert!(vm1.sent(&mut qa).is_ok());
        assert!(begun.elapsed() >= DELAY * 2, "{:?}", begun.elapsed());
    }
    // The answer to a read is on its way as long.
    let begun = Instant::now();
    let back = [vm1.sge(HALF, 100_000)];
    vm1.execute(&mut qa, &SendRequest::read(vm2.remote(HALF), &back));
    assert!(begun.elapsed() >= DELAY * 2, "{:?}", begun.elapsed());
    vm1.verify(HALF, 100_000, 5);
    // A datagram.
    let (mut ua, mut ub) = (vm1.qp(Transport::Ud), vm2.qp(Transport::Ud));
    ua.activate(0, QKEY).expect("becomes ready");
    ub.activate(0, QKEY).expect("becomes ready");
    ub.post_receive(&[vm2.sge(HALF, GRH + 64)]).unwrap();
    let to = AddressVector {
        lid: vm2.port.lid,
        qpn: ub.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    let begun = Instant::now();
    vm1.execute(&mut ua, &SendRequest::send(Data::Inline(b"hello")).to(&to));
    let entry = vm2.cq.wait().expect("a completion");
    assert!(begun.elapsed() >= DELAY, "{:?}", begun.elapsed());
    ub.complete_receive(&entry);
    daemon.ask(&["link", "restore", "vm1:1"]);
    vm1.execute(&mut qa, &write);
    others.stop();
}
