//! Short messages that completions hold, and compressed completions that nobody looks at.

use test_driver::Transport;
use test_driver::{
    Access, CompletionQueue, Config, Connection, Data, QueuePair, Receive, SendRequest,
};

use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{Peer, Result};

/// Queue pairs.
const PAIRS: usize = 64;
/// Blocks of a send queue, and requests of a receive queue, as a power of two.
const LOG_REQUESTS: u32 = 6;
/// Entries of the completion queues, as a power of two.
const LOG_ENTRIES: u32 = 3;
/// Messages: completions hold the first one, and completions of the second one, which is empty, are compressed.
const MESSAGES: [&[u8]; 2] = [&[0x5a; 32], &[]];

/// The attack.
#[derive(Debug)]
pub(super) struct Completions {
    // In this order.
    pairs: Vec<QueuePair>,
    /// One that is never full, and one that is soon.
    queues: [CompletionQueue; 2],
    peer: Peer,
}

/// A queue pair that is connected to itself and completes there.
fn pair(peer: &Peer, queue: &CompletionQueue) -> Result<QueuePair> {
    let pair = QueuePair::new(&Config {
        send_cq: queue.number(),
        recv_cq: queue.number(),
        log_send_blocks: LOG_REQUESTS,
        receive: Receive::Own {
            log_size: LOG_REQUESTS,
            log_sges: 0,
        },
        in_completions: true,
        ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
    })?;
    let itself = Connection::to(peer.port.lid, pair.number());
    pair.connect(Access::ALL, &itself)?;
    Ok(pair)
}

impl Completions {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), 4096)?;
        let queue =
            |overruns| CompletionQueue::compressed(&peer.device, &peer.uar, LOG_ENTRIES, overruns);
        let queues = [queue(true)?, queue(false)?];
        let pairs = (0..PAIRS).map(|number| pair(&peer, &queues[number % 2]));
        Ok(Self {
            pairs: pairs.collect::<Result<_>>()?,
            queues,
            peer,
        })
    }
}

impl Attacker for Completions {
    /// Has every queue pair send itself as much as its queues hold, and begin anew.
    fn strike(&mut self) -> Result<()> {
        let list = [self.peer.sge(64)];
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            while pair.post_receive(&list).is_ok() {}
            let message = MESSAGES[number / 2 % MESSAGES.len()];
            while pair.send_room() > 0 {
                pair.post(&SendRequest::send(Data::Inline(message)))?;
            }
            pair.ring()?;
        }
        // One is in error by now.
        self.queues[1] =
            CompletionQueue::compressed(&self.peer.device, &self.peer.uar, LOG_ENTRIES, false)?;
        for (number, old) in self.pairs.iter_mut().enumerate() {
            *old = pair(&self.peer, &self.queues[number % 2])?;
        }
        Ok(())
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
