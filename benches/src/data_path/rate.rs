//! Rate of small RDMA WRITEs, pipelined.

use std::sync::atomic::Ordering;

use test_driver::{Data, SendRequest};

use crate::daemons::pace::{median, timed, until};
use crate::reference::{Ring, ring};
use crate::{BenchError, Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Messages of a batch.
pub(crate) const BATCH: u32 = 2048;
/// One request in so many completes, as perftest has it by and large.
const SIGNAL_EVERY: u32 = 32;
/// Words of the peer's memory that messages go to in turn.
const TARGETS: u64 = 512;
/// Queue pairs of the test with many.
const MANY: usize = 64;

/// Messages of eight bytes over some queue pairs in turn, as many at a time as
/// their send queues hold.
#[derive(Debug)]
pub struct Stream {
    connections: Vec<Connected>,
    /// Index of each connection by its number: all complete to one queue.
    by_number: Vec<(u32, usize)>,
    next: usize,
    posted: Vec<u32>,
    sent: u64,
}

impl Stream {
    /// Connects two peers by `count` connections, whose send queues together
    /// hold no more than the completion queue.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub fn new(peers: &[Peer; 2], count: usize) -> Result<Self> {
        let log_blocks = if count == 1 {
            ring::SLOTS.ilog2()
        } else {
            SIGNAL_EVERY.ilog2() + 1
        };
        let connections = (0..count)
            .map(|_| Connected::new(peers, log_blocks))
            .collect::<Result<Vec<_>>>()?;
        let mut by_number: Vec<_> = connections
            .iter()
            .enumerate()
            .map(|(index, connection)| (connection.near.number(), index))
            .collect();
        by_number.sort_unstable();
        Ok(Self {
            connections,
            by_number,
            next: 0,
            posted: vec![0; count],
            sent: 0,
        })
    }

    /// Takes a completion, if there is one.
    #[inline]
    fn poll(&mut self, peer: &mut Peer) -> Result<bool> {
        let Some(entry) = peer.cq.poll() else {
            return Ok(false);
        };
        let number = entry.qpn();
        let index = match self.connections.as_slice() {
            [_] => 0,
            _ => self
                .by_number
                .binary_search_by_key(&number, |&(number, _)| number)
                .map(|at| self.by_number[at].1)
                .unwrap_or(0),
        };
        self.connections[index].take(&entry)?;
        Ok(true)
    }

    #[inline]
    fn post(&mut self, peers: &mut [Peer; 2]) -> Result<()> {
        let [a, b] = peers;
        let index = self.next;
        self.next += 1;
        if self.next == self.connections.len() {
            self.next = 0;
        }
        if self.connections[index].near.send_room() == 0 {
            let mut failed = Ok(());
            until("room in the send queue", || {
                match self.poll(a) {
                    Ok(_) => {}
                    Err(error) => failed = Err(error),
                }
                failed.is_err() || self.connections[index].near.send_room() > 0
            })?;
            failed?;
        }
        let payload = self.sent.to_ne_bytes();
        let remote = b.remote((self.sent % TARGETS * 8) as usize);
        self.sent += 1;
        self.posted[index] += 1;
        let request = SendRequest::write(remote, Data::Inline(&payload));
        if self.posted[index].is_multiple_of(SIGNAL_EVERY) {
            self.connections[index].post_signaled(&request)
        } else {
            self.connections[index].post(&request.unsignaled())
        }
    }

    /// Million messages per second, over one batch. The device is given new
    /// ones as fast as it takes them.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn rate(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        let time = timed(|| (0..BATCH).try_for_each(|_| self.post(peers)))?;
        Ok(f64::from(BATCH) * 1e3 / time)
    }

    /// Waits until the last messages have arrived, and checks them.
    ///
    /// # Errors
    /// [`BenchError::Word`] for one that is not what was sent.
    pub fn check(&mut self, peers: &mut [Peer; 2]) -> Result<()> {
        while self.connections.iter().any(|each| each.in_flight() > 0) {
            let mut taken = Ok(false);
            until("a completion", || {
                taken = self.poll(&mut peers[0]);
                !matches!(taken, Ok(false))
            })?;
            taken?;
        }
        let words = peers[1].buffer.words();
        for number in self.sent.saturating_sub(TARGETS)..self.sent {
            let index = (number % TARGETS) as usize;
            let arrived = || words[index].load(Ordering::Acquire) == number;
            // Those after the last that completes are still on their way.
            if until("the payload", arrived).is_err() {
                return Err(BenchError::Word {
                    index,
                    found: words[index].load(Ordering::Acquire),
                    expected: number,
                });
            }
        }
        Ok(())
    }
}

/// Batches before those that count: queues fill, and queue pairs are noticed.
const WARM_UP: usize = 8;

/// The device's rate with `count` queue pairs, and the bare ring's.
fn compare(context: &Context, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(4096)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut device, mut bare) = (Vec::new(), Vec::new());
    let batches = WARM_UP + context.effort.batches;
    let typical = |rates: Vec<f64>| median(rates.into_iter().skip(WARM_UP).collect());
    for _ in 0..context.effort.rounds {
        let mut ring = Ring::start(context.processors.engine)?;
        let rates = (0..batches).map(|_| ring.rate(BATCH));
        bare.push(typical(rates.collect::<Result<_>>()?));
        ring.finish()?;
        // The engine spins, on the ring's processor, while there is a queue pair.
        let mut stream = Stream::new(&peers, count)?;
        let rates = (0..batches).map(|_| stream.rate(&mut peers));
        device.push(typical(rates.collect::<Result<_>>()?));
        stream.check(&mut peers)?;
    }
    Ok((device, bare))
}

/// Measures it.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let (one, ring) = compare(context, 1)?;
    let ratios = one.iter().zip(&ring).map(|(one, ring)| one / ring);
    let over_ring = median(ratios.collect());
    let (many, _) = compare(context, MANY)?;
    let one = median(one);
    let ring = Reference {
        name: "ring of 64-byte slots, M/s",
        value: median(ring),
    };
    Ok(vec![
        Measurement {
            name: "write_8b_mops",
            value: one,
            unit: "M/s",
            reference: Some(ring),
        },
        Measurement {
            name: "write_8b_over_spsc",
            value: over_ring,
            unit: "times",
            reference: Some(ring),
        },
        Measurement {
            name: "write_8b_mops_64qp",
            value: median(many),
            unit: "M/s",
            reference: Some(Reference {
                name: "with one queue pair, M/s",
                value: one,
            }),
        },
    ])
}
