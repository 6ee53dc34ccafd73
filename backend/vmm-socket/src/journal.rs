//! Bounds on the work that the clients of one socket cause beside what they ask for: log lines and connections.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// Log lines of one kind that are written without delay.
const BURST_LINES: u32 = 16;
/// Interval of the lines after these.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Connections that are served without delay.
const BURST_CONNECTIONS: u32 = 64;
/// Interval of the connections after these.
const CONNECTION_INTERVAL: Duration = Duration::from_millis(1);
/// Kind of the lines about clients that come and go.
const CLIENTS: &str = "clients";

/// Log lines of one kind that were left out before a line that is written. As text it follows that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Omitted {
    count: u64,
    /// From the first one that was left out to this line.
    span: Duration,
    /// The next line is left out.
    last: bool,
}

impl fmt::Display for Omitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, span, last } = *self;
        if count > 0 {
            let rate = count / span.as_secs().max(1);
            write!(f, " ({count} lines were left out before, {rate} a second)")
        } else if last {
            let interval = LINE_INTERVAL.as_secs();
            write!(
                f,
                " (of such lines one in {interval} s is written from now on)"
            )
        } else {
            Ok(())
        }
    }
}

/// Bounds the log lines of one kind.
#[derive(Debug)]
struct Limiter {
    left: u32,
    refilled: Instant,
    omitted: u64,
    /// Time of the first line that was left out.
    since: Instant,
}

impl Limiter {
    const fn new(now: Instant) -> Self {
        Self {
            left: BURST_LINES,
            refilled: now,
            omitted: 0,
            since: now,
        }
    }

    /// Whether to write a line; then, with how many before it that were not.
    fn admit(&mut self, now: Instant) -> Option<Omitted> {
        let passed = now.saturating_duration_since(self.refilled);
        let earned = (passed.as_secs() / LINE_INTERVAL.as_secs()).min(u64::from(BURST_LINES));
        if earned > 0 {
            self.left = (self.left + earned as u32).min(BURST_LINES);
            self.refilled = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            if self.omitted == 0 {
                self.since = now;
            }
            self.omitted += 1;
            return None;
        };
        self.left = left;
        Some(Omitted {
            count: std::mem::take(&mut self.omitted),
            span: now.saturating_duration_since(self.since),
            last: left == 0,
        })
    }
}

/// Log lines that the clients of one socket can cause, by kind. The journal belongs to the socket and outlives its
/// clients, so that a client gains nothing by another connection.
#[derive(Debug, Default)]
pub struct Journal {
    kinds: BTreeMap<&'static str, Limiter>,
    /// Whether the log has a line about the present client; `None` for a client that has had no line yet.
    shown: Option<bool>,
}

impl Journal {
    /// Whether to write a line of this kind; then, the text behind it.
    pub fn admit(&mut self, kind: &'static str) -> Option<Omitted> {
        let now = Instant::now();
        let limiter = self.kinds.entry(kind);
        limiter.or_insert_with(|| Limiter::new(now)).admit(now)
    }

    /// Whether to write that a client has come.
    pub fn arrival(&mut self) -> Option<Omitted> {
        let omitted = self.admit(CLIENTS);
        self.shown = Some(omitted.is_some());
        omitted
    }

    /// Whether to write that the present client is gone: the log has both lines about a client, or neither.
    pub fn departure(&mut self) -> Option<Omitted> {
        match self.shown.take() {
            Some(true) => Some(self.omitted()),
            Some(false) => None,
            None => self.admit(CLIENTS),
        }
    }

    /// The lines of all kinds that were left out so far.
    fn omitted(&mut self) -> Omitted {
        let now = Instant::now();
        let limiters = self
            .kinds
            .values_mut()
            .filter(|limiter| limiter.omitted > 0);
        let (count, since) = limiters.fold((0, now), |(count, since), limiter| {
            let omitted = std::mem::take(&mut limiter.omitted);
            (count + omitted, since.min(limiter.since))
        });
        Omitted {
            count,
            span: now - since,
            last: false,
        }
    }

    /// Writes a warning of this kind, which a client can cause again and again.
    pub fn warn(&mut self, kind: &'static str, what: fmt::Arguments<'_>) {
        if let Some(omitted) = self.admit(kind) {
            warn!("{what}{omitted}");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        for (kind, limiter) in &self.kinds {
            if limiter.omitted > 0 {
                info!(kind, lines = limiter.omitted, "left out of the log");
            }
        }
    }
}

/// The pace at which connections of one socket are served. A connection that comes too soon waits in the queue of
/// the socket, so that a client that connects again and again takes no more than a small share of a processor.
#[derive(Debug, Default)]
pub struct Pace {
    /// End of the time that all connections so far may take.
    paid: Option<Instant>,
}

impl Pace {
    /// Time until the next connection may be served.
    #[must_use]
    pub fn rest(&self, now: Instant) -> Duration {
        let ahead = self.paid.map(|paid| paid.saturating_duration_since(now));
        ahead
            .unwrap_or_default()
            .saturating_sub(CONNECTION_INTERVAL * BURST_CONNECTIONS)
    }

    /// Counts a connection that is served.
    pub fn count(&mut self, now: Instant) {
        let paid = self.paid.map_or(now, |paid| paid.max(now));
        self.paid = Some(paid + CONNECTION_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_few_lines_and_is_counted() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(begin);
        // A thousand a second, for 100 s.
        let written: Vec<Omitted> = (0..100_000)
            .filter_map(|event| limiter.admit(begin + Duration::from_millis(event)))
            .collect();
        assert_eq!(written.len(), 16 + 9);
        assert!(written[..15].iter().all(|it| it.to_string().is_empty()));
        assert!(written[15].to_string().contains("one in 10 s"));
        let counts: Vec<u64> = written.iter().map(|it| it.count).collect();
        assert_eq!(
            counts[16..],
            [9984, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999]
        );
        assert_eq!(
            written[17].to_string(),
            " (9999 lines were left out before, 1111 a second)"
        );
        // Events that are rare have a line each.
        let later = begin + Duration::from_secs(1000);
        assert_eq!(limiter.admit(later).map(|it| it.count), Some(9999));
        let written = (1..100).map(|event| limiter.admit(later + LINE_INTERVAL * event));
        assert!(
            written
                .into_iter()
                .all(|it| it.map(|it| it.count) == Some(0))
        );
    }

    #[test]
    fn a_client_has_both_lines_or_neither() {
        let mut journal = Journal::default();
        let lines = |journal: &mut Journal| {
            let came = journal.arrival().is_some();
            (came, journal.departure().is_some())
        };
        let shown: Vec<_> = (0..2000).map(|_| lines(&mut journal)).collect();
        assert!(shown.iter().all(|(came, gone)| came == gone));
        assert_eq!(shown.iter().filter(|(came, _)| *came).count(), 16);
        // One that ends before it has said anything counts as well.
        assert_eq!(journal.departure(), None);
        // Other kinds have bounds of their own.
        assert!(journal.admit("commands").is_some());
    }

    #[test]
    fn connections_that_come_too_soon_wait() {
        let begin = Instant::now();
        let (mut pace, mut now) = (Pace::default(), begin);
        for _ in 0..2000 {
            now += pace.rest(now);
            pace.count(now);
        }
        let waited = CONNECTION_INTERVAL * (2000 - BURST_CONNECTIONS - 1);
        assert_eq!(now - begin, waited);
        // Later ones are served without delay again.
        assert_eq!(pace.rest(now + Duration::from_secs(1)), Duration::ZERO);
    }
}
