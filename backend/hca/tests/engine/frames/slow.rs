//! Slow links: what is sent arrives later, several at a time and in order, and nobody else waits.

use proptest::prelude::*;

use hca::work::{AtomicOperands, Operation, RecvKind, SendWr, Sge, Status};
use hca::{Event, QpState, Transport, VfId};

use crate::lab::{Lab, Qp, TIMEOUT_NS, base, datagram, received, remote, request, sent};

const THERE: u64 = 1_000_000;
const BACK: u64 = 300_000;
/// RNR timer code 12 is 0.64 ms (specification table 45).
const RNR_NS: u64 = 640_000;

/// Delays between functions 0 and 1; any other way takes no time.
fn slow(lab: &Lab, there: u64, back: u64) {
    lab.net.change(|net| {
        net.delays.insert((VfId(0), VfId(1)), there);
        net.delays.insert((VfId(1), VfId(0)), back);
    });
}

/// A laboratory with a slow link, and a connection over it.
fn pair(transport: Transport) -> (Lab, Qp, Qp) {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(transport);
    slow(&lab, THERE, BACK);
    (lab, a, b)
}

fn write(lab: &Lab, index: u16, value: u8) -> SendWr {
    lab.memory(0).write(base(0) + u64::from(index), &[value]);
    let sge = lab.sge(0, index.into(), 1);
    let to = base(1) + u64::from(index);
    remote(Operation::Write, index, &[sge], to, lab.nodes[1].key)
}

fn byte(lab: &Lab, index: u16) -> u8 {
    lab.memory(1).read(base(1) + u64::from(index), 1)[0]
}

#[test]
fn a_message_takes_its_time_and_so_does_the_answer() {
    let (mut lab, a, b) = pair(Transport::Rc);
    lab.receive(&b, 7, &[lab.sge(1, 0, 16)]);
    lab.memory(0).write(base(0), b"0123456789abcdef");
    let sge = lab.sge(0, 0, 16);
    lab.execute(&a, request(Operation::Send, 1, &[sge]));
    assert_eq!(lab.engine.next_deadline(), Some(THERE));
    lab.advance(THERE - 1);
    assert!(b.cq.poll().is_empty());
    lab.advance(1);
    assert_eq!(
        received(&b.cq.poll()),
        [(7, Status::Success, 16, RecvKind::Send, 0)]
    );
    assert_eq!(lab.memory(1).read(base(1), 16), b"0123456789abcdef");
    assert_eq!(lab.engine.next_deadline(), Some(THERE + BACK));
    lab.advance(BACK - 1);
    assert!(a.cq.poll().is_empty());
    lab.advance(1);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.engine.next_deadline(), None);
    // The way back takes its own time.
    lab.receive(&a, 8, &[lab.sge(0, 0, 16)]);
    lab.execute(&b, request(Operation::Send, 2, &[]));
    lab.advance(BACK);
    assert_eq!(received(&a.cq.poll()).len(), 1);
    lab.advance(THERE);
    assert_eq!(sent(&b.cq.poll()), [(2, Status::Success)]);
}

#[test]
fn many_are_on_their_way_at_once() {
    let (mut lab, a, _b) = pair(Transport::Rc);
    // One every 10 us.
    for index in 0..200 {
        let wr = write(&lab, index, index as u8 | 1);
        lab.execute(&a, wr);
        lab.advance(10_000);
    }
    // The first have arrived, 1 ms after they were sent, and have been heard of after 1.3 ms.
    assert_eq!(sent(&a.cq.poll()).len(), 71);
    assert_eq!(
        (0..200).filter(|&index| byte(&lab, index) != 0).count(),
        101
    );
    lab.advance(THERE + BACK);
    let rest = sent(&a.cq.poll());
    let expected = (71..200).map(|index| (index, Status::Success));
    assert!(rest.into_iter().eq(expected));
}

