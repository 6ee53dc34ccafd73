//! Datagrams of VFs that are passed through, where an operator says where datagrams may go: by LIDs of a cluster, and
//! with some service levels alone.

use crate::daemon::passthrough::{
    GRH, QKEY, clusters, datagrams, dword, next, passed, send, shared, wait_for_one,
};
use crate::daemon::{Daemon, HALF, Peer};
use test_driver::{
    AddressVector, Cqe, Data, QueuePair, Receive, SendRequest, Sge, SharedReceiveQueue, Syndrome,
    Transport,
};
use testing::Configuration;

/// Returns the configuration of the daemon behind, with doorbells of this kind.
fn inner(doorbells: &str) -> Configuration {
    Configuration::new()
        .set("engine.doorbells", doorbells)
        .hypervisor("hv1", [])
        .vf("a1")
        .key("lid", 21)
        .vf("b1")
        .key("lid", 22)
        .hypervisor("hv2", [])
        .vf("a2")
        .key("lid", 23)
        .vf("b2")
        .key("lid", 24)
}

/// Two VMs of a cluster, and one of another.
fn cluster(doorbells: &str) -> (Daemon, Daemon, [Peer; 3]) {
    let vfs = [
        ("a1", "cluster = 'a'"),
        ("a2", "cluster = 'a'"),
        ("b1", "cluster = 'b'"),
    ];
    passed(inner(doorbells), clusters(), vfs)
}

/// Returns the counts of a VF's datagrams: passed, refused for their service level, refused for their address,
/// malformed.
fn counts(outer: &Daemon, name: &str) -> [u64; 4] {
    let told = crate::daemon::named(&outer.ask(&["status"])["passthrough"], name);
    let of = &told["datagrams"];
    [
        "passed",
        "refused_service_level",
        "refused_address",
        "malformed",
    ]
    .map(|key| of[key].as_u64().expect("a number"))
}

fn to(lid: u16, qp: &QueuePair) -> AddressVector {
    AddressVector {
        lid,
        qpn: qp.number(),
        qkey: QKEY,
        ..AddressVector::default()
    }
}

/// The context of a queue pair says what its driver has said of its queues: doorbell page and record, sizes, and
/// where they begin.
fn shown(qp: &QueuePair) -> [u32; 5] {
    let context = qp.query().expect("is told");
    let [page, sizes] = [0x0c, 0x08].map(|at| dword(&context, at));
    [
        page & 0x00ff_ffff,
        sizes >> 11 & 0xf,
        dword(&context, 0xa4),
        dword(&context, 0x14) >> 24,
        dword(&context, 0x90) >> 6 & 0x3f,
    ]
}

#[test]
fn datagrams_are_by_lids_of_the_cluster() {
    for doorbells in ["poll", "trap"] {
        let (_inner, outer, [mut a1, mut a2, mut b1]) = cluster(doorbells);
        let (mut qa, mut qb) = (datagrams(&a1, 0), datagrams(&a2, 0));
        let mut qc = datagrams(&b1, 0);
        for (peer, qp) in [(&a2, &mut qb), (&b1, &mut qc)] {
            wait_for_one(peer, qp);
        }
        // To nobody, and to another cluster's port, by either of its LIDs: as if the network had lost them.
        for lid in [7, 22, 0, 0xffff] {
            send(&mut a1, &mut qa, lid, &qc, b"lost");
        }
        // From memory, which the VF reads.
        a1.buffer.write(0, b"from memory");
        let from = [a1.sge(0, 11)];
        let there = to(2, &qb);
        a1.execute(&mut qa, &SendRequest::send(Data::Memory(&from)).to(&there));
        assert_eq!(next(&mut a2, &mut qb).1, b"from memory");
        // And back, by the LID that the completion had.
        for lid in [1, 21] {
            wait_for_one(&a1, &mut qa);
            send(&mut a2, &mut qb, lid, &qa, b"back");
            assert_eq!(next(&mut a1, &mut qa).1, b"back");
        }
        // The other cluster's LID 2 is nobody's.
        send(&mut b1, &mut qc, 2, &qb, b"lost");
        assert!(a2.cq.poll().is_none() && b1.cq.poll().is_none());
        assert_eq!(counts(&outer, "a1"), [1, 0, 4, 0], "{doorbells}");
        assert_eq!(counts(&outer, "a2"), [2, 0, 0, 0], "{doorbells}");
        assert_eq!(counts(&outer, "b1"), [0, 0, 1, 0], "{doorbells}");
        let told = outer.run(&["vf", "show", "a1"], "").out;
        let expected = "    Datagrams: 1 passed; 4 lost for their address\n";
        assert!(told.contains(expected), "{told}");
        let record = qa.raw_record().iova();
        assert_eq!(shown(&qa), [a1.uar.number(), 8, record as u32, 0, 0]);
    }
}

