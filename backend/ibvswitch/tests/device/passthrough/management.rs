//! Management packets that queue pair 1 of a VF that is passed through sends: the rules of the configuration hold as for
//! VFs of software.

use crate::daemon::passthrough::{dword, passed};
use crate::daemon::{Daemon, HALF, Peer};
use test_driver::{AddressVector, Data, QueuePair, SendRequest, Transport};
use testing::{Configuration, Toml};

/// Q_Key of all queue pairs 1 (IBA 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;
const GRH: usize = 40;
const MAD: usize = 256;
/// Classes: subnet administration, performance, communication.
const SUBN_ADM: u8 = 0x03;
const PERF: u8 = 0x04;
const COMMUNICATION: u8 = 0x07;
const GET: u8 = 0x01;
const SEND: u8 = 0x03;
const RESPONSE: u8 = 0x80;
const CLASS_PORT_INFO: u16 = 0x0001;
const CONNECT_REQUEST: u16 = 0x0010;
const DISCONNECT_REQUEST: u16 = 0x0015;

/// Returns the configuration of the daemon behind, where all classes may pass, with doorbells of this kind.
fn inner(doorbells: &str) -> Configuration {
    let engine = Configuration::new().set("engine.doorbells", doorbells);
    let vfs = [("hv1", "vm1"), ("hv2", "vm2")].into_iter();
    vfs.fold(engine, |it, (hypervisor, vf)| {
        it.hypervisor(hypervisor, [vf])
            .key("gmp", Toml("{ deny = [] }"))
            .key("mad_rate", 0)
    })
}

