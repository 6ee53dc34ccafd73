//! Every transport and operation between two VFs, checked byte by byte.

use crate::daemon::{Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::{
    Access, AddressVector, Atomic, Config, Connection, CqeKind, Data, EventType, KeyChange,
    KeyUpdate, Klm, MemoryRegion, PageList, QueuePair, Receive, Remote, SendOpcode, SendRequest,
    Sge, SharedReceiveQueue, Transport, XrcDomain, pattern,
};

with_both_doorbells!(
    reliable_connections_carry_every_operation,
    atomics_return_what_was_there,
    unreliable_connections_send_and_write,
    datagrams_arrive_with_their_source,
    shared_receive_queues_serve_several_connections,
    extended_connections_reach_the_queue_that_they_name,
    rings_wrap_and_requests_stay_in_order,
    keys_are_changed_and_invalidated_by_requests,
    windows_are_bound_and_invalidated,
    immediate_data_and_inline_data_arrive,
);

/// Sizes around every border there is.
const SIZES: [usize; 14] = [
    0,
    1,
    7,
    8,
    64,
    255,
    256,
    4095,
    4096,
    4097,
    65_536,
    (1 << 20) - 1,
    (1 << 20) + 3,
    HALF,
];

fn reliable_connections_carry_every_operation(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    for (seed, len) in (1..).zip(SIZES) {
        let from = [a.sge(0, len)];
        let data = Data::Memory(&from);
        a.fill(0, len, seed);
        a.execute(&mut qa, &SendRequest::write(b.remote(HALF), data));
        b.verify(HALF, len, seed);

        b.fill(0, len, !seed);
        let into = [a.sge(HALF, len)];
        let entry = a.execute(&mut qa, &SendRequest::read(b.remote(0), &into));
        assert_eq!(entry.byte_count() as usize, len);
        a.verify(HALF, len, !seed);

        b.buffer.fill(0);
        qb.post_receive(&[b.sge(HALF, HALF)]).unwrap();
        a.execute(&mut qa, &SendRequest::send(data));
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        assert_eq!(entry.kind(), CqeKind::Send);
        assert_eq!((entry.qpn(), entry.byte_count()), (qb.number(), len as u32));
        b.verify(HALF, len, seed);
    }
}

/// Gather from and scatter to pieces of odd sizes.
fn pieces(peer: &Peer, base: usize) -> [Sge; 4] {
    [
        peer.sge(base, 1),
        peer.sge(base + 100, 4097),
        peer.sge(base + 10_000, 63),
        peer.sge(base + 20_001, 30_000),
    ]
}

#[test]
fn lists_are_gathered_and_scattered() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let from = pieces(&a, 0);
    let len: usize = from.iter().map(|sge| sge.len as usize).sum();
    let mut payload = vec![0; len];
    pattern::bytes(9, 0, &mut payload);
    let mut at = 0;
    for sge in from {
        let offset = (sge.addr - a.region.start()) as usize;
        a.buffer.write(offset, &payload[at..at + sge.len as usize]);
        at += sge.len as usize;
    }
    let write = SendRequest::write(b.remote(HALF + 3), Data::Memory(&from));
    a.execute(&mut qa, &write);
    b.verify(HALF + 3, len, 9);
    let into = pieces(&a, HALF);
    a.execute(&mut qa, &SendRequest::read(b.remote(HALF + 3), &into));
    let mut found = vec![0; len];
    let mut at = 0;
    for sge in into {
        let offset = (sge.addr - a.region.start()) as usize;
        a.buffer.read(offset, &mut found[at..at + sge.len as usize]);
        at += sge.len as usize;
    }
    assert_eq!(found, payload);
}

