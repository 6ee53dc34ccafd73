//! Large RDMA WRITEs against a plain copy.

use driver::{Data, SendRequest, pattern};

use crate::pace::{median, timed, until};
use crate::reference::Copy;
use crate::{
    Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result, dirty_log, on_demand,
};

/// Requests of which the last completes: perftest has fewer complete.
const GROUP: usize = 8;
/// Groups in flight.
const DEPTH: u32 = 2;
/// Bytes of a batch.
const BATCH: usize = 8 << 20;
const SIZES: [(usize, &str); 2] = [
    (64 << 10, "write_64k_over_memcpy"),
    (1 << 20, "write_1m_over_memcpy"),
];

/// Writes of `len` bytes, one like the other, in groups of [`GROUP`], of which
/// [`DEPTH`] are in flight.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Connected,
    len: usize,
}

impl Stream {
    /// Connects two peers for it.
    pub fn new(peers: &[Peer; 2], len: usize) -> Result<Self> {
        let connection = Connected::new(peers, 8)?;
        Ok(Self { connection, len })
    }

    fn post(&mut self, [a, b]: &[Peer; 2]) -> Result<()> {
        let sges = [a.sge(self.len)];
        let request = SendRequest::write(b.remote(0), Data::Memory(&sges));
        for _ in 1..GROUP {
            self.connection.post(&request.unsignaled())?;
        }
        self.connection.post_signaled(&request)
    }

    /// Waits until a group has completed.
    fn wait(&mut self, peer: &mut Peer) -> Result<()> {
        let mut taken = Ok(false);
        until("a completion", || {
            taken = self.connection.poll(peer);
            !matches!(taken, Ok(false))
        })?;
        taken.map(drop)
    }

    /// Nanoseconds per message, over one batch. Groups before it bring the
    /// payload to the engine's cache; nothing is in flight afterwards.
    pub fn time(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        for _ in 0..DEPTH {
            self.post(peers)?;
        }
        self.wait(&mut peers[0])?;
        self.post(peers)?;
        let groups = (BATCH / self.len / GROUP).max(1);
        let time = timed(|| {
            for _ in 0..groups {
                self.wait(&mut peers[0])?;
                self.post(peers)?;
            }
            Ok(())
        })?;
        self.connection.drain(&mut peers[0])?;
        Ok(time / (groups * GROUP) as f64)
    }
}

fn compare(context: &Context, len: usize, name: &'static str) -> Result<Measurement> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(len)?;
    let copy = Copy::new(&peers)?;
    let mut stream = Stream::new(&peers, len)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let messages = (BATCH / len).max(1);
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for seed in 0..context.effort.rounds as u64 {
        pattern::fill(&peers[0].buffer, 0, len, seed);
        peers[1].buffer.fill(0);
        // They take turns often: others who use the memory disturb both alike.
        for _ in 0..(context.effort.batches / 8).max(1) {
            copy.copy(len)?;
            let bare = timed(|| (0..messages).try_for_each(|_| copy.copy(len)))?;
            let bare = bare / messages as f64;
            ratios.push(bare / stream.time(&mut peers)?);
            rates.push(len as f64 / bare);
        }
        // That it was the device that copied.
        peers[1].buffer.fill(0);
        stream.time(&mut peers)?;
        pattern::verify(&peers[1].buffer, 0, len, seed)?;
    }
    Ok(Measurement {
        name,
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "memcpy, GB/s",
            value: median(rates),
        }),
    })
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let each = SIZES.iter().map(|&(len, name)| compare(context, len, name));
    each.chain([on_demand::run(context), dirty_log::run(context)])
        .collect()
}
