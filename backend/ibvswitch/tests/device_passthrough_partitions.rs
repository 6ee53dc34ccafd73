//! VFs that are passed through, with some of the partitions that those behind have: what is sent has their
//! P_Keys, and no other.

mod daemon;

use daemon::{Daemon, HALF, Peer};
use driver::{Access, AddressVector, Connection, Data, QueuePair, SendRequest, Transport};

const GRH: usize = 40;
const QKEY: u32 = 0x1122_3344;

/// What is behind. The partitions are in another order at each port.
const INNER: &str = "
[[hypervisor]]
name = 'hv1'
[[hypervisor.vf]]
name = 'a'
lid = 21
pkeys = ['default', 0x8010, 0x8020]
[[hypervisor]]
name = 'hv2'
[[hypervisor.vf]]
name = 'b'
lid = 22
pkeys = [0x8010, 'default', 0x8020]
[[hypervisor.vf]]
name = 'c'
lid = 23
[[hypervisor.vf]]
name = 'd'
lid = 24
";

/// In the context of a queue pair: the index of its P_Key.
fn index(qp: &QueuePair) -> u16 {
    let context = qp.query().expect("is told");
    u16::from_be_bytes([context[0x1a], context[0x1b]])
}

/// A queue pair for datagrams, by this index.
fn datagrams(peer: &Peer, index: u32) -> QueuePair {
    let qp = peer.qp(Transport::Ud);
    qp.activate(index, QKEY).expect("is active");
    qp
}

/// Sends a datagram.
fn send(from: &mut Peer, qp: &mut QueuePair, lid: u16, to: &QueuePair, text: &[u8]) {
    let to = AddressVector {
        lid,
        qpn: to.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    from.execute(qp, &SendRequest::send(Data::Inline(text)).to(&to));
}

/// The next datagram at a queue pair that waits for it.
fn next(peer: &mut Peer, qp: &mut QueuePair, len: usize) -> Vec<u8> {
    let entry = peer.cq.wait().expect("a completion");
    qp.complete_receive(&entry);
    let mut text = vec![0; len];
    peer.buffer.read(HALF + GRH, &mut text);
    text
}

fn wait_for(peer: &Peer, qp: &mut QueuePair) {
    let room = [peer.sge(HALF, GRH + 64)];
    qp.post_receive(&room).expect("is posted");
}

#[test]
fn what_is_sent_has_the_guests_partitions() {
    let inner = Daemon::configured(INNER);
    let vfs = [
        ("a", "pkeys = [0x8020, 0x8030, 0x8010]"),
        ("b", "pkeys = [0x8020]"),
    ];
    let outer = inner.before_with("", &vfs);
    let [mut a, mut b] = vfs.map(|(name, _)| Peer::open(&outer, name));
    let table = |peer: &Peer| [0, 1, 2, 3].map(|at| peer.device.pkey(at).expect("is told"));
    assert_eq!(table(&a), [0x8020, 0, 0x8010, 0]);
    assert_eq!(table(&b), [0x8020, 0, 0, 0]);
    // What the port's agent says.
    let mut get = [0; 256];
    get[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    get[17] = 0x16;
    let answer = a.device.mad_ifc(&get).expect("is answered");
    assert_eq!(answer[64..72], [0x80, 0x20, 0, 0, 0x80, 0x10, 0, 0]);
    let told = daemon::named(&outer.ask(&["status"])["passthrough"], "a");
    assert_eq!(
        told["pkeys"],
        serde_json::json!(["0x8020", "0x0000", "0x8010"])
    );
    // Datagrams by one partition arrive, and by another, by none and past the table they do not.
    let mut there = datagrams(&b, 0);
    wait_for(&b, &mut there);
    for foreign in [2, 1, 3, 100] {
        let mut from = datagrams(&a, foreign);
        assert_eq!(index(&from), foreign as u16);
        send(&mut a, &mut from, 22, &there, b"not this one");
    }
    let mut from = datagrams(&a, 0);
    send(&mut a, &mut from, 22, &there, b"this is the one");
    assert_eq!(next(&mut b, &mut there, 15), b"this is the one");
    // Somebody of the subnet, in the default partition alone, which the VF behind has, too.
    let mut c = Peer::open(&inner, "c");
    let mut of_c = datagrams(&c, 0);
    wait_for(&c, &mut of_c);
    for index in 0..4 {
        let mut from = datagrams(&a, index);
        send(&mut a, &mut from, 23, &of_c, b"nor this one");
    }
    let mut d = Peer::open(&inner, "d");
    let mut of_d = datagrams(&d, 0);
    send(&mut d, &mut of_d, 23, &of_c, b"but this one");
    assert_eq!(next(&mut c, &mut of_c, 12), b"but this one");
    // Connections.
    let (mut qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
    for (qp, lid, other) in [(&qa, 22, &qb), (&qb, 21, &qa)] {
        qp.connect(Access::ALL, &Connection::to(lid, other.number()))
            .expect("connects");
    }
    a.fill(0, 5000, 1);
    let from = [a.sge(0, 5000)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    a.execute(&mut qa, &write);
    b.arrives(HALF, 5000, 1);
}
