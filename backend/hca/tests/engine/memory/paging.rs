//! Pages that are not there when somebody needs them.

use hca::mr::{MemoryKey, Translation};
use hca::work::{AtomicOperands, KeyUpdate, Operation, SendWr, Sge, Status};
use hca::{
    ABSENT, Event, Half, InCompletion, MAX_PAGE_FAULTS, NO_WRITE, Needed, PageFault, PageList,
    QpChange, QpState, Transport, VerbError,
};

use crate::lab::{
    Lab, Qp, VARIANT, Way, base, datagram, pattern, physical, received, remote, request, sent,
};

pub(crate) const PAGE: u64 = 4096;
/// Where the pages of a key lie in its function's memory.
pub(crate) const PAGES: u64 = 16 * PAGE;

/// A key of `count` pages, at the addresses of the memory behind them, of which none is there.
pub(crate) fn paged(lab: &mut Lab, node: usize, count: u64, entry: u64) -> u32 {
    let (vf, pd) = (lab.nodes[node].vf, lab.nodes[node].pd);
    let region = MemoryKey {
        start: base(node) + PAGES,
        len: count * PAGE,
        updatable: true,
        capacity: count as usize,
        translation: Translation::Pages {
            log_size: 12,
            pages: PageList::with_entries(
                12,
                (0..count as usize).map(|at| (base(node) + PAGES + at as u64 * PAGE) | entry),
            ),
        },
        ..physical(pd)
    };
    lab.home(vf).verbs(vf).create_key(region).unwrap() << 8 | u32::from(VARIANT)
}

/// Brings pages of such a key, or takes them away.
pub(crate) fn set(lab: &mut Lab, node: usize, key: u32, pages: std::ops::Range<u64>, missing: u64) {
    let changer = lab.qp(node, Transport::KeyUpdate);
    lab.bring_up(&changer, &QpChange::default());
    let entry = |page: u64| ((base(node) + PAGES + page * PAGE) | missing).to_be_bytes();
    let wr = SendWr {
        is_inline: true,
        inline: pages.clone().flat_map(entry).collect(),
        key_update: Some(Box::new(KeyUpdate {
            mkey: key,
            translation_offset: pages.start / 2,
            translation_octwords: (pages.end - pages.start) as u32 / 2,
            ..KeyUpdate::default()
        })),
        ..request(Operation::UpdateKey, 0, &[])
    };
    lab.execute(&changer, wr);
    assert_eq!(sent(&changer.cq.poll()), [(0, Status::Success)]);
}

pub(crate) fn at(node: usize, offset: u64, len: u32, lkey: u32) -> Sge {
    let addr = base(node) + PAGES + offset;
    Sge { addr, lkey, len }
}

pub(crate) fn faults(lab: &Lab, node: usize) -> Vec<PageFault> {
    let events = lab.events(node).into_iter();
    events
        .filter_map(|event| match event {
            Event::PageFault(fault) => Some(fault),
            _ => None,
        })
        .collect()
}

pub(crate) fn resume(lab: &mut Lab, qp: &Qp, half: Half, there: bool) -> Result<(), VerbError> {
    let engine = lab.home(qp.vf);
    let result = engine.verbs(qp.vf).resume_fault(qp.qpn, half, there);
    lab.settle();
    result
}

