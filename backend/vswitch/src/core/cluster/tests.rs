//! Maps, and datagrams of every class that carries LIDs, with offsets from the specification's
//! tables: the subnet administration's data begin at byte 56, the communication manager's at 24,
//! those of other classes at 64.

use proptest::prelude::*;
use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::{Gid, PKey};

use super::*;

/// VMs 1, 2 and 3 have LIDs 100, 7 and 0x3000; the manager, 9, is at 11.
fn map() -> LidMap {
    let mut map = LidMap::default();
    for (seen, physical) in [(1, 100), (2, 7), (3, 0x3000), (9, 11)] {
        map.hold(Lid::new(seen), Lid::new(physical));
    }
    map
}

fn cluster() -> Cluster {
    Cluster {
        map: map(),
        ..Cluster::default()
    }
}

const PKEYS: [(PKey, PKey); 2] = [
    (PKey::new(0x8123), PKey::new(0xffff)),
    (PKey::new(0x0456), PKey::new(0x0001)),
];

fn translated(direction: Direction, mut mad: [u8; SIZE]) -> [u8; SIZE] {
    assert!(passes(direction, &mut mad), "it is known");
    mad
}

/// Whether a datagram passes; if so, it is translated.
fn passes(direction: Direction, mad: &mut [u8; SIZE]) -> bool {
    let cluster = cluster();
    Translator {
        cluster: Some(&cluster),
        pkeys: &PKEYS,
        direction,
    }
    .mad(mad)
}

fn mad(class: u8, method: Method, attribute: u16) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes).expect("has the size");
    mad.set_class(Class(class));
    mad.set_method(method);
    mad.set_attribute(AttributeId(attribute), 0);
    bytes
}