#[test]
fn service_levels_of_datagrams_are_those_of_the_configuration() {
    let vfs = [
        ("a1", "sl = [2, 3]"),
        ("b1", "sl = [2, 3]\nsl_policy = 'rewrite'"),
        ("a2", ""),
    ];
    let (_inner, outer, [mut denied, mut rewritten, mut a2]) =
        passed(inner("poll"), Configuration::new(), vfs);
    let mut there = datagrams(&a2, 0);
    for (peer, levels) in [(&mut denied, vec![3]), (&mut rewritten, vec![3, 2])] {
        let mut qp = datagrams(peer, 0);
        for _ in &levels {
            wait_for_one(&a2, &mut there);
        }
        for sl in [3, 0] {
            let to = AddressVector {
                sl,
                ..to(23, &there)
            };
            peer.execute(&mut qp, &SendRequest::send(Data::Inline(&[sl])).to(&to));
        }
        let got: Vec<u8> = { levels.iter() }
            .map(|_| a2.cq.wait().expect("a completion").service_level())
            .collect();
        assert_eq!(got, levels);
        assert!(a2.cq.poll().is_none());
        there.to_reset().expect("is reset");
        there.activate(0, QKEY).expect("is active");
    }
    assert_eq!(counts(&outer, "a1"), [1, 1, 0, 0]);
    assert_eq!(counts(&outer, "b1"), [2, 0, 0, 0]);
    // Nobody looks at those of a VF that may have any.
    assert_eq!(counts(&outer, "a2"), [0; 4]);
}

/// Where ports share a LID, datagrams have a global route header, which the daemon adds.
#[test]
fn a_header_is_added_where_ports_share_a_lid() {
    let vfs = ["a1", "a2"].map(|name| (name, "cluster = 'a'"));
    let (inner, _outer, [mut a1, mut a2]) = passed(shared(["a1", "a2"]), clusters(), vfs);
    let (mut qa, mut qb) = (datagrams(&a1, 0), datagrams(&a2, 0));
    wait_for_one(&a2, &mut qb);
    // The LID that both share is nobody's.
    send(&mut a1, &mut qa, inner.lid("a2"), &qb, b"lost");
    send(&mut a1, &mut qa, 2, &qb, b"a datagram");
    let (entry, text) = next(&mut a2, &mut qb);
    assert_eq!((entry.has_grh(), &text[..]), (true, &b"a datagram"[..]));
    let mut header = [0; 40];
    a2.buffer.read(HALF, &mut header);
    assert_eq!(
        (&header[8..24], &header[24..]),
        (&a1.gid()[..], &a2.gid()[..])
    );
    // With a header of the program's own.
    wait_for_one(&a2, &mut qb);
    let with_gid = AddressVector {
        global: Some((a2.gid(), 9)),
        ..to(inner.lid("a2"), &qb)
    };
    a1.execute(
        &mut qa,
        &SendRequest::send(Data::Inline(b"own")).to(&with_gid),
    );
    assert_eq!(next(&mut a2, &mut qb).1, b"own");
}