fn atomics_return_what_was_there(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let into = [a.sge(HALF, 8)];
    let atomic = |opcode, operands| SendRequest::atomic(opcode, b.remote(64), operands, &into);
    b.set_word(64, 1000);

    let add = |value| Atomic {
        swap_add: value,
        ..Atomic::default()
    };
    a.execute(&mut qa, &atomic(SendOpcode::FetchAdd, add(23)));
    assert_eq!((a.word(HALF), b.word(64)), (1000, 1023));
    a.execute(&mut qa, &atomic(SendOpcode::FetchAdd, add(u64::MAX)));
    assert_eq!((a.word(HALF), b.word(64)), (1023, 1022));

    let swap = |compare, swap_add| Atomic {
        compare,
        swap_add,
        ..Atomic::default()
    };
    a.execute(&mut qa, &atomic(SendOpcode::CompareSwap, swap(5, 6)));
    assert_eq!((a.word(HALF), b.word(64)), (1022, 1022));
    a.execute(
        &mut qa,
        &atomic(SendOpcode::CompareSwap, swap(1022, 1 << 63)),
    );
    assert_eq!((a.word(HALF), b.word(64)), (1022, 1 << 63));
}

#[test]
fn masked_atomics_touch_the_masked_bits() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let into = [a.sge(HALF, 8)];
    let atomic = |opcode, operands| SendRequest::atomic(opcode, b.remote(64), operands, &into);
    // The low half is compared, the second byte swapped.
    b.set_word(64, 0x1111_2222_3333_4444);
    let operands = Atomic {
        swap_add: u64::MAX,
        compare: 0xffff_ffff_3333_4444,
        swap_add_mask: 0xff00,
        compare_mask: 0xffff_ffff,
    };
    a.execute(&mut qa, &atomic(SendOpcode::MaskedCompareSwap, operands));
    assert_eq!(a.word(HALF), 0x1111_2222_3333_4444);
    assert_eq!(b.word(64), 0x1111_2222_3333_ff44);
    a.execute(&mut qa, &atomic(SendOpcode::MaskedCompareSwap, operands));
    assert_eq!(b.word(64), 0x1111_2222_3333_ff44);
}

#[test]
fn atomics_of_two_peers_lose_nothing() {
    const EACH: u64 = 500;
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let mut c = Peer::open(&daemon, "vm3");
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let (mut qc, _qd) = connected(Transport::Rc, &c, &b);
    b.set_word(0, 0);
    let target = b.remote(0);
    let add = |peer: &mut Peer, qp: &mut QueuePair| {
        let mut sum = 0;
        for _ in 0..EACH {
            let into = [peer.sge(HALF, 8)];
            let one = Atomic {
                swap_add: 1,
                ..Atomic::default()
            };
            let request = SendRequest::atomic(SendOpcode::FetchAdd, target, one, &into);
            peer.execute(qp, &request);
            sum += peer.word(HALF);
        }
        sum
    };
    let sum = std::thread::scope(|scope| {
        let first = scope.spawn(|| add(&mut a, &mut qa));
        let second = add(&mut c, &mut qc);
        first.join().unwrap() + second
    });
    let count = 2 * EACH;
    assert_eq!(b.word(0), count);
    // Every value was returned once.
    assert_eq!(sum, count * (count - 1) / 2);
}

fn unreliable_connections_send_and_write(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Uc, &a, &b);
    for (seed, len) in (1..).zip(SIZES) {
        let from = [a.sge(0, len)];
        a.fill(0, len, seed);
        qb.post_receive(&[b.sge(HALF, HALF)]).unwrap();
        a.execute(&mut qa, &SendRequest::send(Data::Memory(&from)));
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        b.verify(HALF, len, seed);

        b.buffer.fill(0);
        // The immediate data tells when the data has arrived.
        qb.post_receive(&[]).unwrap();
        let write = SendRequest::write_imm(b.remote(HALF), Data::Memory(&from), len as u32);
        a.execute(&mut qa, &write);
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        assert_eq!(entry.kind(), CqeKind::WriteImm);
        assert_eq!(entry.immediate(), len as u32);
        b.verify(HALF, len, seed);
    }
}