fn put(mad: &mut [u8; SIZE], at: usize, value: u16) {
    mad[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Each of these places, and nothing else, is translated there and back.
#[track_caller]
fn places(class: u8, attribute: u16, lids: &[usize], pkeys: &[usize]) {
    let mut seen = mad(class, Method::GET, attribute);
    let begin = match class {
        3 => 56,
        7 => 24,
        _ => 64,
    };
    // A byte that is no part of a LID in use where it is not expected.
    seen[begin..].fill(0x5a);
    if (class, attribute) == (3, 0x38) {
        // A group's MLID is everybody's.
        put(&mut seen, begin + 36, 0xc001);
    }
    let mut physical = seen;
    for (index, &at) in lids.iter().enumerate() {
        let pairs = [(1, 100), (2, 7), (3, 0x3000), (9, 11)];
        let (virt, phys) = pairs[index % pairs.len()];
        put(&mut seen, begin + at, virt);
        put(&mut physical, begin + at, phys);
    }
    for (index, &at) in pkeys.iter().enumerate() {
        let (virt, phys) = [(0x7fff, 0x0123), (0x8001, 0x8456)][index % 2];
        put(&mut seen, begin + at, virt);
        put(&mut physical, begin + at, phys);
    }
    assert_eq!(translated(Direction::ToWire, seen), physical, "to the wire");
    assert_eq!(
        translated(Direction::ToGuest, physical),
        seen,
        "to the guest"
    );
}

#[test]
fn maps() {
    let map = map();
    assert_eq!(map.physical(Lid::new(1)), Some(Lid::new(100)));
    assert_eq!(map.seen(Lid::new(100)), Some(Lid::new(1)));
    // Physical LIDs mean nothing to a guest, and those of others are nobody's.
    assert_eq!(map.physical(Lid::new(100)), None);
    assert_eq!(map.seen(Lid::new(1)), None);
    for same in [0, 0xc000, 0xfffe, 0xffff] {
        assert_eq!(map.physical(Lid::new(same)), Some(Lid::new(same)));
        assert_eq!(map.seen(Lid::new(same)), Some(Lid::new(same)));
    }
}

#[test]
fn maps_change() {
    let mut map = map();
    let lid = Lid::new;
    // A VM moves: for a while both ports have its LID.
    map.hold(lid(1), lid(100));
    map.release(lid(1), lid(100));
    assert_eq!(map.physical(lid(1)), Some(lid(100)));
    assert_eq!(map.seen(lid(100)), Some(lid(1)));
    // Another LID, first taken then given up, or the other way round.
    map.hold(lid(1), lid(200));
    map.release(lid(1), lid(100));
    assert_eq!(map.physical(lid(1)), Some(lid(200)));
    assert_eq!(map.seen(lid(100)), None);
    map.release(lid(1), lid(200));
    assert_eq!((map.physical(lid(1)), map.seen(lid(200))), (None, None));
    // Two exchange theirs.
    map.hold(lid(2), lid(0x3000));
    map.release(lid(2), lid(7));
    map.hold(lid(3), lid(7));
    map.release(lid(3), lid(0x3000));
    assert_eq!(map.physical(lid(2)), Some(lid(0x3000)));
    assert_eq!(map.seen(lid(0x3000)), Some(lid(2)));
    assert_eq!(map.seen(lid(7)), Some(lid(3)));
    // A move that is taken back.
    map.hold(lid(2), lid(50));
    map.release(lid(2), lid(50));
    assert_eq!(map.physical(lid(2)), Some(lid(0x3000)));
    // What nobody holds can be given up all the same.
    map.release(lid(2), lid(50));
    assert_eq!(map.physical(lid(2)), Some(lid(0x3000)));
}

#[test]
fn subnet_management() {
    places(0x81, 0x15, &[16, 18], &[]);
    places(0x01, 0x15, &[16, 18], &[]);
    let table: Vec<usize> = (0..32).map(|entry| 2 * entry).collect();
    places(0x81, 0x16, &[], &table);
    places(0x81, 0x11, &[], &[]);
}

#[test]
fn communication_management() {
    places(7, 0x10, &[52, 54, 96, 98], &[48]);
    places(7, 0x19, &[20, 22], &[]);
    places(7, 0x17, &[], &[4]);
    places(7, 0x13, &[], &[]);
}

#[test]
fn subnet_administration() {
    for record in [0x11, 0x13, 0x14, 0x15, 0x17, 0x18, 0x30, 0x36] {
        places(3, record, &[0], &[]);
    }
    places(3, 0x12, &[0, 20, 22], &[]);
    places(3, 0x20, &[0, 4], &[]);
    places(3, 0x31, &[], &[24]);
    places(3, 0x35, &[40, 42], &[50]);
    places(3, 0x38, &[], &[40]);
    places(3, 0x03, &[16, 18], &[]);
    places(3, 0xf3, &[40, 42], &[]);
    places(3, 0x01, &[28, 60], &[30, 62]);
    places(4, 0x01, &[28, 60], &[30, 62]);
}

/// The layouts of records, which other tests hold against other implementations, name the LIDs
/// and P_Keys that are translated.
#[test]
fn places_are_those_of_the_records() {
    use wire::sa;
    let check = |id: AttributeId, fields: &[(&str, std::ops::Range<usize>)]| {
        let of = |part: &str| -> Vec<usize> {
            fields
                .iter()
                .filter(|(name, range)| {
                    name.contains(part) && !name.starts_with('m') && range.len() == 16
                })
                .map(|(_, range)| range.start / 8)
                .collect()
        };
        let (lids, pkeys) = (of("lid"), of("pkey"));
        assert!(!lids.is_empty() || !pkeys.is_empty(), "{fields:?}");
        places(3, id.0, &lids, &pkeys);
    };
    check(sa::id::NODE, sa::NodeRecord::FIELDS);
    check(sa::id::SL_TO_VL, sa::SlToVlRecord::FIELDS);
    check(sa::id::SWITCH_INFO, sa::SwitchInfoRecord::FIELDS);
    check(
        sa::id::LINEAR_FORWARDING,
        sa::LinearForwardingRecord::FIELDS,
    );
    check(
        sa::id::MULTICAST_FORWARDING,
        sa::MulticastForwardingRecord::FIELDS,
    );
    check(sa::id::SM_INFO, sa::SmInfoRecord::FIELDS);
    check(sa::id::LINK, sa::LinkRecord::FIELDS);
    check(sa::id::GUID_INFO, sa::GuidInfoRecord::FIELDS);
    check(sa::id::VL_ARBITRATION, sa::VlArbitrationRecord::FIELDS);
    check(sa::id::SERVICE, sa::ServiceRecord::FIELDS);
    check(sa::id::PATH, sa::PathRecord::FIELDS);
    check(sa::id::MC_MEMBER, sa::McMemberRecord::FIELDS);
    check(AttributeId(3), sa::InformInfo::FIELDS);
}

/// Records that the subnet administration gets reach VMs of clusters.
#[test]
fn all_records_are_listed() {
    let source = include_str!("../../../../wire/src/management/sa.rs");
    let (_, ids) = source.split_once("pub mod id {").expect("is there");
    let (ids, _) = ids.split_once("\n}\n").expect("has an end");
    let numbers = ids.split("AttributeId(0x").skip(1).map(|rest| {
        let (digits, _) = rest.split_once(')').expect("is a number");
        u16::from_str_radix(digits, 16).expect("is a number")
    });
    let numbers: Vec<u16> = numbers.collect();
    assert!(numbers.len() >= 17, "{numbers:x?}");
    for number in numbers {
        let listed = super::attributes::record(AttributeId(number));
        assert!(listed.is_some(), "add {number:#06x} to attributes.rs");
    }
}

/// Numbers of the specification's attributes that pass, by class: everything else is refused, both
/// ways. Which addresses are in them, the tests above say.
const PASS: [(&[u8], &[u16]); 8] = [
    // NodeDescription, NodeInfo, GUIDInfo to VLArbitrationTable, SMInfo, LedInfo, Mellanox' own of a port.
    (
        &[0x01, 0x81],
        &[0x10, 0x11, 0x14, 0x15, 0x16, 0x17, 0x18, 0x20, 0x31, 0xff90],
    ),
    (
        &[0x03],
        &[
            0x01, 0x02, 0x03, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33,
            0x35, 0x36, 0x38, 0x39, 0x3a, 0xf3,
        ],
    ),
    (&[0x04], &[0x01, 0x10, 0x11, 0x12, 0x15, 0x16, 0x1d]),
    (&[0x05], &[0x01, 0x10]),
    (
        &[0x06],
        &[0x01, 0x10, 0x11, 0x12, 0x20, 0x21, 0x22, 0x23, 0x24],
    ),
    // ClassPortInfo, REQ to APR.
    (
        &[0x07],
        &[
            0x01, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a,
        ],
    ),
    (&[0x08], &[0x01, 0x10, 0x11]),
    (&[0x21], &[0x01, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18]),
];

#[test]
fn what_is_not_known_does_not_pass() {
    const METHODS: [u8; 16] = [
        0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x12, 0x13, 0x14, 0x15, 0x81, 0x86, 0x92, 0x94, 0x95,
        0x85,
    ];
    let cluster = cluster();
    let both = [Direction::ToWire, Direction::ToGuest].map(|direction| Translator {
        cluster: Some(&cluster),
        pkeys: &PKEYS,
        direction,
    });
    let passes = |translator: &Translator<'_>, class, method, attribute| {
        let datagram = mad(class, Method(method), attribute);
        let mut translated = datagram;
        let passes = translator.mad(&mut translated);
        assert!(passes || translated == datagram, "changed, though refused");
        passes
    };
    let listed = |class: u8| {
        let of = PASS.iter().find(|(classes, _)| classes.contains(&class));
        of.map(|(_, attributes)| *attributes)
    };
    for translator in &both {
        for class in 0..=u8::MAX {
            // Vendors' and applications' classes are between VMs alone, who know no other LIDs.
            let own = matches!(class, 0x09..=0x20 | 0x22..=0x4f);
            let all = if listed(class).is_some() {
                u16::MAX
            } else {
                0x100
            };
            for attribute in 0..=all {
                let known = listed(class).is_some_and(|of| of.contains(&attribute));
                let found = passes(translator, class, 1, attribute);
                let direction = translator.direction;
                assert_eq!(
                    found,
                    known || own,
                    "{direction:?} {class:#x} {attribute:#x}"
                );
            }
            for (method, &attribute) in (0..=u8::MAX).flat_map(|method| {
                listed(class)
                    .unwrap_or(&[0])
                    .iter()
                    .map(move |at| (method, at))
            }) {
                let known = listed(class).is_some() && METHODS[..15].contains(&method);
                let found = passes(translator, class, method, attribute);
                assert_eq!(found, known || own, "{class:#x} {method:#x} {attribute:#x}");
            }
        }
    }
}

/// A refusal has addresses, too: a LID that would do, or another node to ask.
#[test]
fn remedies_of_the_communication_manager() {
    // Reason or status, the LIDs and P_Keys behind the 24 bytes of the header.
    type Case = (
        u16,
        usize,
        &'static [u8],
        &'static [usize],
        &'static [usize],
    );
    let cases: [Case; 7] = [
        (0x12, 10, &[0, 13], &[12], &[]),
        (0x12, 10, &[0, 19], &[12], &[]),
        (0x12, 10, &[0, 24], &[40, 72], &[42, 74]),
        (0x12, 10, &[0, 28], &[], &[]),
        (0x18, 4, &[4], &[52, 84], &[54, 86]),
        (0x1a, 9, &[4], &[40, 72], &[42, 74]),
        (0x1a, 9, &[7], &[12], &[]),
    ];
    for (attribute, at, reason, lids, pkeys) in cases {
        let mut physical = mad(7, Method::SEND, attribute);
        physical[24 + at..24 + at + reason.len()].copy_from_slice(reason);
        let mut seen = physical;
        for &at in lids {
            put(&mut physical, 24 + at, 0x3000);
            put(&mut seen, 24 + at, 3);
        }
        for &at in pkeys {
            put(&mut physical, 24 + at, 0x8456);
            put(&mut seen, 24 + at, 0x8001);
        }
        assert_eq!(translated(Direction::ToGuest, physical), seen, "{reason:?}");
        assert_eq!(translated(Direction::ToWire, seen), physical, "{reason:?}");
    }
}

/// Bytes beyond the record of an answer, records without a header for their segments, and details
/// of an unknown event: none of them reaches a guest.
#[test]
fn what_has_no_place_is_left_out() {
    let filled = |method, attribute| {
        let mut mad = mad(3, method, attribute);
        mad[56..].fill(0x5a);
        mad
    };
    let mut path = filled(Method::GET_RESPONSE, 0x35);
    put(&mut path, 56 + 40, 100);
    put(&mut path, 56 + 42, 7);
    let path = translated(Direction::ToGuest, path);
    assert_eq!(path[56 + 40..56 + 44], [0, 1, 0, 2]);
    assert_eq!(path[56 + 64..], [0; 136]);
    for (method, attribute) in [
        (Method::GET_TABLE_RESPONSE, 0x35),
        (Method::GET_MULTI_RESPONSE, 0x35),
        (Method::GET_RESPONSE, 0x39),
        (Method::REPORT, 0x02),
    ] {
        let found = translated(Direction::ToGuest, filled(method, attribute));
        assert_eq!(found[56..], [0; 200], "{method} {attribute:#x}");
    }
}

/// DrSLID and DrDLID.
#[test]
fn directed_routes() {
    let mut seen = mad(0x81, Method::GET, 0x11);
    let mut physical = seen;
    put(&mut seen, 32, 1);
    put(&mut seen, 34, 0xffff);
    put(&mut physical, 32, 100);
    put(&mut physical, 34, 0xffff);
    assert_eq!(translated(Direction::ToWire, seen), physical);
    assert_eq!(translated(Direction::ToGuest, physical), seen);
}

/// Groups of IP over InfiniBand are named by the partition's P_Key, others not.
#[test]
fn groups_of_ip_over_infiniband() {
    let record = |signature: u16, pkey: u16| {
        let mut mad = mad(3, Method::SET, 0x38);
        mad[56..60].copy_from_slice(&[0xff, 0x12, (signature >> 8) as u8, signature as u8]);
        put(&mut mad, 56 + 4, pkey);
        mad
    };
    for (signature, physical) in [(0x401b, 0x8456), (0x601b, 0x8456), (0x501b, 0x8001)] {
        let (seen, physical) = (record(signature, 0x8001), record(signature, physical));
        assert_eq!(translated(Direction::ToWire, seen), physical);
        assert_eq!(translated(Direction::ToGuest, physical), seen);
    }
}

#[test]
fn notices() {
    let report = |trap: u16, lids: &[usize]| {
        let mut seen = mad(3, Method::REPORT, 2);
        // The specification's notice, in 80 bytes with its GID.
        seen[56] = 0x80;
        seen[60..136].fill(0x5a);
        put(&mut seen, 56 + 4, trap);
        let mut physical = seen;
        for (&at, (virt, phys)) in lids.iter().zip([(9, 11), (1, 100), (2, 7), (3, 0x3000)]) {
            put(&mut seen, 56 + at, virt);
            put(&mut physical, 56 + at, phys);
        }
        assert_eq!(translated(Direction::ToGuest, physical), seen, "{trap}");
    };
    report(64, &[6]);
    report(128, &[6, 10]);
    report(144, &[6, 12]);
    report(257, &[6, 12, 14]);
    report(259, &[6, 12, 14, 58]);
}

/// A path to a port of another cluster is no path.
#[test]
fn an_answer_about_strangers_is_none() {
    let mut answer = mad(3, Method::GET_RESPONSE, 0x35);
    answer[56..].fill(0x77);
    put(&mut answer, 56 + 40, 5);
    put(&mut answer, 56 + 42, 100);
    let found = translated(Direction::ToGuest, answer);
    let header = Mad::new_checked(&found[..]).expect("has the size");
    assert_eq!(header.status(), Status(0x0300));
    assert_eq!(found[56..], [0; 200]);
    // One without LIDs, as of an error, is what it was.
    let mut error = mad(3, Method::GET_RESPONSE, 0x35);
    put(&mut error, 4, 0x0300);
    assert_eq!(translated(Direction::ToGuest, error), error);
}

/// At one port the VMs 1 and 2, by the port's LIDs 100 and 101, and somebody of another cluster.
#[test]
fn paths_at_shared_ports() {
    let guids = [0x11, 0x22, 0x99].map(Guid::new);
    let lid = Lid::new;
    let vms = [(guids[0], lid(1)), (guids[1], lid(2))];
    let mut cluster = Cluster {
        vms: Vms::new(vms, Arc::new(guids.into())),
        ..Cluster::default()
    };
    cluster.map.hold(lid(1), lid(100));
    cluster.map.hold(lid(2), lid(101));
    let pass = |direction, mut mad: [u8; SIZE]| {
        let translator = Translator {
            cluster: Some(&cluster),
            pkeys: &[],
            direction,
        };
        assert!(translator.mad(&mut mad));
        mad
    };
    let path = |method, mask: u64, gids: [u64; 2], lids: [u16; 2]| {
        let mut mad = mad(3, method, 0x35);
        mad[48..56].copy_from_slice(&mask.to_be_bytes());
        for (end, (guid, lid)) in gids.into_iter().zip(lids).enumerate() {
            if guid != 0 {
                let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid::new(guid));
                mad[64 + 16 * end..80 + 16 * end].copy_from_slice(&gid.to_bytes());
            }
            put(&mut mad, 96 + 2 * end, lid);
        }
        mad
    };
    // Components 2 to 5: DGID, SGID, DLID, SLID.
    let whole = path(Method::GET, 0b11_1100, [0x22, 0x11], [101, 100]);
    for (mask, gids, lids) in [
        (0b00_1100, [0x22, 0x11], [0, 0]),
        (0b11_0000, [0, 0], [2, 1]),
        (0b10_0100, [0x22, 0], [0, 1]),
        (0b11_1100, [0x22, 0x11], [2, 1]),
    ] {
        let asked = path(Method::GET, mask, gids, lids);
        assert_eq!(pass(Direction::ToWire, asked), whole, "{mask:#b}");
    }
    // Of strangers nothing is added.
    let asked = path(Method::GET, 0b100, [0x99, 0], [0, 0]);
    assert_eq!(pass(Direction::ToWire, asked), asked);
    let answer = |gids, lids| {
        let found = pass(
            Direction::ToGuest,
            path(Method::GET_RESPONSE, 0, gids, lids),
        );
        let header = Mad::new_checked(&found[..]).expect("has the size");
        header.status().is_ok()
    };
    assert!(answer([0x22, 0x11], [101, 100]));
    // A further GUID of somebody's who has a port for itself.
    assert!(answer([0x77, 0x11], [101, 100]));
    for (gids, lids) in [
        ([0x22, 0x11], [100, 100]),
        ([0x99, 0x11], [101, 100]),
        ([0x22, 0x99], [101, 100]),
        ([0x22, 0x11], [102, 100]),
    ] {
        assert!(!answer(gids, lids), "{gids:x?} {lids:?}");
    }
}