/// One half of one queue pair waits for a page, whichever way its messages go.
fn a_sender_waits(way: Way) {
    let mut lab = Lab::new(2);
    lab.go(way);
    let (a, b) = lab.pair(Transport::Rc);
    let (other, its_peer) = lab.pair(Transport::Rc);
    let key = paged(&mut lab, 0, 4, ABSENT);
    set(&mut lab, 0, key, 0..2, 0);
    let data = pattern(5, 4 * PAGE as usize);
    lab.memory(0).write(base(0) + PAGES, &data);
    lab.receive(&b, 7, &[lab.sge(1, 0, 4 * PAGE as u32)]);
    lab.execute(
        &a,
        request(Operation::Send, 3, &[at(0, 0, 4 * PAGE as u32, key)]),
    );
    let told = faults(&lab, 0);
    let [fault] = told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((fault.qpn, fault.half), (a.qpn, Half::Requester));
    assert_eq!(
        fault.of,
        Needed::Send {
            index: 3,
            fills: false
        }
    );
    assert!(a.cq.poll().is_empty() && b.cq.poll().is_empty());
    // Nobody else waits, nor does the other half.
    lab.receive(&its_peer, 1, &[lab.sge(1, 0x8000, 64)]);
    lab.execute(&other, request(Operation::Send, 1, &[lab.sge(0, 0, 64)]));
    assert_eq!(sent(&other.cq.poll()), [(1, Status::Success)]);
    lab.receive(&a, 2, &[lab.sge(0, 0, 64)]);
    lab.execute(&b, request(Operation::Send, 9, &[lab.sge(1, 0x9000, 64)]));
    assert_eq!(sent(&b.cq.poll()), [(9, Status::Success)]);
    assert_eq!(received(&a.cq.poll()).len(), 1);
    // However long it takes, and told once.
    lab.advance(10_000_000_000);
    assert_eq!(faults(&lab, 0), []);
    assert_eq!(
        resume(&mut lab, &a, Half::Responder, true),
        Err(VerbError::BadState)
    );
    // A page that is not there yet has it told again.
    assert_eq!(resume(&mut lab, &a, Half::Requester, true), Ok(()));
    lab.advance(10_000_000);
    assert_eq!(faults(&lab, 0).len(), 1);
    set(&mut lab, 0, key, 2..4, 0);
    assert_eq!(resume(&mut lab, &a, Half::Requester, true), Ok(()));
    lab.advance(10_000_000);
    assert_eq!(
        resume(&mut lab, &a, Half::Requester, true),
        Err(VerbError::BadState)
    );
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    assert_eq!(lab.memory(1).read(base(1), data.len()), data);
}

#[test]
fn a_sender_waits_for_its_page() {
    a_sender_waits(Way::Copied);
}

#[test]
fn a_sender_of_frames_waits_for_its_page() {
    a_sender_waits(Way::Frames);
    a_sender_waits(Way::Engines(0, 0));
}

/// The far end comes again, and again only.
fn a_responder_waits(way: Way, operation: Operation) {
    let mut lab = Lab::new(2);
    lab.go(way);
    let (a, b) = lab.pair(Transport::Rc);
    let key = paged(&mut lab, 1, 4, ABSENT);
    let len = 3 * PAGE as u32;
    let data = pattern(6, len as usize);
    lab.memory(0).write(base(0), &data);
    lab.memory(1).write(base(1) + PAGES, &data);
    lab.receive(&b, 7, &[at(1, 0, len, key)]);
    let list = [lab.sge(
        0,
        if operation == Operation::Read {
            0x40_000
        } else {
            0
        },
        len,
    )];
    lab.execute(&a, remote(operation, 3, &list, base(1) + PAGES, key));
    let told = faults(&lab, 1);
    let [fault] = told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((fault.qpn, fault.half), (b.qpn, Half::Responder));
    let needed = match operation {
        Operation::Send => Needed::Receive {
            index: 7,
            srqn: None,
        },
        _ => Needed::Memory {
            key,
            addr: base(1) + PAGES,
            len,
            writes: operation == Operation::Write,
        },
    };
    assert_eq!(fault.of, needed);
    lab.advance(1_000_000_000);
    assert_eq!(faults(&lab, 1), []);
    set(&mut lab, 1, key, 0..4, 0);
    assert_eq!(resume(&mut lab, &b, Half::Responder, true), Ok(()));
    lab.advance(10_000_000);
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    assert_eq!(
        received(&b.cq.poll()).len(),
        usize::from(operation == Operation::Send)
    );
    let (node, place) = match operation {
        Operation::Read => (0, base(0) + 0x40_000),
        _ => (1, base(1) + PAGES),
    };
    assert_eq!(lab.memory(node).read(place, data.len()), data);
    // A page that does not come is one that is none.
    set(&mut lab, 1, key, 0..4, ABSENT);
    lab.receive(&b, 8, &[at(1, 0, len, key)]);
    lab.execute(&a, remote(operation, 4, &list, base(1) + PAGES, key));
    assert_eq!(faults(&lab, 1).len(), 1);
    assert_eq!(resume(&mut lab, &b, Half::Responder, false), Ok(()));
    lab.advance(10_000_000);
    let status = match operation {
        Operation::Send => Status::RemoteOperation,
        _ => Status::RemoteAccess,
    };
    assert_eq!(sent(&a.cq.poll()), [(4, status)]);
    assert_eq!(lab.state(&b), QpState::Error);
}

#[test]
fn a_responder_waits_for_its_page() {
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
            a_responder_waits(way, operation);
        }
    }
}

