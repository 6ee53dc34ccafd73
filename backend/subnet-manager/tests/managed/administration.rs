//! Subnet administration, asked from ports of the subnet.

use std::collections::BTreeSet;

use ibvswitch_subnet_manager::{Config, Partitions};
use testing::Random;
use wire::attribute::{NodeInfo, Notice, PortInfo, Trap};
use wire::mad::{AttributeId, Mad, Method, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{
    self, InformInfo, JoinState, LinkRecord, McMemberRecord, NodeRecord, PathRecord,
    PortInfoRecord, Rate, Selector, ServiceRecord, id,
};
use wire::{Gid, Guid, Lid, MadPacket, Mtu, PKey, QKey, Sl};

use crate::guests::{BROADCAST, Bed};

const ENDS: u64 = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
const JOIN: u64 = McMemberRecord::MGID
    | McMemberRecord::PORT_GID
    | McMemberRecord::PKEY
    | McMemberRecord::JOIN_STATE;
const CREATE: u64 = JOIN
    | McMemberRecord::QKEY
    | McMemberRecord::TRAFFIC_CLASS
    | McMemberRecord::FLOW_LABEL
    | McMemberRecord::SL;

#[test]
fn a_path_between_two_guests() {
    let mut bed = Bed::new(2, Config::default());
    let path = bed.get(0, ENDS, &bed.path(0, 3)).unwrap();
    assert_eq!((path.slid, path.dlid), (bed.lid(0), bed.lid(3)));
    assert_eq!(path.pkey, PKey::DEFAULT_FULL);
    assert_eq!((path.mtu_selector, path.mtu), (2, Mtu::B4096.code()));
    let info = bed.info(0);
    let rate = Rate::of_link(
        info.active_width().unwrap(),
        info.active_speed().unwrap(),
        info.active_speed_ext().unwrap(),
    );
    assert_eq!((path.rate_selector, path.rate), (2, rate.0));
    assert_eq!(path.packet_life_time, 18);
    assert!(path.reversible && !path.cacheable);
    assert_eq!(path.hop_limit, 0);

    // By LIDs alone, and with what the kernel's CM gives.
    let by_lid = PathRecord {
        slid: bed.lid(0),
        dlid: bed.lid(3),
        ..PathRecord::default()
    };
    let mask = PathRecord::SLID | PathRecord::DLID;
    assert_eq!(bed.get(0, mask, &by_lid).unwrap(), path);

    let unknown = PathRecord {
        dgid: Gid::new(Gid::DEFAULT_PREFIX, Guid::new(0x1234)),
        ..bed.path(0, 3)
    };
    assert_eq!(bed.get(0, ENDS, &unknown), Err(Status::SA_INVALID_GID));
    let other = PathRecord {
        pkey: PKey::new(0x8001),
        ..bed.path(0, 3)
    };
    let mask = ENDS | PathRecord::PKEY;
    assert_eq!(bed.get(0, mask, &other), Err(Status::SA_NO_RECORDS));
    let small = PathRecord {
        mtu_selector: Selector::Less.code(),
        mtu: Mtu::B2048.code(),
        ..bed.path(0, 3)
    };
    let mask = ENDS | PathRecord::MTU_SELECTOR | PathRecord::MTU;
    assert_eq!(bed.get(0, mask, &small).unwrap().mtu, Mtu::B1024.code());
    let mask = PathRecord::SGID;
    let many = bed.get(0, mask, &bed.path(0, 3));
    assert_eq!(many, Err(Status::SA_TOO_MANY_RECORDS));
}

/// As OpenSM with QoS: IPoIB's unicasts are on the level of its broadcasts.
#[test]
fn a_path_has_the_service_level_of_its_partition() {
    let text = "Default : ALL=full ; io=4, ipoib, sl=3 : ALL=full ;";
    let file = Partitions::parse(text, |_| None).unwrap();
    let config = Config {
        partition_file: Some(file),
        ..Config::default()
    };
    let mut bed = Bed::new(2, config);
    assert_eq!(bed.get(0, ENDS, &bed.path(0, 3)).unwrap().sl.value(), 0);
    let template = PathRecord {
        pkey: PKey::new(0x8004),
        sl: Sl::new(5),
        ..bed.path(0, 3)
    };
    let mask = ENDS | PathRecord::PKEY;
    assert_eq!(bed.get(0, mask, &template).unwrap().sl.value(), 3);
    let mask = mask | PathRecord::SL;
    assert_eq!(bed.get(0, mask, &template).unwrap().sl.value(), 5);
    let group = McMemberRecord {
        mgid: "ff12:401b:8004::ffff:ffff".parse().unwrap(),
        ..McMemberRecord::default()
    };
    let group = bed.get(0, McMemberRecord::MGID, &group).unwrap();
    assert_eq!(group.sl.value(), 3);
}

#[test]
fn the_flag_for_caches() {
    let config = Config {
        path_caching: true,
        ..Config::default()
    };
    let mut bed = Bed::new(1, config);
    let answer = bed.ask(0, sa::get(1, ENDS, &bed.path(0, 1)));
    // Bit 353 of the record.
    assert_eq!(answer[sa::DATA][353 / 8] >> (7 - 353 % 8) & 1, 1);
}

#[test]
fn partitions_keep_guests_apart() {
    let mut bed = Bed::new(2, Config::default());
    let guid = |bed: &Bed, port| bed.gid(port).guid();
    let tables = [
        vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED],
        vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED],
        vec![PKey::new(0x8002), PKey::DEFAULT_LIMITED],
        vec![PKey::new(0x0002), PKey::DEFAULT_LIMITED],
    ];
    for (port, table) in tables.into_iter().enumerate() {
        let guid = guid(&bed, port);
        bed.managed.manager.set_partitions(guid, table);
    }
    bed.managed.settle();
    bed.managed.link.station.others.clear();
    let pkey = |bed: &mut Bed, from, to| {
        let path = bed.path(from, to);
        bed.get(from, ENDS, &path).map(|path| path.pkey.value())
    };
    assert_eq!(pkey(&mut bed, 0, 1), Ok(0x8001));
    assert_eq!(pkey(&mut bed, 2, 3), Ok(0x8002));
    assert_eq!(pkey(&mut bed, 0, 2), Err(Status::SA_NO_RECORDS));
    assert_eq!(pkey(&mut bed, 3, 1), Err(Status::SA_NO_RECORDS));
    // A third one's path is none of its business.
    let path = bed.path(0, 1);
    assert_eq!(bed.get(2, ENDS, &path), Err(Status::SA_NO_RECORDS));

    // Nor are its nodes: a guest sees its partition's, the manager's and the switches'.
    let lids =
        |nodes: Vec<NodeRecord>| -> BTreeSet<Lid> { nodes.iter().map(|node| node.lid).collect() };
    let seen = lids(bed.table(0, 0, &NodeRecord::default(), 64));
    assert!(seen.contains(&bed.lid(0)) && seen.contains(&bed.lid(1)));
    assert!(!seen.contains(&bed.lid(2)) && !seen.contains(&bed.lid(3)));

    // Joining the other's broadcast group is denied, the own one is there.
    let mut join = bed.broadcast(0);
    join.mgid = Gid::from_bits(0xff12_401b_8002_0000_0000_0000_ffff_ffff);
    join.pkey = PKey::new(0x8002);
    assert_eq!(bed.set(0, JOIN, &join), Err(Status::SA_DENIED));
    let limited = McMemberRecord {
        port_gid: bed.gid(3),
        ..join
    };
    assert!(
        bed.set(3, JOIN, &limited).is_ok(),
        "limited members may join"
    );
    join.mgid = Gid::from_bits(0xff12_401b_8001_0000_0000_0000_ffff_ffff);
    join.pkey = PKey::new(0x8001);
    assert!(bed.set(0, JOIN, &join).is_ok());
    // What a guest can ask of groups are those of its partitions.
    let groups = bed.table(0, 0, &McMemberRecord::default(), 64);
    let pkeys: Vec<u16> = groups.iter().map(|group| group.pkey.value()).collect();
    assert_eq!(pkeys, [0x8001, 0xffff]);
    assert!(groups.iter().all(|group| group.port_gid == Gid::NONE));
}