#[test]
fn nobody_else_waits() {
    let mut lab = Lab::new(3);
    let (a, _b) = lab.pair(Transport::Rc);
    slow(&lab, THERE, BACK);
    // Another queue pair of the same function, to another one.
    let (c, d) = (lab.qp(0, Transport::Rc), lab.qp(2, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    // And one datagram queue pair with both.
    let u = lab.qp(0, Transport::Ud);
    let (near, far) = (lab.qp(2, Transport::Ud), lab.qp(1, Transport::Ud));
    for (qp, peer) in [(&u, &near), (&near, &u), (&far, &u)] {
        let change = lab.attributes(peer);
        lab.bring_up(qp, &change);
    }
    let (first, second) = (write(&lab, 1, 1), remote_to(&lab, 2));
    lab.post(&a, first);
    lab.execute(&c, second);
    assert_eq!(sent(&c.cq.poll()), [(2, Status::Success)]);
    for (qp, node) in [(&near, 2), (&far, 1)] {
        lab.receive(qp, 5, &[lab.sge(node, 256, 64)]);
    }
    lab.memory(0).write(base(0), b"late");
    let sge = lab.sge(0, 0, 4);
    let late = datagram(&lab, &far, 3, &[sge]);
    lab.execute(&u, late);
    lab.memory(0).write(base(0), b"soon");
    let soon = datagram(&lab, &near, 4, &[sge]);
    lab.execute(&u, soon);
    // Sent they are both: nobody acknowledges a datagram.
    let both = [(3, Status::Success), (4, Status::Success)];
    assert_eq!(sent(&u.cq.poll()), both);
    assert_eq!(received(&near.cq.poll()).len(), 1);
    assert!(far.cq.poll().is_empty());
    assert!(a.cq.poll().is_empty());
    lab.advance(THERE);
    assert_eq!(received(&far.cq.poll()).len(), 1);
    assert_eq!(lab.memory(1).read(base(1) + 256 + 40, 4), b"late");
}

fn remote_to(lab: &Lab, node: usize) -> SendWr {
    let sge = lab.sge(0, 0, 1);
    let key = lab.nodes[node].key;
    remote(Operation::Write, node as u16, &[sge], base(node), key)
}

#[test]
fn unreliable_messages_are_done_when_they_have_left() {
    let (mut lab, a, _b) = pair(Transport::Uc);
    let wr = write(&lab, 1, 9);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    lab.advance(THERE - 1);
    assert_eq!(byte(&lab, 1), 0);
    lab.advance(1);
    assert_eq!(byte(&lab, 1), 9);
}

#[test]
fn the_link_gets_fast_again() {
    let (mut lab, a, _b) = pair(Transport::Rc);
    let wr = write(&lab, 1, 1);
    lab.execute(&a, wr);
    slow(&lab, 0, 0);
    // What is behind does not overtake it.
    let wr = write(&lab, 2, 2);
    lab.execute(&a, wr);
    assert_eq!(byte(&lab, 2), 0);
    lab.advance(THERE);
    assert_eq!((byte(&lab, 1), byte(&lab, 2)), (1, 2));
    lab.advance(BACK);
    let both = [(1, Status::Success), (2, Status::Success)];
    assert_eq!(sent(&a.cq.poll()), both);
    let wr = write(&lab, 3, 3);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    assert_eq!(lab.engine.next_deadline(), None);
}

#[test]
fn a_receiver_that_is_not_ready() {
    let (mut lab, a, b) = pair(Transport::Rc);
    for index in 1..=3 {
        lab.post(&a, request(Operation::Send, index, &[]));
    }
    lab.settle();
    lab.advance(THERE);
    for index in 1..=3 {
        lab.receive(&b, index, &[]);
    }
    // The refusal goes back, the wait passes, the message comes again, and the others behind it.
    lab.advance(BACK + RNR_NS + THERE - 1);
    assert!(b.cq.poll().is_empty());
    lab.advance(1);
    assert_eq!(received(&b.cq.poll()).len(), 3);
    lab.advance(BACK);
    assert_eq!(sent(&a.cq.poll()).len(), 3);
}

#[test]
fn an_error_comes_after_what_went_well() {
    let (mut lab, a, b) = pair(Transport::Rc);
    let good = write(&lab, 1, 1);
    lab.post(&a, good);
    let sge = lab.sge(0, 0, 1);
    lab.post(
        &a,
        remote(Operation::Write, 2, &[sge], base(1), 0xdead_be00),
    );
    let behind = write(&lab, 3, 3);
    lab.post(&a, behind);
    lab.settle();
    lab.advance(THERE);
    assert_eq!(lab.state(&b), QpState::Error, "the responder knows at once");
    assert_eq!(lab.state(&a), QpState::ReadyToSend);
    lab.advance(BACK);
    assert_eq!(
        sent(&a.cq.poll()),
        [
            (1, Status::Success),
            (2, Status::RemoteAccess),
            (3, Status::Flushed)
        ]
    );
    assert_eq!(byte(&lab, 3), 0);
    assert_eq!(lab.state(&a), QpState::Error);
}

#[test]
fn flushed_in_order() {
    let (mut lab, a, _b) = pair(Transport::Rc);
    for index in 1..=2 {
        let wr = write(&lab, index, 1);
        lab.execute(&a, wr);
        lab.advance(THERE);
    }
    // The first is done, the second carried out, two more are on their way.
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    for index in 3..=4 {
        let wr = write(&lab, index, 1);
        lab.execute(&a, wr);
    }
    lab.modify(&a, QpState::Error, &Default::default());
    lab.settle();
    let flushed = [2, 3, 4].map(|index| (index, Status::Flushed));
    assert_eq!(sent(&a.cq.poll()), flushed);
    assert_eq!((byte(&lab, 2), byte(&lab, 3)), (1, 0));
}

#[test]
fn destroyed_or_reset_on_the_way() {
    let mut lab = Lab::new(2);
    slow(&lab, THERE, BACK);
    for ending in 0..3 {
        let (a, _b) = lab.pair(Transport::Rc);
        for index in 1..=3 {
            let wr = write(&lab, index, 0x80 | ending);
            lab.execute(&a, wr);
        }
        // What has left is a copy, and arrives.
        lab.memory(0).write(base(0), &[0; 8]);
        match ending {
            0 => lab.engine.verbs(a.vf).destroy_qp(a.qpn).unwrap(),
            1 => lab.modify(&a, QpState::Reset, &Default::default()),
            _ => lab.engine.reset_vf(a.vf),
        }
        lab.advance(THERE + BACK);
        assert!(a.cq.poll().is_empty());
        assert_eq!(byte(&lab, 1), 0x80 | ending);
        assert_eq!(lab.engine.next_deadline(), None);
    }
}

#[test]
fn a_drain_waits_for_all() {
    let (mut lab, a, _b) = pair(Transport::Rc);
    for index in 1..=2 {
        let wr = write(&lab, index, 1);
        lab.execute(&a, wr);
        lab.advance(1000);
    }
    lab.modify(&a, QpState::SendQueueDrain, &Default::default());
    let behind = write(&lab, 3, 3);
    lab.execute(&a, behind);
    lab.advance(THERE + BACK - 2000);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.events(0), []);
    lab.advance(1000);
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    assert_eq!(lab.events(0), [Event::SendQueueDrained(a.qpn)]);
    lab.advance(THERE + BACK);
    assert_eq!(byte(&lab, 3), 0);
    lab.modify(&a, QpState::ReadyToSend, &Default::default());
    lab.settle();
    lab.advance(THERE + BACK);
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
}

#[test]
fn too_slow_for_its_patience() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // One try and three more.
    slow(&lab, TIMEOUT_NS * 2, TIMEOUT_NS * 2);
    let wr = write(&lab, 1, 1);
    lab.execute(&a, wr);
    lab.advance(TIMEOUT_NS * 4);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    slow(&lab, TIMEOUT_NS * 2, TIMEOUT_NS * 2 + 1);
    let wr = write(&lab, 2, 2);
    lab.execute(&a, wr);
    lab.advance(TIMEOUT_NS * 2);
    assert_eq!(byte(&lab, 2), 2, "it arrives all the same");
    for _ in 0..8 {
        lab.advance(TIMEOUT_NS);
    }
    assert_eq!(sent(&a.cq.poll()), [(2, Status::RetryExceeded)]);
}

