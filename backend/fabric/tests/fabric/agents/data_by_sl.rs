//! Data by service level, and which optional counters there are.

use ibvswitch_fabric::{Injected, PortRef};
use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::performance::{
    self, ClassPortInfo, PORT_COUNTERS, PORT_RCV_DATA_SL, PORT_XMIT_DATA_SL, PortCounters,
    PortDataSl,
};
use wire::{Lid, MadPacket, PKey, QKey, Sl};

use super::performance_request;
use crate::common::Host;

const BOTH: [AttributeId; 2] = [PORT_XMIT_DATA_SL, PORT_RCV_DATA_SL];

fn ask(
    host: &mut Host,
    at: PortRef,
    method: Method,
    attribute: AttributeId,
    data: &[u8],
) -> (Status, [u8; SIZE]) {
    let bytes = performance_request(method, attribute, data);
    let answer = host.fabric.local_mad(at, &bytes).unwrap();
    let mad = Mad::new_checked(&answer[..]).unwrap();
    assert_eq!(mad.method(), Method::GET_RESPONSE);
    (mad.status(), answer)
}

fn get(host: &mut Host, at: PortRef, attribute: AttributeId, port_select: u8) -> PortDataSl {
    let asked = PortDataSl {
        port_select,
        ..PortDataSl::default()
    };
    let (status, answer) = ask(host, at, Method::GET, attribute, &asked.to_bytes());
    assert_eq!(status, Status::OK);
    PortDataSl::parse(&answer[performance::DATA]).unwrap()
}

/// These levels' data, and nothing on all others.
fn levels(of: &[(usize, u32)]) -> [u32; 16] {
    let mut data = [0; 16];
    for &(sl, words) in of {
        data[sl] = words;
    }
    data
}

#[test]
fn each_level_counts_for_itself() {
    let mut host = Host::new();
    let vf = host.vf(0);
    let [sent, received] = BOTH;
    for attribute in BOTH {
        assert_eq!(get(&mut host, vf, attribute, 1).data, [0; 16]);
    }
    let counters = host.fabric.counters(vf).unwrap().clone();
    counters.sent(Sl::new(0), 3, 30);
    counters.sent(Sl::new(5), 1, 400);
    counters.sent_multicast(Sl::new(5), 1, 50);
    counters.received(Sl::new(15), 2, 5_000_000_000);
    counters.received_multicast(Sl::new(1), 1, 7);
    counters.received(Sl::new(0), 1, 9);
    let xmit = get(&mut host, vf, sent, 1);
    assert_eq!((xmit.port_select, xmit.counter_select), (1, 0));
    assert_eq!(xmit.data, levels(&[(0, 30), (5, 450)]));
    let rcv = get(&mut host, vf, received, 1);
    let stopped = (15, u32::MAX);
    assert_eq!(rcv.data, levels(&[(0, 9), (1, 7), stopped]));
    // Nothing else has changed: the total is that of all levels.
    let asked = PortCounters {
        port_select: 1,
        ..PortCounters::default()
    };
    let (_, answer) = ask(&mut host, vf, Method::GET, PORT_COUNTERS, &asked.to_bytes());
    let total = PortCounters::parse(&answer[performance::DATA]).unwrap();
    assert_eq!((total.xmit_data, total.xmit_packets), (480, 5));

    // Bit n of CounterSelect is service level n.
    let mut written = PortDataSl {
        port_select: 1,
        counter_select: 1 << 5 | 1 << 9,
        data: [1000; 16],
    };
    written.data[9] = 2;
    let (status, answer) = ask(&mut host, vf, Method::SET, sent, &written.to_bytes());
    assert_eq!(status, Status::OK);
    let after = PortDataSl::parse(&answer[performance::DATA]).unwrap();
    assert_eq!(after.data, levels(&[(0, 30), (5, 1000), (9, 2)]));
    counters.sent(Sl::new(5), 1, 1);
    counters.sent(Sl::new(0), 1, 1);
    let data = get(&mut host, vf, sent, 1).data;
    assert_eq!(data, levels(&[(0, 31), (5, 1001), (9, 2)]));
    // The other attribute, other ports and the totals have not been written.
    assert_eq!(get(&mut host, vf, received, 1), rcv);
    let (_, answer) = ask(&mut host, vf, Method::GET, PORT_COUNTERS, &asked.to_bytes());
    let total = PortCounters::parse(&answer[performance::DATA]).unwrap();
    assert_eq!(total.xmit_data, 482);
    // From 0 on again, where a counter had stopped.
    let written = PortDataSl {
        port_select: 1,
        counter_select: 0xffff,
        data: [0; 16],
    };
    ask(&mut host, vf, Method::SET, received, &written.to_bytes());
    counters.received(Sl::new(15), 1, 6);
    assert_eq!(get(&mut host, vf, received, 1).data, levels(&[(15, 6)]));
}

