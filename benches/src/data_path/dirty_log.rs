//! Costs of recording the pages that a device writes.

use hca::Dma;
use hca::dma::copy_in_order;
use ibvswitch::daemon::engines::dma::GuestMemory;
use vfio_user::{DmaTable, Mapping, SharedMemory};

use crate::daemons::pace::{median, timed};
use crate::{BenchError, Context, Measurement, Pinned, Result};

/// Bytes of a message.
const MESSAGE: usize = 64 << 10;
/// Bytes of each guest's memory.
const MEMORY: usize = 8 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

fn guest(name: &str, logs: bool) -> Result<(DmaTable, GuestMemory)> {
    let memory = SharedMemory::new(name, MEMORY).map_err(BenchError::system("share memory"))?;
    let mut table = DmaTable::new();
    let invalid = |error| BenchError::system("map memory")(std::io::Error::other(error));
    let mapping = Mapping::of_shared(0, &memory).map_err(invalid)?;
    table.map(mapping).map_err(invalid)?;
    if logs {
        table.start_dirty_log();
    }
    let memory = GuestMemory::new(table.view(), None);
    Ok((table, memory))
}

/// Copies a message as the engine does where the pages of a region lie anywhere: one window for each.
fn copy(from: &GuestMemory, to: &GuestMemory, message: usize) -> Option<()> {
    for page in 0..MESSAGE / PAGE {
        let addr = (message * MESSAGE % MEMORY + page * PAGE) as u64;
        let (source, target) = (from.read_window(addr, PAGE)?, to.write_window(addr, PAGE)?);
        copy_in_order(&source, &target);
    }
    Some(())
}

/// Measures it: the bandwidth of 64 KiB messages with the log over that without.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Measurement> {
    let (_, from) = guest("from", false)?;
    let (_, plain) = guest("to", false)?;
    let (mut logged, to) = guest("to, logged", true)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let messages = MEMORY / MESSAGE;
    let time = |to: &GuestMemory| {
        timed(|| {
            let copied = (0..messages).try_for_each(|message| copy(&from, to, message));
            copied.ok_or(BenchError::Timeout("memory that is mapped"))
        })
    };
    let mut ratios = Vec::new();
    for _ in 0..context.effort.rounds {
        for _ in 0..context.effort.batches.max(1) {
            ratios.push(time(&plain)? / time(&to)?);
        }
        // As who moves a guest does.
        logged.take_dirty_log();
    }
    Ok(Measurement {
        name: "dirty_log_64k_over_off",
        value: median(ratios),
        unit: "times",
        reference: None,
    })
}
