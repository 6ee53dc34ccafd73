//! Compressed completions are read as Linux' `en_rx.c` reads them, which writes to what it has used of the ring.

use hca::Reason;
use hca::work::RecvKind;
use wire::Qpn;

use super::super::{Arm, Buffer, Moderation, Record, Ring, Traits};
use super::*;
use crate::bits::completion::CqeOpcode;
use crate::bits::dword;
use crate::testing::Memory;

const RING: u64 = 0x1000;
const RECORD: u64 = 0x8000;

fn queue(log_size: u32, log_stride: u32) -> CompletionQueue {
    let ring = Ring {
        buffer: Buffer::new(&pages(), 0, 0, 1 << (log_size + log_stride)).unwrap(),
        log_size,
        log_stride,
        padded: false,
    };
    let traits = Traits {
        cqn: 5,
        eqn: 1,
        uar: 4,
        announced: true,
        ignore_overrun: false,
        moderation: Moderation::default(),
        compression: Some(0),
    };
    CompletionQueue::new(ring, Record::new(RECORD).unwrap(), traits)
}

fn pages() -> Vec<u8> {
    let pages = (0..4_u64).map(|page| RING + page * 4096);
    pages.flat_map(u64::to_be_bytes).collect()
}

/// A memory whose ring has no entries.
fn memory() -> Memory {
    let memory = Memory::new(0x9000);
    memory.write(RING, &[0xf1; 4 * 4096]);
    memory
}

/// Contents of a completion: opcode, number, index of the queue pair, send opcode, counter, length.
type Said = (u8, u32, u32, u8, u16, u32);

fn said(entry: &CompletionEntry) -> Said {
    let (opcode, send) = match (entry.status, entry.side) {
        (Status::Success, Side::Send { opcode }) => (CqeOpcode::Requester, opcode),
        (_, Side::Send { opcode }) => (CqeOpcode::RequesterError, opcode),
        (Status::Success, _) => (CqeOpcode::ResponderSend, 0),
        _ => (CqeOpcode::ResponderError, 0),
    };
    let user_index = entry.user_index.unwrap_or(0);
    let qpn = entry.qpn.value();
    (
        opcode.code(),
        qpn,
        user_index,
        send,
        entry.index,
        entry.byte_len,
    )
}

/// A driver.
struct Reader {
    log_size: u32,
    log_stride: u32,
    consumer: u32,
    /// Number of titles.
    titles: usize,
}

impl Reader {
    /// Where the last 64 bytes of an entry are.
    fn at(&self, index: u32) -> u64 {
        let slot = u64::from(index & ((1 << self.log_size) - 1)) << self.log_stride;
        RING + slot + (1 << self.log_stride) - 64
    }

    fn owner(&self, index: u32) -> u8 {
        (index >> self.log_size) as u8 & 1
    }

    fn poll(&mut self, memory: &Memory) -> Vec<Said> {
        let mut all = Vec::new();
        loop {
            let title: [u8; 64] = memory.read(self.at(self.consumer));
            if title[63] >> 4 == 0xf || title[63] & 1 != self.owner(self.consumer) {
                break;
            }
            let one = |counter, send, len| {
                let (qpn, user_index) = (dword(&title, 0x38) & 0xff_ffff, dword(&title, 0x20));
                (title[63] >> 4, qpn, user_index, send, counter, len)
            };
            let counter = u16::from_be_bytes([title[0x3c], title[0x3d]]);
            let count = if title[63] >> 2 & 3 == 3 {
                self.titles += 1;
                dword(&title, 0x2c)
            } else {
                all.push(one(counter, title[0x38], dword(&title, 0x2c)));
                self.consumer += 1;
                continue;
            };
            assert!(count > 1, "a title of one");
            let mut array = [0; 64];
            for number in 0..count {
                if number == 0 || number % 8 == 0 {
                    array = memory.read(self.at(self.consumer + number.max(1)));
                }
                let mini = &array[8 * (number as usize % 8)..][..8];
                let len = dword(mini, 4);
                all.push(if title[63] >> 4 == 0 {
                    one(u16::from_be_bytes([mini[0], mini[1]]), mini[2], len)
                } else {
                    one(counter.wrapping_add(number as u16), 0, len)
                });
            }
            for index in self.consumer..self.consumer + count {
                memory.write(self.at(index) + 63, &[self.owner(index)]);
            }
            self.consumer += count;
        }
        memory.write32(RECORD, self.consumer & 0xff_ffff);
        all
    }
}