#[test]
fn what_a_function_has_on_its_way_is_bounded() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let (u, v) = lab.pair(Transport::Ud);
    slow(&lab, THERE, BACK);
    for index in 0..5000 {
        let wr = write(&lab, index % 8, 1);
        lab.post(&a, SendWr { index, ..wr });
    }
    lab.settle();
    assert_eq!(a.send.len(), 5000 - 4096);
    // No room for a datagram either, which is lost.
    lab.receive(&v, 1, &[lab.sge(1, 256, 64)]);
    let wr = datagram(&lab, &v, 1, &[]);
    lab.execute(&u, wr);
    assert_eq!(sent(&u.cq.poll()), [(1, Status::Success)]);
    lab.advance(THERE);
    assert!(v.cq.poll().is_empty());
    // A queue pair of its own may always send one.
    let (c, _d) = lab.pair(Transport::Rc);
    let wr = write(&lab, 9, 9);
    lab.execute(&c, wr);
    let mut done = 0;
    for _ in 0..8 {
        lab.advance(THERE + BACK);
        done += sent(&a.cq.poll()).len();
    }
    assert_eq!(done, 5000);
    assert_eq!(sent(&c.cq.poll()), [(9, Status::Success)]);
}

#[test]
fn what_long_messages_have_on_their_way_is_bounded() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut lab = Lab::new(2);
        let pairs: Vec<_> = (0..4).map(|_| lab.pair(transport)).collect();
        slow(&lab, THERE, BACK);
        let len = 256 << 20;
        let sge = Sge {
            addr: crate::lab::ALIAS,
            ..lab.sge(0, 0, len)
        };
        let key = lab.nodes[1].key;
        let before = lab.memory(0).given()[1];
        for (qp, _) in &pairs {
            let to = crate::lab::ALIAS;
            lab.post(qp, remote(Operation::Write, 1, &[sge], to, key));
        }
        lab.settle();
        if transport == Transport::Rc {
            // Each may always have one frame there.
            let read = lab.memory(0).given()[1] - before;
            assert!(read <= (4096 * 4608) + 5 * (64 << 10), "{read} bytes");
            continue;
        }
        // Who does not wait for answers loses what there is no room for.
        let counters = lab.engine.vf(VfId(0)).counters();
        let lost = counters
            .xmit_discards
            .load(std::sync::atomic::Ordering::Relaxed);
        assert!(
            lost > 4 * 4096 - 4096 * 4608 / (64 << 10) - 64,
            "{lost} frames"
        );
        for (qp, _) in &pairs {
            assert_eq!(sent(&qp.cq.poll()), [(1, Status::Success)]);
        }
    }
}

