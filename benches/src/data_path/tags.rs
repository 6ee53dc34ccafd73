//! Costs of matching a message with a tag.

use test_driver::{
    Access, Config, Connection, Cqe, CqeKind, Data, QueuePair, Receive, SendRequest, Sge,
    SharedReceiveQueue, TagChange, TagEvent, TagOperation, Transport, eager_header,
};

use crate::daemons::pace::{median, timed, until};
use crate::{BenchError, Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Messages of a batch, one at a time.
const BATCH: u16 = 16;
/// Entries that a list may have, as a power of two.
const LOG_TAGS: u32 = 7;
const TAGS: u16 = 1 << LOG_TAGS;
/// Entries ahead of the one that is matched, where there are any.
const AHEAD: u16 = 100;
/// Blocks of send queues, as a power of two.
const LOG_BLOCKS: u32 = 8;
/// A tag that no message has.
const NOBODYS: u64 = u64::MAX;

/// Messages that take requests of a shared queue, or are matched with the tags of one.
#[derive(Debug)]
struct Messages {
    connection: Connected,
    list: Option<List>,
    // After the queue pairs that use it.
    queue: SharedReceiveQueue,
}

/// A list of tags, of which the first entries stay.
#[derive(Debug)]
struct List {
    /// Changes it.
    changer: QueuePair,
    ahead: u16,
    /// The entry that is added next.
    next: u16,
}

/// The next entry of a peer's completion queue, which must be of a success.
fn completion(peer: &mut Peer) -> Result<Cqe> {
    let mut taken = None;
    until("a completion", || {
        taken = peer.cq.poll();
        taken.is_some()
    })?;
    match taken {
        Some(entry) if entry.is_ok() => Ok(entry),
        Some(entry) => Err(BenchError::Completion(entry.syndrome())),
        None => Err(BenchError::Timeout("a completion")),
    }
}

impl List {
    fn new(peer: &mut Peer, queue: &SharedReceiveQueue, ahead: u16) -> Result<Self> {
        let changer = QueuePair::new(&Config {
            log_send_blocks: LOG_BLOCKS,
            receive: Receive::Shared(queue),
            ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
        })?;
        let itself = Connection::to(peer.port.lid, changer.number());
        changer.connect(Access::ALL, &itself)?;
        let mut list = Self {
            changer,
            ahead: 0,
            next: 0,
        };
        for _ in 0..ahead {
            list.add(peer, NOBODYS)?;
        }
        list.ahead = ahead;
        Ok(list)
    }

    /// Adds an entry for the beginning of the peer's buffer.
    fn add(&mut self, peer: &mut Peer, tag: u64) -> Result<()> {
        // Those that stay are never added again.
        self.next += 1;
        if self.next == TAGS {
            self.next = self.ahead;
        }
        let change = TagChange {
            operation: TagOperation::Append {
                next: self.next,
                tag,
                mask: u64::MAX,
            },
            signaled: false,
            seen: None,
        };
        let memory = [peer.sge(MESSAGE)];
        self.changer
            .post_send(&SendRequest::change_tags(change, &memory))?;
        let entry = completion(peer)?;
        self.changer.complete(&entry);
        Ok(())
    }
}

impl Messages {
    /// Creates peers with an ordinary shared queue.
    fn shared([a, b]: &mut [Peer; 2]) -> Result<Self> {
        let queue = SharedReceiveQueue::new(&b.pd, u32::from(2 * BATCH).ilog2(), 1, None)?;
        Ok(Self {
            connection: Connected::receiving(a, b, LOG_BLOCKS, Receive::Shared(&queue))?,
            list: None,
            queue,
        })
    }

    /// Creates peers with a queue with tags, with this many entries ahead of those that are matched.
    fn tagged([a, b]: &mut [Peer; 2], ahead: u16) -> Result<Self> {
        let size = (u32::from(BATCH).ilog2(), 1);
        let queue = SharedReceiveQueue::with_tags(&b.pd, size, b.cq.number(), LOG_TAGS, true)?;
        Ok(Self {
            connection: Connected::receiving(a, b, LOG_BLOCKS, Receive::Shared(&queue))?,
            list: Some(List::new(b, &queue, ahead)?),
            queue,
        })
    }

    /// Nanoseconds from before a message is posted until its receiver's completion is seen, over one batch.
    fn one_way(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        let [a, b] = peers;
        let list: [Sge; 1] = [b.sge(MESSAGE)];
        for tag in 0..BATCH {
            match &mut self.list {
                Some(list) => list.add(b, tag.into())?,
                None => drop(self.queue.post(&list)?),
            }
        }
        let mut message = [0x5a; MESSAGE];
        let mut entries = Vec::with_capacity(BATCH.into());
        let (connection, is_tagged) = (&mut self.connection, self.list.is_some());
        let time = timed(|| {
            for tag in 0..BATCH {
                message[..16].copy_from_slice(&eager_header(tag.into()));
                let request = SendRequest::send(Data::Inline(&message));
                if tag + 1 == BATCH {
                    connection.post_signaled(&request)?;
                } else {
                    connection.post(&request.unsignaled())?;
                }
                entries.push(completion(b)?);
            }
            Ok(())
        })?;
        self.connection.drain(a)?;
        for entry in entries {
            let matched = entry.tag_event().0 == TagEvent::Matched;
            if entry.kind() != CqeKind::Send || matched != is_tagged {
                return Err(BenchError::Timeout("a message that a tag matches"));
            }
            if !is_tagged {
                self.queue.complete(&entry);
            }
        }
        Ok(time / f64::from(BATCH))
    }
}

/// Measures it: messages of 64 bytes that are matched with tags against those that take requests of a shared queue.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<[Measurement; 2]> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(4096)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut first, mut behind, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..context.effort.rounds {
        let mut shared = Messages::shared(&mut peers)?;
        let mut tagged = Messages::tagged(&mut peers, 0)?;
        let mut long = Messages::tagged(&mut peers, AHEAD)?;
        let (mut plain, mut ratios) = (Vec::new(), [const { Vec::new() }; 2]);
        // They take turns: whatever disturbs one disturbs all.
        for _ in 0..8 * context.effort.batches {
            let time = shared.one_way(&mut peers)?;
            for (of, ratios) in [&mut tagged, &mut long].into_iter().zip(&mut ratios) {
                ratios.push(of.one_way(&mut peers)? / time);
            }
            plain.push(time);
        }
        let [one, other] = ratios.map(median);
        first.push(one);
        behind.push(other);
        times.push(median(plain));
    }
    let reference = Reference {
        name: "a message by a shared queue, ns",
        value: median(times),
    };
    let measured = |name, ratios| Measurement {
        name,
        value: median(ratios),
        unit: "times",
        reference: Some(reference),
    };
    Ok([
        measured("tag_matching_over_srq", first),
        measured("tag_matching_behind_100_over_srq", behind),
    ])
}
