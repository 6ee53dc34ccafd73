//! Messages of blocks with signatures: as long as can be, or in as many pieces as there are bytes.

use test_driver::{
    Access, CqeKind, Data, KeyChange, KeyUpdate, Klm, MemoryRegion, QueuePair, Remote,
};
use test_driver::{SendRequest, Sge, SignatureForm, SignatureValue};

use super::klm::{LEVELS, as_many, connected};
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Queue pairs.
const PAIRS: usize = 64;
/// Blocks of a send queue: a request each.
const LOG_BLOCKS: u32 = 4;
/// Bytes of memory on either side of long messages.
const MEMORY: usize = 16 << 20;
/// Bytes of a block with what is behind it.
const BLOCK: usize = 512 + 8;
/// Stretches that a key with signatures has at most.
const STRETCHES: usize = 4;

/// Keys with T10-DIF in memory and on the wire, and queue pairs that write from the first to the second.
#[derive(Debug)]
struct Signed {
    // In this order.
    pairs: Vec<QueuePair>,
    keys: [MemoryRegion; 2],
    _value: SignatureValue,
    /// Bytes of a message on the wire.
    len: usize,
    peer: Peer,
}

impl Signed {
    /// Over these stretches, which hold `len` bytes in whole blocks.
    fn new(mut peer: Peer, stretches: [Vec<Klm>; 2], len: usize) -> Result<Self> {
        let value = SignatureValue::new(&peer.pd)?;
        let mut changer = connected(&peer, peer.cq.number(), LOG_BLOCKS)?;
        let form = SignatureForm {
            memory: Some(value.number()),
            wire: Some(value.number()),
        };
        let keys = stretches.map(|stretches| -> Result<MemoryRegion> {
            let region = MemoryRegion::with_signatures(&peer.pd)?;
            let change = KeyChange::Signatures {
                access: Access::ALL,
                form: &form.to_bytes(),
                stretches: &stretches,
            };
            let key = region.key();
            changer.post_send(&SendRequest::key_update(KeyUpdate { key, change }))?;
            let entry = peer.cq.wait()?;
            if !entry.is_ok() {
                return Err(BenchError::Completion(entry.syndrome()));
            }
            changer.complete(&entry);
            Ok(region)
        });
        let [from, to] = keys;
        let pairs = (0..PAIRS).map(|_| connected(&peer, peer.cq.number(), LOG_BLOCKS));
        Ok(Self {
            pairs: pairs.collect::<Result<_>>()?,
            keys: [from?, to?],
            _value: value,
            len,
            peer,
        })
    }
}

impl Attacker for Signed {
    /// Keeps every queue full. Whether blocks are as they should be, or requests can be done at all, is all the same.
    fn strike(&mut self) -> Result<()> {
        let [from, to] = &self.keys;
        let list = [Sge {
            addr: 0,
            len: self.len as u32,
            key: from.key(),
        }];
        let remote = Remote {
            addr: 0,
            key: to.key(),
        };
        for pair in &mut self.pairs {
            while pair.send_room() > 0 {
                pair.post(&SendRequest::write(remote, Data::Memory(&list)))?;
            }
            pair.ring()?;
        }
        while let Some(entry) = self.peer.cq.poll() {
            let number = entry.qpn();
            let done = self.pairs.iter_mut().find(|pair| pair.number() == number);
            match done {
                Some(pair) if entry.is_ok() => pair.complete(&entry),
                // The first block that is not as it should be.
                Some(_) if entry.kind() == CqeKind::SignatureError => {}
                Some(pair) => *pair = connected(&self.peer, self.peer.cq.number(), LOG_BLOCKS)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl Drop for Signed {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}

/// Messages as long as can be.
#[derive(Debug)]
pub(super) struct Signatures {
    signed: Signed,
    _whole: Vec<MemoryRegion>,
}

impl Signatures {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let message = lab.scale.message;
        let half = MEMORY.min(message / 4) / BLOCK * BLOCK;
        let peer = Peer::open(&lab.socket(HOSTILE), 2 * MEMORY)?;
        // The same memory over and over, by a list that is a stretch of the key's.
        let mut regions = Vec::new();
        let mut side = |at: usize| -> Result<Vec<Klm>> {
            let stretch = Klm {
                len: half as u32,
                key: peer.region.key(),
                addr: peer.region.start() + at as u64,
            };
            let many = vec![stretch; message / half];
            let whole = MemoryRegion::indirect(&peer.pd, &many, Access::ALL, 0)?;
            let klm = Klm {
                len: (message / half * half) as u32,
                key: whole.key(),
                addr: 0,
            };
            regions.push(whole);
            Ok(vec![klm])
        };
        let sides = [side(0)?, side(MEMORY)?];
        let len = message / half * half;
        Ok(Self {
            signed: Signed::new(peer, sides, len)?,
            _whole: regions,
        })
    }
}

impl Attacker for Signatures {
    fn strike(&mut self) -> Result<()> {
        self.signed.strike()
    }
}

/// Blocks in which each byte is a stretch of its own.
#[derive(Debug)]
pub(super) struct Scattered {
    signed: Signed,
    _levels: Vec<MemoryRegion>,
}

impl Scattered {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let (stretches, mut keys) = (lab.scale.stretches, lab.scale.keys);
        let peer = Peer::open(
            &lab.socket(HOSTILE),
            stretches.next_multiple_of(test_driver::PAGE),
        )?;
        let levels = as_many(&peer, stretches, &mut keys)?;
        let top = &levels[keys * (LEVELS - 1)..];
        let side = |from: usize| -> Vec<Klm> {
            let keys = (0..STRETCHES).map(|at| &top[(from + at) % top.len()]);
            let stretch = |region: &MemoryRegion| Klm {
                len: stretches as u32,
                key: region.key(),
                addr: 0,
            };
            keys.map(stretch).collect()
        };
        let sides = [side(0), side(STRETCHES)];
        let len = STRETCHES * stretches / BLOCK * BLOCK;
        Ok(Self {
            signed: Signed::new(peer, sides, len)?,
            _levels: levels,
        })
    }
}

impl Attacker for Scattered {
    fn strike(&mut self) -> Result<()> {
        self.signed.strike()
    }
}