pub type Received = Vec<(u16, Status, u32, RecvKind, u32)>;

/// Requests of one queue pair.
pub fn programs() -> impl Strategy<Value = Vec<(u8, u16, u16, bool)>> {
    prop::collection::vec((0..7_u8, 0..64_u16, 1..9000_u16, any::<bool>()), 1..40)
}

/// One thing that function 0 is asked to do, of function 1.
pub fn task(lab: &Lab, index: u16, (kind, place, len): (u8, u16, u16)) -> SendWr {
    let place = u64::from(place) * 8;
    let sge = lab.sge(0, place, len.into());
    let (key, to) = (lab.nodes[1].key, base(1) + place);
    let wr = match kind {
        0 => remote(Operation::Write, index, &[sge], to, key),
        1 => remote(Operation::WriteImm, index, &[sge], to, key),
        2 => remote(Operation::Read, index, &[sge], to, key),
        3 => SendWr {
            atomic: AtomicOperands {
                swap_add: 3,
                ..AtomicOperands::default()
            },
            ..remote(Operation::FetchAdd, index, &[lab.sge(0, place, 8)], to, key)
        },
        4 => request(Operation::Nop, index, &[]),
        // Now and then one with a wrong key, of the peer's memory or of its own.
        5 if len < 500 => remote(Operation::Write, index, &[sge], to, key ^ 1),
        6 if len < 500 => {
            let lkey = sge.lkey ^ 1;
            remote(Operation::Write, index, &[Sge { lkey, ..sge }], to, key)
        }
        _ => request(Operation::Send, index, &[sge]),
    };
    // What comes after a READ would else take what lies there before the READ's answer does.
    SendWr { fence: true, ..wr }
}

/// Carries out a program on a fresh laboratory, and lets time pass until nothing is left to do.
/// The subnet is as `shape` makes it.
pub fn outcome(
    program: &[(u8, u16, u16, bool)],
    shape: impl Fn(&mut Lab),
    receives: usize,
    transport: Transport,
) -> (Vec<(u16, Status)>, Received, [Vec<u8>; 2]) {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair_with(transport, |change| {
        (change.rnr_retry, change.retry_count) = (Some(3), Some(7));
    });
    shape(&mut lab);
    lab.memory(0)
        .write(base(0), &crate::lab::pattern(1, 20_000));
    lab.memory(1)
        .write(base(1), &crate::lab::pattern(2, 20_000));
    for index in 0..receives {
        lab.receive(&b, index as u16, &[lab.sge(1, 30_000, 10_000)]);
    }
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    for (at, &(kind, place, len, now)) in program.iter().enumerate() {
        let wr = task(&lab, at as u16, (kind, place, len));
        lab.post(&a, wr);
        if now {
            lab.settle();
        }
    }
    lab.settle();
    let mut steps = 0;
    while let Some(due) = lab.next_deadline() {
        collect(&a, &b, &mut sends, &mut recvs);
        steps += 1;
        // Queue pairs in error are looked at for ever.
        if lab.state(&a) == QpState::Error && steps > 200 {
            break;
        }
        let now = hca::Clock::now(&*lab.clock);
        lab.advance(due.saturating_sub(now));
    }
    collect(&a, &b, &mut sends, &mut recvs);
    let memory = [0, 1].map(|node| lab.memory(node).read(base(node), 50_000));
    (sends, recvs, memory)
}

fn collect(a: &Qp, b: &Qp, sends: &mut Vec<(u16, Status)>, recvs: &mut Received) {
    sends.extend(sent(&a.cq.poll()));
    recvs.extend(received(&b.cq.poll()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A slow link changes when things happen, and nothing else.
    #[test]
    fn delay_changes_nothing_but_time(
        program in programs(),
        there in 0..3_000_000_u64,
        back in 0..3_000_000_u64,
        receives in 0..40_usize,
        reliable in any::<bool>(),
    ) {
        let transport = if reliable { Transport::Rc } else { Transport::Uc };
        let fast = outcome(&program, |_| {}, receives, transport);
        let slow = outcome(&program, |lab| slow(lab, there, back), receives, transport);
        prop_assert_eq!(&fast.0, &slow.0);
        prop_assert_eq!(&fast.1, &slow.1);
        prop_assert!(fast.2 == slow.2, "memory differs");
    }
}