#[test]
fn joining_leaving_and_what_reaches_whom() {
    let mut bed = Bed::new(3, Config::default());
    let join = bed.broadcast(0);
    let member = bed.set(0, JOIN, &join).unwrap();
    assert_eq!(member.mlid, Lid::MULTICAST_FIRST);
    assert_eq!((member.mtu, member.rate), (Mtu::B2048.code(), Rate::GB10.0));
    assert_eq!(member.qkey, QKey::new(0x0b1b));
    assert_eq!(member.join_state, JoinState::FULL);
    let mlid = member.mlid;
    for port in [2, 5] {
        let join = bed.broadcast(port);
        assert_eq!(bed.set(port, JOIN, &join).unwrap().mlid, mlid);
    }
    bed.pass(0);
    let ports = bed.ports.clone();
    assert_eq!(bed.reached(0, mlid), BTreeSet::from([ports[2], ports[5]]));
    assert_eq!(bed.reached(5, mlid), BTreeSet::from([ports[0], ports[2]]));

    // A member's leaving takes it from the tree, and nobody leaves for another one.
    let leave = bed.broadcast(2);
    assert_eq!(bed.delete(0, JOIN, &leave), Err(Status::SA_DENIED));
    assert!(bed.delete(2, JOIN, &leave).unwrap().join_state.is_none());
    bed.pass(0);
    assert_eq!(bed.reached(0, mlid), BTreeSet::from([ports[5]]));
    assert_eq!(bed.delete(2, JOIN, &leave), Err(Status::SA_REQUEST_INVALID));

    // A group of the guests' own making: a send-only member cannot begin it.
    let own = McMemberRecord {
        mgid: Gid::from_bits(0xff12_401b_ffff_0000_0000_0000_0000_0001),
        join_state: JoinState::SEND_ONLY,
        ..bed.broadcast(1)
    };
    assert_eq!(bed.set(1, CREATE, &own), Err(Status::SA_REQUEST_INVALID));
    assert_eq!(
        bed.set(1, JOIN, &own),
        Err(Status::SA_INSUFFICIENT_COMPONENTS)
    );
    let full = McMemberRecord {
        join_state: JoinState::FULL,
        ..own
    };
    let made = bed.set(1, CREATE, &full).unwrap();
    assert_eq!(made.mlid, Lid::new(0xc001));
    assert_eq!(made.mtu, Mtu::B4096.code());
    // A path to the group, as IPoIB and the CM ask for it.
    let path = PathRecord {
        dgid: made.mgid,
        ..bed.path(1, 1)
    };
    assert_eq!(bed.get(1, ENDS, &path).unwrap().dlid, made.mlid);
    // It ends with its last full member.
    assert!(bed.delete(1, JOIN, &full).is_ok());
    let query = bed.get(1, McMemberRecord::MGID, &full);
    assert_eq!(query, Err(Status::SA_NO_RECORDS));
    // Zero asks for a GID.
    let any = McMemberRecord {
        mgid: Gid::NONE,
        ..full
    };
    let given = bed.set(1, CREATE, &any).unwrap();
    assert_eq!(given.mgid.to_bits() >> 96, 0xff12_a01b);
    let other = McMemberRecord {
        mgid: Gid::from_bits(given.mgid.to_bits() + 1),
        ..full
    };
    assert_eq!(bed.set(1, CREATE, &other), Err(Status::SA_INVALID_GID));
    // Another queue key than the group's.
    let wrong = McMemberRecord {
        qkey: QKey::new(1),
        ..bed.broadcast(3)
    };
    let mask = JOIN | McMemberRecord::QKEY;
    assert_eq!(bed.set(3, mask, &wrong), Err(Status::SA_REQUEST_INVALID));
}

