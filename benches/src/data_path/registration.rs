//! Registration of memory.

use std::time::Instant;

use test_driver::{Access, MemoryRegion};

use crate::daemons::pace::median;
use crate::{Context, Daemon, Measurement, Result};

/// Pages as small as there are.
const LOG_PAGE_SIZE: u32 = 12;

/// Measures it: from a request to its answer, in pages of 4 KiB.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let daemon = Daemon::start(context.processors)?;
    let [peer, _other] = daemon.peers(4096)?;
    let len = context.effort.registered;
    let memory = peer.device.add_memory(len, LOG_PAGE_SIZE)?;
    let buffer = memory
        .allocate(len, 1 << LOG_PAGE_SIZE)
        .ok_or(test_driver::Error::OutOfMemory(len))?;
    let mut times = Vec::new();
    for _ in 0..context.effort.rounds {
        let start = Instant::now();
        let region =
            MemoryRegion::with_pages(&peer.pd, &buffer, Access::ALL, buffer.iova(), LOG_PAGE_SIZE)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        drop(region);
    }
    Ok(vec![Measurement {
        name: "register_1g_ms",
        value: median(times),
        unit: "ms",
        reference: None,
    }])
}
