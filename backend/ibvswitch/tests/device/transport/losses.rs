//! Links that lose packets lose data.

use crate::administration::{Vm, group};
use crate::daemon::{Daemon, HALF, connected, peers};
use test_driver::{
    Access, AddressVector, Connection, CqeKind, Data, QueuePair, SendRequest, Syndrome, Transport,
};

const GRH: usize = 40;
/// Q_Key of the groups here.
const QKEY: u32 = 0x1122_3344;
const MULTICAST_QPN: u32 = 0xff_ffff;

fn drop_at(daemon: &Daemon, port: &str, percent: &str) {
    daemon.ask(&["link", "drop", port, percent]);
}

/// Returns the number of times that connections of a VF have repeated something.
fn retries(daemon: &Daemon, name: &str, counter: &str) -> u64 {
    let vf = daemon.ask(&["vf", "show", name]);
    let count = &vf["counters"]["retries"][counter];
    count.as_u64().expect("a number")
}

/// Datagrams for good, while connections try again.
#[test]
fn links_lose_data() {
    const COUNT: usize = 63;
    let daemon = Daemon::start("trap");
    let (mut vm1, mut vm2) = peers(&daemon);
    drop_at(&daemon, "hv1:1", "30");
    let (mut qa, mut qb) = (vm1.qp(Transport::Ud), vm2.qp(Transport::Ud));
    qa.activate(0, QKEY).expect("becomes ready");
    qb.activate(0, QKEY).expect("becomes ready");
    let to = AddressVector {
        lid: vm2.port.lid,
        qpn: qb.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    for at in 0..=COUNT {
        qb.post_receive(&[vm2.sge(HALF, GRH + 64)]).unwrap();
        if at == COUNT {
            // The last one arrives in any case, after all others.
            drop_at(&daemon, "hv1:1", "0");
        }
        let request = SendRequest::send_imm(Data::Inline(b"hello"), at as u32);
        vm1.execute(&mut qa, &request.to(&to));
    }
    let mut arrived = 0;
    loop {
        let entry = vm2.cq.wait().expect("a completion");
        qb.complete_receive(&entry);
        if entry.immediate() == COUNT as u32 {
            break;
        }
        arrived += 1;
    }
    // Not one of 63 is lost, or all of them are, once in 10^9 runs.
    assert!((1..COUNT).contains(&arrived), "{arrived}");
    // A packet of a connection is lost eight times in a row, or its acknowledgement, once in 10^5 runs.
    drop_at(&daemon, "hv1:1", "10");
    let (mut near, _far) = connected(Transport::Rc, &vm1, &vm2);
    for (len, seed) in [(5000, 1), (1, 2), (1_000_000, 3)] {
        vm1.fill(0, len, seed);
        let from = [vm1.sge(0, len)];
        let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
        vm1.execute(&mut near, &write);
        vm2.verify(HALF, len, seed);
    }
    assert!(retries(&daemon, "vm1", "packet_seq_err") > 0);
    assert!(retries(&daemon, "vm2", "out_of_sequence") > 0);
    let before = retries(&daemon, "vm1", "local_ack_timeout_err");
    drop_at(&daemon, "hv1:1", "100");
    let mut qp = vm1.qp(Transport::Rc);
    let mut peer = Connection::to(vm2.port.lid, 77);
    (peer.ack_timeout, peer.retry_count) = (1, 2);
    qp.connect(Access::ALL, &peer).expect("connects");
    qp.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    assert_eq!(vm1.sent(&mut qp).syndrome(), Syndrome::RetryExceeded);
    assert_eq!(retries(&daemon, "vm1", "local_ack_timeout_err"), before + 2);
    drop_at(&daemon, "hv1:1", "0");
    vm1.execute(
        &mut near,
        &SendRequest::write(vm2.remote(HALF), Data::Inline(b"hello")),
    );
}

/// Each link loses its own copy of a multicast packet, and all copies made from that one.
#[test]
fn links_lose_copies_of_multicast_packets() {
    let daemon = Daemon::start("trap");
    let gid = group::gid(1);
    // vm1 and vm3 are at hv1, the others at hv2.
    let mut vms = ["vm1", "vm2", "vm3", "vm4"].map(|name| Vm::open(&daemon, name));
    let mut qps = Vec::new();
    let mut mlid = 0;
    for vm in &mut vms {
        mlid = group::join(vm, gid);
        let mut qp = vm.peer.qp(Transport::Ud);
        qp.activate(0, QKEY).expect("becomes ready");
        qp.attach_multicast(gid).expect("is attached");
        for _ in 0..16 {
            let buffer = [vm.peer.sge(HALF, GRH + 64)];
            qp.post_receive(&buffer).expect("is posted");
        }
        qps.push(qp);
    }
    let send = |vms: &mut [Vm; 4], qps: &mut [QueuePair], word: u32| {
        let to = AddressVector {
            lid: mlid,
            qpn: MULTICAST_QPN,
            qkey: QKEY,
            global: Some((gid, 0)),
            ..AddressVector::default()
        };
        let request = SendRequest::send_imm(Data::Inline(b"hello"), word);
        qps[0].post_send(&request.to(&to)).expect("is posted");
        // What is on its way is not lost any more when the sender knows that it has left; the sender's own
        // copy has the other completion.
        for _ in 0..2 {
            let entry = vms[0].peer.cq.wait().expect("a completion");
            match entry.kind() {
                CqeKind::Requester => qps[0].complete(&entry),
                _ => qps[0].complete_receive(&entry),
            }
        }
    };
    // What all have heard up to a packet that nobody misses.
    let mut words = 0;
    let mut heard = |vms: &mut [Vm; 4], qps: &mut [QueuePair], word: u32| {
        send(vms, qps, word);
        drop_at(&daemon, "vm2:1", "0");
        drop_at(&daemon, "hv2:1", "0");
        words += 100;
        send(vms, qps, words);
        [1, 2, 3].map(|at| {
            let mut heard = Vec::new();
            loop {
                let entry = vms[at].peer.cq.wait().expect("a completion");
                qps[at].complete_receive(&entry);
                if entry.immediate() == words {
                    break heard;
                }
                heard.push(entry.immediate());
            }
        })
    };
    let all = |word| [vec![word], vec![word], vec![word]];
    assert_eq!(heard(&mut vms, &mut qps, 1), all(1));
    drop_at(&daemon, "vm2:1", "100");
    assert_eq!(heard(&mut vms, &mut qps, 2), [vec![], vec![2], vec![2]]);
    drop_at(&daemon, "hv2:1", "100");
    assert_eq!(heard(&mut vms, &mut qps, 3), [vec![], vec![3], vec![]]);
    assert_eq!(heard(&mut vms, &mut qps, 4), all(4));
}
