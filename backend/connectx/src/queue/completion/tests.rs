use hca::Reason;
use hca::work::{RecvKind, Side, Source, Status, TagEvent, TagOperation};
use wire::ipoib::Checked;
use wire::{Lid, PKey, Qpn, Sl};

use super::*;
use crate::testing::{Memory, vector};

const RING: u64 = 0x1000;
const RECORD: u64 = 0x4000;

fn ring(at: u64, log_size: u32) -> Ring {
    Ring {
        buffer: Buffer::new(&at.to_be_bytes(), 0, 0, 64 << log_size).unwrap(),
        log_size,
        log_stride: 6,
        padded: false,
    }
}

fn queue(announced: bool) -> CompletionQueue {
    let traits = Traits {
        cqn: 5,
        eqn: 1,
        uar: 4,
        announced,
        ignore_overrun: false,
        moderation: Moderation::default(),
        compression: None,
    };
    CompletionQueue::new(ring(RING, 2), Record::new(RECORD).unwrap(), traits)
}

fn entry(solicited: bool) -> CompletionEntry {
    CompletionEntry {
        qpn: Qpn::new(0xab_cdef),
        user_index: None,
        index: 0,
        status: Status::Success,
        reason: Reason::Status,
        byte_len: 0,
        solicited,
        time: 0,
        side: Side::Send { opcode: 0 },
    }
}

fn recv(kind: RecvKind, immediate: u32, srqn: Option<u32>, source: Option<Source>) -> Side {
    Side::Recv {
        kind,
        immediate,
        srqn,
        source,
    }
}

#[test]
fn entries_are_those_that_the_library_expects() {
    let source = Source {
        slid: Lid::new(0xbeef),
        src_qp: Qpn::new(0x123),
        sl: Sl::new(5),
        grh: true,
        pkey: PKey::new(0x8001),
        path_bits: 3,
        checked: Checked::default(),
    };
    let packet = Source {
        checked: Checked {
            network: true,
            transport: true,
        },
        ..source
    };
    let cases = [
        (
            "cqe_requester",
            0x1234,
            Status::Success,
            4096,
            false,
            Side::Send { opcode: 0x10 },
        ),
        (
            "cqe_send_imm_shared",
            5,
            Status::Success,
            13,
            true,
            recv(RecvKind::SendImm, 0xcafe_0001, Some(0x77), None),
        ),
        (
            "cqe_datagram",
            6,
            Status::Success,
            140,
            false,
            recv(RecvKind::Send, 0, None, Some(source)),
        ),
        (
            "cqe_packet",
            6,
            Status::Success,
            140,
            false,
            recv(RecvKind::Send, 0, None, Some(packet)),
        ),
        (
            "cqe_requester_error",
            9,
            Status::RemoteAccess,
            0,
            true,
            Side::Send { opcode: 8 },
        ),
        (
            "cqe_responder_flushed",
            10,
            Status::Flushed,
            0,
            true,
            recv(RecvKind::Send, 0, None, None),
        ),
        (
            "cqe_tag_whole",
            5,
            Status::Success,
            13,
            false,
            Side::Tagged {
                kind: RecvKind::SendImm,
                immediate: 0xcafe_0001,
                srqn: 0x77,
                event: TagEvent::Whole,
                header: [3, 0, 0, 0, 0, 0, 0xc0, 0xde, 1, 2, 3, 4, 5, 6, 7, 8],
            },
        ),
        (
            "cqe_tag_removed",
            12,
            Status::Success,
            0,
            false,
            Side::Tags {
                srqn: 0x77,
                operation: TagOperation::Remove { index: 5 },
                done: true,
                unexpected: 0x4321,
            },
        ),
    ];
    for (name, index, status, byte_len, solicited, side) in cases {
        let entry = CompletionEntry {
            user_index: None,
            qpn: Qpn::new(0xab_cdef),
            index,
            status,
            reason: Reason::Status,
            byte_len,
            solicited,
            time: 0x0123_4567_89ab_cdef,
            side,
        };
        let mut bytes = [0; 64];
        encode(&entry, &mut bytes);
        assert_eq!(bytes.as_slice(), vector(name), "{name}");
    }
}

#[test]
fn the_owner_bit_turns_with_every_pass() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    for pass in 0..3_u8 {
        for slot in 0..4 {
            assert_eq!(
                queue.complete(&memory, &entry(false), &[], false),
                Ok(Notice::None)
            );
            let bytes: [u8; 64] = memory.read(RING + slot * 64);
            assert_eq!(bytes[63] & 1, pass & 1);
        }
        memory.write32(RECORD, u32::from(pass + 1) * 4);
    }
}

#[test]
fn large_entries_use_their_second_half() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    queue.ring.log_stride = 7;
    memory.write(RING, &[0xf1; 256]);
    let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
    assert_eq!(memory.read::<64>(RING), [0xf1; 64]);
    assert_eq!(memory.read::<1>(RING + 127), [0]);
    assert_eq!(memory.read::<1>(RING + 128 + 127), [0xf1]);
}

