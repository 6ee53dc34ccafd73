//! Large RDMA WRITEs against a plain copy.

use driver::{Data, SendRequest, pattern};

use crate::pace::{median, timed, until};
use crate::reference::Copy;
use crate::{Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Requests in flight.
const DEPTH: u32 = 16;
/// Bytes of a batch.
const BATCH: usize = 4 << 20;
const SIZES: [(usize, &str); 2] = [
    (64 << 10, "write_64k_over_memcpy"),
    (1 << 20, "write_1m_over_memcpy"),
];

/// Writes of `len` bytes, one like the other, always [`DEPTH`] of them in flight.
#[derive(Debug)]
struct Stream {
    connection: Connected,
    len: usize,
}

impl Stream {
    fn post(&mut self, [a, b]: &[Peer; 2]) -> Result<()> {
        let sges = [a.sge(self.len)];
        let request = SendRequest::write(b.remote(0), Data::Memory(&sges));
        self.connection.post_signaled(&request)
    }

    /// Nanoseconds per message, over one batch.
    fn time(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        while self.connection.in_flight() < DEPTH {
            self.post(peers)?;
        }
        let messages = BATCH / self.len;
        let time = timed(|| {
            for _ in 0..messages {
                let mut taken = Ok(false);
                until("a completion", || {
                    taken = self.connection.poll(&mut peers[0]);
                    !matches!(taken, Ok(false))
                })?;
                taken?;
                self.post(peers)?;
            }
            Ok(())
        })?;
        Ok(time / messages as f64)
    }
}

fn compare(context: &Context, len: usize, name: &'static str) -> Result<Measurement> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(len)?;
    let connection = Connected::new(&peers, 8)?;
    let copy = Copy::new(&peers)?;
    let mut stream = Stream { connection, len };
    let _pinned = Pinned::to(context.processors.driver)?;
    let batches = (context.effort.batches / 8).max(1);
    let messages = BATCH / len;
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for seed in 0..context.effort.rounds as u64 {
        pattern::fill(&peers[0].buffer, 0, len, seed);
        let bare = (0..=batches).map(|_| {
            let time = timed(|| (0..messages).try_for_each(|_| copy.copy(len)))?;
            Ok(time / messages as f64)
        });
        let bare = median(bare.collect::<Result<_>>()?);
        peers[1].buffer.fill(0);
        let device = (0..=batches).map(|_| stream.time(&mut peers));
        let device = median(device.collect::<Result<_>>()?);
        stream.connection.drain(&mut peers[0])?;
        pattern::verify(&peers[1].buffer, 0, len, seed)?;
        ratios.push(bare / device);
        rates.push(len as f64 / bare);
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
    each.collect()
}
