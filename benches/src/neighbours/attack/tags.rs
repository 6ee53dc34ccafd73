//! Lists of as many tags as can be, and messages that match the last of them or none.

use test_driver::bits::{reply, request, xrqc};
use test_driver::{
    Access, Buffer, Config, Connection, Data, Opcode, QueuePair, Receive, SendRequest,
};
use test_driver::{SharedReceiveQueue, TagChange, TagOperation, Transport, eager_header};

use super::errored::boundless;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::{HOSTILE, Lab};
use crate::{Peer, Result};

/// Queue pairs, each connected to itself, that send.
const PAIRS: usize = 64;
/// Blocks of their send queues, as a power of two.
const LOG_BLOCKS: u32 = 6;
/// Entries of the list, as a power of two. One is always free.
const LOG_TAGS: u32 = 7;
const LAST: u16 = (1 << LOG_TAGS) - 1;
/// Requests of the queue that others take, as a power of two.
const LOG_REQUESTS: u32 = 14;
/// Changes of the list at a time: an entry goes, and another one comes.
const CHANGES: u16 = 8;
/// The tag of the last entry, of the others, and of messages that match none.
const TAG: u64 = 1;
const OTHERS: u64 = 2;
const NOBODYS: u64 = 3;

/// The attack.
#[derive(Debug)]
pub(super) struct Tags {
    // In this order.
    pairs: Vec<QueuePair>,
    changer: QueuePair,
    queue: SharedReceiveQueue,
    /// The entry that is free.
    free: u16,
    _entries: Buffer,
    peer: Peer,
}

impl Tags {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let peer = Peer::open(&lab.socket(HOSTILE), 4096)?;
        let (cqn, entries) = boundless(&peer.device, &peer.cq)?;
        let queue =
            SharedReceiveQueue::with_tags(&peer.pd, (LOG_REQUESTS, 1), cqn, LOG_TAGS, true)?;
        let pair = || -> Result<QueuePair> {
            let pair = QueuePair::new(&Config {
                log_send_blocks: LOG_BLOCKS,
                receive: Receive::Shared(&queue),
                ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
            })?;
            let itself = Connection::to(peer.port.lid, pair.number());
            pair.connect(Access::ALL, &itself)?;
            Ok(pair)
        };
        let mut tags = Self {
            pairs: (0..PAIRS).map(|_| pair()).collect::<Result<_>>()?,
            changer: pair()?,
            queue,
            free: 0,
            _entries: entries,
            peer,
        };
        // All of its requests, one after the other for ever.
        let list = [tags.peer.sge(64)];
        while tags.queue.post(&list).is_ok() {}
        tags.queue.give_back(0);
        tags.queue.post(&list)?;
        for number in 1..=LAST {
            let tag = if number == LAST { TAG } else { OTHERS };
            tags.append(number, tag)?;
            tags.changer.ring()?;
            let entry = tags.peer.cq.wait()?;
            tags.changer.complete(&entry);
        }
        tags.free = LAST;
        Ok(tags)
    }

    fn change(&mut self, operation: TagOperation, completes: bool) -> Result<()> {
        let change = TagChange {
            operation,
            signaled: true,
            seen: None,
        };
        let memory = [self.peer.sge(64)];
        let memory = match operation {
            TagOperation::Append { .. } => &memory[..],
            _ => &[],
        };
        let change = SendRequest::change_tags(change, memory);
        let change = if completes {
            change
        } else {
            change.unsignaled()
        };
        self.changer.post(&change)?;
        Ok(())
    }

    /// Adds an entry where one is free; this one is free next.
    fn append(&mut self, next: u16, tag: u64) -> Result<()> {
        let mask = u64::MAX;
        self.change(TagOperation::Append { next, tag, mask }, true)
    }

    /// Returns the number of messages that have taken a request, modulo 2^16.
    fn unexpected(&self) -> Result<u16> {
        let mut input = test_driver::request(Opcode::QueryXrq, 0, 16);
        request::OBJECT.set(&mut input, self.queue.number());
        let out = self.peer.device.command(&input, xrqc::PAGES)?;
        Ok(xrqc::HW_PHASE_CNT.get(&out[reply::BODY..]) as u16)
    }
}

impl Attacker for Tags {
    /// Keeps every queue full, and the list changing at its end.
    fn strike(&mut self) -> Result<()> {
        let taken = self.unexpected()?;
        let room = self.queue.capacity() as u16;
        self.queue.publish(taken.wrapping_add(room));
        for number in 0..CHANGES {
            if self.changer.send_room() < 4 {
                break;
            }
            // The last two entries take turns.
            let other = 2 * LAST - 1 - self.free;
            self.change(TagOperation::Remove { index: other }, false)?;
            let mask = u64::MAX;
            let append = TagOperation::Append {
                next: other,
                tag: TAG,
                mask,
            };
            self.change(append, number + 1 == CHANGES)?;
            self.free = other;
        }
        self.changer.ring()?;
        let messages = [NOBODYS, TAG].map(eager_header);
        for pair in &mut self.pairs {
            let mut number = 0;
            while pair.send_room() > 0 {
                let last = pair.send_room() == 1;
                let message = &messages[number % messages.len()];
                let request = SendRequest::send(Data::Inline(message));
                pair.post(&if last { request } else { request.unsignaled() })?;
                number += 1;
            }
            pair.ring()?;
        }
        while let Some(entry) = self.peer.cq.poll() {
            let number = entry.qpn();
            let mut pairs = self.pairs.iter_mut().chain([&mut self.changer]);
            if let Some(pair) = pairs.find(|pair| pair.number() == number) {
                if !entry.is_ok() {
                    return Err(crate::BenchError::Completion(entry.syndrome()));
                }
                pair.complete(&entry);
            }
        }
        Ok(())
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        // In place of destroying what it has one by one.
        let _ = self.peer.device.reset();
    }
}
