//! Messages that completions hold, as drivers ask for it.

use super::guest::{Guest, Pair, data, remote};
use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, modify_cq_in};
use crate::bits::dword;
use crate::bits::queue_pair::{NO_USER_INDEX, qpc};

/// Codes of how much completions hold of answers, and of messages.
const ANSWERS: [u32; 2] = [0x11, 0x22];
const MESSAGES: [u32; 2] = [1, 2];

struct Holding {
    pair: Pair,
    cq: (u32, u64, u64),
    a: super::guest::Qp,
    b: super::guest::Qp,
    stride: u64,
}

/// Two queue pairs with these codes and a completion queue of entries of 64 or 128 bytes.
fn holding(cs_req: u32, cs_res: u32, long: bool) -> Holding {
    let mut pair = Pair::of(super::images::moving());
    let cq = pair.guest.create_cq_with(pair.eq.0, pair.uar, |context| {
        cqc::LOG_CQ_SIZE.set(context, 5);
        cqc::CQE_SZ.set(context, long.into());
    });
    let [a, b] = [(); 2].map(|()| {
        pair.guest
            .create_rc_with(pair.pd, cq.0, pair.uar, |context| {
                qpc::USER_INDEX.set(context, NO_USER_INDEX);
                qpc::CS_REQ.set(context, cs_req);
                qpc::CS_RES.set(context, cs_res);
            })
    });
    pair.guest.connect(&a, &b);
    pair.guest.connect(&b, &a);
    let stride = if long { 128 } else { 64 };
    Holding {
        pair,
        cq,
        a,
        b,
        stride,
    }
}

impl Holding {
    /// The entry at an index: where its message would be, its length, and its last byte.
    fn entry(&self, index: u64) -> ([u8; 64], u32, u8) {
        let slot = self.cq.1 + index * self.stride;
        let entry: [u8; 64] = self.pair.guest.memory.read(slot + self.stride - 64);
        let first = self.pair.guest.memory.read(slot);
        (first, dword(&entry, 0x2c), entry[63])
    }

    /// The entry of a kind among the first ones.
    fn of_kind(&self, kind: u8) -> ([u8; 64], u32, u8) {
        let mut entries = (0..8).map(|index| self.entry(index));
        entries.find(|(.., last)| last >> 4 == kind).unwrap()
    }
}

#[test]
fn a_message_that_is_received() {
    for (cs_res, long, most) in [
        (0, false, 0),
        (MESSAGES[0], false, 32),
        // More than an entry has room for, and less.
        (MESSAGES[1], false, 32),
        (MESSAGES[0], true, 32),
        (MESSAGES[1], true, 64),
        // A code that is none.
        (3, true, 0),
    ] {
        for len in [1, 32, 33, 64, 65] {
            let mut at = holding(0, cs_res, long);
            let (source, target) = (at.pair.guest.allocate(4096), at.pair.guest.allocate(4096));
            at.pair.guest.memory.write(source, &[0x77; 80]);
            at.pair.guest.memory.write(target, &[0xee; 80]);
            let key = at.pair.key;
            at.pair
                .guest
                .post_receive(&mut at.b, &data(80, key, target));
            at.pair
                .guest
                .post_send(&mut at.a, 0x0a, 0, &data(len, key, source));
            let (first, said, last) = at.of_kind(2);
            assert_eq!(said, len);
            let what = format!("{cs_res} {long} {len}");
            let place: [u8; 80] = at.pair.guest.memory.read(target);
            let bytes = len as usize;
            let format = if len > most { 0 } else { 1 + u8::from(long) };
            assert_eq!(last >> 2 & 3, format, "{what}");
            if format == 0 {
                assert_eq!(place[..bytes], [0x77; 80][..bytes], "{what}");
            } else {
                assert_eq!(
                    (place, &first[..bytes]),
                    ([0xee; 80], &[0x77; 64][..bytes]),
                    "{what}"
                );
            }
            assert_eq!(at.of_kind(0).2 >> 2 & 3, 0, "{what}");
        }
    }
}

#[test]
fn an_answer() {
    for (cs_req, long, most) in [
        (0, true, 0),
        (ANSWERS[0], false, 32),
        (ANSWERS[1], false, 32),
        (ANSWERS[1], true, 64),
        (0x12, true, 0),
    ] {
        for len in [8, 32, 64, 65] {
            let mut at = holding(cs_req, 0, long);
            let (source, target) = (at.pair.guest.allocate(4096), at.pair.guest.allocate(4096));
            at.pair.guest.memory.write(source, &[0x77; 80]);
            let key = at.pair.key;
            let segments = [remote(source, key), data(len, key, target)].concat();
            at.pair.guest.post_send(&mut at.a, 0x10, 0, &segments);
            let (first, said, last) = at.entry(0);
            let what = format!("{cs_req} {long} {len}");
            assert_eq!(said, len, "{what}");
            let place: [u8; 80] = at.pair.guest.memory.read(target);
            let bytes = len as usize;
            if len > most {
                assert_eq!(
                    (last >> 2 & 3, &place[..bytes]),
                    (0, &[0x77; 80][..bytes]),
                    "{what}"
                );
            } else {
                assert_eq!(last >> 2 & 3, 1 + u8::from(long), "{what}");
                assert_eq!(
                    (place, &first[..bytes]),
                    ([0; 80], &[0x77; 64][..bytes]),
                    "{what}"
                );
            }
        }
    }
}

/// A queue whose entries hold 64 bytes gets none that have no room for that.
#[test]
fn entries_do_not_get_shorter() {
    let mut at = holding(0, 2, true);
    let ring = at.pair.guest.allocate(8192);
    let mut request = Guest::request(Opcode::ModifyCq, &[ring, ring + 4096]);
    create_eq_in::OP_MOD.set(&mut request, 1);
    modify_cq_in::CQN.set(&mut request, at.cq.0);
    let context = modify_cq_in::CQ_CONTEXT.get_mut(&mut request);
    cqc::LOG_CQ_SIZE.set(context, 6);
    let answer = at.pair.guest.command(&request, 16).status();
    assert_eq!(answer, Some(Status::BadParameter));
    let context = modify_cq_in::CQ_CONTEXT.get_mut(&mut request);
    cqc::CQE_SZ.set(context, 1);
    let answer = at.pair.guest.command(&request, 16).status();
    assert_eq!(answer, Some(Status::Ok));
}
