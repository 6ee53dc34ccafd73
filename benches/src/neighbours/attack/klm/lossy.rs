//! Requests through keys of tiny pieces at both ends, between two VFs, over a link that loses packets: each message
//! is read, and written, a frame at a time.

use control::{Client, LinkAction, LinkRequest, Request};
use test_driver::{
    Access, Connection, Data, MemoryRegion, PAGE, QueuePair, Remote, SendRequest, Sge,
};

use super::{LEVELS, as_many, unconnected};
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{ACCOMPLICE, BEHIND_A_LINK, HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Queue pairs at either end.
const PAIRS: usize = 64;
/// Blocks of a send queue: requests of one block each.
const LOG_BLOCKS: u32 = 2;
/// Losses that make the way one of frames: one packet of a million.
const LOSSES: u32 = 1;

/// The attack.
#[derive(Debug)]
pub(in crate::neighbours::attack) struct LossyKlms {
    // In this order.
    pairs: Vec<QueuePair>,
    _far_pairs: Vec<QueuePair>,
    keys: Vec<MemoryRegion>,
    far_keys: Vec<MemoryRegion>,
    stretches: usize,
    peer: Peer,
    far: Peer,
}

impl LossyKlms {
    pub(in crate::neighbours::attack) fn prepare(lab: &Lab) -> Result<Self> {
        let action = LinkAction::Drop {
            per_million: LOSSES,
            seed: 0,
        };
        let request = Request::Link(LinkRequest {
            node: BEHIND_A_LINK.to_owned(),
            port: 1,
            action,
        });
        Client::connect(&lab.control())
            .and_then(|mut daemon| daemon.ask(&request))
            .map_err(|error| BenchError::Subnet(error.to_string()))?;
        let stretches = lab.scale.stretches;
        let open = |name| Peer::open(&lab.socket(name), stretches.next_multiple_of(PAGE));
        let (peer, far) = (open(HOSTILE)?, open(ACCOMPLICE)?);
        let (mut most, mut far_most) = (lab.scale.keys, lab.scale.keys);
        let keys = as_many(&peer, stretches, &mut most)?;
        let far_keys = as_many(&far, stretches, &mut far_most)?;
        let (mut pairs, mut far_pairs) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let pair = unconnected(&peer, peer.cq.number(), LOG_BLOCKS)?;
            let other = unconnected(&far, far.cq.number(), LOG_BLOCKS)?;
            pair.connect(Access::ALL, &Connection::to(far.port.lid, other.number()))?;
            other.connect(Access::ALL, &Connection::to(peer.port.lid, pair.number()))?;
            pairs.push(pair);
            far_pairs.push(other);
        }
        Ok(Self {
            pairs,
            _far_pairs: far_pairs,
            keys,
            far_keys,
            stretches,
            peer,
            far,
        })
    }
}

/// The keys of the highest level.
fn top(keys: &[MemoryRegion]) -> &[MemoryRegion] {
    &keys[keys.len() / LEVELS * (LEVELS - 1)..]
}

impl Attacker for LossyKlms {
    fn strike(&mut self) -> Result<()> {
        let (own, remote) = (top(&self.keys), top(&self.far_keys));
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let list = [Sge {
                addr: 0,
                len: self.stretches as u32,
                key: own[number % own.len()].key(),
            }];
            let remote = Remote {
                addr: 0,
                key: remote[number % remote.len()].key(),
            };
            // Every other one reads.
            let reads = number % 2 == 1;
            while pair.send_room() > 0 {
                pair.post(&if reads {
                    SendRequest::read(remote, &list)
                } else {
                    SendRequest::write(remote, Data::Memory(&list))
                })?;
            }
            pair.ring()?;
        }
        while let Some(entry) = self.peer.cq.poll() {
            let number = entry.qpn();
            let done = self.pairs.iter_mut().find(|pair| pair.number() == number);
            if let Some(pair) = done {
                if !entry.is_ok() {
                    return Err(BenchError::Completion(entry.syndrome()));
                }
                pair.complete(&entry);
            }
        }
        Ok(())
    }
}

impl Drop for LossyKlms {
    fn drop(&mut self) {
        // In place of destroying what they have one by one.
        let _ = self.peer.device.reset();
        let _ = self.far.device.reset();
    }
}
