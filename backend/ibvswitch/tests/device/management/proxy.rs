//! Rights of a guest's management packets, and the counts of refused ones.

use crate::daemon::{Daemon, HALF, Peer};
use test_driver::{AddressVector, Data, QueuePair, SendRequest, Transport};
use testing::Configuration;

const GRH: usize = 40;
const MAD: usize = 256;
const PERMISSIVE: u16 = 0xffff;
const NODE_INFO: u16 = 0x0011;
const PORT_INFO: u16 = 0x0015;
const GET: u8 = 1;
const SET: u8 = 2;

/// Three guests on two hypervisors, each with other rights.
fn rights() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("manages")
        .key("smp", "fabric")
        .vf("looks")
        .hypervisor("hv2", [])
        .vf("nothing")
        .key("smp", "deny")
}

/// A subnet management packet with a directed route out of these ports
/// (IBA 14.2.1.2), as a driver hands it to its adapter.
fn directed(method: u8, attribute: u16, modifier: u32, route: &[u8]) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 0x81, 1, method]);
    mad[7] = route.len() as u8;
    mad[8..16].copy_from_slice(&0x1234_u64.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[32..36].fill(0xff);
    mad[129..129 + route.len()].copy_from_slice(route);
    mad
}

fn smi(peer: &Peer) -> QueuePair {
    let qp = peer.qp(Transport::Smi);
    qp.activate(0, 0).expect("becomes ready");
    qp
}

fn post(qp: &mut QueuePair, lid: u16, mad: &[u8; MAD]) {
    let to = AddressVector {
        lid,
        ..AddressVector::default()
    };
    qp.post_send(&SendRequest::send(Data::Inline(mad)).to(&to))
        .expect("is posted");
}

/// The next datagram that arrives at `qp`; completions of sends pass.
fn receive(peer: &mut Peer, qp: &mut QueuePair) -> [u8; MAD] {
    loop {
        let entry = peer.cq.wait().expect("a completion");
        assert!(entry.is_ok(), "{:?}", entry.syndrome());
        if entry.kind() == test_driver::CqeKind::Requester {
            qp.complete(&entry);
            continue;
        }
        qp.complete_receive(&entry);
        let mut found = [0; MAD];
        peer.buffer.read(HALF + GRH, &mut found);
        return found;
    }
}

#[test]
fn a_guest_reads_its_own_port_as_far_as_it_may() {
    let daemon = Daemon::configured(rights());
    let status = |name, mad: &[u8; MAD]| {
        let answer = daemon.open(name).mad_ifc(mad).expect("is answered");
        assert_eq!(answer[3], 0x81, "GetResp");
        u16::from_be_bytes([answer[4], answer[5]]) & 0x7fff
    };
    const UNSUPPORTED: u16 = 3 << 2;
    let get = directed(GET, NODE_INFO, 0, &[]);
    assert_eq!(status("manages", &get), 0);
    assert_eq!(status("looks", &get), 0);
    assert_eq!(status("nothing", &get), UNSUPPORTED);
    let set = directed(SET, PORT_INFO, 1, &[]);
    assert_eq!(status("looks", &set), UNSUPPORTED);
    assert_eq!(status("nothing", &set), UNSUPPORTED);
}

/// The way to the vSwitch, one hop, that only the right `fabric` opens. The
/// answer to a question that may be asked, sent after it, proves that the
/// first one has none.
#[test]
fn a_guest_reaches_its_neighbour_only_where_it_may() {
    let daemon = Daemon::configured(rights());
    let neighbour = directed(GET, NODE_INFO, 0, &[1]);
    let own = directed(GET, NODE_INFO, 0, &[]);
    for (name, expected) in [("manages", 2), ("looks", 1)] {
        let mut peer = Peer::open(&daemon, name);
        let mut qp = smi(&peer);
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
        post(&mut qp, PERMISSIVE, &neighbour);
        if expected == 1 {
            post(&mut qp, PERMISSIVE, &own);
        }
        let found = receive(&mut peer, &mut qp);
        assert_eq!(found[3], 0x81);
        // NodeType is the third byte: a switch's 2, a channel adapter's 1.
        assert_eq!(found[64 + 2], expected, "{name}");
    }
}