fn datagrams_arrive_with_their_source(daemon: &Daemon) {
    const QKEY: u32 = 0x1122_3344;
    const GRH: usize = 40;
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    qa.activate(0, QKEY).unwrap();
    qb.activate(0, QKEY).unwrap();
    let gid = b.device.gid(0).unwrap();
    for (global, len) in [
        (None, 0),
        (None, 1),
        (None, 4096),
        (Some((gid, 64)), 0),
        (Some((gid, 64)), 1000),
        (Some((gid, 64)), 4096),
    ] {
        let to = AddressVector {
            lid: b.port.lid,
            sl: 0,
            qpn: qb.number(),
            qkey: QKEY,
            global,
        };
        b.buffer.fill(0);
        qb.post_receive(&[b.sge(HALF, GRH + 4096)]).unwrap();
        a.fill(0, len, 77);
        let from = [a.sge(0, len)];
        a.execute(
            &mut qa,
            &SendRequest::send_imm(Data::Memory(&from), 42).to(&to),
        );
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        assert_eq!(entry.kind(), CqeKind::SendImm);
        assert_eq!(entry.immediate(), 42);
        assert_eq!(entry.byte_count() as usize, GRH + len);
        assert_eq!(entry.source_lid(), a.port.lid);
        assert_eq!(entry.source_qpn(), qa.number());
        assert_eq!(entry.has_grh(), global.is_some());
        b.verify(HALF + GRH, len, 77);
        if global.is_some() {
            let mut header = [0; GRH];
            b.buffer.read(HALF, &mut header);
            assert_eq!(header[0] >> 4, 6, "IPVer");
            assert_eq!(header[8..24], a.device.gid(0).unwrap());
            assert_eq!(header[24..40], gid);
        }
    }
    // With another Q_Key it is dropped, and what follows arrives.
    let mut to = AddressVector {
        lid: b.port.lid,
        qpn: qb.number(),
        qkey: QKEY + 1,
        ..AddressVector::default()
    };
    a.execute(
        &mut qa,
        &SendRequest::send(Data::Inline(b"dropped")).to(&to),
    );
    to.qkey = QKEY;
    qb.post_receive(&[b.sge(HALF, GRH + 4096)]).unwrap();
    a.execute(
        &mut qa,
        &SendRequest::send(Data::Inline(b"arrives")).to(&to),
    );
    let entry = b.cq.wait().unwrap();
    assert_eq!(entry.byte_count() as usize, GRH + 7);
    let mut found = [0; 7];
    b.buffer.read(HALF + GRH, &mut found);
    assert_eq!(&found, b"arrives");
}

fn shared_receive_queues_serve_several_connections(daemon: &Daemon) {
    const ROUNDS: usize = 100;
    let (mut a, mut b) = peers(daemon);
    let mut srq = SharedReceiveQueue::new(&b.pd, 4, 2, None).unwrap();
    let b_config = Config {
        receive: Receive::Shared(&srq),
        ..b.config(Transport::Rc)
    };
    let a_config = a.config(Transport::Rc);
    let mut pairs: Vec<_> = (0..3)
        .map(|_| connected_by(&a_config, &b_config, &a, &b, |_| {}))
        .collect();
    let place = |index: u16| HALF + usize::from(index) * 8192;
    for index in 0..srq.capacity() as u16 {
        assert_eq!(srq.post(&[b.sge(place(index), 8192)]).unwrap(), index);
    }
    for round in 0..ROUNDS {
        let seed = round as u64;
        let len = round * 80;
        let count = pairs.len();
        let (qa, qb) = &mut pairs[round % count];
        a.fill(0, len, seed);
        let from = [a.sge(0, len)];
        a.execute(qa, &SendRequest::send(Data::Memory(&from)));
        let entry = b.cq.wait().unwrap();
        assert_eq!((entry.qpn(), entry.srqn()), (qb.number(), srq.number()));
        assert_eq!(entry.byte_count() as usize, len);
        b.verify(place(entry.wqe_counter()), len, seed);
        srq.complete(&entry);
        let index = srq_place(&mut srq, &b, place);
        assert!(usize::from(index) <= srq.capacity());
    }
    srq.arm(3).unwrap();
    let (qa, _) = &mut pairs[0];
    for _ in 0..srq.capacity() - 2 {
        a.execute(qa, &SendRequest::send(Data::Inline(b"x")));
        srq.complete(&b.cq.wait().unwrap());
    }
    assert_eq!(b.event(EventType::SrqLimit).queue_number(), srq.number());
}