#[test]
fn an_overrun_is_found_from_the_drivers_index() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    for _ in 0..4 {
        let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
    }
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Err(CqError::Overrun)
    );
    assert!(queue.overran());
    memory.write32(RECORD, 1);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
    // An index ahead of the device's is not believed either.
    memory.write32(RECORD, 100);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Err(CqError::Overrun)
    );
    queue.ignore_overrun = true;
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
}

#[test]
fn an_armed_queue_notifies_once() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    assert_eq!(queue.request_notification(0), Notice::None);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::Now)
    );
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
    // Armed for what was not there at index 1: one is there, so at once.
    assert_eq!(queue.request_notification(1 << 28 | 1), Notice::Now);
    assert_eq!(queue.request_notification(2 << 28 | 2), Notice::None);
}

#[test]
fn armed_for_solicited_entries_others_do_not_count() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    assert_eq!(queue.request_notification(ARM_SOLICITED), Notice::None);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
    assert_eq!(
        queue.complete(&memory, &entry(true), &[], false),
        Ok(Notice::Now)
    );
    assert_eq!(
        queue.request_notification(1 << 28 | ARM_SOLICITED | 2),
        Notice::None
    );
    assert_eq!(
        queue.complete(&memory, &entry(true), &[], false),
        Ok(Notice::Now)
    );
    assert_eq!(
        queue.complete(&memory, &entry(true), &[], false),
        Ok(Notice::None)
    );
    assert_eq!(
        queue.request_notification(2 << 28 | ARM_SOLICITED | 3),
        Notice::Now
    );
}

#[test]
fn an_entry_that_an_event_told_of_is_not_told_again() {
    // perftest takes the event, arms, and then polls one entry: an event
    // more than there are entries, and it runs ahead of its peer.
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    assert_eq!(queue.request_notification(0), Notice::None);
    for taken in 0..5 {
        assert_eq!(
            queue.complete(&memory, &entry(false), &[], false),
            Ok(Notice::Now)
        );
        assert_eq!(
            queue.request_notification((taken + 1) << 28 | taken),
            Notice::None
        );
        memory.write32(RECORD, taken + 1);
    }
}

#[test]
fn arming_that_nobody_announces_is_seen_in_the_record() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(false);
    assert_eq!(queue.recheck(&memory), (Notice::None, false));
    // The first arming cannot be told from none.
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::Now)
    );
    // Nothing is due, but the driver may arm for this entry yet.
    assert_eq!(queue.recheck(&memory), (Notice::None, true));
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
    memory.write32(RECORD + 4, 1 << 28);
    assert_eq!(queue.recheck(&memory), (Notice::Now, true));
    assert_eq!(queue.recheck(&memory), (Notice::None, true));
    memory.write32(RECORD, 2);
    memory.write32(RECORD + 4, 2 << 28 | 2);
    assert_eq!(queue.recheck(&memory), (Notice::None, false));
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::Now)
    );
}

#[test]
fn a_queue_whose_first_arming_cannot_be_seen_is_born_armed() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(false);
    // What libmlx5 writes when it arms for the first time: all zero.
    memory.write32(RECORD + 4, 0);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::Now)
    );
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
}

#[test]
fn what_was_armed_last_counts_although_nobody_announced_it() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(false);
    memory.write32(RECORD + 4, ARM_SOLICITED);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Ok(Notice::None)
    );
    assert_eq!(
        queue.complete(&memory, &entry(true), &[], false),
        Ok(Notice::Now)
    );
}

#[test]
fn a_resize_continues_where_the_driver_copies_to() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    memory.write32(RECORD, 0);
    let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
    let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
    queue.resize(&memory, ring(0x2000, 3)).unwrap();
    // The old ring ends with the entry that says so.
    assert_eq!(memory.read::<1>(RING + 2 * 64 + 63), [5 << 4]);
    let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
    assert_eq!(queue.counters()[0], 4);
    assert_eq!(
        memory.read::<4>(0x2000 + 3 * 64 + 56),
        [0, 0xab, 0xcd, 0xef]
    );
    // Three entries (and the end) do not fit into two.
    assert_eq!(
        queue.resize(&memory, ring(0x3000, 1)),
        Err(CqError::Overrun)
    );
}

#[test]
fn memory_that_went_away_is_an_error() {
    let memory = Memory::new(0x5000);
    let mut queue = queue(true);
    queue.ring = ring(0x9000, 2);
    assert_eq!(
        queue.complete(&memory, &entry(false), &[], false),
        Err(CqError::Unmapped)
    );
}