fn mad(class: u8, method: u8, attribute: u16, transaction: u64) -> [u8; MAD] {
    let mut mad = [0; MAD];
    let version = if class == PERF { 1 } else { 2 };
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

/// A request for a connection that says that it is from this port: its LID and GID are where table 106 of the
/// specification has them.
fn connect(lid: u16, gid: [u8; 16], pkey: u16) -> [u8; MAD] {
    let mut mad = mad(COMMUNICATION, SEND, CONNECT_REQUEST, 1);
    mad[24 + 48..24 + 50].copy_from_slice(&pkey.to_be_bytes());
    mad[24 + 52..24 + 54].copy_from_slice(&lid.to_be_bytes());
    mad[24 + 56..24 + 72].copy_from_slice(&gid);
    mad
}

/// A queue pair 1 that waits for packets.
fn gsi(peer: &Peer) -> QueuePair {
    let mut qp = peer.qp(Transport::Gsi);
    for slot in 0..4 {
        let room = [peer.sge(HALF + slot * 512, GRH + MAD)];
        qp.post_receive(&room).expect("is posted");
    }
    qp.activate(0, GSI_QKEY).expect("becomes ready");
    // The daemon has looked at the queue before the command.
    assert_eq!(dword(&qp.query().expect("is told"), 0xbc) as u16, 4);
    qp
}

#[track_caller]
fn send(from: &mut Peer, qp: &mut QueuePair, lid: u16, mad: &[u8; MAD]) {
    let to = AddressVector {
        lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    from.execute(qp, &SendRequest::send(Data::Inline(mad)).to(&to));
}

/// The next packet that arrives.
#[track_caller]
fn next(peer: &mut Peer, qp: &mut QueuePair) -> [u8; MAD] {
    let entry = peer.cq.wait().expect("a completion");
    let place = HALF + usize::from(entry.wqe_counter()) * 512;
    qp.complete_receive(&entry);
    assert_eq!(entry.source_qpn(), 1);
    let mut found = [0; MAD];
    peer.buffer.read(place + GRH, &mut found);
    found
}

/// Returns the counts of a VF's management packets: passed, and refused by reason.
fn mads(outer: &Daemon, name: &str) -> (u64, Vec<(String, u64)>) {
    let told = crate::daemon::named(&outer.ask(&["status"])["passthrough"], name);
    let refused = told["mads"]["refused"].as_object().expect("a table");
    let refused = refused
        .iter()
        .map(|(reason, count)| (reason.clone(), count.as_u64().expect("a number")));
    let passed = told["mads"]["passed"].as_u64().expect("a number");
    (passed, refused.collect())
}

#[test]
fn classes_and_contents_are_the_guests_to_send() {
    for doorbells in ["poll", "trap"] {
        let vfs = [("vm1", ""), ("vm2", "isolation = 'sriov'")];
        let (inner, outer, [mut vm1, mut vm2]) =
            passed(inner(doorbells), Configuration::new(), vfs);
        let (mut one, mut two) = (gsi(&vm1), gsi(&vm2));
        let (here, there) = (vm1.port.lid, vm2.port.lid);
        // To the subnet administration, which answers.
        let told = crate::daemon::named(&outer.ask(&["status"])["passthrough"], "vm1");
        let manager = told["sm_lid"].as_u64().expect("there is one") as u16;
        send(
            &mut vm1,
            &mut one,
            manager,
            &mad(SUBN_ADM, GET, CLASS_PORT_INFO, 7),
        );
        let answer = next(&mut vm1, &mut one);
        assert_eq!(answer[..4], [1, SUBN_ADM, 2, GET | RESPONSE]);
        assert_eq!(answer[8..16], 7_u64.to_be_bytes());
        // Of a class that guests do not send to others, and to its own port, whose driver has the agent.
        send(
            &mut vm1,
            &mut one,
            there,
            &mad(PERF, GET, CLASS_PORT_INFO, 8),
        );
        send(
            &mut vm1,
            &mut one,
            here,
            &mad(PERF, GET, CLASS_PORT_INFO, 9),
        );
        let question = next(&mut vm1, &mut one);
        assert_eq!(question[..4], [1, PERF, 1, GET]);
        assert_eq!(question[8..16], 9_u64.to_be_bytes());
        // Requests for connections, of which one is from here.
        let gid = vm1.gid();
        for (lid, gid, pkey) in [
            (there, gid, 0xffff),
            (here, vm2.gid(), 0xffff),
            (here, gid, 0x8123),
        ] {
            send(&mut vm1, &mut one, there, &connect(lid, gid, pkey));
        }
        let right = connect(here, gid, 0xffff);
        send(&mut vm1, &mut one, there, &right);
        assert_eq!(next(&mut vm2, &mut two), right);
        // And back.
        let back = mad(COMMUNICATION, SEND, DISCONNECT_REQUEST, 11);
        send(&mut vm2, &mut two, here, &back);
        assert_eq!(next(&mut vm1, &mut one), back);
        let refused = [("address", 2), ("class", 1), ("partition", 1)];
        let refused = refused.map(|(reason, count)| (reason.to_owned(), count));
        assert_eq!(mads(&outer, "vm1"), (3, refused.to_vec()), "{doorbells}");
        assert_eq!(mads(&outer, "vm2"), (1, Vec::new()));
        // The VF behind has sent nothing else.
        let behind = crate::daemon::named(&inner.ask(&["status"])["vfs"], "vm1");
        assert_eq!(behind["mads"]["passed"], 3);
        assert_eq!(behind["mads"]["refused"], serde_json::json!({}));
        let told = outer.run(&["vf", "show", "vm1"], "").out;
        for line in [
            "    Management packets: 3 passed, 4 refused (address 2, class 1, partition 1)\n",
            &format!(" s: PerfGet(ClassPortInfo) to LID {there}: class\n"),
            "    Datagrams: 3 passed; 4 lost as management packets\n",
        ] {
            assert!(told.contains(line), "{line}{told}");
        }
        let metrics = outer.run(&["metrics"], "").out;
        for line in [
            "ibvswitch_vf_mads_refused_total{kind=\"address\",vf=\"vm1\"} 2",
            "ibvswitch_vf_datagrams_total{fate=\"management\",vf=\"vm1\"} 4",
            "ibvswitch_vf_commands_total{command=\"DESTROY_PSV\",fate=\"refused\",vf=\"vm1\"} 0",
        ] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }
    }
}

#[test]
fn rates_are_those_of_the_configuration() {
    let limited = "gmp = { allow = ['perf'] }\nmad_rate = 1\nmad_burst = 3";
    let vfs = [("vm1", limited), ("vm2", "")];
    let (_inner, outer, [mut vm1, vm2]) = passed(inner("poll"), Configuration::new(), vfs);
    let mut one = gsi(&vm1);
    let there = vm2.port.lid;
    // Three at once, and no class but this one.
    for transaction in 0..3 {
        let get = mad(PERF, GET, CLASS_PORT_INFO, transaction);
        send(&mut vm1, &mut one, there, &get);
        assert_eq!(next(&mut vm1, &mut one)[8..16], transaction.to_be_bytes());
    }
    for transaction in 3..50 {
        let call = mad(COMMUNICATION, SEND, DISCONNECT_REQUEST, transaction);
        send(&mut vm1, &mut one, there, &call);
    }
    let (passed, refused) = mads(&outer, "vm1");
    assert_eq!(passed, 3);
    let of = |wanted: &str| {
        let found = refused.iter().find(|(reason, _)| reason == wanted);
        found.map_or(0, |(_, count)| *count)
    };
    // How many a second lets pass, the machine decides.
    assert_eq!(of("rate") + of("class"), 47, "{refused:?}");
    assert!(of("rate") > 0);
}

/// Nothing but queue pair 1 can speak to queue pairs 1: others do not get its key.
#[test]
fn other_queue_pairs_reach_no_queue_pair_1() {
    let vfs = [("vm1", "isolation = 'sriov'"), ("vm2", "")];
    let (_inner, outer, [mut vm1, mut vm2]) = passed(inner("poll"), Configuration::new(), vfs);
    let mut two = gsi(&vm2);
    // A request that says the key has the queue pair's own, and whoever wants that one has another.
    let lid = vm2.port.lid;
    let forged = connect(lid, vm2.gid(), 0xffff);
    for (key, gets) in [(GSI_QKEY, 0x8000_0000), (0x1122_3344, 0x1122_3344)] {
        let mut qp = vm1.qp(Transport::Ud);
        qp.activate(0, key).expect("is active");
        assert_eq!(dword(&qp.query().expect("is told"), 0xa8), gets);
        send(&mut vm1, &mut qp, lid, &forged);
    }
    // What is sent afterwards arrives first.
    let mut one = gsi(&vm1);
    let call = mad(COMMUNICATION, SEND, DISCONNECT_REQUEST, 5);
    send(&mut vm1, &mut one, lid, &call);
    assert_eq!(next(&mut vm2, &mut two), call);
    assert_eq!(mads(&outer, "vm1"), (1, Vec::new()));
}
