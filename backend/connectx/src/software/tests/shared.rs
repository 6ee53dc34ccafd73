//! Shared receive queues, resizing, and what reaches the driver as an event.

use hca::PortChange;

use super::guest::{Guest, Pair, data};
use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, modify_cq_in};
use crate::bits::event::EventType;
use crate::bits::queue_pair::{NO_USER_INDEX, create_qp_in, qpc};
use crate::bits::shared_receive::{create_srq_in, srqc, xrc_srqc};
use crate::command::NUMBER;

/// Bytes of a request in the shared receive queues here.
const STRIDE: u64 = 32;
/// The events that a driver asks for.
const ASYNC_EVENTS: u64 = 0x1f_02be;

struct Shared {
    srqn: u32,
    ring: u64,
    record: u64,
}

impl Pair {
    fn create_srq(&mut self, xrcd: u32) -> Shared {
        self.create_indexed_srq(xrcd, NO_USER_INDEX)
    }

    fn create_indexed_srq(&mut self, xrcd: u32, user_index: u32) -> Shared {
        let (ring, record) = (self.guest.allocate(4096), self.guest.allocate(64));
        for at in 0..16_u64 {
            self.guest
                .memory
                .write(ring + at * STRIDE + 2, &(at as u16 + 1).to_be_bytes());
        }
        let mut request = Guest::request(Opcode::CreateSrq, &[ring]);
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut request);
        srqc::LOG_SRQ_SIZE.set(context, 4);
        srqc::LOG_RQ_STRIDE.set(context, 1);
        srqc::XRCD.set(context, xrcd);
        xrc_srqc::USER_INDEX.set(context, user_index);
        xrc_srqc::USER_INDEX_EQUAL_XRC_SRQN.set(context, user_index >> 31);
        srqc::CQN.set(context, self.cq.0);
        srqc::PD.set(context, self.pd);
        srqc::DBR_ADDR.set(context, record);
        Shared {
            srqn: self.guest.command(&request, 16).number(),
            ring,
            record,
        }
    }

    /// Posts the requests `from..to`, each of eight bytes at `target`.
    fn post_shared(&mut self, shared: &Shared, from: u64, to: u64, target: u64) {
        for at in from..to {
            let segment = data(8, self.key, target + at * 8);
            self.guest
                .memory
                .write(shared.ring + at * STRIDE + 16, &segment);
        }
        self.guest.memory.write32(shared.record, to as u32);
    }

    /// A queue pair that receives from a shared queue (type 1) and sends, or is
    /// an XRC target (and does not).
    fn create_receiver(&mut self, service: u32, srqn: u32, xrcd: u32) -> super::guest::Qp {
        self.create_indexed_receiver(service, srqn, xrcd, NO_USER_INDEX)
    }

    fn create_indexed_receiver(
        &mut self,
        service: u32,
        srqn: u32,
        xrcd: u32,
        user_index: u32,
    ) -> super::guest::Qp {
        let (ring, record) = (self.guest.allocate(4096), self.guest.allocate(64));
        let mut request = Guest::request(Opcode::CreateQp, &[ring]);
        let context = create_qp_in::QPC.get_mut(&mut request);
        qpc::ST.set(context, service);
        qpc::PD.set(context, self.pd);
        qpc::RQ_TYPE.set(context, 1);
        qpc::USER_INDEX.set(context, user_index);
        qpc::SRQN_RMPN_XRQN.set(context, srqn);
        qpc::XRCD.set(context, xrcd);
        qpc::NO_SQ.set(context, u32::from(xrcd != 0));
        qpc::LOG_SQ_SIZE.set(context, 4);
        qpc::UAR_PAGE.set(context, self.uar);
        qpc::CQN_SND.set(context, self.cq.0);
        qpc::CQN_RCV.set(context, self.cq.0);
        qpc::DBR_ADDR.set(context, record);
        super::guest::Qp {
            qpn: self.guest.command(&request, 16).number(),
            // Without a receive queue of its own, the send queue comes first.
            ring: ring - 16 * 16,
            record,
            uar: self.uar,
            posted: 0,
            received: 0,
        }
    }

    /// An armed queue for asynchronous events: where its entries are.
    fn async_events(&mut self) -> u64 {
        let (eqn, ring) = self.guest.create_eq(0, ASYNC_EVENTS, self.uar);
        self.guest.arm_eq(self.uar, eqn, 0);
        ring
    }
}

