//! Paging on demand: pages that are away, who waits for them, and guests that never bring them.

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::{
    Access, Atomic, Config, CqeKind, Data, EventType, KeyChange, KeyUpdate, Klm, MemoryRegion,
    PAGE, PRESENT, PageFault, QueuePair, Receive, Remote, SendOpcode, SendRequest, Sge,
    SharedReceiveQueue, Syndrome, Transport,
};

with_both_doorbells!(
    every_operation_waits_for_its_pages_and_goes_on,
    receive_requests_wait_for_their_pages,
    all_of_memory_by_stretches,
    a_fault_that_is_answered_wrongly,
);

/// Pages that one work request brings or takes away.
const PAGES_PER_REQUEST: usize = 32;

/// A peer, a region of its buffer of which no page is there, and who changes it.
struct Side {
    peer: Peer,
    region: MemoryRegion,
    changer: QueuePair,
}

impl Side {
    /// Brings pages of the region from byte `from` on, so many bytes, or takes them away.
    fn set(&mut self, from: usize, len: usize, there: u64) {
        let first = from / PAGE / PAGES_PER_REQUEST;
        for block in first..(from + len).div_ceil(PAGE * PAGES_PER_REQUEST) {
            let page = |at: usize| (self.peer.buffer.iova() + (at * PAGE) as u64) | there;
            let pages = block * PAGES_PER_REQUEST..(block + 1) * PAGES_PER_REQUEST;
            let entries: Vec<u8> = pages.flat_map(|at| page(at).to_be_bytes()).collect();
            let change = KeyChange::Entries {
                first: (block * PAGES_PER_REQUEST / 2) as u32,
                entries: &entries,
            };
            self.change(self.region.key(), change);
        }
    }

    fn change(&mut self, key: u32, change: KeyChange<'_>) {
        let update = KeyUpdate { key, change };
        let posted = self.changer.post_send(&SendRequest::key_update(update));
        posted.expect("is posted");
        self.peer.sent(&mut self.changer);
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            key: self.region.key(),
            ..self.peer.sge(offset, len)
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            key: self.region.key(),
            ..self.peer.remote(offset)
        }
    }

    fn fault(&self) -> PageFault {
        self.peer.event(EventType::PageFault).page_fault()
    }

    fn resume(&self, fault: &PageFault) {
        self.peer.device.resume(fault, true).expect("goes on");
    }
}

fn sides(daemon: &Daemon) -> [Side; 2] {
    let (a, b) = peers(daemon);
    let changers = connected(Transport::Rc, &a, &b);
    let [changer_a, changer_b] = [changers.0, changers.1];
    [(a, changer_a), (b, changer_b)].map(|(peer, changer)| {
        let region = MemoryRegion::on_demand(&peer.pd, &peer.buffer, Access::ALL);
        Side {
            region: region.expect("an MR"),
            peer,
            changer,
        }
    })
}

/// The next page fault of either side.
fn next_fault(sides: &[Side; 2]) -> (usize, PageFault) {
    loop {
        for (at, side) in sides.iter().enumerate() {
            let event = side.peer.device.poll_event().expect("a device");
            if let Some(event) = event.filter(|event| event.kind() == EventType::PageFault) {
                return (at, event.page_fault());
            }
        }
        std::thread::yield_now();
    }
}

/// Both sides bring pages, each when it is told.
fn bring(sides: &mut [Side; 2], len: usize) -> [PageFault; 2] {
    let mut told = [None; 2];
    for _ in 0..2 {
        let (at, fault) = next_fault(sides);
        assert!(told[at].is_none(), "told twice: {fault:?}");
        told[at] = Some(fault);
        sides[at].set(0, len, PRESENT);
        sides[at].set(HALF, len, PRESENT);
        sides[at].resume(&fault);
    }
    told.map(|fault| fault.expect("both were told"))
}

fn evict(sides: &mut [Side; 2], len: usize) {
    for side in sides {
        side.set(0, len, 0);
        side.set(HALF, len, 0);
    }
}

