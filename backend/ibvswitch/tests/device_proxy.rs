//! What a guest's management packets may do, and what becomes of the others.

mod daemon;

use daemon::{Daemon, HALF, Peer};
use driver::{AddressVector, Data, QueuePair, SendRequest, Transport};

const GRH: usize = 40;
const MAD: usize = 256;
const PERMISSIVE: u16 = 0xffff;
const NODE_INFO: u16 = 0x0011;
const PORT_INFO: u16 = 0x0015;
const GET: u8 = 1;
const SET: u8 = 2;

/// Three guests on two hypervisors, each with other rights.
const RIGHTS: &str = r#"
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "manages"
smp = "fabric"
[[hypervisor.vf]]
name = "looks"
[[hypervisor]]
name = "hv2"
[[hypervisor.vf]]
name = "nothing"
smp = "deny"
"#;

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
        if entry.kind() == driver::CqeKind::Requester {
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
    let daemon = Daemon::configured(RIGHTS);
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
    let daemon = Daemon::configured(RIGHTS);
    let neighbour = directed(GET, NODE_INFO, 0, &[1]);
    let own = directed(GET, NODE_INFO, 0, &[]);
    for (name, expected) in [("manages", 2), ("looks", 1)] {
        let mut peer = Peer::open(&daemon, name);
        let mut qp = smi(&peer);
        for _ in 0..2 {
            qp.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
        }
        post(&mut qp, PERMISSIVE, &neighbour);
        post(&mut qp, PERMISSIVE, &own);
        let found = receive(&mut peer, &mut qp);
        assert_eq!(found[3], 0x81);
        // NodeType is the third byte: a switch's 2, a channel adapter's 1.
        assert_eq!(found[64 + 2], expected, "{name}");
    }
}