fn message(index: u16) -> CompletionEntry {
    CompletionEntry {
        qpn: Qpn::new(0xab_cdef),
        user_index: Some(7),
        index,
        status: Status::Success,
        reason: Reason::Status,
        byte_len: u32::from(index) * 3,
        solicited: false,
        time: 1000,
        side: Side::Recv {
            kind: RecvKind::Send,
            immediate: 0,
            srqn: None,
            source: None,
        },
    }
}

#[test]
fn any_completions_are_read_in_their_order() {
    let mut titles = 0;
    for seed in 1..200_u64 {
        let mut dice = testing::Random::new(seed);
        let (log_size, log_stride) = (2 + dice.below(5) as u32, 6 + dice.below(2) as u32);
        let memory = memory();
        let mut queue = queue(log_size, log_stride);
        let mut reader = Reader {
            log_size,
            log_stride,
            consumer: 0,
            titles: 0,
        };
        let mut counters = [0xfff0_u16; 3];
        for turn in 0..60 {
            let mut expected = Vec::new();
            for _ in 0..dice.below(1 + (1 << log_size)) {
                // Runs of one queue pair, mostly.
                let which = if dice.below(6) == 0 {
                    dice.below(3)
                } else {
                    turn % 3
                };
                counters[which] = counters[which].wrapping_add(1 + u16::from(dice.below(9) == 0));
                let mut entry = message(counters[which]);
                entry.qpn = Qpn::new(which as u32 + 1);
                entry.time += u64::from(dice.below(20) == 0);
                if which == 2 {
                    entry.side = Side::Send {
                        opcode: dice.below(20) as u8,
                    };
                }
                if dice.below(20) == 0 {
                    entry.status = Status::Flushed;
                    entry.byte_len = 0;
                }
                let held: &[u8] = if entry.status == Status::Success && dice.below(15) == 0 {
                    b"held"
                } else {
                    &[]
                };
                let more = dice.below(10) != 0;
                let _ = queue.complete(&memory, &entry, held, more).unwrap();
                assert!(more || !queue.is_unwritten());
                expected.push(said(&entry));
            }
            let _ = queue.write_out(&memory).unwrap();
            assert!(!queue.is_unwritten(), "seed {seed}");
            assert_eq!(reader.poll(&memory), expected, "seed {seed}, turn {turn}");
        }
        assert_eq!(queue.counters()[0], reader.consumer);
        titles += reader.titles;
    }
    assert!(titles > 1000, "only {titles} titles");
}

#[test]
fn sixty_four_are_the_most() {
    let memory = memory();
    let mut queue = queue(7, 6);
    for index in 0..100 {
        let _ = queue.complete(&memory, &message(index), &[], true).unwrap();
    }
    // One that is alone is written as ever.
    assert_eq!(dword(&memory.read::<64>(RING), 0x2c), 64);
    assert_eq!(queue.counters()[0], 64);
    let _ = queue.write_out(&memory).unwrap();
    assert_eq!(dword(&memory.read::<64>(RING + 64 * 64), 0x2c), 36);
    let _ = queue.complete(&memory, &message(100), &[], true).unwrap();
    let _ = queue.write_out(&memory).unwrap();
    let single: [u8; 64] = memory.read(RING + 100 * 64);
    assert_eq!((dword(&single, 0x2c), single[63]), (300, 2 << 4));
}

#[test]
fn an_event_comes_when_they_are_written() {
    let memory = memory();
    let mut queue = queue(4, 6);
    assert_eq!(queue.request_notification(0), Notice::None);
    for index in 0..3 {
        let notice = queue.complete(&memory, &message(index), &[], true);
        assert_eq!(notice, Ok(Notice::None));
    }
    assert_eq!(queue.write_out(&memory), Ok(Notice::Now));
    assert_eq!((queue.arm(), queue.counters()[2]), (Arm::No, 3));
    assert_eq!(queue.write_out(&memory), Ok(Notice::None));
}

#[test]
fn what_has_no_room_is_not_written_and_what_has_is() {
    let memory = memory();
    let mut queue = queue(2, 6);
    let mut reader = Reader {
        log_size: 2,
        log_stride: 6,
        consumer: 0,
        titles: 0,
    };
    for index in 0..4 {
        let _ = queue.complete(&memory, &message(index), &[], true).unwrap();
    }
    let fifth = queue.complete(&memory, &message(4), &[], true);
    assert_eq!(fifth, Err(CqError::Overrun));
    assert_eq!(reader.poll(&memory).len(), 4);
}

#[test]
fn an_image_has_the_format() {
    let queue = queue(2, 6);
    let image = serde_json::to_string(&queue.save()).unwrap();
    let again = CompletionQueue::restore(5, serde_json::from_str(&image).unwrap()).unwrap();
    assert_eq!(again.compression(), Some(0));
    assert!(again.kept() > again.ring().buffer.held() + 8 * MAX_COMPRESSED);
}