fn event(pair: &Pair, ring: u64, index: u64) -> Option<(u8, [u8; 64])> {
    let bytes: [u8; 64] = pair.guest.memory.read(ring + index * 64);
    (bytes[63] == 0).then_some((bytes[1], bytes))
}

#[test]
fn a_shared_queue_serves_its_users_and_tells_its_limit() {
    let mut pair = Pair::new();
    let events = pair.async_events();
    let shared = pair.create_srq(0);
    let mut receiver = pair.create_receiver(0, shared.srqn, 0);
    let mut sender = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
    pair.guest.connect(&receiver, &sender);
    pair.guest.connect(&sender, &receiver);
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.post_shared(&shared, 0, 4, target);
    let mut arm = vec![0; 16];
    create_eq_in::OPCODE.set(&mut arm, u32::from(Opcode::ArmRq.code()));
    create_eq_in::OP_MOD.set(&mut arm, 1);
    NUMBER.set(&mut arm, shared.srqn);
    arm[14..16].copy_from_slice(&3_u16.to_be_bytes());
    assert_eq!(pair.guest.command(&arm, 16).status(), Some(Status::Ok));
    let answer = pair.guest.plain(Opcode::QuerySrq, &[0, shared.srqn]);
    assert_eq!(srqc::LWM.get(&answer.reply[0x10..]), 3);
    let key = pair.key;
    for round in 0..2 {
        pair.guest.memory.write(source, &[round; 8]);
        assert_eq!(event(&pair, events, 0), None);
        pair.guest
            .post_send(&mut sender, 0x0a, 0, &data(8, key, source));
    }
    assert_eq!(pair.guest.memory.read::<16>(target)[7..9], [0, 1]);
    let (kind, bytes) = event(&pair, events, 0).unwrap();
    assert_eq!(
        (kind, crate::bits::dword(&bytes, 0x38)),
        (EventType::SrqLimit.code(), shared.srqn)
    );
    // Completions of the receiver say where their requests were.
    let received = (0..4)
        .map(|at| pair.cqe(at))
        .filter(|cqe| cqe[63] >> 4 == 2);
    let named: Vec<_> = received
        .map(|cqe| (crate::bits::dword(&cqe, 0x20), cqe[0x3c..0x3e].to_vec()))
        .collect();
    assert_eq!(
        named,
        [(shared.srqn, vec![0, 0]), (shared.srqn, vec![0, 1])]
    );
    // The other way there is nothing to wait for at the receiver's end.
    pair.guest.post_receive(&mut sender, &data(8, key, target));
    pair.guest
        .post_send(&mut receiver, 0x0a, 0, &data(8, key, source));
    assert_eq!(pair.cqe(5)[63] >> 4 & 0xd, 0);
    assert_eq!(
        pair.guest
            .plain(Opcode::DestroySrq, &[0, shared.srqn])
            .status(),
        Some(Status::BadResourceState)
    );
}

#[test]
fn xrc_reaches_the_queue_that_the_request_names() {
    let mut pair = Pair::new();
    let xrcd = pair.guest.plain(Opcode::AllocXrcd, &[]).number();
    let shared = pair.create_srq(xrcd);
    let target_qp = pair.create_receiver(3, 0, xrcd);
    let mut initiator = pair.create_receiver(3, 0, 0);
    pair.guest.connect(&target_qp, &initiator);
    pair.guest.connect(&initiator, &target_qp);
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.post_shared(&shared, 0, 2, target);
    pair.guest.memory.write(source, b"extended");
    let mut segments = vec![0; 16];
    segments[..4].copy_from_slice(&shared.srqn.to_be_bytes());
    segments.extend(data(8, pair.key, source));
    pair.guest.post_send(&mut initiator, 0x0a, 0, &segments);
    assert_eq!(&pair.guest.memory.read::<8>(target), b"extended");
    let received = (0..2)
        .map(|at| pair.cqe(at))
        .find(|cqe| cqe[63] >> 4 == 2)
        .unwrap();
    assert_eq!(crate::bits::dword(&received, 0x20), shared.srqn);
}

