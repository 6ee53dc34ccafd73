//! Packets of enhanced IP over InfiniBand that go through as many flow tables, and as long ones, as there may be.

pub(super) mod packets;

use test_driver::{
    AddressVector, Buffer, Config, Data, FlowTable, Next, Packet, PlainQueue, QueuePair,
};
use test_driver::{
    QueueTable, Receive, SendRequest, Sge, Tir, Tis, Transport, TransportDomain, send_queue,
};

use super::errored::boundless;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Tables that a packet goes through, as many as there may be.
const TABLES: u32 = 8;
/// Entries of a table, as a power of two, and those of a group.
const LOG_ENTRIES: u32 = 7;
const GROUP: u32 = 8;
/// Addresses, and how many of them a function may have in a multicast group.
const UNDERLAYS: usize = 256;
const IN_GROUP: usize = 4;
/// Receive queues, their requests as a power of two, and places in their table.
const RECEIVE_QUEUES: usize = 16;
const LOG_REQUESTS: u32 = 10;
const PLACES: usize = 256;
/// Send queues, their blocks as a power of two, and the blocks of a request.
const SEND_QUEUES: usize = 64;
const LOG_BLOCKS: u32 = 6;
const BLOCKS: usize = 2;
const QKEY: u32 = 0xb1b;
/// A multicast group that nobody else is in.
const GID: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99];
const MLID: u16 = 0xc0de;
const MULTICAST: u32 = 0xff_ffff;
/// EtherType and protocol of packets that the last entry of the last table matches, and of what no packet has.
const MATCHED: (u16, u8) = (0x0800, 6);
const NOBODYS: (u16, u8) = (0x0800, 17);
/// Bytes of a packet, and of the memory of receive requests, which lies behind two packets.
const PACKET: usize = 64;
const ROOM: usize = 128;

/// The attack.
#[derive(Debug)]
pub(super) struct Ipoib {
    // In this order.
    senders: Vec<QueuePair>,
    queues: Vec<PlainQueue>,
    underlays: Vec<QueuePair>,
    /// Objects that only have to exist, and the memory of the completion queue of received packets.
    _kept: (
        Vec<FlowTable>,
        Tir,
        QueueTable,
        Tis,
        TransportDomain,
        Buffer,
    ),
    peer: Peer,
}

impl Ipoib {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), 4096)?;
        let (cqn, entries) = boundless(&peer.device, &peer.cq)?;
        let domain = TransportDomain::new(&peer.device)?;
        let underlay = |number| -> Result<QueuePair> {
            let pair = QueuePair::new(&Config {
                underlay: true,
                receive: Receive::None,
                ..Config::new(Transport::Ud, &peer.pd, &peer.uar, &peer.cq)
            })?;
            pair.activate(0, QKEY)?;
            if number < IN_GROUP {
                pair.attach_multicast(GID)?;
            }
            Ok(pair)
        };
        let underlays = (0..UNDERLAYS).map(underlay);
        let underlays = underlays.collect::<Result<Vec<_>>>()?;
        let tis = Tis::new(&domain, &underlays[0])?;
        let sender = || send_queue((&peer.pd, &peer.uar), &tis, peer.cq.number(), LOG_BLOCKS);
        let senders = (0..SEND_QUEUES).map(|_| sender());
        let senders = senders.collect::<test_driver::Result<_>>()?;

        let memory = Sge {
            addr: peer.region.start() + 2 * PACKET as u64,
            ..peer.sge(ROOM)
        };
        let queue = |_| PlainQueue::new(&peer.pd, cqn, LOG_REQUESTS, memory);
        let queues = (0..RECEIVE_QUEUES).map(queue);
        let queues = queues.collect::<test_driver::Result<Vec<_>>>()?;
        let table = QueueTable::new(&peer.device, &queues, PLACES)?;
        let tir = Tir::new(&domain, &table)?;
        let mut tables = Vec::new();
        for chain in 0..lab.scale.chains {
            let first = chained(&peer, &tir, &mut tables)?;
            for underlay in underlays.iter().skip(chain).step_by(lab.scale.chains) {
                first.serve(underlay)?;
            }
            tables.push(first);
        }
        // One packet goes to a queue in the end, the other is dropped there.
        let mut packets = [[0; PACKET]; 2];
        (packets[0][0], packets[0][4], packets[0][4 + 9]) = (0x08, 0x45, MATCHED.1);
        packets[1] = packets[0];
        packets[1][4 + 9] = 1;
        peer.buffer.write(0, packets.as_flattened());
        Ok(Self {
            senders,
            queues,
            underlays,
            _kept: (tables, tir, table, tis, domain, entries),
            peer,
        })
    }
}

/// A chain of tables, of which only the last entry of the last matches a packet, and sends it to `tir`. The first of
/// them; the others are `kept`.
fn chained(peer: &Peer, tir: &Tir, kept: &mut Vec<FlowTable>) -> Result<FlowTable> {
    let mut first = table(peer, tir, TABLES - 1, None)?;
    for level in (0..TABLES - 1).rev() {
        let before = table(peer, tir, level, Some(&first))?;
        kept.push(std::mem::replace(&mut first, before));
    }
    Ok(first)
}

/// A table as long as one may be, of which nothing goes to `next` by an entry.
fn table(peer: &Peer, tir: &Tir, level: u32, next: Option<&FlowTable>) -> Result<FlowTable> {
    let table = FlowTable::new(&peer.device, level, LOG_ENTRIES, next)?;
    for first in (0..1 << LOG_ENTRIES).step_by(GROUP as usize) {
        let group = table.add_group(first, first + GROUP - 1)?;
        for index in first..first + GROUP {
            let last = next.is_none() && index == (1 << LOG_ENTRIES) - 1;
            let value = if last { MATCHED } else { NOBODYS };
            table.add_entry((group, index), value, Next::Tir(tir))?;
        }
    }
    Ok(table)
}

impl Attacker for Ipoib {
    /// Keeps every queue full: of packets to one address after the other, and to all in a group.
    fn strike(&mut self) -> Result<()> {
        self.queues.iter().try_for_each(PlainQueue::fill)?;
        let to = AddressVector {
            lid: self.peer.port.lid,
            qkey: QKEY,
            ..AddressVector::default()
        };
        for sender in &mut self.senders {
            for (number, underlay) in self.underlays.iter().enumerate() {
                let room = sender.send_room();
                if room < BLOCKS {
                    break;
                }
                let to = if number.is_multiple_of(2) {
                    AddressVector {
                        qpn: underlay.number(),
                        ..to
                    }
                } else {
                    AddressVector {
                        lid: MLID,
                        qpn: MULTICAST,
                        global: Some((GID, 1)),
                        ..to
                    }
                };
                let packet = self.peer.sge(PACKET);
                let packet = [Sge {
                    addr: packet.addr + (number as u64 >> 1) % 2 * PACKET as u64,
                    ..packet
                }];
                let request = SendRequest::send(Data::Memory(&packet));
                let request = request.to(&to).packet(Packet::default());
                let last = room < 2 * BLOCKS;
                sender.post(&if last { request } else { request.unsignaled() })?;
            }
            sender.ring()?;
        }
        while let Some(entry) = self.peer.cq.poll() {
            let number = entry.qpn();
            let mut senders = self.senders.iter_mut();
            if let Some(sender) = senders.find(|sender| sender.number() == number) {
                if !entry.is_ok() {
                    return Err(BenchError::Completion(entry.syndrome()));
                }
                sender.complete(&entry);
            }
        }
        Ok(())
    }
}

impl Drop for Ipoib {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
