//! VMs that move while they run, and daemons of which another program takes the place, with whatever may be in hand
//! at that moment.

use crate::administration::{GRH, Vm, group};
use crate::daemon::live::{Move, STEPS};
use crate::daemon::{Daemon, HALF, Peer, connected_by};
use test_driver::{
    Access, AddressVector, Atomic, Config, Connection, CqeKind, Data, EventType, KeyChange,
    KeyUpdate, Klm, MemoryRegion, PRESENT, QueuePair, Receive, SendOpcode, SendRequest, Sge,
    SharedReceiveQueue, SignatureForm, SignatureValue, TagChange, TagEvent, TagOperation,
    Transport, XrcDomain, rendezvous_header,
};
use testing::Configuration;

macro_rules! with_moves_and_upgrades {
    ($($name:ident),* $(,)?) => {
        mod moved {
            $(#[test] fn $name() { super::$name(super::Journeys::Moves([false; 2])); })*
        }
        mod upgraded {
            $(#[test] fn $name() { super::$name(super::Journeys::Upgrades); })*
        }
    };
}

with_moves_and_upgrades!(
    a_receiver_that_is_not_ready_is_waited_for,
    a_shared_receive_queue_has_its_limit,
    an_extended_connection_goes_on,
    atomics_are_done_once,
    both_ends_move_with_messages_between_them,
    a_member_of_a_group_stays_one,
    what_is_lost_is_sent_again,
    a_rendezvous_is_read_on,
    a_wrong_block_is_told_of_once,
);

/// Two VMs, each with somewhere to go. Doorbells are trapped: the test's driver has mapped the pages of one device
/// for good.
fn start() -> Daemon {
    Daemon::configured(
        Configuration::new()
            .set("engine.doorbells", "trap")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", [])
            .spare_vfs(1)
            .hypervisor("hv3", ["vm2"])
            .hypervisor("hv4", [])
            .spare_vfs(1),
    )
}

/// Events in the life of VMs.
#[derive(Debug)]
enum Journeys {
    /// They move. Whether each is away.
    Moves([bool; 2]),
    /// They stay, and another program takes the daemon's place.
    Upgrades,
}

impl Journeys {
    const VMS: [&'static str; 2] = ["vm1", "vm2"];

    /// Where a VM goes next: hypervisor and VF.
    fn next(&mut self, vm: usize) -> (&'static str, &'static str) {
        let Self::Moves(away) = self else {
            panic!("nobody moves");
        };
        away[vm] = !away[vm];
        [
            [("hv1", "vm1"), ("hv2", "hv2-spare1")],
            [("hv3", "vm2"), ("hv4", "hv4-spare1")],
        ][vm][usize::from(away[vm])]
    }

    /// Moves these VMs at the same time, step by step.
    fn go(&mut self, daemon: &Daemon, vms: &[(usize, &Peer)]) {
        if matches!(self, Self::Upgrades) {
            let report = daemon.ask(&["upgrade", "--within", "60"]);
            assert_eq!((&report["vms"], &report["failed"]), (&2.into(), &0.into()));
            return;
        }
        let mut moves = Vec::new();
        for &(vm, peer) in vms {
            let (to, vf) = self.next(vm);
            let receiver = peer.device.receiver(daemon.socket(vf)).unwrap();
            let live = Move::begin(daemon, &[Self::VMS[vm]], to).unwrap();
            // What it has rung by now has come, as when a monitor reads behind what its guest has written.
            let mut word = [0; 4];
            { peer.device.client().region_read(7, 0, &mut word) }.unwrap();
            moves.push((live, receiver, peer));
        }
        for step in STEPS {
            for (live, ..) in &mut moves {
                live.step(step).unwrap();
            }
        }
        for (_, receiver, peer) in moves {
            peer.device.go_on_with(receiver);
        }
    }
}

/// Gives a connection the patience to wait for a device that rests.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
    // Without end.
    connection.rnr_retry = 7;
    connection.min_rnr_nak = 1;
}

fn connected(a: &Peer, b: &Peer) -> (QueuePair, QueuePair) {
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    connected_by(&to, &from, a, b, patient)
}

/// A receiver that is not ready when its VM moves, or the sender's, is ready later.
fn a_receiver_that_is_not_ready_is_waited_for(mut journeys: Journeys) {
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let (mut qa, mut qb) = connected(&a, &b);
    for round in 0..6 {
        a.fill(0, 5000, round);
        let data = [a.sge(0, 5000)];
        qa.post_send(&SendRequest::send(Data::Memory(&data)))
            .unwrap();
        let both = [(0, &a), (1, &b)];
        journeys.go(&daemon, [&both[..1], &both[1..], &both][round as usize % 3]);
        assert!(a.cq.poll().is_none() && b.cq.poll().is_none());
        qb.post_receive(&[b.sge(HALF, 5000)]).unwrap();
        let entry = b.cq.wait().unwrap();
        assert!(entry.is_ok() && entry.byte_count() == 5000, "{entry:?}");
        qb.complete(&entry);
        assert!(a.sent(&mut qa).is_ok());
        b.verify(HALF, 5000, round);
    }
}

/// Atomic additions that are on their way are done once each, and in their order.
fn atomics_are_done_once(mut journeys: Journeys) {
    const AT_A_TIME: usize = 16;
    let daemon = start();
    let (mut a, b) = crate::daemon::peers(&daemon);
    let (mut qa, _qb) = connected(&a, &b);
    b.set_word(HALF, 0);
    for round in 0..9 {
        for at in 0..AT_A_TIME {
            let one = Atomic {
                swap_add: 1,
                ..Atomic::default()
            };
            let into = [a.sge(HALF + at * 8, 8)];
            let add = SendRequest::atomic(SendOpcode::FetchAdd, b.remote(HALF), one, &into);
            qa.post_send(&add).unwrap();
        }
        let both = [(0, &a), (1, &b)];
        journeys.go(&daemon, [&both[..1], &both[1..], &both][round % 3]);
        for at in 0..AT_A_TIME {
            assert!(a.sent(&mut qa).is_ok());
            assert_eq!(a.word(HALF + at * 8), (round * AT_A_TIME + at) as u64);
        }
    }
    assert_eq!(b.word(HALF), 9 * AT_A_TIME as u64);
}

/// Long messages each way, of which some is there already, while both ends move.
fn both_ends_move_with_messages_between_them(mut journeys: Journeys) {
    const LEN: usize = 2 << 20;
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let (mut qa, mut qb) = connected(&a, &b);
    for round in 0..6 {
        let seeds = [round, round + 100];
        for (peer, seed) in [(&a, seeds[0]), (&b, seeds[1])] {
            peer.fill(0, LEN, seed);
        }
        let (from_a, from_b) = ([a.sge(0, LEN)], [b.sge(0, LEN)]);
        for _ in 0..4 {
            let write = SendRequest::write(b.remote(HALF), Data::Memory(&from_a));
            qa.post_send(&write).unwrap();
            let write = SendRequest::write(a.remote(HALF), Data::Memory(&from_b));
            qb.post_send(&write).unwrap();
        }
        journeys.go(&daemon, &[(0, &a), (1, &b)]);
        for _ in 0..4 {
            assert!(a.sent(&mut qa).is_ok());
            assert!(b.sent(&mut qb).is_ok());
        }
        b.verify(HALF, LEN, seeds[0]);
        a.verify(HALF, LEN, seeds[1]);
    }
    for name in ["vm1", "vm2"] {
        let retries = daemon.vf(name)["counters"]["retries"].clone();
        let retries = retries.as_object().expect("counters").values();
        assert_eq!(retries.filter_map(|it| it.as_u64()).sum::<u64>(), 0);
    }
}

/// A limit that was armed is told of after the move, once, when it is reached.
fn a_shared_receive_queue_has_its_limit(mut journeys: Journeys) {
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let mut srq = SharedReceiveQueue::new(&b.pd, 4, 1, None).unwrap();
    let b_config = Config {
        receive: Receive::Shared(&srq),
        ..b.config(Transport::Rc)
    };
    let (mut qa, _qb) = connected_by(&a.config(Transport::Rc), &b_config, &a, &b, patient);
    let place = |index: u16| HALF + usize::from(index) * 8192;
    for _ in 0..srq.capacity() {
        let index = srq.next_index();
        srq.post(&[b.sge(place(index), 8192)]).unwrap();
    }
    for round in 0..4 {
        let capacity = srq.capacity();
        srq.arm(capacity as u16 - 3).unwrap();
        let mut send = |a: &mut Peer, b: &mut Peer, seed| {
            a.fill(0, 5000, seed);
            let data = [a.sge(0, 5000)];
            a.execute(&mut qa, &SendRequest::send(Data::Memory(&data)));
            let entry = b.cq.wait().unwrap();
            assert!(entry.is_ok() && entry.srqn() == srq.number(), "{entry:?}");
            b.verify(place(entry.wqe_counter()), 5000, seed);
            entry
        };
        let mut taken = vec![send(&mut a, &mut b, round)];
        journeys.go(&daemon, &[(1, &b)]);
        for seed in 0..4 {
            taken.push(send(&mut a, &mut b, seed));
        }
        b.event(EventType::SrqLimit);
        for entry in taken {
            srq.complete(&entry);
            let index = srq.next_index();
            srq.post(&[b.sge(place(index), 8192)]).unwrap();
        }
    }
}

/// Over XRC, with messages on their way to a queue that has nothing to receive with.
fn an_extended_connection_goes_on(mut journeys: Journeys) {
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let domain = XrcDomain::new(&b.device).unwrap();
    let mut srq = SharedReceiveQueue::new(&b.pd, 4, 1, Some((&domain, &b.cq))).unwrap();
    let a_config = a.config(Transport::XrcInitiator);
    let b_config = Config {
        receive: Receive::Shared(&srq),
        xrcd: Some(&domain),
        ..b.config(Transport::XrcTarget)
    };
    let (mut qa, _qb) = connected_by(&a_config, &b_config, &a, &b, patient);
    for round in 0..6 {
        a.fill(0, 5000, round);
        let data = [a.sge(0, 5000)];
        let send = SendRequest::send(Data::Memory(&data)).to_srq(srq.number());
        qa.post_send(&send).unwrap();
        let both = [(0, &a), (1, &b)];
        journeys.go(&daemon, [&both[..1], &both[1..], &both][round as usize % 3]);
        srq.post(&[b.sge(HALF, 65_536)]).unwrap();
        let entry = b.cq.wait().unwrap();
        assert_eq!(entry.srqn(), srq.number());
        srq.complete(&entry);
        assert!(a.sent(&mut qa).is_ok());
        b.verify(HALF, 5000, round);
    }
}

/// Members of a group hear each other wherever they are.
fn a_member_of_a_group_stays_one(mut journeys: Journeys) {
    const QKEY: u32 = 0x1122_3344;
    let daemon = start();
    let [mut a, mut b] = ["vm1", "vm2"].map(|name| Vm::open(&daemon, name));
    let lids = [&mut a, &mut b].map(|vm| group::join(vm, group::gid(1)));
    assert_eq!(lids[0], lids[1]);
    let attached = |vm: &Vm| {
        let qp = vm.peer.qp(Transport::Ud);
        qp.activate(0, QKEY).unwrap();
        qp.attach_multicast(group::gid(1)).unwrap();
        qp
    };
    let (mut sender, mut receiver) = (attached(&a), attached(&b));
    let to = AddressVector {
        lid: lids[0],
        qpn: 0xff_ffff,
        qkey: QKEY,
        global: Some((group::gid(1), 0)),
        ..AddressVector::default()
    };
    for round in 0..6_usize {
        let room = [b.peer.sge(HALF, GRH + 64)];
        receiver.post_receive(&room).unwrap();
        let both = [(0, &a.peer), (1, &b.peer)];
        journeys.go(&daemon, [&both[..1], &both[1..], &both][round % 3]);
        // The group's tree follows its members; what comes before is lost, as datagrams may be.
        let entry = loop {
            let send = SendRequest::send(Data::Inline(b"hello")).to(&to);
            a.peer.execute(&mut sender, &send);
            if let Some(entry) = b.peer.cq.poll() {
                break entry;
            }
        };
        receiver.complete_receive(&entry);
        assert_eq!(entry.byte_count() as usize, GRH + 5);
    }
}

/// Where links lose packets, what waits to be sent again is sent from where the VM has come to be.
fn what_is_lost_is_sent_again(mut journeys: Journeys) {
    const LEN: usize = 200_000;
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, _qb) = connected_by(&to, &from, &a, &b, |connection| {
        patient(connection);
        connection.ack_timeout = 15;
    });
    for (round, lossy) in ["vm1:1", "vm2:1", "hv2-spare1:1", "hv4-spare1:1"]
        .iter()
        .enumerate()
    {
        daemon.ask(&["link", "drop", lossy, "2"]);
        for vms in [[0].as_slice(), &[1], &[0, 1]] {
            let seed = round as u64;
            a.fill(0, LEN, seed);
            let data = [a.sge(0, LEN)];
            for _ in 0..8 {
                let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
                qa.post_send(&write).unwrap();
            }
            let peers = [&a, &b];
            let moving: Vec<_> = vms.iter().map(|&vm| (vm, peers[vm])).collect();
            journeys.go(&daemon, &moving);
            for _ in 0..8 {
                assert!(a.sent(&mut qa).is_ok());
            }
            b.verify(HALF, LEN, seed);
        }
        daemon.ask(&["link", "drop", lossy, "0"]);
    }
    b.write_to(&a);
}

/// A rendezvous that its receiver has matched and reads, from memory that is not there yet, while either end moves.
fn a_rendezvous_is_read_on(mut journeys: Journeys) {
    const LEN: usize = 4096;
    const TAG: u64 = 5;
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let (size, cqn) = ((4, 1), b.cq.number());
    let queue = SharedReceiveQueue::with_tags(&b.pd, size, cqn, 3, true).unwrap();
    let by_tags = Config {
        receive: Receive::Shared(&queue),
        ..b.config(Transport::Rc)
    };
    let mut changer = QueuePair::new(&by_tags).unwrap();
    let itself = Connection::to(b.port.lid, changer.number());
    changer.connect(Access::ALL, &itself).unwrap();
    let by_tags = Config {
        receives_only: true,
        ..by_tags
    };
    let (mut qa, _qb) = connected_by(&a.config(Transport::Rc), &by_tags, &a, &b, patient);
    let (mut pages, _far) = connected(&a, &b);
    let mut next = 0;
    for round in 0..3 {
        let away = MemoryRegion::on_demand(&a.pd, &a.buffer, Access::ALL).unwrap();
        a.fill(0, LEN, round);
        next = (next + 1) % 8;
        let append = TagChange {
            operation: TagOperation::Append {
                next,
                tag: TAG,
                mask: u64::MAX,
            },
            signaled: false,
            seen: None,
        };
        let into = [b.sge(HALF, LEN)];
        b.execute(&mut changer, &SendRequest::change_tags(append, &into));
        qa.post_receive(&[a.sge(HALF, 64)]).unwrap();
        let lies = Sge {
            key: away.key(),
            ..a.sge(0, LEN)
        };
        let header = rendezvous_header(TAG, lies);
        a.execute(&mut qa, &SendRequest::send(Data::Inline(&header)));
        let event = |b: &mut Peer| {
            let entry = b.cq.wait().unwrap();
            (entry.tag_event().0, entry.byte_count())
        };
        assert_eq!(event(&mut b).0, TagEvent::Begun);
        let fault = a.event(EventType::PageFault).page_fault();
        let both = [(0, &a), (1, &b)];
        journeys.go(&daemon, [&both[..1], &both[1..], &both][round as usize]);
        assert!(b.cq.poll().is_none());
        let page = (a.buffer.iova() | PRESENT).to_be_bytes();
        let change = KeyChange::Entries {
            first: 0,
            entries: &[page, [0; 8]].concat(),
        };
        let key = away.key();
        a.execute(
            &mut pages,
            &SendRequest::key_update(KeyUpdate { key, change }),
        );
        a.device.resume(&fault, true).unwrap();
        assert_eq!(event(&mut b), (TagEvent::Received, LEN as u32));
        b.verify(HALF, LEN, round);
        // The sender is told.
        let told = a.cq.wait().unwrap();
        assert!(told.is_ok() && told.byte_count() == 16, "{told:?}");
        qa.complete_receive(&told);
    }
}

/// A key that has told of a wrong block goes on not to tell of others after a move, and one that has not tells.
fn a_wrong_block_is_told_of_once(mut journeys: Journeys) {
    const LEN: usize = 2 * 512;
    let daemon = start();
    let (mut a, mut b) = crate::daemon::peers(&daemon);
    let (mut qa, mut qb) = connected(&a, &b);
    let value = SignatureValue::new(&b.pd).unwrap();
    let form = SignatureForm {
        memory: Some(value.number()),
        wire: None,
    };
    b.fill(0, 2 * 520, 1);
    for round in 0..2 {
        let key = MemoryRegion::with_signatures(&b.pd).unwrap();
        let stretch = Klm {
            len: 2 * 520,
            key: b.region.key(),
            addr: b.region.start(),
        };
        let change = KeyChange::Signatures {
            access: Access::ALL,
            form: &form.to_bytes(),
            stretches: &[stretch],
        };
        let update = KeyUpdate {
            key: key.key(),
            change,
        };
        b.execute(&mut qb, &SendRequest::key_update(update));
        let remote = test_driver::Remote {
            addr: 0,
            key: key.key(),
        };
        let into = [a.sge(HALF, LEN)];
        for told in [true, false] {
            let both = [(0, &a), (1, &b)];
            journeys.go(&daemon, &both[1 - round..]);
            a.execute(&mut qa, &SendRequest::read(remote, &into));
            a.verify(HALF, 512, 1);
            let entry = told.then(|| b.cq.wait().unwrap());
            let kind = entry.map(|entry| entry.kind());
            assert_eq!(kind, told.then_some(CqeKind::SignatureError));
            assert!(b.cq.poll().is_none());
        }
    }
}