fn every_operation_waits_for_its_pages_and_goes_on(daemon: &Daemon) {
    const LEN: usize = 50_000;
    let mut sides = sides(daemon);
    let (mut qa, qb) = connected(Transport::Rc, &sides[0].peer, &sides[1].peer);
    for round in 1..4 {
        let [a, b] = &mut sides;
        a.peer.fill(0, LEN, round);
        let (from, to) = ([a.sge(0, LEN)], b.remote(HALF));
        qa.post_send(&SendRequest::write(to, Data::Memory(&from)))
            .unwrap();
        let [mine, theirs] = bring(&mut sides, LEN);
        assert_eq!(
            (mine.kind, mine.number, mine.token),
            (1, qa.number(), qa.number())
        );
        assert_eq!((theirs.kind, theirs.number), (6, qb.number()));
        assert_eq!(
            (theirs.key, theirs.address, theirs.len),
            (to.key, to.addr, LEN as u32)
        );
        let [a, b] = &mut sides;
        assert!(a.peer.sent(&mut qa).is_ok());
        b.peer.verify(HALF, LEN, round);
        evict(&mut sides, LEN);

        let [a, b] = &mut sides;
        let into = [a.sge(HALF, LEN)];
        b.peer.fill(0, LEN, !round);
        qa.post_send(&SendRequest::read(b.remote(0), &into))
            .unwrap();
        let [mine, theirs] = bring(&mut sides, LEN);
        assert_eq!((mine.kind, theirs.kind), (3, 4));
        let [a, _] = &mut sides;
        assert!(a.peer.sent(&mut qa).is_ok());
        a.peer.verify(HALF, LEN, !round);
        evict(&mut sides, LEN);

        let [a, b] = &mut sides;
        let into = [a.sge(64, 8)];
        let two = Atomic {
            swap_add: 2,
            ..Atomic::default()
        };
        b.peer.set_word(128, 40);
        qa.post_send(&SendRequest::atomic(
            SendOpcode::FetchAdd,
            b.remote(128),
            two,
            &into,
        ))
        .unwrap();
        bring(&mut sides, PAGE);
        let [a, b] = &mut sides;
        assert!(a.peer.sent(&mut qa).is_ok());
        assert_eq!((a.peer.word(64), b.peer.word(128)), (40, 42), "once");
        evict(&mut sides, PAGE);
    }
    // What is there costs nothing more.
    let [a, b] = &mut sides;
    a.set(0, LEN, PRESENT);
    b.set(HALF, LEN, PRESENT);
    let from = [a.sge(0, LEN)];
    a.peer.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
}

fn receive_requests_wait_for_their_pages(daemon: &Daemon) {
    const LEN: usize = 9000;
    let mut sides = sides(daemon);
    let mut srq = SharedReceiveQueue::new(&sides[1].peer.pd, 4, 2, None).unwrap();
    let shared = Config {
        receive: Receive::Shared(&srq),
        ..sides[1].peer.config(Transport::Rc)
    };
    let own = sides[0].peer.config(Transport::Rc);
    let (mut qa, mut qb) = connected_by(&own, &shared, &sides[0].peer, &sides[1].peer, |_| {});
    let (mut qc, mut qd) = connected(Transport::Rc, &sides[0].peer, &sides[1].peer);
    for (round, by_srq) in (1..).zip([true, false, true, false]) {
        let [a, b] = &mut sides;
        a.peer.fill(0, LEN, round);
        let (from, to) = ([a.sge(0, LEN)], [b.sge(HALF, LEN)]);
        let (sender, receiver) = if by_srq {
            (&mut qa, &mut qb)
        } else {
            (&mut qc, &mut qd)
        };
        if by_srq {
            srq.post(&to).unwrap();
        } else {
            receiver.post_receive(&to).unwrap();
        }
        sender
            .post_send(&SendRequest::send(Data::Memory(&from)))
            .unwrap();
        let [_, theirs] = bring(&mut sides, LEN);
        let expected = if by_srq {
            (0, srq.number())
        } else {
            (2, receiver.number())
        };
        assert_eq!((theirs.kind, theirs.number), expected);
        assert_eq!(theirs.token, receiver.number());
        let [a, b] = &mut sides;
        assert!(a.peer.sent(sender).is_ok());
        let entry = b.peer.cq.wait().unwrap();
        assert_eq!(
            (entry.kind(), entry.byte_count()),
            (CqeKind::Send, LEN as u32)
        );
        if by_srq {
            srq.complete(&entry);
        } else {
            receiver.complete_receive(&entry);
        }
        b.peer.verify(HALF, LEN, round);
        evict(&mut sides, LEN);
    }
}