/// Posts the next request of a shared queue to the place of its own index.
fn srq_place(srq: &mut SharedReceiveQueue, peer: &Peer, place: impl Fn(u16) -> usize) -> u16 {
    let index = srq.next_index();
    let posted = srq.post(&[peer.sge(place(index), 8192)]).unwrap();
    assert_eq!(posted, index);
    index
}

fn extended_connections_reach_the_queue_that_they_name(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let domain = XrcDomain::new(&b.device).unwrap();
    let mut queues: Vec<_> = (0..2)
        .map(|_| SharedReceiveQueue::new(&b.pd, 4, 1, Some((&domain, &b.cq))).unwrap())
        .collect();
    let a_config = a.config(Transport::XrcInitiator);
    let b_config = Config {
        receive: Receive::Shared(&queues[0]),
        xrcd: Some(&domain),
        ..b.config(Transport::XrcTarget)
    };
    let (mut qa, _qb) = connected_by(&a_config, &b_config, &a, &b, |_| {});
    for round in 0..40 {
        let queue = &mut queues[round % 2];
        let place = HALF + round % 2 * 65_536;
        queue.post(&[b.sge(place, 65_536)]).unwrap();
        let len = round * 1000;
        a.fill(0, len, round as u64);
        let from = [a.sge(0, len)];
        let number = queue.number();
        a.execute(
            &mut qa,
            &SendRequest::send(Data::Memory(&from)).to_srq(number),
        );
        let entry = b.cq.wait().unwrap();
        assert_eq!(entry.srqn(), number);
        b.verify(place, len, round as u64);
        queue.complete(&entry);
    }
    let from = [a.sge(0, 5000)];
    a.fill(0, 5000, 4711);
    let write = SendRequest::write(b.remote(HALF + 1), Data::Memory(&from));
    a.execute(&mut qa, &write.to_srq(queues[0].number()));
    b.verify(HALF + 1, 5000, 4711);
}

fn rings_wrap_and_requests_stay_in_order(daemon: &Daemon) {
    const COUNT: u64 = 5000;
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let mut received = 0u64;
    let mut posted = 0u64;
    let mut outstanding = 0;
    for number in 0..COUNT {
        while posted < COUNT && posted - received < 60 {
            let slot = (posted % 64) as usize;
            qb.post_receive(&[b.sge(HALF + slot * 1024, 1024)]).unwrap();
            posted += 1;
        }
        // Requests of one to nine blocks, of which every eighth completes.
        let len = (number * 37 % 500) as usize;
        let mut data = [0; 500];
        pattern::bytes(number, 0, &mut data);
        let send = SendRequest::send_imm(Data::Inline(&data[..len]), number as u32);
        let signaled = number % 8 == 7 || number + 1 == COUNT;
        let send = if signaled { send } else { send.unsignaled() };
        qa.post_send(&send).unwrap();
        outstanding += 1;
        if signaled {
            let entry = a.sent(&mut qa);
            assert!(entry.is_ok());
            for _ in 0..outstanding {
                let entry = b.cq.wait().unwrap();
                qb.complete_receive(&entry);
                assert_eq!(u64::from(entry.immediate()), received);
                let len = (received * 37 % 500) as usize;
                assert_eq!(entry.byte_count() as usize, len);
                let slot = (received % 64) as usize;
                b.verify(HALF + slot * 1024, len, received);
                received += 1;
            }
            outstanding = 0;
        }
    }
    assert_eq!(received, COUNT);
}