/// Returns the number of a guest's packets that were refused for this reason.
fn refused(daemon: &Daemon, name: &str, reason: &str) -> u64 {
    let vf = daemon.ask(&["vf", "show", name]);
    vf["mads"]["refused"][reason].as_u64().unwrap_or(0)
}

/// Returns a packet for each thing that a hostile guest would try to learn or change.
fn attacks() -> Vec<[u8; MAD]> {
    const SWITCH_INFO: u16 = 0x0012;
    const PKEY_TABLE: u16 = 0x0016;
    const LINEAR_FORWARDING: u16 = 0x0019;
    const SM_INFO: u16 = 0x0020;
    let mut packets = Vec::new();
    // The vSwitch, the switch behind it, and everything at that one.
    let routes: [&[u8]; 6] = [&[1], &[1, 1], &[1, 1, 1], &[1, 1, 2], &[1, 1, 3], &[1, 3]];
    for route in routes {
        for attribute in [NODE_INFO, SWITCH_INFO, PORT_INFO, PKEY_TABLE, SM_INFO] {
            packets.push(directed(GET, attribute, 0, route));
        }
        for (attribute, modifier) in [(PORT_INFO, 1), (PKEY_TABLE, 0), (LINEAR_FORWARDING, 0)] {
            for key in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
                let mut set = directed(SET, attribute, modifier, route);
                set[24..32].copy_from_slice(&u64::to_be_bytes(key));
                // Every LID to nowhere; a P_Key of everybody.
                set[64..128].fill(0xff);
                packets.push(set);
            }
        }
    }
    packets
}

#[test]
fn a_hostile_guest_learns_nothing_and_changes_nothing() {
    let daemon = Daemon::configured(rights());
    let bystanders = ["topology", "status"];
    let mut peer = Peer::open(&daemon, "looks");
    let before = bystanders.map(|command| daemon.ask(&[command]));
    let mut qp = smi(&peer);
    let attacks = attacks();
    let own = directed(GET, NODE_INFO, 0, &[]);
    for packet in &attacks {
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
        post(&mut qp, PERMISSIVE, packet);
        assert!(peer.sent(&mut qp).is_ok());
        // By LID as well, to each port that there could be.
        let mut by_lid = *packet;
        by_lid[1] = 0x01;
        by_lid[6..8].fill(0);
        for lid in 1..=6 {
            if lid != peer.port.lid {
                post(&mut qp, lid, &by_lid);
                assert!(peer.sent(&mut qp).is_ok());
            }
        }
        // An answer to what may be asked, and none before it.
        post(&mut qp, PERMISSIVE, &own);
        let found = receive(&mut peer, &mut qp);
        assert_eq!(found[64 + 2], 1, "{packet:x?}");
    }
    assert_eq!(
        refused(&daemon, "looks", "smp"),
        attacks.len() as u64 * 6,
        "each by its route and to five LIDs"
    );
    let after = bystanders.map(|command| daemon.ask(&[command]));
    assert_eq!(before[0], after[0]);
    for vf in 0..3 {
        for part in ["lid", "state", "pkeys", "sm_lid"] {
            assert_eq!(before[1]["vfs"][vf][part], after[1]["vfs"][vf][part]);
        }
    }
}

/// The same without the proxy's protection: the vSwitch obeys.
#[test]
fn a_guest_that_may_manage_changes_the_subnet() {
    const LINEAR_FORWARDING: u16 = 0x0019;
    let daemon = Daemon::configured(rights());
    let mut peer = Peer::open(&daemon, "manages");
    let mut qp = smi(&peer);
    let mut set = directed(SET, LINEAR_FORWARDING, 0, &[1]);
    set[64..128].fill(0xff);
    for packet in [set, directed(GET, LINEAR_FORWARDING, 0, &[1])] {
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
        post(&mut qp, PERMISSIVE, &packet);
        let found = receive(&mut peer, &mut qp);
        assert_eq!((found[3], found[5]), (0x81, 0), "GetResp, no error");
        assert_eq!(found[64..128], [0xff; 64]);
    }
    assert_eq!(refused(&daemon, "manages", "smp"), 0);
}

