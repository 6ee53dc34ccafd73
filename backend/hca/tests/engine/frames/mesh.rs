//! Functions that live in several engines, joined by rings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use hca::transport::RING;
use hca::work::{Operation, RecvKind, Status};
use hca::{Transport, VfId};
use wire::{Gid, Lid, Qpn};

use crate::lab::{Lab, TIMEOUT_NS, base, datagram, pattern, received, remote, request, sent};

/// A laboratory whose functions live in two engines in turns.
fn two(count: usize) -> Lab {
    let mut lab = Lab::new(count);
    let homes: Vec<u16> = (0..count).map(|at| at as u16 % 2).collect();
    lab.split(&homes);
    lab
}

#[test]
fn messages_of_all_kinds_get_to_another_engine() {
    let mut lab = two(2);
    let (a, b) = lab.pair(Transport::Rc);
    let bytes = pattern(1, 1 << 20);
    lab.memory(0).write(base(0), &bytes);
    let (key, far) = (lab.nodes[1].key, base(1));
    let list = [lab.sge(0, 0, 1 << 20)];
    lab.execute(&a, remote(Operation::Write, 1, &list, far, key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert!(lab.memory(1).read(far, 1 << 20) == bytes, "written");
    let list = [lab.sge(0, 2 << 20, 1 << 20)];
    lab.execute(&a, remote(Operation::Read, 2, &list, far, key));
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    assert!(
        lab.memory(0).read(base(0) + (2 << 20), 1 << 20) == bytes,
        "read"
    );
    lab.receive(&b, 7, &[lab.sge(1, 4 << 20, 100_000)]);
    let list = [lab.sge(0, 0, 100_000)];
    lab.execute(&a, request(Operation::Send, 3, &list));
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    let expected = [(7, Status::Success, 100_000, RecvKind::Send, 0)];
    assert_eq!(received(&b.cq.poll()), expected);
    assert!(
        lab.memory(1).read(far + (4 << 20), 100_000) == bytes[..100_000],
        "sent"
    );
}

#[test]
fn a_full_ring_makes_them_wait_and_loses_nothing() {
    const COUNT: usize = 3 * RING;
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let mut lab = two(2);
        let (a, b) = lab.pair(transport);
        for index in 0..COUNT {
            lab.receive(&b, index as u16, &[lab.sge(1, 0, 64)]);
            let list = [lab.sge(0, 0, 8)];
            let wr = match transport {
                Transport::Ud => datagram(&lab, &b, index as u16, &list),
                _ => request(Operation::Send, index as u16, &list),
            };
            lab.post(&a, wr);
        }
        // The other engine does nothing meanwhile.
        while lab.engine.run() {}
        assert_eq!(
            lab.engine.next_deadline().filter(|&due| due == 0),
            None,
            "rests"
        );
        let done = sent(&a.cq.poll()).len();
        let expected = if transport == Transport::Rc { 0 } else { RING };
        assert_eq!(done, expected, "{transport:?}");
        lab.settle();
        assert_eq!(sent(&a.cq.poll()).len(), COUNT - done, "{transport:?}");
        let received = received(&b.cq.poll());
        let indices = received.iter().map(|entry| usize::from(entry.0));
        assert!(indices.eq(0..COUNT), "{transport:?}");
        let counters = lab.look_home(VfId(0)).vf(VfId(0)).counters();
        let discards = &counters.xmit_discards;
        assert_eq!(discards.load(Ordering::Relaxed), 0);
    }
}

/// Answers take room that their requests have set apart: a reader asks for no more than it may have on its
/// way, and who answers has all of its own share left.
#[test]
fn a_reader_asks_for_no_more_than_it_has_room_for() {
    const PAIRS: usize = 40;
    const READS: u16 = 16;
    let mut lab = two(2);
    let pairs: Vec<_> = (0..PAIRS).map(|_| lab.pair(Transport::Rc)).collect();
    lab.memory(1).write(base(1), &pattern(1, 1 << 16));
    let key = lab.nodes[1].key;
    for index in 0..READS {
        for (a, _) in &pairs {
            let list = [lab.sge(0, 1 << 20, 1 << 16)];
            lab.post(a, remote(Operation::Read, index, &list, base(1), key));
        }
    }
    // The one that answers is much faster than the one that asks.
    for _ in 0..20 {
        lab.run_one(0);
        (0..500).for_each(|_| lab.run_one(1));
    }
    // Its own requests are not in the way, and nothing is to be sent again, for which there was no time.
    let (_, b) = &pairs[0];
    let list = [lab.sge(1, 2 << 20, 1 << 16)];
    let write = remote(
        Operation::Write,
        77,
        &list,
        base(0) + (3 << 20),
        lab.nodes[0].key,
    );
    lab.post(b, write);
    lab.settle();
    assert_eq!(sent(&b.cq.poll()), [(77, Status::Success)]);
    lab.advance(TIMEOUT_NS / 2);
    for (a, _) in &pairs {
        let expected = (0..READS).map(|index| (index, Status::Success));
        assert!(sent(&a.cq.poll()).into_iter().eq(expected));
    }
    assert!(lab.memory(0).read(base(0) + (1 << 20), 1 << 16) == pattern(1, 1 << 16));
    for vf in [VfId(0), VfId(1)] {
        let counters = lab.look_home(vf).vf(vf).counters();
        assert_eq!(counters.xmit_discards.load(Ordering::Relaxed), 0);
        let retries = &counters.retries;
        assert_eq!(retries.implied_nak_seq_err.load(Ordering::Relaxed), 0);
        assert_eq!(retries.duplicate_request.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_group_has_members_everywhere() {
    let mut lab = two(5);
    let (group, mlid) = (Gid::from_bits(0xff12 << 112 | 5), Lid::new(0xc001));
    lab.net.change(|net| {
        net.groups.insert(mlid, (0..5).map(VfId).collect());
    });
    let qps: Vec<_> = (0..5).map(|node| lab.qp(node, Transport::Ud)).collect();
    for (node, qp) in qps.iter().enumerate() {
        let change = lab.attributes(qp);
        lab.bring_up(qp, &change);
        let engine = lab.home(qp.vf);
        engine.verbs(qp.vf).attach_multicast(qp.qpn, group).unwrap();
        lab.receive(qp, 5, &[lab.sge(node, 0, 64)]);
    }
    lab.memory(0).write(base(0) + 100, b"everybody");
    let mut wr = datagram(&lab, &qps[0], 1, &[lab.sge(0, 100, 9)]);
    let address = wr.address.as_mut().unwrap();
    (address.dlid, address.dest_qp) = (mlid, Qpn::MULTICAST);
    address.global = Some(hca::work::GlobalRoute {
        dgid: group,
        sgid_index: 0,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 1,
    });
    lab.execute(&qps[0], wr);
    for (node, qp) in qps.iter().enumerate() {
        assert_eq!(received(&qp.cq.poll()).len(), 1, "function {node}");
        assert_eq!(lab.memory(node).read(base(node) + 40, 9), b"everybody");
    }
}

#[test]
fn a_function_moves_amid_its_messages() {
    let mut lab = Lab::new(3);
    lab.split(&[0, 1, 2]);
    let (a, b) = lab.pair(Transport::Rc);
    let bytes = pattern(3, 1 << 20);
    lab.memory(0).write(base(0), &bytes);
    let key = lab.nodes[1].key;
    for index in 0..64_u16 {
        let at = u64::from(index) << 14;
        let list = [lab.sge(0, at, 1 << 14)];
        lab.post(
            &a,
            remote(Operation::Write, index, &list, base(1) + at, key),
        );
        lab.receive(&b, index, &[lab.sge(1, 4 << 20, 64)]);
        lab.post(&a, request(Operation::Send, 1000 + index, &list[..0]));
    }
    let way = [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (0, 1),
        (0, 0),
        (1, 0),
        (1, 2),
    ];
    for (at, (node, home)) in way.into_iter().cycle().take(40).enumerate() {
        lab.run_one(at);
        lab.relocate_to(node, home);
    }
    lab.settle();
    // No timer has fired: nothing got lost, and nothing came out of order.
    let sends = sent(&a.cq.poll());
    let expected = (0..64).flat_map(|index| [index, 1000 + index]);
    assert!(
        sends
            .into_iter()
            .eq(expected.map(|index| (index, Status::Success)))
    );
    assert!(lab.memory(1).read(base(1), 1 << 20) == bytes);
    let indices: Vec<u16> = received(&b.cq.poll()).iter().map(|it| it.0).collect();
    assert!(indices.into_iter().eq(0..64));
    for vf in [VfId(0), VfId(1)] {
        let counters = lab.look_home(vf).vf(vf).counters();
        let retries = &counters.retries;
        for counter in [
            &retries.local_ack_timeout_err,
            &retries.packet_seq_err,
            &retries.implied_nak_seq_err,
            &retries.out_of_sequence,
            &retries.duplicate_request,
        ] {
            assert_eq!(counter.load(Ordering::Relaxed), 0);
        }
    }
}

/// Wakes a thread that is not known yet.
#[derive(Default)]
struct Sleeper(OnceLock<Thread>);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// Each engine has a thread, which sleeps whenever there is nothing to do. Time stands still, so what got
/// lost, or a thread that nobody wakes, would be waited for in vain.
/// Whoever has a function rest finds it at rest, wherever it lives by then.
#[test]
fn a_function_at_rest_moves_and_rests() {
    let mut lab = two(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let vf = a.vf;
    lab.home(vf).quiesce(vf);
    for _ in 0..2 {
        lab.relocate(0);
        assert!(lab.home(vf).vf(vf).is_quiet());
        let list = [lab.sge(0, 0, 8)];
        lab.post(
            &a,
            remote(Operation::Write, 1, &list, base(1), lab.nodes[1].key),
        );
        while lab.run() {}
        assert!(a.cq.poll().is_empty(), "it works");
    }
    lab.home(vf).resume(vf);
    assert!(lab.home(vf).vf(vf).port().active);
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success); 2]);
}

#[test]
fn engines_on_threads_of_their_own() {
    const ROUNDS: u16 = 1500;
    let sleepers: [Arc<Sleeper>; 2] = Default::default();
    let mut lab = Lab::new(2);
    lab.split_by(&[0, 1], false, |_, b| Waker::from(Arc::clone(&sleepers[b])));
    let pairs: Vec<_> = (0..4).map(|_| lab.pair(Transport::Rc)).collect();
    let lengths = [8, 3000, 70_000, 500_u32];
    for node in 0..2 {
        lab.memory(node)
            .write(base(node), &pattern(node as u64 + 1, 1 << 20));
    }
    for index in 0..ROUNDS {
        let (a, b) = &pairs[usize::from(index) % 4];
        let (len, at) = (
            lengths[usize::from(index / 4) % 4],
            u64::from(index % 64) << 14,
        );
        let at = at.min((1 << 20) - u64::from(len));
        for (node, from, to) in [(0, a, b), (1, b, a)] {
            let (key, far) = (lab.nodes[1 - node].key, base(1 - node));
            lab.receive(to, index, &[lab.sge(1 - node, 7 << 20, 1 << 17)]);
            let near = lab.sge(node, at, len);
            let wr = match index % 3 {
                // Each side writes to the upper memory of the other, and reads from the lower.
                0 => remote(Operation::Write, index, &[near], far + (2 << 20) + at, key),
                1 => {
                    let list = [lab.sge(node, (4 << 20) + at, len)];
                    remote(Operation::Read, index, &list, far + at, key)
                }
                _ => request(Operation::Send, index, &[near]),
            };
            lab.post(from, wr);
        }
    }
    let doors = lab.doors.clone();
    let done = AtomicBool::new(false);
    let mut engines: Vec<_> = lab.engines().collect();
    let (mut sends, mut receives) = (0, 0);
    thread::scope(|scope| {
        for ((engine, door), sleeper) in engines.iter_mut().zip(&doors).zip(&sleepers) {
            let done = &done;
            scope.spawn(move || {
                sleeper.0.set(thread::current()).unwrap();
                while !done.load(Ordering::Acquire) {
                    engine.wake();
                    if engine.run() {
                        continue;
                    }
                    if !door.sleep(true) && engine.next_deadline() != Some(0) {
                        thread::park();
                    }
                    door.sleep(false);
                }
            });
        }
        while sends < 2 * usize::from(ROUNDS) || receives < 2 * usize::from(ROUNDS / 3) {
            for qp in pairs.iter().flat_map(|(a, b)| [a, b]) {
                let entries = qp.cq.poll();
                let statuses = sent(&entries);
                assert!(
                    statuses
                        .iter()
                        .all(|(_, status)| *status == Status::Success)
                );
                sends += statuses.len();
                receives += received(&entries).len();
            }
            thread::yield_now();
        }
        done.store(true, Ordering::Release);
        sleepers.iter().for_each(Wake::wake_by_ref);
    });
    for index in 0..ROUNDS {
        let (len, at) = (
            lengths[usize::from(index / 4) % 4],
            u64::from(index % 64) << 14,
        );
        let at = at.min((1 << 20) - u64::from(len));
        let above = match index % 3 {
            0 => 2 << 20,
            1 => 4 << 20,
            _ => continue,
        };
        for node in 0..2 {
            let expected = lab.memory(1 - node).read(base(1 - node) + at, len as usize);
            let got = lab.memory(node).read(base(node) + above + at, len as usize);
            assert!(got == expected, "request {index} at function {node}");
        }
    }
}
