//! Times of single operations of eight bytes: median and 99th percentile.

use std::sync::atomic::Ordering;
use std::time::Instant;

use test_driver::{Atomic, Data, SendOpcode, SendRequest};

use crate::daemons::pace::until;
use crate::{Connected, Measurement, Peer, Reference, Result};

/// Nanoseconds that each of one kind has taken.
pub(super) type Times = Vec<f64>;

/// Operations of each kind in a batch.
const BATCH: usize = 16;
/// Blocks of the send queue, as a power of two.
const LOG_BLOCKS: u32 = 8;
/// Bytes of an operation.
const LEN: usize = 8;
/// Where in the far buffer messages arrive, and the word that is read and added to.
const MESSAGES: u64 = 1024;
const WORD: usize = 2048;

/// Names of results: the median, the 99th percentile.
const NAMES: [[&str; 2]; 4] = [
    ["passthrough_write_us", "passthrough_write_p99_us"],
    ["passthrough_send_us", "passthrough_send_p99_us"],
    ["passthrough_read_us", "passthrough_read_p99_us"],
    ["passthrough_atomic_us", "passthrough_atomic_p99_us"],
];

/// Nanoseconds until something is there.
fn timed(
    what: &'static str,
    begin: impl FnOnce() -> Result<()>,
    done: impl FnMut() -> bool,
) -> Result<f64> {
    let start = Instant::now();
    begin()?;
    until(what, done)?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Does operations of every kind in turn: a WRITE until the payload is seen, a SEND until it is received, a READ
/// and a fetch-and-add until they complete.
pub(super) fn measure(
    [a, b]: &mut [Peer; 2],
    batches: usize,
    times: &mut [Times; 4],
) -> Result<()> {
    let mut connection = Connected::between(a, b, LOG_BLOCKS)?;
    let remote = b.remote(0);
    let into = [a.sge(LEN)];
    let mut receive = b.sge(LEN);
    receive.addr += MESSAGES;
    for number in 1..=(batches * BATCH) as u64 {
        let payload = number.to_ne_bytes();
        let write = SendRequest::write(remote, Data::Inline(&payload));
        let seen = &b.buffer.words()[0];
        times[0].push(timed(
            "the payload",
            || connection.post_signaled(&write),
            || seen.load(Ordering::Acquire) == number,
        )?);
        connection.drain(a)?;

        connection.far.post_receive(&[receive])?;
        let send = SendRequest::send(Data::Inline(&payload));
        let mut received = None;
        times[1].push(timed(
            "a message",
            || connection.post_signaled(&send),
            || {
                received = b.cq.poll();
                received.is_some()
            },
        )?);
        if let Some(entry) = received {
            connection.far.complete_receive(&entry);
        }
        connection.drain(a)?;

        let read = SendRequest::read(b.remote(WORD), &into);
        let add = Atomic {
            swap_add: 1,
            ..Atomic::default()
        };
        let add = SendRequest::atomic(SendOpcode::FetchAdd, b.remote(WORD), add, &into);
        for (request, times) in [read, add].iter().zip(&mut times[2..]) {
            let mut done = None;
            times.push(timed(
                "a completion",
                || connection.post_signaled(request),
                || {
                    done = a.cq.poll();
                    done.is_some()
                },
            )?);
            if let Some(entry) = done {
                connection.take(&entry)?;
            }
        }
    }
    Ok(())
}

/// The value below which this share of times lies, in µs.
fn percentile(times: &[f64], share: f64) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    let at = (times.len() as f64 * share) as usize;
    Some(times.get(at)? / 1e3)
}

/// The results, beside those without anybody between.
pub(super) fn results<'a>(
    passed: &'a [Times; 4],
    direct: &'a [Times; 4],
) -> impl Iterator<Item = Measurement> + 'a {
    let kinds = NAMES.iter().zip(passed.iter().zip(direct));
    kinds.flat_map(|(names, (passed, direct))| {
        names.iter().zip([0.5, 0.99]).filter_map(|(name, share)| {
            let reference = percentile(direct, share).map(|value| Reference {
                name: "direct, us",
                value,
            });
            Some(Measurement {
                name,
                value: percentile(passed, share)?,
                unit: "us",
                reference,
            })
        })
    })
}