#[test]
fn groups_survive_a_sweep_and_members_that_vanish_leave() {
    let mut bed = Bed::new(2, Config::default());
    let mlid = Lid::MULTICAST_FIRST;
    for port in [0, 3] {
        let join = bed.broadcast(port);
        bed.set(port, JOIN, &join).unwrap();
    }
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    assert_eq!(bed.reached(0, mlid), BTreeSet::from([bed.ports[3]]));
    assert_eq!(bed.managed.manager.report().sets, 0);
    let gone = bed.ports[3];
    bed.managed.link.fabric.set_cable(gone, false);
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    bed.pass(0);
    bed.managed.link.fabric.set_cable(gone, true);
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    assert_eq!(bed.reached(0, mlid), BTreeSet::new());
}

#[test]
fn a_port_has_its_share_and_no_more() {
    let mut bed = Bed::new(1, Config::default());
    let mut statuses = Vec::new();
    for number in 0..300u128 {
        let group = McMemberRecord {
            mgid: Gid::from_bits((0xff12_401b << 96) + number + 1),
            ..bed.broadcast(0)
        };
        statuses.push(bed.set(0, CREATE, &group).err());
    }
    assert_eq!(
        statuses.iter().filter(|status| status.is_none()).count(),
        256
    );
    assert_eq!(statuses[299], Some(Status::SA_NO_RESOURCES));
    // Another port is not hurt.
    let join = bed.broadcast(1);
    assert!(bed.set(1, JOIN, &join).is_ok());
}

