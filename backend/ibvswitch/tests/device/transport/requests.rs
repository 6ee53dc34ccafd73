//! Send requests as other drivers than libibverbs write them: whatever the format allows.

use std::cell::RefCell;

use crate::daemon::{Daemon, HALF, Peer, connected, connected_by, peers};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use test_driver::{
    AddressVector, Atomic, Config, CqeKind, Data, Piece, QueuePair, SendOpcode, SendRequest, Sge,
    Syndrome, Transport, pattern,
};

/// A piece of a payload: its length, and whether it lies within the request.
type Cut = (usize, bool);

/// Pieces with at most so many bytes each in memory, that fit into a request of `segments`.
fn cuts(longest: usize, segments: usize) -> impl Strategy<Value = Vec<Cut>> {
    let piece = prop_oneof![
        (0_usize..=300, Just(true)),
        (1..=longest, Just(false)),
        (1_usize..=64, Just(false)),
    ];
    prop::collection::vec(piece, 1..12).prop_map(move |mut cuts| {
        let mut left = segments;
        cuts.retain(|&(len, inline)| {
            let needed = if inline { (4 + len).div_ceil(16) } else { 1 };
            let fits = needed <= left;
            left -= if fits { needed } else { 0 };
            fits
        });
        cuts
    })
}

/// A payload, cut: the pieces in memory lie apart in the sender's lower half.
struct Payload {
    bytes: Vec<u8>,
    cuts: Vec<Cut>,
}

impl Payload {
    fn new(cuts: &[Cut], seed: u64) -> Self {
        let len = cuts.iter().map(|&(len, _)| len).sum();
        let mut bytes = vec![0; len];
        pattern::bytes(seed, 0, &mut bytes);
        Self {
            bytes,
            cuts: cuts.to_vec(),
        }
    }

    /// As a request has it, for a sender's memory.
    fn pieces<'a>(&'a self, from: &Peer) -> Vec<Piece<'a>> {
        let (mut at, mut offset) = (0, 0);
        let pieces = self.cuts.iter().map(|&(len, inline)| {
            let bytes = &self.bytes[at..at + len];
            at += len;
            if inline {
                return Piece::Inline(bytes);
            }
            from.buffer.write(offset, bytes);
            let sge = from.sge(offset, len);
            offset += len + 13;
            Piece::Memory(sge)
        });
        pieces.collect()
    }
}

fn read(peer: &Peer, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    peer.buffer.read(offset, &mut bytes);
    bytes
}