fn immediate_data_and_inline_data_arrive(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    for len in [0, 1, 3, 4, 5, 8, 12, 13, 28, 44, 45, 100, 900] {
        let mut data = vec![0; len];
        pattern::bytes(len as u64, 0, &mut data);
        b.buffer.fill(0xee);
        let write = SendRequest::write(b.remote(HALF + 5), Data::Inline(&data));
        a.execute(&mut qa, &write);
        b.verify(HALF + 5, len, len as u64);
        let mut around = [0; 1];
        b.buffer.read(HALF + 5 + len, &mut around);
        assert_eq!(around, [0xee], "one byte too many");

        qb.post_receive(&[b.sge(HALF, 1024)]).unwrap();
        a.execute(
            &mut qa,
            &SendRequest::send_imm(Data::Inline(&data), 0xdead_beef),
        );
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        assert_eq!(entry.kind(), CqeKind::SendImm);
        assert_eq!(entry.immediate(), 0xdead_beef);
        b.verify(HALF, len, len as u64);
    }
}

fn keys_are_changed_and_invalidated_by_requests(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let mut fast = MemoryRegion::free(&b.pd, 64).unwrap();
    let pages: Vec<u64> = (0..8)
        .map(|page| b.buffer.iova() + HALF as u64 + page * 4096)
        .collect();
    // The list in memory, and then in the request.
    for (page, address) in pages.iter().enumerate() {
        b.buffer
            .write(page * 8, &(address | test_driver::PRESENT).to_be_bytes());
    }
    let lists = [PageList::Memory(b.sge(0, 64)), PageList::Inline(&pages)];
    for (variant, list) in (0x71..).zip(lists) {
        let start = 0x7000_0000_0000 + u64::from(variant) * 0x1_0000_0000;
        let update = KeyUpdate {
            key: fast.key(),
            change: KeyChange::Region {
                variant,
                pd: None,
                start,
                len: 8 * 4096,
                log_page_size: 12,
                access: Access::ALL,
                list,
            },
        };
        b.execute(&mut qb, &SendRequest::key_update(update));
        fast.set_variant(variant);
        let remote = Remote {
            addr: start + 4000,
            key: fast.key(),
        };
        let from = [a.sge(0, 20_000)];
        a.fill(0, 20_000, u64::from(variant));
        a.execute(&mut qa, &SendRequest::write(remote, Data::Memory(&from)));
        b.verify(HALF + 4000, 20_000, u64::from(variant));
        if variant == 0x71 {
            let free = KeyUpdate {
                key: fast.key(),
                change: KeyChange::Free,
            };
            b.execute(&mut qb, &SendRequest::key_update(free));
        } else {
            // This time the peer does it.
            qb.post_receive(&[b.sge(0, 64)]).unwrap();
            let send = SendRequest::send_invalidate(Data::Inline(b"bye"), fast.key());
            a.execute(&mut qa, &send);
            let entry = b.cq.wait().unwrap();
            assert_eq!(entry.kind(), CqeKind::SendInvalidate);
            assert_eq!(entry.immediate(), fast.key());
            let write = SendRequest::write(remote, Data::Inline(b"late"));
            qa.post_send(&write).unwrap();
            let entry = a.sent(&mut qa);
            assert_eq!(entry.syndrome(), test_driver::Syndrome::RemoteAccess);
        }
    }
}