/// Queues come to their end and begin again, each at its own place, with requests of one block and of several.
#[test]
fn queues_wrap() {
    for doorbells in ["poll", "trap"] {
        let (_inner, outer, [mut a1, mut a2, _]) = cluster(doorbells);
        let config = test_driver::Config {
            log_send_blocks: 3,
            receive: Receive::Own {
                log_size: 2,
                log_sges: 0,
            },
            ..a1.config(Transport::Ud)
        };
        let mut qa = QueuePair::new(&config).expect("a QP");
        qa.activate(0, QKEY).expect("is active");
        let config = test_driver::Config {
            receive: Receive::Own {
                log_size: 2,
                log_sges: 0,
            },
            ..a2.config(Transport::Ud)
        };
        let mut qb = QueuePair::new(&config).expect("a QP");
        qb.activate(0, QKEY).expect("is active");
        // More blocks than the daemon's queue has.
        const ROUNDS: u16 = 700;
        for round in 0..ROUNDS {
            wait_for_one(&a2, &mut qb);
            let text = vec![round as u8; 1 + usize::from(round) * 37 % 200];
            send(&mut a1, &mut qa, 2, &qb, &text);
            assert_eq!(next(&mut a2, &mut qb).1, text, "{round}");
        }
        assert_eq!(counts(&outer, "a1"), [ROUNDS.into(), 0, 0, 0]);
    }
}

/// Many queue pairs, of which each has more posted than is looked at in a turn; they receive by one shared queue.
#[test]
fn many_queue_pairs() {
    const QPS: usize = 40;
    const EACH: usize = 50;
    let (_inner, outer, [mut a1, mut a2, _]) = cluster("poll");
    let mut queue = SharedReceiveQueue::new(&a2.pd, 12, 0, None).expect("an SRQ");
    let config = test_driver::Config {
        receive: Receive::Shared(&queue),
        ..a2.config(Transport::Ud)
    };
    let qb = QueuePair::new(&config).expect("a QP");
    qb.activate(0, QKEY).expect("is active");
    let mut qps: Vec<QueuePair> = (0..QPS).map(|_| datagrams(&a1, 0)).collect();
    for _ in 0..QPS {
        for _ in 0..EACH {
            queue.post(&[a2.sge(HALF, GRH + 8)]).expect("is posted");
        }
    }
    let there = to(2, &qb);
    let request = SendRequest::send(Data::Inline(b"a datagr")).to(&there);
    // No more at a time than completion queues have room for.
    let (mut sent, mut received) = (0, 0);
    for qp in &mut qps {
        for number in 0..EACH {
            let last = number + 1 == EACH;
            let request = if last { request } else { request.unsignaled() };
            qp.post(&request).expect("is posted");
        }
        qp.ring().expect("rings");
        let entry = a1.sent(qp);
        assert!(entry.is_ok(), "{entry:?}");
        sent += 1;
        for _ in 0..EACH {
            let entry = a2.cq.wait().expect("a completion");
            assert!(entry.is_ok(), "{entry:?}");
            received += 1;
        }
    }
    assert_eq!((sent, received), (QPS, QPS * EACH));
    assert_eq!(counts(&outer, "a1")[0], received as u64);
    // All of them go, and their room with them.
    drop(qps);
    drop(qb);
    for _ in 0..300 {
        drop(datagrams(&a1, 0));
    }
}

/// Waits for a completion, which is an error.
#[track_caller]
fn fails(peer: &mut Peer, qp: &mut QueuePair) -> Cqe {
    let entry = peer.sent(qp);
    assert!(!entry.is_ok(), "{entry:?}");
    entry
}