/// Kinds of the completions from `from` on, and what they say instead of a number.
fn named(pair: &Pair, from: u64) -> Vec<(u8, u32)> {
    let entries = (from..).map(|at| pair.cqe(at));
    let entries = entries.take_while(|cqe| cqe[63] != 0xf1);
    entries
        .map(|cqe| (cqe[63] >> 4, crate::bits::dword(&cqe, 0x20)))
        .collect()
}

/// Messages and failures of a queue pair with an index that receives from a shared queue, of XRC in the end.
fn indexed(mut pair: Pair) {
    let shared = pair.create_srq(0);
    let mut receiver = pair.create_indexed_receiver(0, shared.srqn, 0, 0x12_3456);
    // A number may be an index, too, and zero.
    let mut sender = pair
        .guest
        .create_rc_with(pair.pd, pair.cq.0, pair.uar, |context| {
            qpc::USER_INDEX.set(context, 0);
        });
    pair.guest.connect(&receiver, &sender);
    pair.guest.connect(&sender, &receiver);
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.post_shared(&shared, 0, 4, target);
    let key = pair.key;
    let segment = data(8, key, source);
    pair.guest.post_send(&mut sender, 0x0a, 0, &segment);
    let mut seen = named(&pair, 0);
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0), (2, 0x12_3456)]);
    // What fails and is flushed at either end.
    pair.guest.post_receive(&mut sender, &segment);
    let nowhere = data(8, key ^ 1, source);
    pair.guest.post_send(&mut receiver, 0x0a, 0, &nowhere);
    pair.guest.post_send(&mut receiver, 0x0a, 0, &segment);
    assert_eq!(named(&pair, 2), [(13, 0x12_3456), (13, 0x12_3456)]);
    pair.guest.plain(Opcode::ToErr, &[0, sender.qpn]);
    assert_eq!(named(&pair, 4), [(14, 0)]);

    let xrcd = pair.guest.plain(Opcode::AllocXrcd, &[]).number();
    let shared = pair.create_indexed_srq(xrcd, 0xab_cdef);
    let target_qp = pair.create_receiver(3, 0, xrcd);
    let mut initiator = pair.create_indexed_receiver(3, 0, 0, 7);
    pair.guest.connect(&target_qp, &initiator);
    pair.guest.connect(&initiator, &target_qp);
    pair.post_shared(&shared, 0, 2, target);
    let mut segments = vec![0; 16];
    segments[..4].copy_from_slice(&shared.srqn.to_be_bytes());
    segments.extend(data(8, pair.key, source));
    pair.guest.post_send(&mut initiator, 0x0a, 0, &segments);
    let mut seen = named(&pair, 5);
    seen.sort_unstable();
    assert_eq!(seen, [(0, 7), (2, 0xab_cdef)]);
}

#[test]
fn completions_name_what_they_are_of_by_its_index() {
    indexed(Pair::new());
    // The same where the function moves after each access.
    indexed(Pair::of(super::images::moving()));
}

