//! The congestion control agents, by the places that `libibmad` has for their fields.

use std::time::Duration;

use ibvswitch_fabric::{Owner, PortRef, SmpAccess};
use wire::mad::{Mad, Method, SIZE, Status};
use wire::{Lid, MadPacket, PKey, Sl};

use crate::common::Host;

const KEY_INFO: u16 = 0x12;
const SWITCH: u16 = 0x14;
const SWITCH_PORTS: u16 = 0x15;
const CA: u16 = 0x16;
const TABLE: u16 = 0x17;

/// A request: attribute, its modifier, whether it is a Set, the key, and the attribute's bytes.
fn request(attribute: u16, modifier: u32, set: bool, key: u64, data: &[u8]) -> [u8; SIZE] {
    let mut mad = [0; SIZE];
    mad[..4].copy_from_slice(&[1, 0x21, 2, if set { 2 } else { 1 }]);
    mad[8..16].copy_from_slice(&7_u64.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    mad[64..64 + data.len()].copy_from_slice(data);
    mad
}

/// Sends a request from the host to a LID; the answer, if there is one.
fn send(host: &mut Host, lid: u16, mad: [u8; SIZE]) -> Option<(Status, [u8; SIZE])> {
    let pkey = PKey::DEFAULT_FULL;
    let packet = MadPacket::gmp(Lid::new(1), Lid::new(lid), Sl::new(0), pkey, mad);
    host.fabric.inject(host.port, packet);
    let received = host.received();
    let answer = received.first()?;
    let header = Mad::new_checked(&answer.mad[..]).unwrap();
    assert_eq!(
        (header.method(), header.transaction()),
        (Method::GET_RESPONSE, 7)
    );
    Some((header.status(), answer.mad))
}

fn get(host: &mut Host, lid: u16, attribute: u16, modifier: u32) -> [u8; SIZE] {
    let (status, answer) = send(host, lid, request(attribute, modifier, false, 0, &[])).unwrap();
    assert_eq!(status, Status::OK, "{attribute:#x}");
    answer
}

fn set(host: &mut Host, lid: u16, attribute: u16, modifier: u32, data: &[u8]) -> [u8; SIZE] {
    let asked = request(attribute, modifier, true, 0, data);
    let (status, answer) = send(host, lid, asked).unwrap();
    assert_eq!(status, Status::OK, "{attribute:#x}");
    answer
}

/// The host is at LID 1, switches are at 2 and 3, the functions at 4 and 5, which somebody else has.
fn host() -> Host {
    let mut host = Host::new();
    host.bring_up();
    for vf in [0, 1].map(|vf| host.vf(vf)) {
        host.fabric
            .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    }
    host
}

#[test]
fn what_nodes_can_do() {
    let mut host = host();
    // ClassPortInfo, CongestionInfo, TimeStamp.
    assert_eq!(get(&mut host, 4, 0x01, 0)[64..66], [1, 2]);
    assert_eq!(get(&mut host, 2, 0x11, 0)[64..67], [0x70, 0, 0]);
    assert_eq!(get(&mut host, 4, 0x11, 0)[64..67], [0x03, 0, 2]);
    host.fabric.advance(Duration::from_micros(1024 * 5));
    assert_eq!(get(&mut host, 4, 0x18, 0)[64..68], 5000_u32.to_be_bytes());
    for (lid, attribute) in [
        (2, CA),
        (2, TABLE),
        (4, SWITCH),
        (4, SWITCH_PORTS),
        (4, 0x19),
    ] {
        let (status, _) = send(&mut host, lid, request(attribute, 0, false, 0, &[])).unwrap();
        assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE, "{attribute:#x}");
    }
    let mut old = request(0x11, 0, false, 0, &[]);
    old[2] = 1;
    assert_eq!(send(&mut host, 4, old).unwrap().0, Status::BAD_VERSION);
}

#[test]
fn switches_are_set() {
    let mut host = host();
    let marking = |host: &Host, port| {
        let vswitch = host.fabric.peer(host.vf(0)).unwrap();
        let link = host.fabric.shared_link(PortRef { port, ..vswitch });
        link.unwrap().marking
    };
    assert_eq!(marking(&host, 1), None);
    let mut data = [0; 76];
    // All components, of which switches here have the masks of victims, thresholds, and marking rates.
    data[3] = 0x1f;
    data[35] = 0x0e;
    data[67] = 0x0e;
    data[68..70].copy_from_slice(&[0xf0, 2]);
    data[70] = 0xf0;
    data[74..76].copy_from_slice(&[0, 9]);
    let before = host.fabric.generation();
    let answer = set(&mut host, 3, SWITCH, 0, &data);
    assert!(host.fabric.generation() > before);
    let mut expected = data;
    (expected[67], expected[70]) = (0, 0);
    assert_eq!(answer[64..140], expected);
    let of_switch = marking(&host, 1).unwrap();
    assert_eq!((of_switch.packet_size, of_switch.rate), (128, 9));
    let soon = of_switch.threshold;
    // A threshold of 1 marks later than one of 15.
    let mut other = [0; 76];
    (other[3], other[68]) = (4, 0x10);
    set(&mut host, 3, SWITCH, 0, &other);
    let late = marking(&host, 1).unwrap();
    assert_eq!((late.threshold, late.rate), (soon * 15, 9));
    // Port 2 has values of its own, and port 3 those of a kind that there is not.
    let mut ports = [0; 192];
    ports[8..12].copy_from_slice(&[0x8f, 1, 0, 3]);
    ports[12..16].copy_from_slice(&[0xcf, 0, 0, 3]);
    let answer = set(&mut host, 3, SWITCH_PORTS, 0, &ports);
    ports[12..16].fill(0);
    assert_eq!(answer[64..256], ports);
    assert_eq!(get(&mut host, 3, SWITCH_PORTS, 0)[64..256], ports);
    let own = marking(&host, 2).unwrap();
    assert_eq!((own.threshold, own.packet_size, own.rate), (soon, 64, 3));
    assert_eq!(marking(&host, 3), Some(late));
    let (status, _) = send(&mut host, 3, request(SWITCH_PORTS, 1, false, 0, &[])).unwrap();
    assert_eq!(status, Status::INVALID_FIELD);
    // 0 is never.
    other[68] = 0;
    set(&mut host, 3, SWITCH, 0, &other);
    assert_eq!(marking(&host, 1), None);
}