/// A receive request may name more than its key has: a message that ends before waits for its pages as any does.
#[test]
fn a_responder_waits_for_the_pages_of_the_message() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let key = paged(&mut lab, 1, 4, ABSENT);
        let data = pattern(8, 64);
        lab.memory(0).write(base(0), &data);
        lab.receive(&b, 7, &[at(1, 0, 4 * PAGE as u32 + 1, key)]);
        lab.execute(&a, request(Operation::Send, 3, &[lab.sge(0, 0, 64)]));
        assert_eq!(faults(&lab, 1).len(), 1);
        set(&mut lab, 1, key, 0..4, 0);
        assert_eq!(resume(&mut lab, &b, Half::Responder, true), Ok(()));
        lab.advance(10_000_000);
        assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
        assert_eq!(received(&b.cq.poll()).len(), 1);
        assert_eq!(lab.memory(1).read(base(1) + PAGES, data.len()), data);
    }
}

/// A message that is held for its completion is read at once, from all of its elements.
#[test]
fn a_sender_whose_message_is_in_a_completion_waits_for_the_page_of_any_element() {
    for way in [Way::Copied, Way::Frames] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let in_completion = InCompletion {
            received: 32,
            answered: 32,
        };
        let mut end = |node| {
            lab.qp_with(node, Transport::Rc, |desc| {
                desc.in_completion = in_completion
            })
        };
        let (a, b) = (end(0), end(1));
        lab.connect_with(&a, &b, |_| {});
        let key = paged(&mut lab, 0, 4, ABSENT);
        lab.receive(&b, 7, &[lab.sge(1, 0, 64)]);
        let list = [lab.sge(0, 0, 16), at(0, 0, 16, key)];
        lab.execute(&a, request(Operation::Send, 3, &list));
        assert_eq!(faults(&lab, 0).len(), 1, "{way:?}");
        set(&mut lab, 0, key, 0..2, 0);
        resume(&mut lab, &a, Half::Requester, true).unwrap();
        lab.advance(10_000_000);
        assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)], "{way:?}");
    }
}

/// The peer of a guest that resumes nothing is not ready, and the sender's retries run out.
#[test]
fn retries_of_the_far_end_run_out() {
    for way in [Way::Copied, Way::Frames] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair_with(Transport::Rc, |change| change.rnr_retry = Some(3));
        let key = paged(&mut lab, 1, 4, ABSENT);
        let list = [lab.sge(0, 0, 64)];
        lab.execute(&a, remote(Operation::Write, 3, &list, base(1) + PAGES, key));
        lab.advance(1_000_000_000);
        assert_eq!(sent(&a.cq.poll()), [(3, Status::RnrRetryExceeded)]);
        assert_eq!(faults(&lab, 1).len(), 1);
        assert_eq!(lab.state(&b), QpState::ReadyToSend);
    }
}

#[test]
fn a_request_whose_page_does_not_come_fails() {
    for way in [Way::Copied, Way::Frames] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let key = paged(&mut lab, 0, 4, ABSENT);
        lab.receive(&b, 7, &[lab.sge(1, 0, 64)]);
        lab.execute(&a, request(Operation::Send, 3, &[at(0, 0, 64, key)]));
        lab.execute(&a, request(Operation::Send, 4, &[lab.sge(0, 0, 64)]));
        assert_eq!(resume(&mut lab, &a, Half::Requester, false), Ok(()));
        let expected = [(3, Status::LocalProtection), (4, Status::Flushed)];
        assert_eq!(sent(&a.cq.poll()), expected);
        assert_eq!(received(&b.cq.poll()), []);
    }
}