#[test]
fn requests_that_make_no_sense_are_errors_of_their_queue_pair() {
    let (_inner, outer, [mut a1, mut a2, _]) = cluster("poll");
    let mut qb = datagrams(&a2, 0);
    let mut qa = datagrams(&a1, 0);
    let mut expected = 0;
    let mut works_again = |a1: &mut Peer, qa: &mut QueuePair, a2: &mut Peer| {
        qa.to_reset().expect("is reset");
        qa.activate(0, QKEY).expect("is active");
        wait_for_one(a2, &mut qb);
        send(a1, qa, 2, &qb, b"again");
        assert_eq!(next(a2, &mut qb).1, b"again");
    };
    // Opcodes that are not for datagrams, requests without a segment or an address, or longer than what is posted.
    for (opcode, segments, blocks) in [
        (0x08, 4, 1),
        (0x10, 8, 2),
        (0x25, 16, 4),
        (0x0e, 9, 3),
        (0x7f, 2, 1),
        (0x0a, 0, 1),
        (0x0a, 1, 1),
        (0x0a, 2, 1),
        (0x0a, 63, 2),
    ] {
        let mut raw = vec![[0xff; 64]; blocks];
        raw[0][..8].copy_from_slice(&[0, 0, 0, opcode, 0, 0, 0, segments]);
        raw[0][8..12].copy_from_slice(&[0, 0, 0, 8]);
        qa.post_raw(&raw).expect("is posted");
        fails(&mut a1, &mut qa);
        expected += 1;
        works_again(&mut a1, &mut qa, &mut a2);
    }
    // Counters that jump: of what there is to send, and to receive.
    qa.raw_record().write(4, &0x4321_u32.to_be_bytes());
    qa.ring().expect("rings");
    fails(&mut a1, &mut qa);
    expected += 1;
    works_again(&mut a1, &mut qa, &mut a2);
    qa.raw_record().write(0, &0x4321_u32.to_be_bytes());
    // What it sends is sent all the same.
    wait_and_send(&mut a1, &mut qa, &mut a2);
    assert_eq!(counts(&outer, "a1")[3], expected);
}

/// Sends a datagram to a queue pair that is new.
fn wait_and_send(from: &mut Peer, qp: &mut QueuePair, to: &mut Peer) {
    let mut there = datagrams(to, 0);
    wait_for_one(to, &mut there);
    send(from, qp, 2, &there, b"all the same");
    assert_eq!(next(to, &mut there).1, b"all the same");
}

/// A guest that names the memory of another, or none, is told by its VF.
#[test]
fn keys_are_the_vfs_to_check() {
    let (_inner, _outer, [mut a1, a2, _]) = cluster("poll");
    let mut qa = datagrams(&a1, 0);
    let qb = datagrams(&a2, 0);
    let from = [Sge {
        key: 0x0012_3400,
        ..a1.sge(0, 8)
    }];
    let there = to(2, &qb);
    let request = SendRequest::send(Data::Memory(&from)).to(&there);
    qa.post_send(&request).expect("is posted");
    let entry = fails(&mut a1, &mut qa);
    assert_eq!(entry.syndrome(), Syndrome::LocalProtection, "{entry:?}");
}

/// The rights of one VM do not change what others have.
#[test]
fn a_guest_that_posts_without_end_is_alone_with_it() {
    let (_inner, _outer, [a1, mut a2, mut b1]) = cluster("poll");
    let mut flood = datagrams(&a1, 0);
    let there = AddressVector {
        lid: 9,
        ..AddressVector::default()
    };
    let request = SendRequest::send(Data::Inline(b"nobody"))
        .to(&there)
        .unsignaled();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut posted = 0_u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // The queue is as long as the driver says; it never waits for completions.
                if flood.post(&request).is_err() {
                    posted = posted.wrapping_add(128);
                    flood.raw_record().write(4, &posted.to_be_bytes());
                    std::thread::yield_now();
                }
            }
        });
        let mut qc = datagrams(&b1, 0);
        let mut qb = datagrams(&a2, 0);
        for _ in 0..50 {
            // Its own loopback, by the cluster's LID.
            wait_for_one(&b1, &mut qc);
            send(&mut a2, &mut qb, 7, &qc, b"lost");
            drop(datagrams(&b1, 0));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(b1.cq.poll().map(|entry| entry.is_ok()), None);
}