/// Four ports take every group that they can get; there are 1024.
#[test]
fn the_greedy_leave_groups_for_others() {
    let mut bed = Bed::new(3, Config::default());
    let group = |bed: &Bed, port: usize, number: u128| McMemberRecord {
        mgid: Gid::from_bits((0xff12_401b << 96) + ((port as u128 + 1) << 32) + number),
        ..bed.broadcast(port)
    };
    let mut taken = Vec::new();
    for port in 0..4 {
        let mut number = 0;
        loop {
            let wanted = group(&bed, port, number);
            match bed.set(port, CREATE, &wanted) {
                Ok(_) => number += 1,
                Err(status) => break assert_eq!(status, Status::SA_NO_RESOURCES),
            }
        }
        taken.push(number);
        let wanted = group(&bed, 4, port as u128);
        assert!(bed.set(4, CREATE, &wanted).is_ok(), "after {taken:?}");
    }
    assert!(taken.iter().all(|&number| number >= 64), "{taken:?}");
    // Nor are groups handed on to be had twice: who leaves one to another has it counted there.
    let shared = group(&bed, 0, 0);
    let of_other = McMemberRecord {
        port_gid: bed.gid(5),
        ..shared
    };
    assert!(bed.set(5, JOIN, &of_other).is_ok());
    assert!(bed.delete(0, JOIN, &shared).is_ok());
    let again = group(&bed, 0, 1 << 20);
    assert!(bed.set(0, CREATE, &again).is_ok());
    let more = group(&bed, 0, 1 << 21);
    assert_eq!(bed.set(0, CREATE, &more), Err(Status::SA_NO_RESOURCES));
    // Those whose ports go leave with them.
    for port in 0..4 {
        let gone = bed.ports[port];
        bed.managed.link.fabric.set_cable(gone, false);
    }
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    bed.managed.link.station.others.clear();
    let mine = (0..200).map(|number| group(&bed, 4, 1000 + number));
    for wanted in mine.collect::<Vec<_>>() {
        assert!(bed.set(4, CREATE, &wanted).is_ok());
    }
    assert!(bed.get(5, McMemberRecord::MGID, &shared).is_ok());
    let gone = bed.get(5, McMemberRecord::MGID, &again);
    assert_eq!(gone, Err(Status::SA_NO_RECORDS));
}