/// A message is in the first 32 bytes of an entry of 64, and in the half before one of 128, as libmlx5 looks for it;
/// the rest of the entry is as without it.
#[test]
fn entries_hold_messages_where_the_library_looks() {
    for (log_stride, padded) in [(6, false), (7, false), (7, true)] {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        queue.ring = Ring {
            buffer: Buffer::new(&RING.to_be_bytes(), 0, 0, 4 << log_stride).unwrap(),
            log_size: 2,
            log_stride,
            padded,
        };
        memory.write(RING, &[0xa5; 512]);
        let sent = entry(false);
        let most = if log_stride == 6 { 32 } else { 64 };
        assert_eq!(usize::from(queue.ring().holds()), most);
        let stride = 1_u64 << log_stride;
        let mut plain = [0; 64];
        encode(&sent, &mut plain);
        for (at, len) in [(0, 1), (1, most), (2, 17)] {
            let held: Vec<u8> = (0..len as u8).map(|byte| byte ^ 0x5a).collect();
            let _ = queue.complete(&memory, &sent, &held, false).unwrap();
            let slot = RING + at * stride;
            assert_eq!(memory.read::<64>(slot)[..len], held);
            let entry: [u8; 64] = memory.read(slot + stride - 64);
            let format = if log_stride == 6 { 1 } else { 2 };
            assert_eq!(entry[63], plain[63] | format << 2);
            let own = if log_stride == 6 { 32 } else { 0 };
            assert_eq!(entry[own..63], plain[own..63]);
        }
        // Longer than any: whoever asked for it cannot have.
        let unfit = vec![0; most + 1];
        assert_eq!(
            queue.complete(&memory, &sent, &unfit, false),
            Err(CqError::Unmapped)
        );
        // The next entry does without.
        let _ = queue.complete(&memory, &sent, &[], false).unwrap();
        assert_eq!(memory.read::<1>(RING + 4 * stride - 1), [plain[63]]);
    }
}

/// A padded entry of 128 bytes is written as a whole; of one without padding the first half stays as it is.
#[test]
fn entries_are_padded_where_it_is_asked_for() {
    for padded in [false, true] {
        let memory = Memory::new(0x8000);
        let mut queue = queue(true);
        queue.ring = Ring {
            buffer: Buffer::new(&RING.to_be_bytes(), 0, 0, 128 << 2).unwrap(),
            log_size: 2,
            log_stride: 7,
            padded,
        };
        memory.write(RING, &[0xa5; 128 << 2]);
        for _ in 0..2 {
            let _ = queue.complete(&memory, &entry(false), &[], false).unwrap();
        }
        let restored = CompletionQueue::restore(5, queue.save()).unwrap();
        assert_eq!(restored.ring.padded, padded);
        let first = if padded { 0 } else { 0xa5 };
        for slot in 0..2 {
            let at = RING + slot * 128;
            assert_eq!(memory.read::<64>(at), [first; 64]);
            assert_eq!(memory.read::<64>(at + 64)[56..60], [0, 0xab, 0xcd, 0xef]);
        }
        assert_eq!(memory.read::<128>(RING + 256), [0xa5; 128]);
    }
}

/// Where drivers read it (rdma-core's `get_sig_err_info`), and whose queue pair it is.
#[test]
fn an_entry_tells_of_a_block_that_is_wrong() {
    use hca::signature::format::Side as Domain;
    use hca::signature::key::{SignatureError, Wrong};

    for (side, domain) in [(Domain::Wire, 0), (Domain::Memory, 1)] {
        for (wrong, syndrome) in [
            (Wrong::Reference, 0x0800_u16),
            (Wrong::Application, 0x1000),
            (Wrong::Guard, 0x2000),
        ] {
            let memory = Memory::new(0x5000);
            let error = SignatureError {
                key: 0x1234_5678,
                side,
                wrong,
                expected: 0x0102_0304_0506_0708,
                actual: 0x1112_1314_1516_1718,
                offset: 0x2122_2324_2526_2728,
            };
            let entry = CompletionEntry {
                side: Side::Signature(error),
                ..entry(true)
            };
            assert_eq!(
                queue(true).complete(&memory, &entry, &[], false),
                Ok(Notice::None)
            );
            let mut expected = [0; 64];
            expected[0x10..0x18].copy_from_slice(&[1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14]);
            expected[0x18..0x20].copy_from_slice(&[5, 6, 7, 8, 0x15, 0x16, 0x17, 0x18]);
            expected[0x20..0x22].copy_from_slice(&syndrome.to_be_bytes());
            expected[0x23] = domain;
            expected[0x24..0x28].copy_from_slice(&error.key.to_be_bytes());
            expected[0x28..0x30].copy_from_slice(&error.offset.to_be_bytes());
            expected[0x38..0x3c].copy_from_slice(&[0, 0xab, 0xcd, 0xef]);
            expected[0x3f] = 12 << 4 | 2;
            assert_eq!(memory.read::<64>(RING), expected, "{side:?} {wrong:?}");
        }
    }
}
