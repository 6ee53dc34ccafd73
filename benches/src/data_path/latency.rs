//! One-way time of a small RDMA WRITE.

mod full_mode;

use std::sync::atomic::Ordering;

use test_driver::{
    Access, AddressVector, Config, Connection, Data, DynamicTarget, QueuePair, SendRequest,
    SharedReceiveQueue, TargetConfig, Transport,
};

use crate::daemons::lab::two_vfs;
use crate::daemons::pace::{median, timed, until};
use crate::data_path::tags;
use crate::reference::CacheLine;
use crate::{Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Messages of a batch, one at a time.
const BATCH: u64 = 16;
/// Where the engine looks at doorbells all the time.
const POLL: &str = "poll";
/// Blocks of the send queue, as a power of two.
const LOG_BLOCKS: u32 = 8;

/// Messages of eight bytes, one after the other: each is posted when the one
/// before it has been seen in the peer's memory.
#[derive(Debug)]
pub struct PingStream {
    connection: Connected,
    /// Over a dynamic connection.
    target: Option<Target>,
    /// Rings by blocks, not by words (BlueFlame).
    by_block: bool,
    sent: u64,
}

/// Access key of the target.
const KEY: u64 = 0x0102_0304_0506_0708;

/// The target of a dynamic connection.
#[derive(Debug)]
struct Target {
    to: AddressVector,
    _dct: DynamicTarget,
    _queue: SharedReceiveQueue,
}

impl PingStream {
    /// Connects two peers for it.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    pub fn new(peers: &[Peer; 2]) -> Result<Self> {
        Ok(Self {
            connection: Connected::new(peers, LOG_BLOCKS)?,
            target: None,
            by_block: false,
            sent: 0,
        })
    }

    /// The same, ringing by blocks.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    fn by_block(peers: &[Peer; 2]) -> Result<Self> {
        let mut stream = Self::new(peers)?;
        stream.by_block = true;
        Ok(stream)
    }

    /// The same over a dynamic connection.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    pub fn dynamic(peers: &[Peer; 2]) -> Result<Self> {
        let [a, b] = peers;
        let queue = SharedReceiveQueue::new(&b.pd, 2, 1, None)?;
        let dct = DynamicTarget::new(&TargetConfig {
            pd: &b.pd,
            queue: &queue,
            cq: &b.cq,
            access: Access::ALL,
            key: KEY,
            mtu: 5,
            min_rnr_nak: 12,
        })?;
        let mut connection = Connected::new(peers, LOG_BLOCKS)?;
        connection.near = QueuePair::new(&Config {
            log_send_blocks: LOG_BLOCKS,
            ..Config::new(Transport::DynamicInitiator, &a.pd, &a.uar, &a.cq)
        })?;
        connection
            .near
            .connect(Access::ALL, &Connection::to(0, 0))?;
        let to = AddressVector {
            lid: b.port.lid,
            qpn: dct.number(),
            ..AddressVector::default()
        };
        let target = Target {
            to,
            _dct: dct,
            _queue: queue,
        };
        Ok(Self {
            connection,
            target: Some(target),
            by_block: false,
            sent: 0,
        })
    }

    /// Nanoseconds from writing a request (its queue entry, then its doorbell
    /// record, then its doorbell) to the payload's being seen at the other
    /// end, over one batch.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    pub fn one_way(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        let [a, b] = peers;
        let remote = b.remote(0);
        let seen = &b.buffer.words()[0];
        let Self {
            connection,
            target,
            by_block,
            sent,
        } = self;
        // The last stream has left its own.
        seen.store(0, Ordering::Release);
        let mut send = |last: bool| {
            *sent += 1;
            let payload = sent.to_ne_bytes();
            let request = SendRequest::write(remote, Data::Inline(&payload));
            let request = match &target {
                Some(target) => request.to_target(&target.to, KEY),
                None => request,
            };
            match (last, *by_block) {
                (true, _) => connection.post_signaled(&request)?,
                (false, true) => {
                    let request = request.unsignaled();
                    connection.near.post_send_by_block(&request)?;
                }
                (false, false) => connection.post(&request.unsignaled())?,
            }
            until("the payload", || seen.load(Ordering::Acquire) == *sent)
        };
        let time = timed(|| (1..BATCH).try_for_each(|_| send(false)))?;
        // Gives the send queue's room back; its completion is not timed.
        send(true)?;
        connection.drain(a)?;
        Ok(time / (BATCH - 1) as f64)
    }
}

/// Measures a doorbell for a block of requests, with doorbells of a kind.
fn blocks(context: &Context, doorbells: &str, name: &'static str) -> Result<Measurement> {
    let engine = (doorbells == POLL).then_some(context.processors.engine);
    let daemon = Daemon::with(&two_vfs(engine, doorbells))?;
    let mut peers = daemon.peers(4096)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut ratios, mut words) = (Vec::new(), Vec::new());
    for _ in 0..context.effort.rounds {
        let mut times = [PingStream::new as fn(&[Peer; 2]) -> _, PingStream::by_block]
            .into_iter()
            .map(|make| -> Result<f64> {
                let mut stream = make(&peers)?;
                let batches = 0..8 * context.effort.batches;
                let times = batches.map(|_| stream.one_way(&mut peers));
                Ok(median(times.collect::<Result<_>>()?))
            });
        if let (Some(word), Some(block)) = (times.next(), times.next()) {
            let word = word?;
            ratios.push(block? / word);
            words.push(word);
        }
    }
    Ok(Measurement {
        name,
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "one-way time with a doorbell, ns",
            value: median(words),
        }),
    })
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let blue_flame = [
        blocks(context, POLL, "blueflame_over_doorbell_poll")?,
        blocks(context, "trap", "blueflame_over_doorbell_trap")?,
    ];
    Ok(of_doorbells(context)?
        .into_iter()
        .chain(blue_flame)
        .chain(tags::run(context)?)
        .chain([full_mode::run(context)?])
        .collect())
}

fn of_doorbells(context: &Context) -> Result<[Measurement; 2]> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(4096)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut ratios, mut lines) = (Vec::new(), Vec::new());
    let (mut dynamic, mut reliable) = (Vec::new(), Vec::new());
    for _ in 0..context.effort.rounds {
        let mut line = CacheLine::start(context.processors.engine)?;
        // A batch of these is shorter than those of other suites.
        let batches = 0..8 * context.effort.batches;
        let bare = batches.clone().map(|_| line.one_way());
        let bare = median(bare.collect::<Result<_>>()?);
        drop(line);
        // The engine spins, on the line's processor, while there is a queue pair.
        let mut stream = PingStream::new(&peers)?;
        let device = batches.clone().map(|_| stream.one_way(&mut peers));
        let device = median(device.collect::<Result<_>>()?);
        drop(stream);
        let mut stream = PingStream::dynamic(&peers)?;
        let over = batches.map(|_| stream.one_way(&mut peers));
        dynamic.push(median(over.collect::<Result<_>>()?) / device);
        reliable.push(device);
        ratios.push(device / bare);
        lines.push(bare);
    }
    Ok([
        Measurement {
            name: "write_8b_over_cacheline",
            value: median(ratios),
            unit: "times",
            reference: Some(Reference {
                name: "one-way time of a cache line, ns",
                value: median(lines),
            }),
        },
        Measurement {
            name: "dc_over_rc",
            value: median(dynamic),
            unit: "times",
            reference: Some(Reference {
                name: "one-way time over a reliable connection, ns",
                value: median(reliable),
            }),
        },
    ])
}
