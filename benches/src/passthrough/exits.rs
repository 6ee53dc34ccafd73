//! Costs of operations that bypass the daemon, by counting.

use std::fs;

use vfio_user::testing::Relay;

use super::lab::{self, Behind, Front};
use crate::data_path::rate::{BATCH, Stream};
use crate::{BenchError, Context, Measurement, Pinned, Result};

/// Operations for each of [`crate::Effort::batches`].
const PER_BATCH: usize = 500;

/// Returns the number of times that the daemon's threads for VFs have gone to sleep.
fn sleeps(pid: u32) -> Result<u64> {
    let read = || BenchError::system("read how often a daemon's threads sleep");
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(read())? {
        let task = task.map_err(read())?.path();
        if !fs::read_to_string(task.join("comm"))
            .map_err(read())?
            .starts_with("vf ")
        {
            continue;
        }
        let status = fs::read_to_string(task.join("status")).map_err(read())?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count
            .and_then(|it| it.trim().parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(sum)
}

/// Has small WRITEs go by a relay between driver and daemon, which sees each access to the device that the driver
/// does not make by memory.
pub(super) fn run(context: &Context, behind: &Behind) -> Result<[Measurement; 2]> {
    let front = Front::start(context, behind)?;
    let at = front.dir.path().join("relay");
    let mut sockets = front.sockets.clone();
    let relay = Relay::start(&at, &sockets[0]).map_err(BenchError::system("make a socket"))?;
    sockets[0] = at;
    let mut peers = lab::peers(&sockets)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let mut stream = Stream::new(&peers, 1)?;
    stream.rate(&mut peers)?;
    let count = || -> Result<(u64, u64)> {
        Ok((
            relay.accesses().values().sum::<u64>(),
            sleeps(front.process.id())?,
        ))
    };
    let before = count()?;
    let batches = (context.effort.batches * PER_BATCH).div_ceil(BATCH as usize);
    for _ in 0..batches {
        stream.rate(&mut peers)?;
    }
    stream.check(&mut peers)?;
    let after = count()?;
    let operations = batches as f64 * f64::from(BATCH);
    let result = |name, value, unit| Measurement {
        name,
        value,
        unit,
        reference: None,
    };
    Ok([
        result(
            "passthrough_exits_per_op",
            (after.0 - before.0) as f64 / operations,
            "1",
        ),
        result(
            "passthrough_daemon_wakeups_per_1e5",
            (after.1 - before.1) as f64 / operations * 1e5,
            "1",
        ),
    ])
}