/// A table of `size`-byte records, the first two bytes of each its LID.
fn table(lids: &[u16], size: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for &lid in lids {
        data.extend(lid.to_be_bytes());
        data.extend((2..size).map(|byte| byte as u8));
    }
    data
}

#[test]
fn tables_leave_strangers_out() {
    let cluster = cluster();
    let mut translator = Translator {
        cluster: Some(&cluster),
        pkeys: &PKEYS,
        direction: Direction::ToGuest,
    };
    let of_guest = |translator: Translator<'_>, id, size, mut data: Vec<u8>| {
        translator.table(AttributeId(id), size, &mut data);
        data
    };
    for size in [56, 64, 112] {
        let physical = [100, 5, 7, 0x3000, 11, 6, 6, 100, 8];
        let found = of_guest(translator, 0x11, size, table(&physical, size));
        assert_eq!(found, table(&[1, 2, 3, 9, 1], size));
    }
    assert_eq!(of_guest(translator, 0x11, 112, vec![]), vec![0_u8; 0]);
    // A size that is none, and a record that is not all there.
    assert_eq!(
        of_guest(translator, 0x11, 0, table(&[100], 56)),
        vec![0_u8; 0]
    );
    assert_eq!(
        of_guest(translator, 0x11, 56, table(&[100], 50)),
        vec![0_u8; 0]
    );
    // Which switches there are is nothing that a cluster sees.
    assert_eq!(
        of_guest(translator, 0x39, 48, table(&[0], 48)),
        vec![0_u8; 0]
    );
    // With P_Keys alone of its own, a guest sees everybody.
    translator.cluster = None;
    let mut expected = table(&[100, 5], 112);
    assert_eq!(of_guest(translator, 0x11, 112, expected.clone()), expected);
    expected = vec![0; 64];
    expected[50..52].copy_from_slice(&[0x01, 0x23]);
    let found = of_guest(translator, 0x35, 64, expected.clone());
    expected[50..52].copy_from_slice(&[0x7f, 0xff]);
    assert_eq!(found, expected);
}

