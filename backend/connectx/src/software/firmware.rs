//! Treatment of commands by firmware, where a function is made after an adapter's: it takes its time, answers them in
//! another order, and some of them never. A function does so when it is told to, for tests of drivers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Faults of a firmware, such as delays and lost commands. They can change at any time.
#[derive(Debug, Default)]
pub struct FirmwareFaults {
    /// Longest time that a command takes, in nanoseconds.
    delay: AtomicU64,
    /// Number of commands that are not answered.
    lost: AtomicU32,
}

impl FirmwareFaults {
    /// Commands take up to this long each, as numbers say that are the same with every start.
    pub fn set_delay(&self, longest: Duration) {
        let nanoseconds = longest.as_nanos().try_into().unwrap_or(u64::MAX);
        self.delay.store(nanoseconds, Ordering::Relaxed);
    }

    /// As given to [`FirmwareFaults::set_delay`].
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay.load(Ordering::Relaxed))
    }

    /// The next so many commands are never answered.
    pub fn lose(&self, count: u32) {
        self.lost.store(count, Ordering::Relaxed);
    }

    /// Number of commands that are yet to be lost.
    #[must_use]
    pub fn to_lose(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether this command is lost.
    pub(super) fn loses(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        let taken = { &self.lost }.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.is_ok()
    }
}

/// A reply that is not due yet.
#[derive(Debug)]
struct Reply {
    due: u64,
    slot: u32,
    bytes: Vec<u8>,
}

/// Replies that are not due yet: at most one for each entry of the command queue.
#[derive(Debug, Default)]
pub(super) struct Late {
    replies: Vec<Reply>,
    kept: u64,
}

impl Late {
    /// Keeps a reply, from `now` on for `longest` nanoseconds at most.
    pub fn keep(&mut self, now: u64, longest: u64, slot: u32, bytes: Vec<u8>) {
        self.kept += 1;
        let share = scattered(self.kept) % longest.saturating_add(1).max(1);
        self.replies.push(Reply {
            due: now.saturating_add(share),
            slot,
            bytes,
        });
    }

    /// The reply that is due first, if it is due at `now`.
    pub fn take(&mut self, now: u64) -> Option<(u32, Vec<u8>)> {
        let replies = self.replies.iter().enumerate();
        let (first, _) = replies.min_by_key(|(_, reply)| reply.due)?;
        (self.replies[first].due <= now).then(|| {
            let reply = self.replies.swap_remove(first);
            (reply.slot, reply.bytes)
        })
    }

    /// When the next one is due.
    pub fn due(&self) -> Option<u64> {
        self.replies.iter().map(|reply| reply.due).min()
    }

    /// All are due.
    pub fn hasten(&mut self) {
        self.replies.iter_mut().for_each(|reply| reply.due = 0);
    }

    /// Nobody waits for any.
    pub fn clear(&mut self) {
        self.replies.clear();
    }
}

/// A number from all of 64 bits, for each of those from 1 on (the finalizer of SplitMix64).
const fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_when_they_are_due_and_in_another_order() {
        let mut late = Late::default();
        for slot in 0..32 {
            late.keep(100, 1000, slot, vec![slot as u8]);
        }
        assert_eq!(late.take(99), None);
        let mut slots = Vec::new();
        for now in 100..=1100 {
            while let Some((slot, bytes)) = late.take(now) {
                assert_eq!(bytes, [slot as u8]);
                slots.push(slot);
            }
            assert!(late.due().is_none_or(|due| due > now));
        }
        assert!(!slots.is_sorted());
        slots.sort_unstable();
        assert_eq!(slots, (0..32).collect::<Vec<_>>());
    }

    #[test]
    fn so_many_commands_are_lost() {
        let faults = FirmwareFaults::default();
        assert!(!faults.loses());
        faults.lose(2);
        assert_eq!([(); 3].map(|()| faults.loses()), [true, true, false]);
        assert_eq!(faults.to_lose(), 0);
    }
}
