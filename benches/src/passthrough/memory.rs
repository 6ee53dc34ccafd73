//! Time until a VF reaches a guest's memory.

use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;

use vfio_user::client::Client;
use vfio_user::{Protection, SharedMemory};

use super::lab::{Behind, Front};
use crate::daemons::pace::median;
use crate::{BenchError, Context, Measurement, Reference, Result};

/// Bytes to map, where the machine has as many.
const WANTED: usize = 16 << 30;
/// Where guests' memory above 4 GiB begins.
const ADDRESS: u64 = 4 << 30;

/// Bytes that the machine has free, down to a power of two, at most those that are wanted: an adapter's VF has
/// them all pinned.
fn size() -> Result<usize> {
    let read = BenchError::system("read how much memory is free");
    let info = fs::read_to_string("/proc/meminfo").map_err(read)?;
    let mut lines = info.lines();
    let free = lines.find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let kib: usize = free.and_then(|it| it.trim().parse().ok()).unwrap_or(0);
    Ok(WANTED.min(1 << (kib << 10).max(1).ilog2()))
}

/// Milliseconds of one mapping of memory that nobody has touched.
pub(super) fn run(context: &Context, behind: &Behind) -> Result<Measurement> {
    let size = size()?.min(context.effort.registered * 16);
    let memory = SharedMemory::new("guest", size).map_err(BenchError::system("share memory"))?;
    let front = Front::start(context, behind)?;
    let mut client = Client::connect(&front.sockets[0]).map_err(test_driver::Error::from)?;
    let mut times = Vec::new();
    for _ in 0..context.effort.rounds {
        let start = Instant::now();
        let fd = memory.fd().as_fd();
        client
            .dma_map(Some(fd), 0, ADDRESS, size as u64, Protection::READ_WRITE)
            .map_err(test_driver::Error::from)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        client
            .dma_unmap(ADDRESS, size as u64)
            .map_err(test_driver::Error::from)?;
    }
    Ok(Measurement {
        name: "passthrough_map_16g_ms",
        value: median(times),
        unit: "ms",
        reference: Some(Reference {
            name: "GiB mapped",
            value: size as f64 / f64::from(1 << 30),
        }),
    })
}
