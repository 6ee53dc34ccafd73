//! The neighbour: two VFs, and a message from one to the other now and then.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use test_driver::{Data, SendRequest};

use super::lab::{FAR, Lab, NEAR};
use super::{Doorbells, INTERVAL};
use crate::{BenchError, Connected, Peer, Pinned, Result};

/// Blocks of the send queue, as a power of two.
const LOG_BLOCKS: u32 = 4;
/// Time of a wait by spinning: then this thread leaves the processor to others.
const SPIN: Duration = Duration::from_micros(200);
/// Between two looks after that.
const NAP: Duration = Duration::from_micros(10);
/// Time limit for a message: an attacker may delay it for ever.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest measurement, where an attack does not get on.
const LONGEST: Duration = Duration::from_secs(5);
/// Slack of the kernel's timer, in nanoseconds; 50 µs by default.
const TIMER_SLACK: u64 = 1000;

/// Latencies of messages, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latencies {
    /// 99th percentile.
    pub(super) p99: f64,
    /// The longest of all.
    pub(super) worst: f64,
    /// The last one did not arrive as long as it was waited for, or the attacker
    /// could not end. The daemon is ended.
    pub(super) stuck: bool,
}

/// Two VFs, connected.
#[derive(Debug)]
pub(super) struct Neighbour {
    peers: [Peer; 2],
    connection: Connected,
    sent: u64,
}

impl Neighbour {
    pub(super) fn open(lab: &Lab) -> Result<Self> {
        let peers = [
            Peer::open(&lab.socket(NEAR), 4096)?,
            Peer::open(&lab.socket(FAR), 4096)?,
        ];
        let connection = Connected::new(&peers, LOG_BLOCKS)?;
        Ok(Self {
            peers,
            connection,
            sent: 0,
        })
    }

    /// LID of its first port.
    pub(super) fn lid(&self) -> u16 {
        self.peers[0].port.lid
    }

    /// Sends one message every [`INTERVAL`], for `time` at least and until
    /// `enough`.
    pub(super) fn measure(
        &mut self,
        lab: &Lab,
        time: Duration,
        enough: impl Fn() -> bool,
    ) -> Result<Latencies> {
        let _pinned = match lab.doorbells {
            Doorbells::Poll => Some(Pinned::to(lab.processors.driver)?),
            Doorbells::Trap => None,
        };
        nix::sys::prctl::set_timerslack(TIMER_SLACK)
            .map_err(BenchError::system("have pauses of the length asked for"))?;
        let mut histogram =
            Histogram::<u64>::new(3).map_err(|error| BenchError::Histogram(error.to_string()))?;
        let start = Instant::now();
        let mut due = start;
        let stuck = loop {
            let now = Instant::now();
            let past = now.duration_since(start);
            if past >= time && (enough() || past >= LONGEST) {
                break false;
            }
            if let Some(early) = due.checked_duration_since(now) {
                thread::sleep(early);
            }
            let taken = self.write()?;
            let waited = taken.unwrap_or(MESSAGE_TIMEOUT).as_nanos() as u64;
            histogram
                .record(waited)
                .map_err(|error| BenchError::Histogram(error.to_string()))?;
            if taken.is_none() {
                lab.kill();
                break true;
            }
            due = (due + INTERVAL).max(Instant::now());
        };
        Ok(Latencies {
            p99: histogram.value_at_quantile(0.99) as f64,
            worst: histogram.max() as f64,
            stuck,
        })
    }

    /// One message: from before it is posted until its payload is seen, if it
    /// is within [`MESSAGE_TIMEOUT`].
    fn write(&mut self) -> Result<Option<Duration>> {
        self.sent += 1;
        let [near, far] = &mut self.peers;
        let payload = self.sent.to_ne_bytes();
        let request = SendRequest::write(far.remote(0), Data::Inline(&payload));
        let seen = &far.buffer.words()[0];
        let start = Instant::now();
        self.connection.post_signaled(&request)?;
        let taken = loop {
            let arrived = seen.load(Ordering::Acquire) == self.sent;
            let taken = start.elapsed();
            if arrived {
                break taken;
            }
            if taken > MESSAGE_TIMEOUT {
                return Ok(None);
            }
            if taken > SPIN {
                thread::sleep(NAP);
            } else {
                std::hint::spin_loop();
            }
        };
        self.connection.drain(near)?;
        Ok(Some(taken))
    }
}
