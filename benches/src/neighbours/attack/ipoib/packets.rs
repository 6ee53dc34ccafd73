//! Requests of IP over InfiniBand that the HCA cuts into packets as short as there are, thousands of each, which go
//! to their own queue pair.

use test_driver::{AddressVector, Config, Data, Packet, QueuePair, SendRequest, Sge, Transport};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Bytes of memory.
const MEMORY: usize = 1 << 18;
/// Bytes of a request behind its headers: as many as there may be.
const LEN: u32 = MEMORY as u32 - 64;
/// Bytes of data in a packet: as few as there may be.
const MSS: u16 = 48;
/// Requests of a queue pair, as a power of two of blocks.
const LOG_BLOCKS: u32 = 6;
/// Blocks of a request.
const BLOCKS: usize = 3;
const QKEY: u32 = 0xb1b;

/// Headers of IPv4 and TCP in a datagram, with nothing in them that the HCA looks at but that they are.
fn headers() -> [u8; 44] {
    let mut headers = [0; 44];
    (headers[0], headers[4], headers[4 + 9], headers[4 + 20 + 12]) = (0x08, 0x45, 6, 0x50);
    headers
}

/// The attack.
#[derive(Debug)]
pub(in crate::neighbours::attack) struct Packets {
    // In this order.
    pairs: Vec<QueuePair>,
    peer: Peer,
}

impl Packets {
    pub(in crate::neighbours::attack) fn prepare(lab: &Lab) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), MEMORY)?;
        let mut pairs = Vec::new();
        for _ in 0..lab.scale.bulk_queue_pairs {
            let pair = QueuePair::new(&Config {
                log_send_blocks: LOG_BLOCKS,
                offloads: true,
                ..Config::new(Transport::Ud, &peer.pd, &peer.uar, &peer.cq)
            })?;
            pair.activate(0, QKEY)?;
            pairs.push(pair);
        }
        Ok(Self { pairs, peer })
    }
}

impl Attacker for Packets {
    fn strike(&mut self) -> Result<()> {
        let region = &self.peer.region;
        let list = [Sge {
            addr: region.start(),
            len: LEN,
            key: region.key(),
        }];
        let headers = headers();
        for pair in &mut self.pairs {
            let to = AddressVector {
                lid: self.peer.port.lid,
                qpn: pair.number(),
                qkey: QKEY,
                ..AddressVector::default()
            };
            let packet = Packet {
                mss: Some(MSS),
                headers: &headers,
                ..Packet::default()
            };
            while pair.send_room() >= BLOCKS {
                let last = pair.send_room() < 2 * BLOCKS;
                let request = SendRequest::send(Data::Memory(&list));
                let request = request.to(&to).packet(packet);
                pair.post(&if last { request } else { request.unsignaled() })?;
            }
            pair.ring()?;
        }
        // Each queue is filled anew when it is empty.
        while let Some(entry) = self.peer.cq.poll() {
            if !entry.is_ok() {
                return Err(BenchError::Completion(entry.syndrome()));
            }
            let mut pairs = self.pairs.iter_mut();
            if let Some(pair) = pairs.find(|pair| pair.number() == entry.qpn()) {
                pair.complete(&entry);
            }
        }
        Ok(())
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
