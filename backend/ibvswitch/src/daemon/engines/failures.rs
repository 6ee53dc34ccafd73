//! Send requests that fail, in the log: whose, and why.
//!
//! The engine tells on its data path. A thread writes the lines, so that no VM waits for the log, and of
//! each VM's only so many.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hca::{Failure, Report};

/// Lines of a VM in each [`INTERVAL`].
const LINES: u32 = 10;
/// See [`LINES`].
const INTERVAL: Duration = Duration::from_secs(1);
/// Lines that wait to be written; more are lost.
const WAITING: usize = 256;

/// A failure, and how many before it have no line.
type Line = (Failure, u64);

/// Number of lines that a VM has had lately.
#[derive(Debug, Default)]
struct Limit {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Limit {
    /// Whether one more line is written, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now - since >= INTERVAL) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Takes what the engine tells.
#[derive(Debug)]
struct Failures {
    limits: Vec<Limit>,
    lines: SyncSender<Line>,
}

impl Report for Failures {
    fn failed(&mut self, failure: Failure) {
        let at = usize::from(failure.vf.0);
        if let Some(limit) = self.limits.get_mut(at)
            && let Some(left_out) = limit.admit(Instant::now())
            && self.lines.try_send((failure, left_out)).is_err()
        {
            limit.left_out += left_out + 1;
        }
    }
}

/// Returns a report for each engine, which tells the log of failures; none if the log does not show them. `names` are
/// the names of the functions.
///
/// # Errors
/// When the thread cannot be started.
pub fn reports(names: Vec<String>, engines: usize) -> io::Result<Vec<Box<dyn Report>>> {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return Ok(Vec::new());
    }
    let (lines, written) = sync_channel(WAITING);
    let report = || Failures {
        limits: names.iter().map(|_| Limit::default()).collect(),
        lines: lines.clone(),
    };
    let reports: Vec<_> = (0..engines).map(|_| Box::new(report()) as _).collect();
    // Ends with the engines, which have the other ends.
    thread::Builder::new()
        .name("failures".to_owned())
        .spawn(move || write(&names, &written))?;
    Ok(reports)
}

fn write(names: &[String], lines: &Receiver<Line>) {
    for (failure, left_out) in lines {
        let vf = names
            .get(usize::from(failure.vf.0))
            .map_or("", String::as_str);
        if left_out > 0 {
            tracing::debug!(vf, "{left_out} more requests failed");
        }
        tracing::debug!(
            vf,
            "queue pair {:#08x}: request {} (opcode {:#04x}) failed, {:?}: {}",
            failure.qpn.value(),
            failure.index,
            failure.opcode,
            failure.status,
            failure.reason
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_and_how_many_were_left_out() {
        let mut limit = Limit::default();
        let start = Instant::now();
        for _ in 0..LINES {
            assert_eq!(limit.admit(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(limit.admit(start + INTERVAL / 2), None);
        }
        assert_eq!(limit.admit(start + INTERVAL), Some(5));
        assert_eq!(limit.admit(start + INTERVAL), Some(0));
    }
}
