//! Watching messages of the local path: what a capture is made of.
//!
//! A watcher is told of each message once it has been carried out. Without one, a message pays a
//! test of one word for it.

use wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

use crate::access::{Domain, read_payload};
use crate::agenda::TURN;
use crate::datagram::Datagram;
use crate::engine::{Engine, QpIndex, VfId};
use crate::face::Face;
use crate::mr::Access;
use crate::qp::{AddressPath, Peer, Qp, Transport};
use crate::work::{AddressVector, AtomicOperands, GlobalRoute, Operation, SendWr};

/// Most packets of one message whose payload a watcher sees: the work for a message is bounded.
pub const SHOWN_PACKETS: u32 = 256;

/// Is told of messages. Called on the data path: must neither wait nor take long.
pub trait Watch: std::fmt::Debug + Send {
    /// Whether messages from or to this function are of interest.
    fn wants(&self, vf: VfId) -> bool;

    /// Bytes of payload of each packet to show.
    fn payload(&self) -> u32;

    /// A message was carried out.
    fn saw(&mut self, message: Seen);
}

/// One side of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The function.
    pub vf: VfId,
    /// The queue pair, as packets name it.
    pub qp: Qpn,
    /// Where the packets that it sends go, as its own work requests and attributes say: the
    /// guest's numbers.
    pub dlid: Lid,
    /// Low bits of the source LID and of the destination LID by which they differ from the ports' base
    /// LIDs.
    pub path_bits: [u8; 2],
    /// Service level of the packets it sends.
    pub sl: Sl,
    /// P_Key of the packets it sends.
    pub pkey: PKey,
    /// Global route of the packets it sends, and their source GID.
    pub global: Option<(GlobalRoute, Gid)>,
}

/// A message that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Who asked for it.
    pub requester: End,
    /// Who answered: of a connected transport.
    pub responder: Option<End>,
    /// Functions whose ports it reached.
    pub reached: Vec<VfId>,
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub operation: Operation,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Q_Key of a datagram.
    pub qkey: QKey,
    /// Sequence number of its first packet.
    pub psn: Psn,
    /// The responder's message sequence number, the message included.
    pub msn: u32,
    /// Payload of a full packet.
    pub mtu: Mtu,
    /// Payload of the message in bytes.
    pub length: u64,
    /// Whether the receiver is to raise an event.
    pub solicited: bool,
    /// Immediate data, or the key to invalidate.
    pub immediate: u32,
    /// Address at the responder.
    pub remote_addr: u64,
    /// Key at the responder.
    pub rkey: u32,
    /// Operands of an atomic.
    pub atomic: AtomicOperands,
    /// Shared receive queue at the responder (XRC).
    pub xrc_srqn: u32,
    /// The first [`Watch::payload`] bytes of each of the first [`SHOWN_PACKETS`] packets, one
    /// packet's after the other's.
    pub payload: Vec<u8>,
    /// How many bytes that is of a full packet.
    pub shown: u32,
}

