//! Large RDMA WRITEs against a plain copy.

use test_driver::pattern;

use crate::daemons::pace::{median, timed};
use crate::data_path::bulk::{BATCH, Stream};
use crate::data_path::{dirty_log, on_demand, signatures};
use crate::reference::Copy;
use crate::{Context, Daemon, Measurement, Pinned, Reference, Result};

const SIZES: [(usize, &str); 2] = [
    (64 << 10, "write_64k_over_memcpy"),
    (1 << 20, "write_1m_over_memcpy"),
];

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
    each.chain([
        on_demand::run(context),
        dirty_log::run(context),
        signatures::run(context),
    ])
    .collect()
}