#[test]
fn tables_in_segments() {
    let mut bed = Bed::new(20, Config::default());
    for window in [1, 2, 64] {
        let nodes = bed.table(0, 0, &NodeRecord::default(), window);
        // Adapters, switches, and the manager's.
        assert_eq!(nodes.len(), 40 + 21 + 1);
    }
    let nodes = bed.table(0, 0, &NodeRecord::default(), 64);
    let own = nodes.iter().find(|node| node.lid == bed.lid(0)).unwrap();
    let info = NodeInfo::parse(&own.node_info).unwrap();
    assert_eq!(info.port_guid, bed.gid(0).guid());
    let ports = bed.table(0, 0, &PortInfoRecord::default(), 64);
    // Those of switches with port 0.
    let external: usize = nodes
        .iter()
        .map(|node| NodeInfo::parse(&node.node_info).unwrap())
        .map(|info| {
            if info.num_ports > 1 {
                usize::from(info.num_ports) + 1
            } else {
                1
            }
        })
        .sum();
    assert_eq!(ports.len(), external);
    let links = bed.table(0, 0, &LinkRecord::default(), 64);
    assert_eq!(links.len(), 2 * (40 + 20 + 1));
    assert!(links.iter().all(|link| links.contains(&LinkRecord {
        from_lid: link.to_lid,
        from_port: link.to_port,
        to_port: link.from_port,
        to_lid: link.from_lid,
    })));
    let one = PortInfoRecord {
        lid: bed.lid(3),
        ..PortInfoRecord::default()
    };
    let info = bed.get(0, PortInfoRecord::LID, &one).unwrap();
    assert_eq!(PortInfo::parse(&info.port_info).unwrap().lid, bed.lid(3));
    // All paths from here: one to every port with a LID.
    let template = bed.path(0, 0);
    let paths = bed.table(0, PathRecord::SGID, &template, 64);
    assert_eq!(paths.len(), 62);
    let none = LinkRecord {
        from_lid: Lid::new(4000),
        ..LinkRecord::default()
    };
    assert_eq!(bed.table(0, 1, &none, 64), []);
}

#[test]
fn segments_that_nobody_acknowledges() {
    let mut bed = Bed::new(20, Config::default());
    let request = sa::request(Method::GET_TABLE, id::NODE, 9, 0, &[]);
    bed.send(0, request);
    assert_eq!(bed.pass(0).len(), 1);
    let mut seen = Vec::new();
    for _ in 0..8 {
        bed.managed.now += std::time::Duration::from_secs(2);
        seen.extend(bed.pass(0));
    }
    let kinds: Vec<u8> = seen
        .iter()
        .map(|packet| Rmpp::of(&packet.mad).unwrap().kind)
        .collect();
    assert_eq!(kinds, [Rmpp::DATA, Rmpp::DATA, Rmpp::DATA, Rmpp::ABORT]);
    // Acknowledgements that make no sense end the transfer; those of no transfer get no answer.
    for (segment, window, status) in [
        (2, 10, Rmpp::SEGMENT_TOO_BIG),
        (1, 0, Rmpp::WINDOW_TOO_SMALL),
    ] {
        bed.send(0, request);
        bed.pass(0);
        bed.acknowledge(0, 9, segment, window);
        let answer = bed.pass(0).remove(0);
        let header = Rmpp::of(&answer.mad).unwrap();
        assert_eq!((header.kind, header.status), (Rmpp::ABORT, status));
        bed.acknowledge(0, 9, 1, 64);
        assert_eq!(bed.pass(0), []);
    }
    // One port cannot have any number of them.
    for transaction in 0..20 {
        bed.send(
            0,
            sa::request(Method::GET_TABLE, id::NODE, transaction, 0, &[]),
        );
    }
    let first = bed.pass(0);
    assert_eq!(first.len(), 20, "each is answered");
    bed.managed.now += std::time::Duration::from_secs(2);
    let repeated: BTreeSet<u64> = bed
        .pass(0)
        .iter()
        .map(|packet| packet.header().transaction())
        .collect();
    assert_eq!(repeated, (12..20).collect(), "those before made room");
}

#[test]
fn what_is_no_sound_request() {
    let mut bed = Bed::new(1, Config::default());
    let status = |bed: &mut Bed, mad| {
        let answer = bed.ask(0, mad);
        Mad::new_checked(&answer[..]).unwrap().status()
    };
    let good = sa::get(1, ENDS, &bed.path(0, 1));
    assert_eq!(status(&mut bed, good), Status::OK);
    let mut old = good;
    old[2] = 1;
    assert_eq!(status(&mut bed, old), Status::BAD_VERSION);
    let mut method = good;
    method[3] = 0x7f;
    assert_eq!(status(&mut bed, method), Status::UNSUPPORTED_METHOD);
    let attribute = sa::request(Method::GET, AttributeId(0x7777), 1, 0, &[]);
    assert_eq!(status(&mut bed, attribute), Status::UNSUPPORTED_ATTRIBUTE);
    let set = sa::request(Method::SET, id::NODE, 1, 0, &[]);
    assert_eq!(status(&mut bed, set), Status::UNSUPPORTED_ATTRIBUTE);
    // Responses are not answered.
    let mut response = good;
    response[3] = 0x81;
    bed.send(0, response);
    assert_eq!(bed.pass(0), []);
    // The partitions of others are for the manager's friends.
    let keys = sa::request(Method::GET_TABLE, id::P_KEY_TABLE, 1, 0, &[]);
    assert_eq!(status(&mut bed, keys), Status::SA_DENIED);
    let info = sa::request(Method::GET, AttributeId::CLASS_PORT_INFO, 1, 0, &[]);
    let answer = bed.ask(0, info);
    assert_eq!(answer[sa::DATA][..2], [1, 2]);
}

