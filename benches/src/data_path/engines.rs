//! Rate of small RDMA WRITEs of several pairs of VFs at once, each pair in an engine of its own.
//!
//! The two VFs of a pair are in one engine, or each is in an engine of its own; each pair has a driver on a thread of
//! its own. N engines need a processor each, and so do N drivers: where there are fewer, the ratio says how they
//! share processors and nothing about engines, so more than two engines are measured only where there are
//! enough. Each result tells how many there are, and how many it needs.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::daemons::lab::pairs;
use crate::daemons::pace::median;
use crate::data_path::rate::{BATCH, Stream};
use crate::{
    BenchError, Context, Daemon, Measurement, Peer, Pinned, Processors, Reference, Result,
};

/// Engines beside one, the names of the results within and between engines, and the processors that they need.
const ENGINES: [(usize, [&str; 2], &str); 4] = [
    (
        2,
        [
            "write_rate_2_engines_over_1",
            "write_rate_between_2_engines_over_1",
        ],
        "processors, 4 needed",
    ),
    (
        4,
        [
            "write_rate_4_engines_over_1",
            "write_rate_between_4_engines_over_1",
        ],
        "processors, 8 needed",
    ),
    (
        8,
        [
            "write_rate_8_engines_over_1",
            "write_rate_between_8_engines_over_1",
        ],
        "processors, 16 needed",
    ),
    (
        16,
        [
            "write_rate_16_engines_over_1",
            "write_rate_between_16_engines_over_1",
        ],
        "processors, 32 needed",
    ),
];
/// Batches before those that count.
const WARM_UP: usize = 8;

/// Million messages per second of `count` pairs together, each within an engine, or between that and the next one.
fn rate(context: &Context, allowed: &[usize], count: usize, between: bool) -> Result<f64> {
    let enough = allowed.len() >= 2 * count;
    let in_a_row = allowed
        .windows(2)
        .take(count)
        .all(|two| two[1] == two[0] + 1);
    let first = (enough && in_a_row).then(|| allowed[0]);
    let daemon = Daemon::with(&pairs(first, count, between))?;
    let mut peers = (0..count)
        .map(|pair| daemon.pair(pair, 4096))
        .collect::<Result<Vec<[Peer; 2]>>>()?;
    let batches = context.effort.batches;
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter_mut()
            .enumerate()
            .map(|(at, peers)| {
                let barrier = &barrier;
                let cpu = allowed.get(count + at).copied().filter(|_| enough);
                scope.spawn(move || -> Result<f64> {
                    let _pinned = cpu.map(Pinned::to).transpose()?;
                    let mut stream = Stream::new(peers, 1)?;
                    let warm = (0..WARM_UP).try_for_each(|_| stream.rate(peers).map(drop));
                    // Nobody waits for one that has failed.
                    barrier.wait();
                    warm?;
                    let began = Instant::now();
                    for _ in 0..batches {
                        stream.rate(peers)?;
                    }
                    let time = began.elapsed();
                    stream.check(peers)?;
                    Ok(f64::from(BATCH) * batches as f64 / time.as_secs_f64() / 1e6)
                })
            })
            .collect();
        let rates = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(BenchError::Processors("a driver failed".to_owned())))
        });
        rates.sum::<Result<f64>>()
    })
}

/// Measures it.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let allowed = Processors::allowed()?;
    let mut results = Vec::new();
    for (count, names, processors) in ENGINES {
        if count > 2 && allowed.len() < 2 * count {
            continue;
        }
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..context.effort.rounds {
            let one = rate(context, &allowed, 1, false)?;
            for (ratios, between) in ratios.iter_mut().zip([false, true]) {
                ratios.push(rate(context, &allowed, count, between)? / one);
            }
        }
        results.extend(
            names
                .into_iter()
                .zip(ratios)
                .map(|(name, ratios)| Measurement {
                    name,
                    value: median(ratios),
                    unit: "times",
                    reference: Some(Reference {
                        name: processors,
                        value: allowed.len() as f64,
                    }),
                }),
        );
    }
    Ok(results)
}
