//! Shared receive queues with tags, as the driver of Linux and libmlx5 have them.

use super::guest::{Guest, Pair, Qp, data};
use crate::bits::command::{AnyOpcode, Opcode, Status, create_eq_in};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::{Field, Wide, dword};
use crate::command::NUMBER;

const OK: Option<Status> = Some(Status::Ok);
/// Where the context is in a request to create a queue, and where it has its work queue (`mlx5_ifc_xrqc_bits`).
const CONTEXT: usize = 0x10;
const WQ: usize = CONTEXT + 0x80;
/// By which completions of the queue name it.
const INDEX: u32 = 0x51;
/// Where the list of pages begins.
const PAGES: usize = 0x150;

fn request(opcode: AnyOpcode, number: u32) -> Vec<u8> {
    let mut request = vec![0; PAGES];
    create_eq_in::OPCODE.set(&mut request, opcode.code().into());
    NUMBER.set(&mut request, number);
    request
}

/// Creates a queue of 16 requests and a list of 128 entries; `change` changes the request.
fn create(pair: &mut Pair, change: impl Fn(&mut Vec<u8>)) -> (Option<Status>, u32, u64) {
    let (ring, record) = (pair.guest.allocate(4096), pair.guest.allocate(64));
    for at in 0..16_u64 {
        let next = (at as u16 + 1).to_be_bytes();
        pair.guest.memory.write(ring + at * 32 + 2, &next);
        let segment = data(24, pair.key, ring + 0x800);
        pair.guest.memory.write(ring + at * 32 + 16, &segment);
    }
    pair.guest.memory.write32(record, 4);
    let mut create = request(AnyOpcode::CreateXrq, 0);
    for (at, value) in [
        // Tags, and rendezvous by the device.
        (CONTEXT, 1 << 8 | 1),
        (CONTEXT + 0x04, INDEX),
        (CONTEXT + 0x08, pair.cq.0),
        (CONTEXT + 0x20, 7 << 28),
        (WQ + 0x08, pair.pd),
        (WQ + 0x20, 5 << 16 | 4),
    ] {
        Field::new(at, 31, 0).set(&mut create, value);
    }
    Wide::new(WQ + 0x10).set(&mut create, record);
    create.extend(ring.to_be_bytes());
    change(&mut create);
    let answer = pair.guest.command(&create, 16);
    (answer.status(), NUMBER.get(&answer.reply), ring)
}

fn queue_pair(pair: &mut Pair, srqn: u32, sends: bool) -> Qp {
    let (ring, record) = (pair.guest.allocate(4096), pair.guest.allocate(64));
    let mut request = Guest::request(Opcode::CreateQp, &[ring]);
    let context = create_qp_in::QPC.get_mut(&mut request);
    for (field, value) in [
        (qpc::PD, pair.pd),
        (qpc::RQ_TYPE, 1),
        (qpc::SRQN_RMPN_XRQN, srqn),
        (qpc::NO_SQ, u32::from(!sends)),
        (qpc::LOG_SQ_SIZE, 4),
        (qpc::UAR_PAGE, pair.uar),
        (qpc::CQN_SND, pair.cq.0),
        (qpc::CQN_RCV, pair.cq.0),
    ] {
        field.set(context, value);
    }
    qpc::DBR_ADDR.set(context, record);
    Qp {
        qpn: pair.guest.command(&request, 16).number(),
        ring: ring - 16 * 16,
        record,
        uar: pair.uar,
        posted: 0,
        received: 0,
    }
}