#[test]
fn services_live_as_long_as_they_say() {
    let mut bed = Bed::new(1, Config::default());
    let service = ServiceRecord {
        service_id: 0x1000_0000_0000_0001,
        service_gid: bed.gid(0),
        service_pkey: PKey::DEFAULT_FULL,
        lease: 60,
        service_key: 0xabc,
        name: [b'x'; 64],
        data: [0; 64],
    };
    let mask = ServiceRecord::SERVICE_ID
        | ServiceRecord::SERVICE_GID
        | ServiceRecord::SERVICE_PKEY
        | ServiceRecord::LEASE
        | ServiceRecord::SERVICE_KEY
        | ServiceRecord::NAME;
    assert_eq!(
        bed.set(1, mask, &service),
        Err(Status::SA_DENIED),
        "not its GID"
    );
    assert!(bed.set(0, mask, &service).is_ok());
    let by_name = ServiceRecord::NAME;
    let found = bed.get(1, by_name, &service).unwrap();
    assert_eq!(found.service_gid, bed.gid(0));
    assert_eq!(found.service_key, 0, "the key is not for others");
    bed.managed.now += std::time::Duration::from_secs(59);
    assert_eq!(bed.get(1, by_name, &service).unwrap().lease, 1);
    bed.managed.now += std::time::Duration::from_secs(1);
    bed.pass(0);
    assert_eq!(bed.get(1, by_name, &service), Err(Status::SA_NO_RECORDS));
    assert!(bed.set(0, mask, &service).is_ok());
    assert!(bed.delete(0, mask, &service).is_ok());
    assert_eq!(bed.delete(0, mask, &service), Err(Status::SA_NO_RECORDS));
}

#[test]
fn subscribers_hear_of_groups_and_ports() {
    let mut bed = Bed::new(2, Config::default());
    let subscription = InformInfo {
        lid_range_begin: Lid::new(InformInfo::ANY),
        is_generic: 1,
        subscribe: 1,
        notice_type: InformInfo::ANY,
        trap_number: InformInfo::ANY,
        producer_type: InformInfo::ANY_PRODUCER,
        ..InformInfo::default()
    };
    let set = sa::request(
        Method::SET,
        AttributeId::INFORM_INFO,
        3,
        0,
        &subscription.to_bytes(),
    );
    let answer = bed.ask(1, set);
    assert_eq!(Mad::new_checked(&answer[..]).unwrap().status(), Status::OK);

    let group = McMemberRecord {
        mgid: Gid::from_bits(0xff12_401b_ffff_0000_0000_0000_0000_0001),
        ..bed.broadcast(0)
    };
    bed.set(0, CREATE, &group).unwrap();
    let trap = |packet: &MadPacket| {
        assert_eq!(packet.header().method(), Method::REPORT);
        assert_eq!(packet.header().attribute(), AttributeId::NOTICE);
        Trap::parse(packet.mad[sa::DATA].first_chunk().unwrap())
            .unwrap()
            .unwrap()
    };
    let reports = bed.pass(1);
    assert_eq!(reports.len(), 1);
    assert_eq!(trap(&reports[0]).number(), Notice::GROUP_CREATED);
    // Not acknowledged: it comes again, not for ever.
    let mut again = 0;
    for _ in 0..6 {
        bed.managed.now += std::time::Duration::from_secs(1);
        again += bed.pass(1).len();
    }
    assert_eq!(again, 2);

    let gone = bed.ports[3];
    let gid = bed.gid(3);
    bed.managed.link.fabric.set_cable(gone, false);
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    let reports = bed.pass(1);
    let numbers: Vec<Trap> = reports.iter().map(trap).collect();
    let Some(Trap::GidOutOfService(change)) = numbers
        .iter()
        .find(|trap| trap.number() == Notice::GID_OUT_OF_SERVICE)
    else {
        panic!("{numbers:?}");
    };
    assert_eq!(change.gid, gid);
    // Acknowledged ones do not come again.
    for report in reports {
        let mut mad = report.mad;
        mad[3] = Method::REPORT_RESPONSE.0;
        bed.send(1, mad);
    }
    bed.pass(1);
    bed.managed.now += std::time::Duration::from_secs(1);
    assert_eq!(bed.pass(1), []);
    // And then it has heard enough.
    let end = InformInfo {
        subscribe: 0,
        qpn: wire::Qpn::QP1,
        ..subscription
    };
    let set = sa::request(Method::SET, AttributeId::INFORM_INFO, 4, 0, &end.to_bytes());
    bed.ask(1, set);
    assert!(bed.delete(0, JOIN, &group).is_ok());
    assert_eq!(bed.pass(1), []);
}

