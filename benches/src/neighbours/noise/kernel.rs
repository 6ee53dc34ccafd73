//! The kernels: fixed work (FWQ) and fixed time (FTQ), after the benchmarks of ASC Sequoia. They run by themselves in a
//! process of this program, on the host and in guests.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Work of a sample, or time of an interval: short, and long.
const LENGTHS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Time that is spent on the samples of one kernel, if nothing disturbs.
const SPAN: Duration = Duration::from_millis(1200);

/// Units of work between two looks at the clock of FTQ.
const UNITS: u64 = 64;

/// The noise of each kernel in percent: short and long FWQ, short and long FTQ; and the mean of a long sample of FWQ in
/// microseconds.
pub type Figures = [f64; 5];

fn work(units: u64) {
    let mut sum = 0u64;
    for unit in 0..units {
        sum = black_box(
            sum.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(unit),
        );
    }
    black_box(sum);
}

fn timed(units: u64) -> Duration {
    let start = Instant::now();
    work(units);
    start.elapsed()
}

/// Units that take so long.
fn calibrated(length: Duration) -> u64 {
    let probe = 20_000;
    let best = (0..50).map(|_| timed(probe)).min().unwrap_or(length);
    let units = u128::from(probe) * length.as_nanos() / best.as_nanos().max(1);
    u64::try_from(units).unwrap_or(1).max(1)
}

/// The value below which so many percent of the samples are. They are sorted.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let at = sorted.len() * percent / 100;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

/// Returns the noise in percent, and the mean time of a sample in microseconds: by how much the mean is longer than the
/// fastest hundredth.
fn fixed_work(length: Duration) -> (f64, f64) {
    let units = calibrated(length);
    let count = SPAN.as_nanos() / length.as_nanos();
    let mut samples: Vec<f64> = (0..count)
        .map(|_| timed(units).as_secs_f64() * 1e6)
        .collect();
    samples.sort_by(f64::total_cmp);
    let (fast, mean) = (quantile(&samples, 1), mean(&samples));
    (100.0 * (mean / fast - 1.0), mean)
}

/// Returns the noise in percent: by how much less is done in the mean than in the best hundredth of the intervals.
fn fixed_time(length: Duration) -> f64 {
    let count = u32::try_from(SPAN.as_nanos() / length.as_nanos()).unwrap_or(1);
    let start = Instant::now();
    let mut samples = Vec::new();
    for interval in 1..=count {
        let end = length * interval;
        let mut done = 0.0;
        while start.elapsed() < end {
            work(UNITS);
            done += 1.0;
        }
        samples.push(done);
    }
    samples.sort_by(f64::total_cmp);
    100.0 * (1.0 - mean(&samples) / quantile(&samples, 99).max(1.0))
}

/// Measures all kernels.
#[must_use]
pub fn measure() -> Figures {
    let [short, long] = LENGTHS;
    let ((fwq_short, _), (fwq_long, mean)) = (fixed_work(short), fixed_work(long));
    [
        fwq_short,
        fwq_long,
        fixed_time(short),
        fixed_time(long),
        mean,
    ]
}

/// Works without end, as a VM in the background does.
pub fn burn() -> ! {
    loop {
        work(1 << 20);
    }
}

/// The figures as a line, for another process.
#[must_use]
pub fn line(figures: &Figures) -> String {
    figures.iter().fold(String::new(), |mut text, figure| {
        // Writing to a string does not fail.
        let _ = write!(text, "{figure} ");
        text
    })
}

/// The figures of a line.
#[must_use]
pub fn parse(line: &str) -> Option<Figures> {
    let figures: Vec<f64> = line
        .split_whitespace()
        .map_while(|it| it.parse().ok())
        .collect();
    figures.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_arrive() {
        let figures = [1.5, 0.0, 2.25, 100.0, 1003.5];
        assert_eq!(parse(&line(&figures)), Some(figures));
        assert_eq!(parse("1.5 2.5"), None);
    }

    #[test]
    fn quantiles_of_few_samples() {
        let samples: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!((quantile(&samples, 1), quantile(&samples, 99)), (1.0, 99.0));
        assert_eq!((quantile(&[7.0], 99), quantile(&[], 1)), (7.0, 0.0));
    }
}