/// One guest sends as fast as it can; another asks its own port meanwhile, and
/// gets each answer.
#[test]
fn a_flood_is_the_senders_loss_alone() {
    let daemon = Daemon::configured(rights());
    let mut victim = Peer::open(&daemon, "manages");
    let mut victims = smi(&victim);
    let mut flooder = Peer::open(&daemon, "looks");
    let mut qp = flooder.qp(Transport::Gsi);
    qp.activate(0, 0x8001_0000).expect("becomes ready");
    let mut call = [0; MAD];
    call[..4].copy_from_slice(&[1, 7, 2, 3]);
    call[17] = 0x13;
    let to = AddressVector {
        lid: victim.port.lid,
        qpn: 1,
        qkey: 0x8001_0000,
        ..AddressVector::default()
    };
    for round in 0..50 {
        for _ in 0..100 {
            qp.post_send(&SendRequest::send(Data::Inline(&call)).to(&to))
                .expect("is posted");
            assert!(flooder.sent(&mut qp).is_ok());
        }
        victims
            .post_receive(&[victim.sge(HALF, GRH + MAD)])
            .unwrap();
        let route: &[u8] = if round % 2 == 0 { &[1] } else { &[1, 1] };
        post(
            &mut victims,
            PERMISSIVE,
            &directed(GET, NODE_INFO, 0, route),
        );
        let found = receive(&mut victim, &mut victims);
        assert_eq!((found[3], found[64 + 2]), (0x81, 2));
    }
    let vf = daemon.ask(&["vf", "show", "looks"]);
    let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let refused = &vf["mads"]["refused"];
    let all = count(&vf["mads"]["passed"]) + count(&refused["rate"]) + count(&refused["queue"]);
    assert_eq!(all, 5000, "{vf}");
    assert!(vf["mads"]["last_refused"].as_array().unwrap().len() <= 16);
}

/// A guest whose packets do reach the fabric, against ports with keys of their own: the same
/// attacks, with keys that it guesses, are answered by nobody.
#[test]
fn keys_protect_where_packets_do_pass() {
    for (keys, answers) in [("none", true), ("per-node", false)] {
        let daemon = Daemon::configured(rights().set("sm.m_key", keys));
        let mut peer = Peer::open(&daemon, "manages");
        let mut qp = smi(&peer);
        // What comes after an attack, and is answered: a question to the own port's performance
        // agent, which has no key.
        let mut general = peer.qp(Transport::Gsi);
        general.activate(0, 0x8001_0000).expect("becomes ready");
        let mut own = [0; MAD];
        own[..4].copy_from_slice(&[1, 4, 1, 1]);
        own[17] = 0x01;
        let to = AddressVector {
            lid: peer.port.lid,
            qpn: 1,
            qkey: 0x8001_0000,
            ..AddressVector::default()
        };
        for key in [0, 1, 0x1234_5678_9abc_def0] {
            for (method, attribute) in [(GET, PORT_INFO), (GET, NODE_INFO), (SET, 0x19)] {
                let mut attack = directed(method, attribute, 0, &[1, 1]);
                attack[24..32].copy_from_slice(&u64::to_be_bytes(key));
                if method == SET {
                    attack[64..128].fill(0xff);
                }
                qp.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
                post(&mut qp, PERMISSIVE, &attack);
                if answers {
                    assert_eq!(receive(&mut peer, &mut qp)[3], 0x81, "{key:#x}");
                    continue;
                }
                assert!(peer.sent(&mut qp).is_ok());
                let request = SendRequest::send(Data::Inline(&own)).to(&to);
                general
                    .post_receive(&[peer.sge(HALF + 512, GRH + MAD)])
                    .unwrap();
                general.post_send(&request).expect("is posted");
                // The question, which loops back, and its send; nothing else before them.
                for _ in 0..2 {
                    let entry = peer.cq.wait().expect("a completion");
                    assert_eq!(entry.qpn(), general.number(), "{key:#x}: an answer");
                    if entry.kind() == test_driver::CqeKind::Requester {
                        general.complete(&entry);
                    } else {
                        general.complete_receive(&entry);
                    }
                }
            }
        }
    }
}