impl<F: Face> Engine<F> {
    /// Has messages watched from now on, or not any more.
    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch>>) {
        self.watch = watch;
    }

    /// A message between connected queue pairs is done; `psn` was its first packet's.
    #[cold]
    pub(crate) fn watch_connected(
        &mut self,
        index: QpIndex,
        peer: Peer,
        wr: &SendWr,
        psn: Psn,
        length: u64,
    ) {
        let Some(watch) = &self.watch else { return };
        let (Some(from), Some(to)) = (self.qps.get(index.0), self.qps.get(peer.qp.0)) else {
            return;
        };
        if !watch.wants(from.core.vf) && !watch.wants(to.core.vf) {
            return;
        }
        let (Some(requester), Some(responder)) = (self.end(from, to), self.end(to, from)) else {
            return;
        };
        let shown = watch.payload().min(peer.mtu);
        let Some(mtu) = Mtu::from_bytes(peer.mtu) else {
            return;
        };
        let payload = self.shown_payload(from, wr, length, peer.mtu, shown);
        let seen = Seen {
            reached: vec![to.core.vf],
            requester,
            responder: Some(responder),
            transport: from.core.transport,
            operation: wr.operation,
            dest_qp: to.core.qpn,
            qkey: QKey::default(),
            psn,
            msn: to.resp.msn,
            mtu,
            length,
            solicited: wr.solicited,
            immediate: wr.immediate,
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
            atomic: wr.atomic,
            xrc_srqn: wr.xrc_srqn,
            payload,
            shown,
        };
        if let Some(watch) = &mut self.watch {
            watch.saw(seen);
        }
    }

    /// A datagram leaves for these functions.
    #[cold]
    pub(crate) fn watch_datagram(
        &mut self,
        index: QpIndex,
        reached: Vec<VfId>,
        address: &AddressVector,
        datagram: &Datagram<'_>,
    ) {
        let Some(watch) = &self.watch else { return };
        let Some(qp) = self.qps.get(index.0) else {
            return;
        };
        let from = qp.core.vf;
        if !watch.wants(from) && !reached.iter().any(|&vf| watch.wants(vf)) {
            return;
        }
        let source = address.global.and_then(|global| {
            let gids = &self.vf(from).port.gids;
            gids.get(usize::from(global.sgid_index)).copied()
        });
        let dest_bits = reached
            .first()
            .map_or(0, |&vf| self.vf(vf).port.path_bits(address.dlid));
        let shown = watch.payload().min(datagram.payload.len() as u32);
        let seen = Seen {
            requester: End {
                vf: from,
                qp: datagram.src_qp,
                dlid: address.dlid,
                path_bits: [self.vf(from).port.path_bits(datagram.slid), dest_bits],
                sl: address.sl,
                pkey: datagram.pkey,
                global: address
                    .global
                    .map(|global| (global, source.unwrap_or(Gid::NONE))),
            },
            responder: None,
            reached,
            transport: qp.core.transport,
            operation: match datagram.immediate {
                Some(_) => Operation::SendImm,
                None => Operation::Send,
            },
            dest_qp: address.dest_qp,
            qkey: datagram.qkey,
            psn: qp.req.psn,
            msn: 0,
            mtu: Mtu::B4096,
            length: datagram.payload.len() as u64,
            solicited: datagram.solicited,
            immediate: datagram.immediate.unwrap_or(0),
            remote_addr: 0,
            rkey: 0,
            atomic: AtomicOperands::default(),
            xrc_srqn: 0,
            payload: datagram.payload[..shown as usize].to_vec(),
            shown,
        };
        if let Some(watch) = &mut self.watch {
            watch.saw(seen);
        }
    }

    /// A side of a connection.
    fn end(&self, qp: &Qp<F>, peer: &Qp<F>) -> Option<End> {
        let AddressPath {
            dlid,
            sl,
            src_path_bits,
            global,
        } = qp.core.attr.path?;
        let port = &self.vf(qp.core.vf).port;
        let source_bits = port.path_bits(port.source(src_path_bits));
        let path_bits = [source_bits, self.vf(peer.core.vf).port.path_bits(dlid)];
        let source = |global: GlobalRoute| {
            let gid = port.gids.get(usize::from(global.sgid_index));
            (global, gid.copied().unwrap_or(Gid::NONE))
        };
        Some(End {
            vf: qp.core.vf,
            qp: qp.core.qpn,
            dlid,
            path_bits,
            sl,
            pkey: port.pkey(qp.core.attr.pkey_index),
            global: global.map(source),
        })
    }

    /// The beginning of each packet's payload, out of the requester's memory: what it sent, or
    /// what it was answered.
    fn shown_payload(&self, qp: &Qp<F>, wr: &SendWr, length: u64, mtu: u32, shown: u32) -> Vec<u8> {
        let vf = self.vf(qp.core.vf);
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: qp.core.pd,
        };
        let needed = match wr.operation.fills_list() {
            true => Access::LOCAL_WRITE,
            false => Access::LOCAL_READ,
        };
        let mtu = u64::from(mtu);
        // The answer to an atomic counts as no payload, but is shown.
        let length = match wr.operation {
            Operation::Read => length,
            operation if operation.fills_list() => 8,
            _ => length,
        };
        let shown = match wr.operation.fills_list() && wr.operation != Operation::Read {
            true => 8,
            false => u64::from(shown),
        };
        let packets = length.div_ceil(mtu).min(u64::from(SHOWN_PACKETS));
        let mut payload = Vec::new();
        let mut budget = TURN + (packets * mtu.min(shown)) as i64;
        for packet in 0..packets {
            let from = packet * mtu;
            let count = (length - from).min(mtu).min(shown) as usize;
            let start = payload.len();
            payload.resize(start + count, 0);
            // Memory that has gone in the meantime shows as zeros, and so does what takes too long to
            // find.
            let to = &mut payload[start..];
            let _ = read_payload(domain, wr, from, needed, to, &mut budget);
        }
        payload
    }
}
