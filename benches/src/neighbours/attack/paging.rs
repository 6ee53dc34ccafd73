//! Requests for pages that are away, at either end, and a guest that says of each that it is there.

use test_driver::{Access, Config, Connection, Data, EventType, MemoryRegion, QueuePair, Receive};
use test_driver::{PAGE, Remote, SendRequest, Sge, Transport};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{Peer, Result};

/// Bytes of memory that is away, and of memory that is there.
const MEMORY: usize = 1 << 20;
/// Page faults that are answered between two looks at the queue pairs.
const ANSWERED: usize = 512;
/// Requests of a queue pair, as a power of two.
const LOG_REQUESTS: u32 = 4;

/// The attack.
#[derive(Debug)]
pub(super) struct Paging {
    // In this order.
    pairs: Vec<QueuePair>,
    away: MemoryRegion,
    peer: Peer,
}

impl Paging {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), MEMORY)?;
        let away = MemoryRegion::on_demand(&peer.pd, &peer.buffer, Access::ALL)?;
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
        Ok(Self { pairs, away, peer })
    }
}

impl Attacker for Paging {
    /// Keeps every queue full, and has those go on that wait, with nothing done for them.
    fn strike(&mut self) -> Result<()> {
        let side = |region: &MemoryRegion| (region.start(), region.key());
        let (there, away) = (side(&self.peer.region), side(&self.away));
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            // Every other one waits for what it sends, and the others for where it goes.
            let ((addr, key), to) = if number.is_multiple_of(2) {
                (away, there)
            } else {
                (there, away)
            };
            let list = [Sge {
                addr,
                len: PAGE as u32,
                key,
            }];
            let remote = Remote {
                addr: to.0,
                key: to.1,
            };
            while pair.send_room() > 0 {
                pair.post(&SendRequest::write(remote, Data::Memory(&list)).unsignaled())?;
            }
            pair.ring()?;
        }
        for _ in 0..ANSWERED {
            match self.peer.device.poll_event()? {
                Some(event) if event.kind() == EventType::PageFault => {
                    self.peer.device.resume(&event.page_fault(), true)?;
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }
}

impl Drop for Paging {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