/// Runs so many random cases, each with the same peers; a failure prints its case.
fn cases<T>(count: u32, cases: impl Strategy<Value = T>, mut check: impl FnMut(T))
where
    T: std::fmt::Debug,
{
    let check = RefCell::new(&mut check);
    // No simpler case is looked for: a queue pair that failed carries no other one.
    let config = Cases {
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Cases::with_cases(count)
    };
    let outcome = TestRunner::new(config).run(&cases, |case| {
        (check.borrow_mut())(case);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// A connection with the smallest send queue that holds any request: requests meet its end at
/// every place within them.
fn connected_by_small_queues(a: &Peer, b: &Peer) -> (QueuePair, QueuePair) {
    let config = Config {
        log_send_blocks: 4,
        ..a.config(Transport::Rc)
    };
    connected_by(&config, &b.config(Transport::Rc), a, b, |_| {})
}

#[test]
fn any_cut_of_a_payload_arrives_as_the_same_bytes() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = connected_by_small_queues(&a, &b);
    let mut seed = 0;
    // Longer than what is moved in one turn, and than any MTU.
    let case = (cuts(400_000, 60), 0..4, 1_usize..5000);
    cases(300, case, |(cuts, operation, skew)| {
        seed += 1;
        let payload = Payload::new(&cuts, seed);
        let len = payload.bytes.len();
        let pieces = payload.pieces(&a);
        let data = Data::Pieces(&pieces);
        let at = HALF + skew;
        b.buffer.write(at, &vec![0xee; len + 8]);
        let first = skew.min(len);
        let into = [b.sge(at, first), b.sge(at + first, len - first + 8)];
        let (request, kind) = match operation {
            0 => (SendRequest::send(data), Some(CqeKind::Send)),
            1 => (SendRequest::send_imm(data, 7), Some(CqeKind::SendImm)),
            2 => (SendRequest::write(b.remote(at), data), None),
            _ => (
                SendRequest::write_imm(b.remote(at), data, 7),
                Some(CqeKind::WriteImm),
            ),
        };
        if kind.is_some() {
            qb.post_receive(&into).unwrap();
        }
        a.execute(&mut qa, &request);
        if let Some(kind) = kind {
            let entry = b.cq.wait().unwrap();
            qb.complete_receive(&entry);
            assert_eq!((entry.kind(), entry.byte_count()), (kind, len as u32));
        }
        assert!(read(&b, at, len) == payload.bytes, "other bytes arrived");
        assert_eq!(read(&b, at + len, 8), [0xee; 8], "more bytes arrived");
    });
}

#[test]
fn any_cut_of_a_datagram_arrives_as_the_same_bytes() {
    const QKEY: u32 = 0x1122_3344;
    const GRH: usize = 40;
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    qa.activate(0, QKEY).unwrap();
    qb.activate(0, QKEY).unwrap();
    let to = AddressVector {
        lid: b.port.lid,
        qpn: qb.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    let mut seed = 0;
    cases(200, cuts(340, 58), |cuts| {
        seed += 1;
        let payload = Payload::new(&cuts, seed);
        let len = payload.bytes.len();
        assert!(len <= 4096);
        let pieces = payload.pieces(&a);
        qb.post_receive(&[b.sge(HALF, GRH + 4096)]).unwrap();
        a.execute(&mut qa, &SendRequest::send(Data::Pieces(&pieces)).to(&to));
        let entry = b.cq.wait().unwrap();
        qb.complete_receive(&entry);
        assert_eq!(entry.byte_count() as usize, GRH + len);
        assert!(
            read(&b, HALF + GRH, len) == payload.bytes,
            "other bytes arrived"
        );
    });
}

#[test]
fn every_piece_in_memory_needs_its_own_key() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    for transport in [Transport::Rc, Transport::Ud] {
        let key = a.region.key() ^ 1;
        let wrong = Sge { key, ..a.sge(0, 8) };
        let pieces = [
            Piece::Memory(a.sge(64, 100)),
            Piece::Inline(b"inline"),
            Piece::Memory(wrong),
        ];
        let send = SendRequest::send(Data::Pieces(&pieces));
        qb_unchanged(&mut a, &mut b, transport, &send);
    }
}

/// A request that fails for a local key; its receiver keeps what it has posted.
fn qb_unchanged(a: &mut Peer, b: &mut Peer, transport: Transport, send: &SendRequest<'_>) {
    let to = AddressVector {
        lid: b.port.lid,
        ..AddressVector::default()
    };
    let (mut qa, qb) = match transport {
        Transport::Ud => (a.qp(transport), b.qp(transport)),
        _ => connected(transport, a, b),
    };
    let to = AddressVector {
        qpn: qb.number(),
        ..to
    };
    let mut send = *send;
    if transport == Transport::Ud {
        qa.activate(0, 0).unwrap();
        qb.activate(0, 0).unwrap();
        send = send.to(&to);
    }
    qa.post_send(&send).unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::LocalProtection);
    assert!(b.cq.peek_next().is_none());
}

#[test]
fn inline_data_is_no_place_for_an_answer() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    b.fill(0, 64, 1);
    // As a driver would write it that took a read for a write.
    for pieces in [
        &[Piece::Inline(b"inline")][..],
        &[Piece::Inline(b"inline"), Piece::Memory(a.sge(HALF, 8))],
        &[Piece::Memory(a.sge(HALF, 8)), Piece::Inline(b"inline")],
    ] {
        for opcode in [SendOpcode::RdmaRead, SendOpcode::FetchAdd] {
            let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
            let data = Data::Pieces(pieces);
            let request = SendRequest::answered(opcode, b.remote(0), Atomic::default(), data);
            qa.post_send(&request).unwrap();
            assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::LocalQpOperation);
        }
    }
    b.verify(0, 64, 1);
}

#[test]
fn masked_fetch_and_add_adds_within_its_fields() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let into = [a.sge(HALF, 8)];
    b.set_word(64, 0x0000_00ff_ffff_ffff);
    // Two fields of 32 bits, each with its carry lost.
    let operands = Atomic {
        swap_add: 0x0000_0001_0000_0001,
        compare: 0x8000_0000_8000_0000,
        ..Atomic::default()
    };
    let add = SendRequest::atomic(SendOpcode::MaskedFetchAdd, b.remote(64), operands, &into);
    a.execute(&mut qa, &add);
    assert_eq!(a.word(HALF), 0x0000_00ff_ffff_ffff);
    assert_eq!(b.word(64), 0x0000_0100_0000_0000);
    // Of eight bytes, said in the modifier of extended atomics; sixteen are not announced.
    a.execute(&mut qa, &add.modified(9));
    assert_eq!(b.word(64), 0x0000_0101_0000_0001);
    // Of four bytes: two fields of 16 bits, of which the first loses its carry. The answer is big endian.
    b.set_word(64, 0x0000_0101_0001_ffff);
    a.set_word(HALF, u64::MAX);
    let into = [a.sge(HALF, 4)];
    let operands = Atomic {
        swap_add: 0x0001_0001_8000_8000,
        ..Atomic::default()
    };
    let add = SendRequest::atomic(SendOpcode::MaskedFetchAdd, b.remote(64), operands, &into);
    a.execute(&mut qa, &add.modified(8));
    assert_eq!(a.word(HALF), 0xffff_ffff_ffff_0100);
    assert_eq!(b.word(64), 0x0000_0101_0002_0000);
    qa.post_send(&add.modified(10)).unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::LocalQpOperation);
    assert_eq!(b.word(64), 0x0000_0101_0002_0000);
}