/// Management datagrams count on their level wherever they pass, subnet management on level 0.
#[test]
fn what_passes_the_fabric_is_on_its_level() {
    let mut host = Host::new();
    host.bring_up();
    let (switch, from) = (host.fabric.peer(host.port).unwrap(), host.port);
    let before = BOTH.map(|attribute| get(&mut host, switch, attribute, 255));
    for data in before {
        assert!(data.data[0] > 0, "the bring-up");
        assert_eq!(data.data[1..], [0; 15]);
    }
    let bytes = performance_request(Method::GET, AttributeId::CLASS_PORT_INFO, &[]);
    for _ in 0..3 {
        let mut packet = MadPacket::gmp(
            Lid::NONE,
            Lid::new(4),
            Sl::new(6),
            PKey::DEFAULT_FULL,
            bytes,
        );
        packet.qkey = QKey::QP1;
        assert_eq!(host.fabric.inject(from, packet), Injected::Sent);
        let answer = host.received().pop().unwrap();
        assert_eq!(answer.sl, Sl::new(6), "answers come back on it");
    }
    // 256 bytes, with headers and invariant CRC: in by one port and out by another, there and back.
    let words = 3 * 2 * 72;
    for (attribute, before) in BOTH.into_iter().zip(before) {
        let all = get(&mut host, switch, attribute, 255).data;
        assert_eq!(all[1..], levels(&[(6, words)])[1..]);
        assert_eq!(all[0], before.data[0], "nothing more there");
        let one = get(&mut host, switch, attribute, switch.port);
        assert_eq!(one.data[6], words / 2);
    }
    // All ports begin anew together.
    let written = PortDataSl {
        port_select: 255,
        counter_select: 1 << 6,
        ..PortDataSl::default()
    };
    ask(
        &mut host,
        switch,
        Method::SET,
        PORT_RCV_DATA_SL,
        &written.to_bytes(),
    );
    assert_eq!(
        get(&mut host, switch, PORT_RCV_DATA_SL, switch.port).data[6],
        0
    );
    assert_eq!(
        get(&mut host, switch, PORT_XMIT_DATA_SL, 255).data[6],
        words
    );
}

/// The fabric does not offer quantities that it does not count, and says so.
#[test]
fn what_is_answered_is_what_is_there() {
    let mut host = Host::new();
    host.bring_up();
    let switch = host.fabric.peer(host.port).unwrap();
    let vf = host.vf(0);
    for (at, capabilities) in [(switch, 0x1300), (vf, 0x1200)] {
        let all = [(at.port, Status::OK), (255, Status::OK)];
        let all = if at == vf { &all[..1] } else { &all[..] };
        let offered = [0x12, 0x15, 0x16, 0x1d, 0x36, 0x37];
        for attribute in (0x10..=0x3f).map(AttributeId) {
            for &(port, fine) in all {
                let wanted = match attribute.0 {
                    0x10 | 0x11 => continue,
                    known if offered.contains(&known) => fine,
                    _ => Status::UNSUPPORTED_ATTRIBUTE,
                };
                for method in [Method::GET, Method::SET] {
                    let (status, _) = ask(&mut host, at, method, attribute, &[0, port]);
                    assert_eq!(status, wanted, "{attribute:?} of port {port}");
                }
            }
        }
        let class = AttributeId::CLASS_PORT_INFO;
        let (_, answer) = ask(&mut host, at, Method::GET, class, &[]);
        let info = ClassPortInfo::parse(&answer[performance::DATA]).unwrap();
        assert_eq!(
            (info.capability_mask, info.capability_mask2),
            (capabilities, 0)
        );
    }
    for attribute in BOTH {
        for (at, port) in [(vf, 255), (vf, 2), (vf, 0), (switch, 9), (switch, 254)] {
            let (status, _) = ask(&mut host, at, Method::GET, attribute, &[0, port]);
            assert_eq!(status, Status::INVALID_FIELD, "port {port}");
        }
    }
}
