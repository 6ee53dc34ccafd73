//! Packets to and from a guest of a virtual cluster: the translation of LIDs and P_Keys inside management
//! packets, tables of records, and their segments.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use subnet_manager::rmpp::{Receiver, Sender, Taken};
use vswitch::cluster::{Change, Cluster, Direction, Translator, Vms};
use wire::mad::{AttributeId, SIZE};
use wire::rmpp::Rmpp;
use wire::{Gid, Guid, Lid, MadPacket, PKey, Sl};

#[derive(Debug, Arbitrary)]
enum Step {
    /// One more VM, or one that goes.
    Hold(u16, u16),
    Release(u16, u16),
    /// One of two VMs asks to join or leave a group, and is answered.
    Join(bool, u8, u8, u8, bool),
    Joined(bool, u8, u8, bool),
    /// A management datagram passes.
    Mad(bool, Vec<u8>),
    /// A table of records passes.
    Table(u16, u8, Vec<u8>),
    /// A segment comes, from one of four ports, after some milliseconds.
    Segment(u8, u16, Vec<u8>),
    /// A table is sent, and something is said about it.
    Send(Vec<u8>),
    Answer(Vec<u8>),
}

const ROOM: usize = 16 << 10;

fn whole(bytes: &[u8]) -> [u8; SIZE] {
    let mut mad = [0; SIZE];
    let length = bytes.len().min(SIZE);
    mad[..length].copy_from_slice(&bytes[..length]);
    mad
}

fn packet(from: u16, bytes: &[u8]) -> MadPacket {
    let (from, to) = (Lid::new(from), Lid::new(9));
    MadPacket::gmp(from, to, Sl::default(), PKey::DEFAULT_FULL, whole(bytes))
}

/// One of few groups.
fn group(number: u8) -> Gid {
    Gid::from_bits(0xff12_1234 << 96 | u128::from(number % 8))
}

fuzz_target!(|steps: Vec<Step>| {
    let guids = [1, 2].map(Guid::new);
    let vms = guids.into_iter().zip([1, 2].map(Lid::new));
    let mut cluster = Cluster::default();
    cluster.vms = Vms::new(vms, Arc::new(guids.into()));
    let pkeys = [(PKey::new(0x8123), PKey::new(0xffff))];
    let mut held: Vec<(u16, u16)> = Vec::new();
    let (mut receiver, mut sender) = (Receiver::new(ROOM / 4, ROOM), Sender::default());
    let mut now = Duration::ZERO;
    for step in steps {
        match step {
            // As the configuration has it: unicast, each LID once.
            Step::Hold(seen, physical) => {
                let free = |&(a, b): &(u16, u16)| a != seen && b != physical;
                let unicast = |lid| Lid::new(lid).is_unicast();
                if unicast(seen) && unicast(physical) && held.iter().all(free) {
                    held.push((seen, physical));
                    cluster.map.hold(Lid::new(seen), Lid::new(physical));
                }
            }
            Step::Release(seen, physical) => {
                held.retain(|pair| *pair != (seen, physical));
                cluster.map.release(Lid::new(seen), Lid::new(physical));
            }
            Step::Mad(to_wire, bytes) => {
                let direction = if to_wire {
                    Direction::ToWire
                } else {
                    Direction::ToGuest
                };
                let mut mad = whole(&bytes);
                let translator = Translator {
                    cluster: Some(&cluster),
                    pkeys: &pkeys,
                    direction,
                };
                // Whether a report passes or not.
                translator.concerns(&mad);
                let before = mad;
                if !translator.mad(&mut mad) {
                    assert_eq!(mad, before, "what does not pass stays as it is");
                } else if (to_wire, mad[1], mad[3], &mad[16..18]) == (false, 3, 0x81, &[0, 0x35]) {
                    // The LIDs of a path are of the cluster, or nobody's.
                    for at in [96, 98] {
                        let lid = u16::from_be_bytes([mad[at], mad[at + 1]]);
                        let known = held.iter().any(|(seen, _)| *seen == lid);
                        assert!(known || !Lid::new(lid).is_unicast(), "{lid:#x}");
                    }
                }
            }
            Step::Join(vm, transaction, number, states, joins) => {
                let change = Change {
                    transaction: transaction.into(),
                    group: group(number),
                    states,
                    joins,
                };
                cluster.groups.ask(guids[usize::from(vm)], change);
            }
            Step::Joined(vm, transaction, number, done) => {
                let (vm, transaction) = (guids[usize::from(vm)], transaction.into());
                cluster.groups.answer(vm, transaction, group(number), done);
            }
            Step::Table(attribute, units, bytes) => {
                let mut table = bytes.clone();
                Translator {
                    cluster: Some(&cluster),
                    pkeys: &pkeys,
                    direction: Direction::ToGuest,
                }
                .table(AttributeId(attribute), usize::from(units) * 8, &mut table);
                assert!(table.len() <= bytes.len());
                let gid = |record: &[u8], at| {
                    let bytes = record
                        .get(at..at + 16)
                        .and_then(|bytes| bytes.try_into().ok());
                    bytes.map_or(Gid::NONE, Gid::from_bytes)
                };
                if let (0x31 | 0x38, 3..) = (attribute, units) {
                    // No group and no service is left that is none of the cluster's.
                    for (kept, before) in table
                        .chunks(usize::from(units) * 8)
                        .map(|record| (record, bytes.chunks(usize::from(units) * 8)))
                    {
                        let passes = |record: &[u8]| match attribute {
                            0x31 => guids.contains(&gid(record, 8).guid()),
                            _ => cluster.groups.knows(gid(record, 0)),
                        };
                        let same = |record: &&[u8]| record.get(16..24) == kept.get(16..24);
                        assert!(before.into_iter().filter(same).any(passes));
                    }
                }
                if let (0x11, 1..) = (attribute, units) {
                    // Each record left is of somebody whom the cluster knows, or of nobody.
                    for record in table.chunks(usize::from(units) * 8) {
                        let lid = u16::from_be_bytes([record[0], record[1]]);
                        let known = held.iter().any(|(seen, _)| *seen == lid);
                        assert!(known || !Lid::new(lid).is_unicast(), "{lid:#x}");
                    }
                }
            }
            Step::Segment(from, milliseconds, bytes) => {
                now += Duration::from_millis(milliseconds.into());
                let packet = packet(u16::from(from % 4) + 1, &bytes);
                if let Ok(header) = Rmpp::of(&packet.mad)
                    && let Taken::Whole { data, .. } = receiver.receive(&packet, &header, now)
                {
                    assert!(data.len() <= ROOM / 4);
                }
            }
            Step::Send(bytes) => {
                let template = packet(9, &bytes);
                if sender.make_room(template.dlid, bytes.len()) {
                    sender.begin(template, bytes, now, &mut |_| ());
                }
            }
            Step::Answer(bytes) => {
                let packet = packet(9, &bytes);
                if let Ok(header) = Rmpp::of(&packet.mad) {
                    let mut sent = 0;
                    sender.receive(&packet, &header, now, &mut |_| sent += 1);
                    // Whatever window it claims to have.
                    assert!(sent <= 64);
                }
            }
        }
        for &(seen, physical) in &held {
            let map = &cluster.map;
            assert_eq!(map.physical(Lid::new(seen)), Some(Lid::new(physical)));
            assert_eq!(map.seen(Lid::new(physical)), Some(Lid::new(seen)));
        }
    }
});