/// The segment of a change: opcode, flags, index, unexpected messages seen, tag and mask.
fn change(opcode: u8, index: u16, seen: u16, tag: u64, mask: u64) -> Vec<u8> {
    let mut segment = vec![opcode << 4, 1 << 7 | 1 << 6];
    segment.extend(index.to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(seen.to_be_bytes());
    segment.extend([0; 8]);
    segment.extend(tag.to_be_bytes());
    segment.extend(mask.to_be_bytes());
    segment
}

/// Queue, queue pair, application and what it says, index, bytes, of an entry.
fn told(cqe: &[u8; 64]) -> (u32, u32, [u8; 2], u16, u32) {
    let info = u16::from_be_bytes([cqe[0x2a], cqe[0x2b]]);
    let qpn = dword(cqe, 0x38) & 0x00ff_ffff;
    (
        dword(cqe, 0x20),
        qpn,
        [cqe[0x28], cqe[0x29]],
        info,
        dword(cqe, 0x2c),
    )
}

#[test]
fn a_message_goes_by_its_tag() {
    let mut pair = Pair::new();
    let (status, xrqn, ring) = create(&mut pair, |_| {});
    assert_eq!(status, OK);
    let mut command = queue_pair(&mut pair, xrqn, true);
    let same = Qp {
        qpn: command.qpn,
        ..command
    };
    pair.guest.connect(&same, &command);
    let receiver = queue_pair(&mut pair, xrqn, false);
    let mut sender = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
    pair.guest.connect(&receiver, &sender);
    pair.guest.connect(&sender, &receiver);
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    let key = pair.key;

    let mut append = change(1, 5, 0, 0x0102_0304_0506_0708, u64::MAX);
    append.extend(data(64, key, target));
    pair.guest.post_send(&mut command, 0x28, 0, &append);
    let cqe = pair.cqe(0);
    assert_eq!(cqe[63] >> 4, 6);
    assert_eq!(told(&cqe), (INDEX, command.qpn, [1, 5], 0, 0));
    assert_eq!((dword(&cqe, 0), dword(&cqe, 4)), (1 << 31, 0));

    let mut message = vec![3, 0, 0, 0, 0, 0, 0xc0, 0xde, 1, 2, 3, 4, 5, 6, 7, 8];
    message.extend(b"the data");
    pair.guest.memory.write(source, &message);
    let list = data(24, key, source);
    pair.guest.post_send(&mut sender, 0x0a, 0, &list);
    assert_eq!(&pair.guest.memory.read::<8>(target), b"the data");
    // Behind the requester's entry of the change.
    let cqe = pair.cqe(2);
    assert_eq!(told(&cqe), (INDEX, receiver.qpn, [1, 0xa], 0, 8));
    assert_eq!(cqe[..16], message[..16]);

    // There is no other entry: it is unexpected.
    pair.guest.post_send(&mut sender, 0x0a, 0, &list);
    let cqe = pair.cqe(4);
    assert_eq!(told(&cqe).2, [1, 3]);
    assert_eq!(dword(&cqe, 0x2c), 24);
    assert_eq!(pair.guest.memory.read::<24>(ring + 0x800)[..], message[..]);

    let query = request(AnyOpcode::QueryXrq, xrqn);
    let reply = pair.guest.command(&query, 0x150).reply;
    let said = |at| dword(&reply, at);
    assert_eq!(said(CONTEXT), 1 << 8 | 1);
    assert_eq!(said(CONTEXT + 0x08), pair.cq.0);
    assert_eq!(
        (said(CONTEXT + 0x20), said(CONTEXT + 0x24)),
        (7 << 28 | 5, 1)
    );
    assert_eq!((said(WQ + 0x08), said(WQ + 0x20)), (pair.pd, 5 << 16 | 4));

    let mut arm = request(AnyOpcode::ArmXrq, xrqn);
    arm[0x0e..0x10].copy_from_slice(&2_u16.to_be_bytes());
    assert_eq!(pair.guest.command(&arm, 16).status(), OK);
    let mut arm = vec![0; 16];
    create_eq_in::OPCODE.set(&mut arm, Opcode::ArmRq.code().into());
    create_eq_in::OP_MOD.set(&mut arm, 2);
    NUMBER.set(&mut arm, xrqn);
    assert_eq!(pair.guest.command(&arm, 16).status(), OK);

    let destroy = request(AnyOpcode::DestroyXrq, xrqn);
    let refused = pair.guest.command(&destroy, 16).status();
    assert_eq!(refused, Some(Status::BadResourceState));
}

#[test]
fn queues_that_there_cannot_be_are_refused() {
    let mut pair = Pair::new();
    for (at, value, status) in [
        // Of another topology, and with another offload.
        (CONTEXT, 1, Status::BadParameter),
        (CONTEXT, 1 << 8 | 2, Status::BadParameter),
        (CONTEXT + 0x08, 0x0077_7777, Status::BadResource),
        (CONTEXT + 0x20, 8 << 28, Status::ExceededLimits),
        (WQ + 0x08, 0x0077_7777, Status::BadResource),
        (WQ + 0x20, 5 << 16 | 16, Status::BadParameter),
    ] {
        let refused = create(&mut pair, |create| {
            Field::new(at, 31, 0).set(create, value);
        });
        assert_eq!(refused.0, Some(status), "{at:#x}");
    }
    // Without its pages.
    let short = create(&mut pair, |create| create.truncate(PAGES));
    assert_eq!(short.0, Some(Status::BadInputLength));
    let short = create(&mut pair, |create| create.truncate(0x20));
    assert_ne!(short.0, OK);
    // What has no tags is asked for by other commands, and shown by them.
    let (status, xrqn, _) = create(&mut pair, |_| {});
    assert_eq!(status, OK);
    let destroy = request(AnyOpcode::DestroyXrq, xrqn);
    assert_eq!(pair.guest.command(&destroy, 16).status(), OK);
    let gone = pair.guest.command(&destroy, 16).status();
    assert_eq!(gone, Some(Status::BadResource));
    // Its completion queue is free again.
    let cqn = pair.cq.0;
    let (a, b) = (pair.a.qpn, pair.b.qpn);
    for qpn in [a, b] {
        let destroyed = pair.guest.plain(Opcode::DestroyQp, &[0, qpn]);
        assert_eq!(destroyed.status(), OK);
    }
    let destroyed = pair.guest.plain(Opcode::DestroyCq, &[0, cqn]);
    assert_eq!(destroyed.status(), OK);
}