#[test]
fn a_flush_waits_for_what_was_posted_before() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    for (round, fence) in (0..40).zip((0..5).cycle()) {
        let len = 200_000;
        b.fill(0, len, round);
        let into = [a.sge(HALF, len)];
        qa.post_send(&SendRequest::read(b.remote(0), &into).unsignaled())
            .unwrap();
        a.execute(&mut qa, &SendRequest::nop().fence(fence));
        a.verify(HALF, len, round);
    }
}

#[test]
fn a_failed_request_says_why() {
    const OPCODE: u8 = 0xe0;
    const TRANSPORT: u8 = 0xe3;
    const INLINE_ANSWER: u8 = 0xe4;
    const KEY_INVALID: u8 = 0xe8;
    const KEY_BOUNDS: u8 = 0xeb;
    const REMOTE_ACCESS: u8 = 0x88;
    const INVALID_REQUEST: u8 = 0x8a;
    let daemon = Daemon::talkative();
    let (mut a, mut b) = peers(&daemon);
    let end = a.region.start() + a.buffer.len() as u64;
    let key = a.region.key();
    let sge = |addr, key| [Sge { addr, len: 8, key }];
    let (into, none, beyond) = (
        sge(a.region.start(), key),
        sge(end - 8, key ^ 1),
        sge(end - 7, key),
    );
    let wrong = test_driver::Remote {
        key: b.region.key() ^ 1,
        ..b.remote(0)
    };
    let inline = Data::Inline(b"eight by");
    let add = SendRequest::atomic(
        SendOpcode::MaskedFetchAdd,
        b.remote(0),
        Atomic::default(),
        &into,
    );
    let odd = SendRequest::atomic(SendOpcode::FetchAdd, b.remote(4), Atomic::default(), &into);
    let answer =
        SendRequest::answered(SendOpcode::RdmaRead, b.remote(0), Atomic::default(), inline);
    let cases = [
        (
            Transport::Rc,
            add.modified(7),
            Syndrome::LocalQpOperation,
            OPCODE,
            "this modifier",
        ),
        (
            Transport::Uc,
            SendRequest::read(b.remote(0), &into),
            Syndrome::LocalQpOperation,
            TRANSPORT,
            "transport",
        ),
        (
            Transport::Rc,
            answer,
            Syndrome::LocalQpOperation,
            INLINE_ANSWER,
            "inline data",
        ),
        (
            Transport::Rc,
            SendRequest::send(Data::Memory(&none)),
            Syndrome::LocalProtection,
            KEY_INVALID,
            "a local key is not valid",
        ),
        (
            Transport::Rc,
            SendRequest::write(b.remote(0), Data::Memory(&beyond)),
            Syndrome::LocalProtection,
            KEY_BOUNDS,
            "does not hold the whole range",
        ),
        (
            Transport::Rc,
            SendRequest::write(wrong, inline),
            Syndrome::RemoteAccess,
            REMOTE_ACCESS,
            "the remote key is not valid",
        ),
        (
            Transport::Rc,
            odd,
            Syndrome::RemoteInvalidRequest,
            INVALID_REQUEST,
            "not a multiple of 8",
        ),
    ];
    for (transport, request, syndrome, vendor, reason) in cases {
        let (mut qa, _qb) = connected(transport, &a, &b);
        let index = qa.post_send(&request).unwrap();
        let entry = a.sent(&mut qa);
        assert_eq!(
            (entry.syndrome(), entry.vendor_syndrome()),
            (syndrome, vendor),
            "{reason}"
        );
        let name = format!("queue pair {:#08x}: request {index} ", qa.number());
        daemon.await_line(&["DEBUG", "vm1", &name, &format!("{syndrome:?}"), reason]);
    }
    // Those that are flushed failed for nothing of their own.
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    qa.to_error().unwrap();
    qa.post_send(&SendRequest::nop()).unwrap();
    let entry = a.sent(&mut qa);
    assert_eq!(
        (entry.syndrome(), entry.vendor_syndrome()),
        (Syndrome::Flushed, 0)
    );
    assert!(b.cq.poll().is_none_or(|entry| !entry.is_ok()));
}
