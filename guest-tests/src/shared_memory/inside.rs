//! Program that runs in the two guests.

use std::{
    fs,
    fs::File,
    hint::black_box,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use clap::Subcommand;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use super::{COPY, Figures, MEMORY, READY};
use crate::error::{Doing, Error, Result};

/// Where the one end writes, in bytes from the start of the memory.
const ASK: usize = 0;
/// Where the other end answers: in another cache line, and not in the one that processors fetch along with it.
const ANSWER: usize = 256;
/// Where copies go.
const COPIES: usize = 4096;
/// Value that ends the answering end.
const END: u64 = u64::MAX;

/// Copies of which the time is taken together.
const BATCH: u32 = 16;

/// Role of a guest.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Role {
    /// Answers what the other guest writes, until the other has measured.
    Answer,
    /// Measures, and prints the figures as JSON.
    Measure {
        /// Round trips.
        iterations: u64,
    },
}

/// Does it.
pub fn run(role: Role) -> Result<()> {
    let memory = map(Path::new("/sys/bus/pci/devices"))?;
    let word = |at: usize| {
        let word = memory.get_atomic_ref::<AtomicU64>(at);
        word.map_err(|error| Error::Host(format!("the shared memory: {error}")))
    };
    let (ask, answer) = (word(ASK)?, word(ANSWER)?);
    match role {
        Role::Answer => {
            ask.store(0, Ordering::Release);
            println!("{READY}");
            let mut last = 0;
            while last != END {
                let asked = ask.load(Ordering::Acquire);
                if asked != last {
                    answer.store(asked, Ordering::Release);
                    last = asked;
                }
            }
            Ok(())
        }
        Role::Measure { iterations } => {
            let mut times = round_trips(ask, answer, iterations);
            ask.store(END, Ordering::Release);
            let mib_per_s = copies(&memory)?;
            times.sort_unstable();
            // Half a round trip, as perftest has it.
            let at = |hundredths: usize| {
                let at = times.len() * hundredths / 100;
                times.get(at).map_or(0.0, |time| time.as_secs_f64() * 5e5)
            };
            let figures = Figures {
                median_us: at(50),
                p99_us: at(99),
                mib_per_s,
            };
            let json = serde_json::to_string(&figures).map_err(io::Error::from);
            println!("{}", json.doing("write the figures as JSON")?);
            Ok(())
        }
    }
}

fn round_trips(ask: &AtomicU64, answer: &AtomicU64, iterations: u64) -> Vec<Duration> {
    let once = |number: u64| {
        let begin = Instant::now();
        ask.store(number, Ordering::Release);
        while answer.load(Ordering::Acquire) != number {}
        begin.elapsed()
    };
    (1..=iterations).map(once).collect()
}

/// The rate of copies of [`COPY`] bytes into the memory, in MiB/s: the median of some batches.
fn copies(memory: &MmapRegion) -> Result<f64> {
    let target = memory.get_slice(COPIES, COPY);
    let target = target.map_err(|error| Error::Host(format!("the shared memory: {error}")))?;
    let source = vec![0x5au8; COPY];
    let batch = || {
        let begin = Instant::now();
        for _ in 0..BATCH {
            target.copy_from(black_box(&source));
        }
        begin.elapsed().as_secs_f64()
    };
    let mut times: Vec<f64> = (0..100).map(|_| batch()).collect();
    times.sort_by(f64::total_cmp);
    let bytes = COPY as f64 * f64::from(BATCH);
    Ok(bytes / times[times.len() / 2] / f64::from(1 << 20))
}

/// The memory of the first ivshmem device among `devices`: its second BAR (QEMU docs/specs/ivshmem-spec.rst).
fn map(devices: &Path) -> Result<MmapRegion> {
    let device = find(devices)?;
    let enable = device.join("enable");
    fs::write(&enable, "1").at("write", &enable)?;
    let bar = device.join("resource2");
    let file = File::options().read(true).write(true).open(&bar);
    let file = FileOffset::new(file.at("open", &bar)?, 0);
    MmapRegion::from_file(file, MEMORY)
        .map_err(|error| Error::Host(format!("cannot map {}: {error}", bar.display())))
}

fn find(devices: &Path) -> Result<PathBuf> {
    let is = |path: &Path, name: &str, value: &str| {
        fs::read_to_string(path.join(name)).is_ok_and(|text| text.trim() == value)
    };
    for entry in fs::read_dir(devices).at("read", devices)? {
        let path = entry.at("read", devices)?.path();
        if is(&path, "vendor", "0x1af4") && is(&path, "device", "0x1110") {
            return Ok(path);
        }
    }
    Err(Error::Host(
        "no ivshmem device: this is for the guests of the demo".into(),
    ))
}