fn windows_are_bound_and_invalidated(daemon: &Daemon) {
    // By its own side and by its peer, and bound again between the two.
    for two in [false, true] {
        let (mut a, mut b) = peers(daemon);
        let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
        let local = Access {
            local_write: true,
            ..Access::LOCAL_READ
        };
        let region = MemoryRegion::new(&b.pd, &b.buffer, local).unwrap();
        let mut window = MemoryRegion::window(&b.pd, two).unwrap();
        for variant in [0x71, 0x72] {
            let stretch = Klm {
                len: 20_000,
                key: region.key(),
                addr: region.start() + HALF as u64 + 1000,
            };
            let update = KeyUpdate {
                key: window.key(),
                change: KeyChange::Window {
                    variant,
                    queue_pair: two.then(|| qb.number()),
                    access: Access::ALL,
                    stretch,
                },
            };
            b.execute(&mut qb, &SendRequest::key_update(update));
            window.set_variant(variant);
            let remote = Remote {
                addr: stretch.addr,
                key: window.key(),
            };
            a.fill(0, 20_000, u64::from(variant));
            let from = [a.sge(0, 20_000)];
            a.execute(&mut qa, &SendRequest::write(remote, Data::Memory(&from)));
            b.verify(HALF + 1000, 20_000, u64::from(variant));
            if two && variant == 0x71 {
                let unbound = KeyUpdate {
                    key: window.key(),
                    change: KeyChange::Unbound,
                };
                b.execute(&mut qb, &SendRequest::key_update(unbound));
            } else if two {
                qb.post_receive(&[b.sge(0, 64)]).unwrap();
                let send = SendRequest::send_invalidate(Data::Inline(b"bye"), window.key());
                a.execute(&mut qa, &send);
                let entry = b.cq.wait().unwrap();
                assert_eq!(entry.kind(), CqeKind::SendInvalidate);
                assert_eq!(entry.immediate(), window.key());
            }
        }
        // A window of type 1 has the last byte of its stretch, and none behind it.
        let addr = region.start() + HALF as u64 + 1000 + 19_999;
        let key = window.key();
        let behind = |behind| Remote {
            addr: addr + behind,
            key,
        };
        if !two {
            a.execute(&mut qa, &SendRequest::write(behind(0), Data::Inline(b"1")));
        }
        let write = SendRequest::write(behind(1), Data::Inline(b"1"));
        qa.post_send(&write).unwrap();
        let entry = a.sent(&mut qa);
        assert_eq!(entry.syndrome(), test_driver::Syndrome::RemoteAccess);
    }
}

#[test]
fn regions_of_every_kind_translate() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let big = b.device.add_memory(8 << 20, 21).unwrap();
    let buffer = big.allocate(8 << 20, 1 << 21).unwrap();
    let far = 0xffff_8000_0000_0000;
    let whole = MemoryRegion::with_pages(&b.pd, &buffer, Access::ALL, far, 21).unwrap();
    let physical = MemoryRegion::physical(&b.pd, Access::ALL).unwrap();
    let stretches = [
        Klm {
            len: 5000,
            key: b.region.key(),
            addr: b.region.start() + 100_000,
        },
        Klm {
            len: 100_000,
            key: whole.key(),
            addr: far + (2 << 20) - 50_000,
        },
    ];
    let indirect = MemoryRegion::indirect(&b.pd, &stretches, Access::ALL, 0x1000).unwrap();

    let mut write = |key: u32, addr: u64, len: usize, seed: u64| {
        a.fill(0, len, seed);
        let from = [a.sge(0, len)];
        let remote = Remote { addr, key };
        a.execute(&mut qa, &SendRequest::write(remote, Data::Memory(&from)));
    };
    write(whole.key(), far + 12_345, 4 << 20, 1);
    pattern::verify(&buffer, 12_345, 4 << 20, 1).unwrap();
    write(physical.key(), buffer.iova() + 77, 100_000, 2);
    pattern::verify(&buffer, 77, 100_000, 2).unwrap();
    write(indirect.key(), 0x1000, 105_000, 3);
    let mut expected = vec![0; 105_000];
    pattern::bytes(3, 0, &mut expected);
    let mut found = vec![0; 105_000];
    b.buffer.read(100_000, &mut found[..5000]);
    buffer.read((2 << 20) - 50_000, &mut found[5000..]);
    assert!(found == expected);
}

#[test]
fn a_function_reaches_itself() {
    let daemon = Daemon::start("trap");
    let mut a = Peer::open(&daemon, "vm1");
    let mut qp = a.qp(Transport::Rc);
    qp.connect(Access::ALL, &Connection::to(a.port.lid, qp.number()))
        .unwrap();
    a.fill(0, 100_000, 5);
    let from = [a.sge(0, 100_000)];
    let write = SendRequest::write(a.remote(HALF), Data::Memory(&from));
    a.execute(&mut qp, &write);
    a.verify(HALF, 100_000, 5);
}
