//! Messages as long as can be, on many queue pairs at a time.

use std::thread;
use std::time::Duration;

use test_driver::{Access, Config, Connection, Data, Klm, MemoryRegion, QueuePair, Receive};
use test_driver::{SendRequest, Sge, Transport};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{BenchError, Peer, Result};

/// Bytes of memory on either side of the messages: more than a cache holds.
const MEMORY: usize = 64 << 20;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Requests of a queue pair, as a power of two: more than are done in a
/// measurement.
const LOG_REQUESTS: u32 = 6;

/// The attack.
#[derive(Debug)]
pub(super) struct Bulk {
    // In this order.
    pairs: Vec<QueuePair>,
    regions: [MemoryRegion; 2],
    _memory: [MemoryRegion; 2],
    peer: Peer,
    message: usize,
}

impl Bulk {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let message = lab.scale.message;
        let half = MEMORY.min(message);
        let peer = Peer::open(&lab.socket(HOSTILE), 2 * half)?;
        // The same memory over and over.
        let side = |at: usize| -> Result<[MemoryRegion; 2]> {
            let whole = MemoryRegion::physical(&peer.pd, Access::ALL)?;
            let stretch = Klm {
                len: half as u32,
                key: whole.key(),
                addr: peer.buffer.iova() + at as u64,
            };
            let stretches = vec![stretch; message / half];
            let many = MemoryRegion::indirect(&peer.pd, &stretches, Access::ALL, 0)?;
            Ok([whole, many])
        };
        let ([from, source], [to, target]) = (side(0)?, side(half)?);
        let mut pairs = Vec::new();
        for _ in 0..lab.scale.bulk_queue_pairs {
            let pair = QueuePair::new(&Config {
                log_send_blocks: LOG_REQUESTS,
                receive: Receive::Own {
                    log_size: 2,
                    log_sges: 0,
                },
                ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
            })?;
            let itself = Connection::to(peer.port.lid, pair.number());
            pair.connect(Access::ALL, &itself)?;
            pairs.push(pair);
        }
        Ok(Self {
            pairs,
            regions: [source, target],
            _memory: [from, to],
            peer,
            message,
        })
    }
}

impl Attacker for Bulk {
    /// Keeps every queue full.
    fn strike(&mut self) -> Result<()> {
        let [source, target] = &self.regions;
        let list = [Sge {
            addr: source.start(),
            len: self.message as u32,
            key: source.key(),
        }];
        let remote = test_driver::Remote {
            addr: target.start(),
            key: target.key(),
        };
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            while pair.send_room() > 0 {
                let request = if number.is_multiple_of(2) {
                    SendRequest::write(remote, Data::Memory(&list))
                } else {
                    SendRequest::read(remote, &list)
                };
                pair.post(&request.unsignaled())?;
            }
            pair.ring()?;
        }
        thread::sleep(PAUSE);
        // Nothing completes unless it fails.
        match self.peer.cq.poll() {
            Some(entry) => Err(BenchError::Completion(entry.syndrome())),
            None => Ok(()),
        }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