/// A region of all memory, whose stretches come one by one.
fn all_of_memory_by_stretches(daemon: &Daemon) {
    const LEN: usize = 5000;
    const LOG_STRETCH: u32 = 30;
    let [mut a, b] = sides(daemon);
    let all = MemoryRegion::implicit(&a.peer.pd, 1 << 17, LOG_STRETCH, Access::ALL).unwrap();
    let null = a.peer.device.null_key().unwrap();
    let whole = MemoryRegion::physical(&a.peer.pd, Access::ALL).unwrap();
    let (mut qa, _qb) = connected(Transport::Rc, &a.peer, &b.peer);
    let at = a.peer.buffer.iova() >> LOG_STRETCH;
    let stretch = |key: u32| {
        let addr = if key == null { 0 } else { at << LOG_STRETCH };
        Klm {
            len: 1 << LOG_STRETCH,
            key,
            addr,
        }
        .to_bytes()
    };
    let from = [Sge {
        key: all.key(),
        ..a.sge(0, LEN)
    }];
    for round in 1..3 {
        a.peer.fill(0, LEN, round);
        let to = b.peer.remote(HALF);
        qa.post_send(&SendRequest::write(to, Data::Memory(&from)))
            .unwrap();
        let fault = a.fault();
        assert_eq!(fault.kind, 1);
        let first = at as u32;
        let there = stretch(whole.key());
        a.change(
            all.key(),
            KeyChange::Entries {
                first,
                entries: &there,
            },
        );
        a.resume(&fault);
        assert!(a.peer.sent(&mut qa).is_ok());
        b.peer.verify(HALF, LEN, round);
        let gone = stretch(null);
        a.change(
            all.key(),
            KeyChange::Entries {
                first,
                entries: &gone,
            },
        );
    }
}

fn a_fault_that_is_answered_wrongly(daemon: &Daemon) {
    let [mut a, b] = sides(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a.peer, &b.peer);
    let from = [a.sge(0, 100)];
    let write = SendRequest::write(b.peer.remote(HALF), Data::Memory(&from));
    qa.post_send(&write).unwrap();
    let fault = a.fault();
    let wrong = [
        PageFault {
            token: 0x00ab_cdef,
            ..fault
        },
        PageFault {
            token: a.changer.number(),
            ..fault
        },
        // The other half.
        PageFault { kind: 2, ..fault },
        PageFault { kind: 6, ..fault },
    ];
    for wrong in wrong {
        assert!(a.peer.device.resume(&wrong, true).is_err(), "{wrong:?}");
        assert!(b.peer.device.resume(&wrong, false).is_err(), "{wrong:?}");
    }
    // Another guest's.
    assert!(b.peer.device.resume(&fault, false).is_err());
    // Nothing was brought: it is told again.
    a.resume(&fault);
    assert_eq!(a.fault(), fault);
    a.peer.fill(0, 100, 7);
    a.set(0, 100, PRESENT);
    a.resume(&fault);
    assert!(a.peer.sent(&mut qa).is_ok());
    b.peer.verify(HALF, 100, 7);
    assert!(a.peer.device.resume(&fault, true).is_err(), "twice");
    // The key goes meanwhile.
    a.set(0, 100, 0);
    qa.post_send(&write).unwrap();
    let fault = a.fault();
    let region = MemoryRegion::on_demand(&a.peer.pd, &a.peer.buffer, Access::ALL).unwrap();
    drop(std::mem::replace(&mut a.region, region));
    a.resume(&fault);
    assert_eq!(a.peer.sent(&mut qa).syndrome(), Syndrome::LocalProtection);
    // So does the queue pair.
    let (mut qc, qd) = connected(Transport::Rc, &a.peer, &b.peer);
    let from = [a.sge(0, 100)];
    qc.post_send(&SendRequest::write(
        b.peer.remote(HALF),
        Data::Memory(&from),
    ))
    .unwrap();
    let fault = a.fault();
    drop(qc);
    assert!(a.peer.device.resume(&fault, true).is_err());
    drop(qd);
}

/// A guest with hundreds of queue pairs that wait and are never resumed, at either end: its neighbours work on, and
/// so do its own other queue pairs; then the device is reset, with all that waits.
#[test]
fn floods_that_nobody_resumes() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let [a, b] = sides(&daemon);
    let mut waiting = Vec::new();
    for at in 0..700 {
        let (mut qa, qb) = connected(Transport::Rc, &a.peer, &b.peer);
        let (from, to) = match at % 2 {
            0 => (a.sge(0, 100), b.peer.remote(HALF)),
            _ => (a.peer.sge(0, 100), b.remote(HALF)),
        };
        qa.post_send(&SendRequest::write(to, Data::Memory(&[from])))
            .unwrap();
        waiting.push((qa, qb));
    }
    let first = [a.fault(), b.fault()];
    assert_eq!((first[0].kind, first[1].kind), (1, 6));
    bystanders.overtake();
    let Side { mut peer, .. } = a;
    let own = MemoryRegion::new(&peer.pd, &peer.buffer, Access::ALL).unwrap();
    let (mut qa, _qb) = connected(Transport::Rc, &peer, &b.peer);
    peer.fill(0, 100, 9);
    let from = [Sge {
        key: own.key(),
        ..peer.sge(0, 100)
    }];
    peer.execute(
        &mut qa,
        &SendRequest::write(b.peer.remote(0), Data::Memory(&from)),
    );
    b.peer.verify(0, 100, 9);
    drop(peer);
    drop(waiting);
    bystanders.overtake();
    bystanders.stop();
}