/// Requests of every kind with anything in them, most of it nearly right: nobody else notices.
#[test]
fn a_flood_of_nonsense_from_one_guest() {
    let seed = testing::seed(0x5eed_0001);
    let mut random = Random::new(seed);
    let mut bed = Bed::new(3, Config::default());
    for port in [1, 5] {
        let join = bed.broadcast(port);
        bed.set(port, JOIN, &join).unwrap();
    }
    let mlid = Lid::MULTICAST_FIRST;
    let attributes = [
        0x01, 0x02, 0x03, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33, 0x35,
        0x36, 0x38, 0x39, 0x3a, 0xf3,
    ];
    let methods = [0x01, 0x02, 0x12, 0x15, 0x14, 0x13, 0x06, 0x86, 0x81, 0x92];
    for round in 0..20_000u64 {
        let (kind, pick) = (random.number(), random.number() as usize);
        let mut template = [0u8; sa::DATA_SIZE];
        for chunk in template.chunks_mut(8) {
            if random.number().is_multiple_of(4) {
                chunk.copy_from_slice(&random.number().to_be_bytes());
            }
        }
        // GIDs that there are, where the records have theirs.
        let gid = bed.gid(pick % 6).to_bytes();
        if kind & 1 == 0 {
            template[8..24].copy_from_slice(&gid);
        }
        if kind & 2 == 0 {
            template[16..32].copy_from_slice(&gid);
            template[..16].copy_from_slice(&BROADCAST.to_be_bytes());
            template[15] = (pick >> 8) as u8;
        }
        let mask = match kind >> 2 & 3 {
            0 => u64::MAX,
            1 => random.number(),
            2 => random.number() & random.number(),
            _ => 0,
        };
        let attribute = AttributeId(attributes[pick % attributes.len()]);
        let method = Method(methods[(pick >> 16) % methods.len()]);
        let mut mad = sa::request(method, attribute, random.number() % 64, mask, &template);
        if kind >> 4 & 7 == 0 {
            mad[2] = (kind >> 32) as u8;
        }
        if kind >> 8 & 7 == 0 {
            // Anything in the header of the reliable protocol.
            mad[rmpp::HEADER][..8].copy_from_slice(&random.number().to_be_bytes());
            mad[rmpp::HEADER][8..].copy_from_slice(&(kind as u32).to_be_bytes());
        }
        bed.send(0, mad);
        bed.managed.now += std::time::Duration::from_millis(kind % 50);
        if round % 64 == 0 {
            let answers = bed.pass(0);
            assert!(
                answers.len() < 64 * 70,
                "seed {seed}: {} answers",
                answers.len()
            );
            // A third one has its path, and its group is as it was.
            let path = bed.path(3, 5);
            assert!(
                bed.get(3, ENDS, &path).is_ok(),
                "seed {seed}, round {round}"
            );
            bed.pass(3);
            let reached = bed.reached(1, mlid);
            let ports = &bed.ports;
            assert!(reached.contains(&ports[5]), "seed {seed}, round {round}");
            let only = [ports[0], ports[5]];
            assert!(
                reached.iter().all(|port| only.contains(port)),
                "seed {seed}"
            );
        }
    }
}