/// The template of a trace is a path, and a request's first segment has its template.
#[test]
fn requests_for_several_records() {
    let mut seen = mad(3, Method::GET_TRACE_TABLE, 0x39);
    let mut physical = seen;
    put(&mut seen, 56 + 40, 2);
    put(&mut physical, 56 + 40, 7);
    assert_eq!(translated(Direction::ToWire, seen), physical);
    let mut seen = mad(3, Method::GET_MULTI, 0x3a);
    seen[24..28].copy_from_slice(&[1, 1, 3, 0]);
    seen[31] = 1;
    let mut physical = seen;
    put(&mut seen, 56 + 6, 0x8001);
    put(&mut physical, 56 + 6, 0x8456);
    assert_eq!(translated(Direction::ToWire, seen), physical);
    // What follows are GIDs.
    seen[31] = 2;
    assert_eq!(translated(Direction::ToWire, seen), seen);
    // A request of one packet does not escape by the number of its segment.
    let mut seen = mad(3, Method::GET_TABLE, 0x35);
    seen[24..28].copy_from_slice(&[1, 1, 3, 0]);
    seen[31] = 2;
    let mut physical = seen;
    put(&mut seen, 56 + 40, 2);
    put(&mut physical, 56 + 40, 7);
    assert_eq!(translated(Direction::ToWire, seen), physical);
}

proptest! {
    /// Nothing in a datagram makes the translation panic.
    #[test]
    fn any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), SIZE),
        class in proptest::sample::select(vec![3_u8, 7, 1, 0x81, 4]),
        attribute in proptest::sample::select(vec![1_u8, 2, 3, 0x10, 0x11, 0x12, 0x15, 0x35, 0x38, 0xf3]),
        to_wire: bool,
    ) {
        let mut mad = [0; SIZE];
        mad.copy_from_slice(&bytes);
        mad[1] = class;
        mad[16..18].copy_from_slice(&[0, attribute]);
        let direction = if to_wire { Direction::ToWire } else { Direction::ToGuest };
        passes(direction, &mut mad);
    }
}
