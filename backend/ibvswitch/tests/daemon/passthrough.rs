//! VFs that are passed through to those of another daemon: what drivers have of them, and datagrams.

use test_driver::{AddressVector, Cqe, Data, QueuePair, SendRequest, Transport};
use testing::Configuration;

use super::{Daemon, HALF, Peer};

/// Bytes before the text of a datagram that arrives.
pub const GRH: usize = 40;
/// Q_Key of datagrams.
pub const QKEY: u32 = 0x1122_3344;
/// Room for the text of a datagram.
const ROOM: usize = 256;

/// Starts a daemon, and another before it that has this configuration and these VFs: names and keys. Opens the VFs.
pub fn passed<const N: usize>(
    inner: Configuration,
    outer: Configuration,
    vfs: [(&str, &str); N],
) -> (Daemon, Daemon, [Peer; N]) {
    let inner = Daemon::configured(inner);
    let outer = inner.before_with(outer, &vfs);
    let peers = vfs.map(|(name, _)| Peer::open(&outer, name));
    (inner, outer, peers)
}

/// Two virtual clusters.
pub fn clusters() -> Configuration {
    Configuration::new().clusters(["a", "b"])
}

/// A daemon behind whose VFs, made after an adapter's, share a port.
pub fn shared<const N: usize>(vfs: [&str; N]) -> Configuration {
    let port = Configuration::new()
        .set("fabric.model", "shared-port")
        .hypervisor("hv1", []);
    vfs.iter()
        .fold(port, |it, vf| it.vf(vf).key("like", "connectx-5"))
}

/// Returns the data of an attribute that the agent of a VF's port tells.
pub fn told_by_agent(peer: &Peer, attribute: u8) -> [u8; 64] {
    let mut get = [0; 256];
    // Subnet management by a directed route, which ends where it begins: a question.
    get[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    get[17] = attribute;
    let answer = peer.device.mad_ifc(&get).expect("is answered");
    *answer[64..].first_chunk().expect("64 bytes")
}

/// The path by which a queue pair sends, as its context has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    pub pkey_index: u16,
    pub has_header: bool,
    pub lid: u16,
    pub level: u8,
}

pub fn path(qp: &QueuePair) -> Path {
    let context = qp.query().expect("is told");
    let path = &context[0x18..];
    Path {
        pkey_index: u16::from_be_bytes([path[2], path[3]]),
        has_header: path[5] & 0x80 != 0,
        lid: u16::from_be_bytes([path[6], path[7]]),
        level: path[0x24] & 0xf,
    }
}

/// A queue pair for datagrams in the partition with this index.
pub fn datagrams(peer: &Peer, index: u32) -> QueuePair {
    let qp = peer.qp(Transport::Ud);
    qp.activate(index, QKEY).expect("is active");
    qp
}

/// Has a queue pair wait for a datagram.
pub fn wait_for_one(peer: &Peer, qp: &mut QueuePair) {
    let room = [peer.sge(HALF, GRH + ROOM)];
    let number = qp.post_receive(&room).expect("is posted");
    // Where the daemon keeps the queue, it has looked at the queue before the command.
    assert_eq!(
        dword(&qp.query().expect("is told"), 0xbc) as u16,
        number.wrapping_add(1)
    );
}

/// A dword of a context.
pub fn dword(context: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*context[at..].first_chunk().expect("is there"))
}

/// Sends a datagram to a queue pair at the port that has this LID.
#[track_caller]
pub fn send(from: &mut Peer, qp: &mut QueuePair, lid: u16, to: &QueuePair, text: &[u8]) {
    let to = AddressVector {
        lid,
        qpn: to.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    from.execute(qp, &SendRequest::send(Data::Inline(text)).to(&to));
}

/// The next datagram, at a queue pair that waits for it: how it has come, and its text.
#[track_caller]
pub fn next(peer: &mut Peer, qp: &mut QueuePair) -> (Cqe, Vec<u8>) {
    let entry = peer.cq.wait().expect("a completion");
    assert_eq!(entry.qpn(), qp.number());
    qp.complete_receive(&entry);
    let mut text = vec![0; entry.byte_count() as usize - GRH];
    peer.buffer.read(HALF + GRH, &mut text);
    (entry, text)
}