/// An answer without a place is asked for again; what it is the answer to is not done again.
#[test]
fn an_atomic_is_done_once() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, _b) = lab.pair(Transport::Rc);
        // Pages that may be read alone.
        let key = paged(&mut lab, 0, 4, NO_WRITE);
        lab.memory(1).write(base(1), &7_u64.to_le_bytes());
        let wr = SendWr {
            atomic: AtomicOperands {
                swap_add: 5,
                ..AtomicOperands::default()
            },
            ..remote(
                Operation::FetchAdd,
                3,
                &[at(0, 0, 4, key), at(0, PAGE, 4, key)],
                base(1),
                lab.nodes[1].key,
            )
        };
        lab.execute(&a, wr);
        let mut answered = 0;
        for pages in [0..2, 0..4] {
            let told = faults(&lab, 0);
            assert_eq!(told.len(), 1);
            assert_eq!(
                told[0].of,
                Needed::Send {
                    index: 3,
                    fills: true
                }
            );
            set(&mut lab, 0, key, pages, 0);
            resume(&mut lab, &a, Half::Requester, true).unwrap();
            lab.advance(10_000_000);
            answered += a.cq.poll().len();
            if answered > 0 {
                break;
            }
        }
        assert_eq!(answered, 1);
        assert_eq!(lab.memory(1).read(base(1), 8), 12_u64.to_le_bytes());
        let low = lab.memory(0).read(base(0) + PAGES, 4);
        assert_eq!(low, 7_u32.to_le_bytes());
    }
}

#[test]
fn datagrams() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Ud);
    let key = paged(&mut lab, 0, 2, ABSENT);
    lab.receive(&b, 7, &[lab.sge(1, 0, 256)]);
    let wr = datagram(&lab, &b, 3, &[at(0, 0, 100, key)]);
    lab.execute(&a, wr);
    assert_eq!(faults(&lab, 0).len(), 1);
    set(&mut lab, 0, key, 0..2, 0);
    resume(&mut lab, &a, Half::Requester, true).unwrap();
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    // Those that come meanwhile are dropped.
    let far = paged(&mut lab, 1, 2, ABSENT);
    lab.receive(&b, 8, &[at(1, 0, 256, far)]);
    for index in 0..3 {
        let wr = datagram(&lab, &b, index, &[lab.sge(0, 0, 100)]);
        lab.execute(&a, wr);
    }
    assert_eq!(faults(&lab, 1).len(), 1);
    assert_eq!(received(&b.cq.poll()), []);
    set(&mut lab, 1, far, 0..2, 0);
    resume(&mut lab, &b, Half::Responder, true).unwrap();
    let wr = datagram(&lab, &b, 4, &[lab.sge(0, 0, 100)]);
    lab.execute(&a, wr);
    assert_eq!(received(&b.cq.poll())[0].0, 8);
}

/// A function is told of so many at a time, and of all of them in the end. Those that go make room.
#[test]
fn more_faults_than_are_told_of_at_a_time() {
    let mut lab = Lab::new(2);
    let key = paged(&mut lab, 0, 2, ABSENT);
    let count = MAX_PAGE_FAULTS + 40;
    let pairs: Vec<_> = (0..count).map(|_| lab.pair(Transport::Rc)).collect();
    for (a, _) in &pairs {
        let list = [at(0, 0, 64, key)];
        lab.execute(
            a,
            remote(Operation::Write, 1, &list, base(1), lab.nodes[1].key),
        );
    }
    let told = faults(&lab, 0);
    assert_eq!(told.len(), MAX_PAGE_FAULTS);
    // One goes, one is reset, one fails: each makes room for one, and one that waits to be told of goes.
    let (a, b) = (&pairs[0].0, &pairs[1].0);
    lab.engine.verbs(a.vf).destroy_qp(a.qpn).unwrap();
    assert_eq!(
        resume(&mut lab, a, Half::Requester, true),
        Err(VerbError::NotFound)
    );
    lab.modify(b, QpState::Reset, &QpChange::default());
    assert_eq!(resume(&mut lab, b, Half::Requester, true), Ok(()));
    lab.modify(&pairs[2].0, QpState::Error, &QpChange::default());
    assert_eq!(sent(&pairs[2].0.cq.poll()), [(1, Status::Flushed)]);
    lab.modify(&pairs[count - 1].0, QpState::Error, &QpChange::default());
    lab.settle();
    assert_eq!(faults(&lab, 0).len(), 3);
    set(&mut lab, 0, key, 0..2, 0);
    for (a, _) in &pairs[3..] {
        let _ = resume(&mut lab, a, Half::Requester, true);
    }
    for (a, _) in &pairs[3..count - 1] {
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    }
    // A reset forgets all.
    lab.engine.reset_vf(lab.nodes[0].vf);
    lab.settle();
}