#[test]
fn a_queue_of_xrc_may_have_its_number_for_an_index() {
    let mut pair = Pair::new();
    let xrcd = pair.guest.plain(Opcode::AllocXrcd, &[]).number();
    let shared = pair.create_indexed_srq(xrcd, 1 << 31 | 5);
    let target_qp = pair.create_receiver(3, 0, xrcd);
    let mut initiator = pair.create_receiver(3, 0, 0);
    pair.guest.connect(&target_qp, &initiator);
    pair.guest.connect(&initiator, &target_qp);
    let target = pair.guest.allocate(4096);
    pair.post_shared(&shared, 0, 1, target);
    let mut segments = vec![0; 16];
    segments[..4].copy_from_slice(&shared.srqn.to_be_bytes());
    segments.extend(data(8, pair.key, target + 64));
    pair.guest.post_send(&mut initiator, 0x0a, 0, &segments);
    assert!(named(&pair, 0).contains(&(2, shared.srqn)));
}

#[test]
fn a_completion_queue_is_resized_under_way() {
    let mut pair = Pair::new();
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    let segments = [
        super::guest::remote(target, pair.key),
        data(8, pair.key, source),
    ]
    .concat();
    pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
    let ring = pair.guest.allocate(8192);
    pair.guest.memory.write(ring, &[0xf1; 8192]);
    let mut request = Guest::request(Opcode::ModifyCq, &[ring, ring + 4096]);
    create_eq_in::OP_MOD.set(&mut request, 1);
    modify_cq_in::CQN.set(&mut request, pair.cq.0);
    let context = modify_cq_in::CQ_CONTEXT.get_mut(&mut request);
    cqc::LOG_CQ_SIZE.set(context, 7);
    assert_eq!(pair.guest.command(&request, 16).status(), Some(Status::Ok));
    pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
    assert_eq!(
        (pair.cqe(0)[63], pair.cqe(1)[63], pair.cqe(2)[63]),
        (0, 5 << 4, 0xf1)
    );
    assert_eq!(pair.guest.memory.read::<1>(ring + 2 * 64 + 63), [0]);
    let answer = pair.guest.plain(Opcode::QueryCq, &[0, pair.cq.0]);
    let context = &answer.reply[0x10..];
    assert_eq!(
        (
            cqc::LOG_CQ_SIZE.get(context),
            cqc::PRODUCER_COUNTER.get(context)
        ),
        (7, 3)
    );
    // Moderation is accepted.
    create_eq_in::OP_MOD.set(&mut request, 0);
    assert_eq!(pair.guest.command(&request, 16).status(), Some(Status::Ok));
}

#[test]
fn an_overrun_queue_fails_with_its_users_and_says_so() {
    let mut pair = Pair::new();
    let events = pair.async_events();
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    let segments = [
        super::guest::remote(target, pair.key),
        data(8, pair.key, source),
    ]
    .concat();
    // 64 entries fit; nobody takes them.
    for _ in 0..65 {
        pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
    }
    let (kind, bytes) = event(&pair, events, 0).unwrap();
    assert_eq!(kind, EventType::CqError.code());
    assert_eq!(
        (crate::bits::dword(&bytes, 0x20), bytes[0x2b]),
        (pair.cq.0, 1)
    );
    let (kind, _) = event(&pair, events, 1).unwrap();
    assert_eq!(kind, EventType::WqCatastrophic.code());
    let answer = pair.guest.plain(Opcode::QueryQp, &[0, pair.a.qpn]);
    assert_eq!(
        qpc::STATE.get(&answer.reply[0x18..]),
        crate::bits::queue_pair::State::Error.code()
    );
}

#[test]
fn changes_of_the_port_are_told() {
    let mut pair = Pair::new();
    let events = pair.async_events();
    let vf = pair.guest.vf;
    for (index, (change, subtype)) in [
        (PortChange::Down, 1),
        (PortChange::Active, 4),
        (PortChange::Lid, 6),
        (PortChange::Pkey, 7),
    ]
    .into_iter()
    .enumerate()
    {
        pair.guest.engine().vf_mut(vf).port_changed(change);
        let (kind, bytes) = event(&pair, events, index as u64).unwrap();
        assert_eq!(
            (kind, bytes[3], bytes[0x28]),
            (EventType::PortChange.code(), subtype, 0x10)
        );
    }
    assert_eq!(pair.guest.raised.count(0), 1);
}
