//! VFs that are passed through, with some of the partitions that those behind have: what is sent has their
//! P_Keys, and no other.

use crate::daemon::passthrough::{
    datagrams, next, passed, path, send, told_by_agent, wait_for_one,
};
use crate::daemon::{HALF, Peer};
use test_driver::{Access, Connection, Transport};
use testing::{Configuration, Toml};

/// Configuration of the daemon behind. The partitions are in another order at each port.
fn inner() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("a")
        .key("lid", 21)
        .key("pkeys", Toml("['default', 0x8010, 0x8020]"))
        .hypervisor("hv2", [])
        .vf("b")
        .key("lid", 22)
        .key("pkeys", Toml("[0x8010, 'default', 0x8020]"))
        .vf("c")
        .key("lid", 23)
        .vf("d")
        .key("lid", 24)
}

#[test]
fn what_is_sent_has_the_guests_partitions() {
    let vfs = [
        ("a", "pkeys = [0x8020, 0x8030, 0x8010]"),
        ("b", "pkeys = [0x8020]"),
    ];
    let (inner, outer, [mut a, mut b]) = passed(inner(), Configuration::new(), vfs);
    let table = |peer: &Peer| [0, 1, 2, 3].map(|at| peer.device.pkey(at).expect("is told"));
    assert_eq!(table(&a), [0x8020, 0, 0x8010, 0]);
    assert_eq!(table(&b), [0x8020, 0, 0, 0]);
    let keys = told_by_agent(&a, 0x16);
    assert_eq!(keys[..8], [0x80, 0x20, 0, 0, 0x80, 0x10, 0, 0]);
    let told = crate::daemon::named(&outer.ask(&["status"])["passthrough"], "a");
    assert_eq!(
        told["pkeys"],
        serde_json::json!(["0x8020", "0x0000", "0x8010"])
    );
    // Datagrams by one partition arrive, and by another, by none and past the table they do not.
    let mut there = datagrams(&b, 0);
    wait_for_one(&b, &mut there);
    for foreign in [2, 1, 3, 100] {
        let mut from = datagrams(&a, foreign);
        assert_eq!(path(&from).pkey_index, foreign as u16);
        send(&mut a, &mut from, 22, &there, b"not this one");
    }
    let mut from = datagrams(&a, 0);
    send(&mut a, &mut from, 22, &there, b"this is the one");
    assert_eq!(next(&mut b, &mut there).1, b"this is the one");
    // Somebody of the subnet, in the default partition alone, which the VF behind has, too.
    let mut c = Peer::open(&inner, "c");
    let mut of_c = datagrams(&c, 0);
    wait_for_one(&c, &mut of_c);
    for index in 0..4 {
        let mut from = datagrams(&a, index);
        send(&mut a, &mut from, 23, &of_c, b"nor this one");
    }
    let mut d = Peer::open(&inner, "d");
    let mut of_d = datagrams(&d, 0);
    send(&mut d, &mut of_d, 23, &of_c, b"but this one");
    assert_eq!(next(&mut c, &mut of_c).1, b"but this one");
    // Connections.
    let (mut qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
    for (qp, lid, other) in [(&qa, 22, &qb), (&qb, 21, &qa)] {
        qp.connect(Access::ALL, &Connection::to(lid, other.number()))
            .expect("connects");
    }
    a.write_by(&mut qa, &b, 5000, 1);
    b.verify(HALF, 5000, 1);
}