/// A queue pair that waits for a page does so in an image, and after restoring it.
#[test]
fn images_of_queue_pairs_that_wait() {
    for way in [Way::Copied, Way::Frames] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let (key, far) = (paged(&mut lab, 0, 4, ABSENT), paged(&mut lab, 1, 4, ABSENT));
        let data = pattern(9, 100);
        lab.memory(0).write(base(0) + PAGES, &data);
        let list = [at(0, 0, 100, key)];
        lab.execute(&a, remote(Operation::Write, 3, &list, base(1) + PAGES, far));
        assert_eq!(faults(&lab, 0).len(), 1);
        lab.save_and_restore(0, false);
        lab.advance(1_000_000_000);
        assert_eq!(faults(&lab, 0), [], "it was told");
        set(&mut lab, 0, key, 0..4, 0);
        resume(&mut lab, &a, Half::Requester, true).unwrap();
        lab.advance(1_000_000);
        assert_eq!(faults(&lab, 1).len(), 1);
        lab.save_and_restore(1, false);
        lab.advance(1_000_000_000);
        assert_eq!(faults(&lab, 1), []);
        set(&mut lab, 1, far, 0..4, 0);
        resume(&mut lab, &b, Half::Responder, true).unwrap();
        lab.advance(10_000_000);
        assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
        assert_eq!(lab.memory(1).read(base(1) + PAGES, 100), data);
    }
}

/// A target of dynamic connections has one number for all that talk to it: its owner hears of one page at a time, and
/// each initiator's message comes through when its page is there.
fn a_target_waits(way: Way) {
    let mut lab = Lab::new(3);
    lab.go(way);
    let dct = lab.dct(1, 0x1234);
    let initiators = [lab.dci(0), lab.dci(2)];
    let key = paged(&mut lab, 1, 4, ABSENT);
    let target = Qp {
        node: 1,
        vf: lab.nodes[1].vf,
        qpn: dct.dctn,
        ..initiators[0].clone()
    };
    let write = |lab: &mut Lab, number: usize| {
        let dci = &initiators[number];
        let data = pattern(number as u64, PAGE as usize);
        lab.memory(dci.node).write(base(dci.node), &data);
        let to = base(1) + PAGES + number as u64 * PAGE;
        let list = [lab.sge(dci.node, 0, PAGE as u32)];
        let wr = remote(Operation::Write, number as u16, &list, to, key);
        let wr = lab.to(&dct, wr);
        lab.execute(dci, wr);
    };
    let wait = |lab: &mut Lab| lab.advance(100_000_000);
    write(&mut lab, 0);
    write(&mut lab, 1);
    wait(&mut lab);
    let told = faults(&lab, 1);
    assert_eq!(told.len(), 1, "{way:?}: {told:?}");
    assert_eq!((told[0].qpn, told[0].half), (dct.dctn, Half::Responder));
    assert!(initiators.iter().all(|dci| dci.cq.poll().is_empty()));
    set(&mut lab, 1, key, 0..2, 0);
    assert_eq!(resume(&mut lab, &target, Half::Responder, true), Ok(()));
    wait(&mut lab);
    for (number, dci) in initiators.iter().enumerate() {
        let done = sent(&dci.cq.poll());
        assert_eq!(done, [(number as u16, Status::Success)], "{way:?}");
        let at = base(1) + PAGES + number as u64 * PAGE;
        let data = pattern(number as u64, PAGE as usize);
        assert_eq!(lab.memory(1).read(at, PAGE as usize), data);
    }
    assert_eq!(faults(&lab, 1), []);
    // One whose page does not come fails, and the other waits for its own.
    set(&mut lab, 1, key, 0..2, ABSENT);
    write(&mut lab, 0);
    assert_eq!(faults(&lab, 1).len(), 1);
    write(&mut lab, 1);
    assert_eq!(resume(&mut lab, &target, Half::Responder, false), Ok(()));
    wait(&mut lab);
    let failed = sent(&initiators[0].cq.poll());
    assert!(
        matches!(failed[..], [(0, Status::RemoteAccess)]),
        "{way:?}: {failed:?}"
    );
    assert_eq!(faults(&lab, 1).len(), 1);
    // Where the target goes, nobody waits, and the owner has room for as many as before.
    let vf = lab.nodes[1].vf;
    lab.home(vf).verbs(vf).drain_dct(dct.dctn).unwrap();
    lab.home(vf).verbs(vf).destroy_dct(dct.dctn).unwrap();
    assert_eq!(
        resume(&mut lab, &target, Half::Responder, true),
        Err(VerbError::NotFound)
    );
}

#[test]
fn a_target_of_dynamic_connections_waits_for_its_page() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        a_target_waits(way);
    }
}