#[test]
fn adapters_are_set() {
    let mut host = host();
    let vf = host.vf(0);
    let mut data = [0; 132];
    data[..4].copy_from_slice(&[0, 1, 0, 0b101]);
    for level in 0..16 {
        let entry = [0, 150 + level as u8, 4, 3, 1, 0, 0, 0];
        data[4 + level * 8..][..8].copy_from_slice(&entry);
    }
    let answer = set(&mut host, 4, CA, 0, &data);
    assert_eq!(answer[64 + 4..][..8], data[4..12]);
    assert_eq!(answer[64 + 12..][..8], [0; 8], "not in the map");
    assert_eq!(answer[64 + 20..][..8], data[20..28]);
    let mut table = [0; 132];
    table[..2].copy_from_slice(&[0, 65]);
    for entry in 0..64_u16 {
        let value = (2 << 14 | entry).to_be_bytes();
        table[4 + usize::from(entry) * 2..][..2].copy_from_slice(&value);
    }
    set(&mut host, 4, TABLE, 1, &table);
    assert_eq!(get(&mut host, 4, TABLE, 1)[64..196], table);
    let of = host.fabric.adapter_congestion(vf).unwrap();
    assert!(of.by_level);
    assert_eq!((of.levels[2].timer, of.levels[2].increase), (152, 4));
    assert_eq!((of.levels[2].trigger_threshold, of.levels[2].min), (3, 1));
    assert_eq!((of.limit, of.delays[67].multiplier), (65, 3));
    assert_eq!(of.delays[67].after(1000), 750);
    // The other function has been told nothing.
    assert!(host.fabric.adapter_congestion(host.vf(1)).is_none());
    for (modifier, limit) in [(2, 0), (0, 128)] {
        table[..2].copy_from_slice(&u16::to_be_bytes(limit));
        let asked = request(TABLE, modifier, true, 0, &table);
        assert_eq!(send(&mut host, 4, asked).unwrap().0, Status::INVALID_FIELD);
    }
}

/// The owner of a function may see how it is held back, and not change it.
#[test]
fn guests_hold_themselves_back_no_less() {
    let mut host = host();
    let vf = host.vf(0);
    let asked = request(CA, 0, true, 0, &[0; 132]);
    let answer = host.fabric.local_mad(vf, &asked).unwrap();
    let status = Mad::new_checked(&answer[..]).unwrap().status();
    assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE);
    let asked = request(CA, 0, false, 0, &[]);
    assert!(host.fabric.local_mad(vf, &asked).is_some());
    // The same by a packet to its own port.
    let asked = request(CA, 0, true, 0, &[0; 132]);
    let (lid, pkey) = (Lid::new(4), PKey::DEFAULT_FULL);
    let packet = MadPacket::gmp(lid, lid, Sl::new(0), pkey, asked);
    host.fabric.inject(vf, packet);
    host.fabric.run();
    assert!(host.fabric.adapter_congestion(vf).is_none());
}

#[test]
fn keys_protect() {
    const RIGHT: u64 = 0x0123_4567_89ab_cdef;
    let mut host = host();
    let mut info = [0; 14];
    info[..8].copy_from_slice(&RIGHT.to_be_bytes());
    info[11] = 3;
    set(&mut host, 4, KEY_INFO, 0, &info);
    // Without protection everybody reads, the key, too, and nobody sets anything.
    assert_eq!(get(&mut host, 4, KEY_INFO, 0)[64..72], RIGHT.to_be_bytes());
    get(&mut host, 4, CA, 0);
    let wrong = request(CA, 0, true, 1, &[0; 132]);
    assert!(send(&mut host, 4, wrong).is_none());
    info[8] = 0x80;
    info[13] = 1;
    let asked = request(KEY_INFO, 0, true, RIGHT, &info);
    assert_eq!(send(&mut host, 4, asked).unwrap().0, Status::OK);
    let seen = get(&mut host, 4, KEY_INFO, 0);
    // Hidden; protected; three seconds; one violation, which the Set has left.
    assert_eq!(seen[64..78], [0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 3, 0, 1]);
    assert!(send(&mut host, 4, request(CA, 0, false, 1, &[])).is_none());
    let right = request(CA, 0, false, RIGHT, &[]);
    assert!(send(&mut host, 4, right).is_some());
    // The time begins with the first violation since the right key.
    host.fabric.advance(Duration::from_secs(10));
    assert!(send(&mut host, 4, wrong).is_none());
    host.fabric.advance(Duration::from_millis(12_999));
    assert!(send(&mut host, 4, wrong).is_none());
    host.fabric.advance(Duration::from_secs(13));
    get(&mut host, 4, CA, 0);
    assert!(send(&mut host, 4, wrong).is_none(), "it is the key yet");
    assert_eq!(get(&mut host, 4, KEY_INFO, 0)[64..72], RIGHT.to_be_bytes());
}
