//! A bare single-producer single-consumer ring of 64-byte slots.
//!
//! What any device can hope for whose requests are 64 bytes in memory: a slot
//! carries seven words and, last, its number, by which the consumer knows that
//! it is there. The consumer gives slots back many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::daemons::pace::{timed, until};
use crate::{BenchError, Pinned, Result};

/// Slots, as many as blocks in the send queues that are compared with it.
pub const SLOTS: usize = 256;
/// Slots given back at a time.
const GIVE_BACK: u64 = 32;
/// Words of a slot; the last is its number.
const WORDS: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot([AtomicU64; WORDS]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Index(AtomicU64);

#[derive(Debug)]
struct Shared {
    slots: Box<[Slot]>,
    taken: Index,
    /// Sum of everything that was taken, once the producer has stopped.
    sum: Index,
    stop: Index,
}

/// A ring that this thread fills and another, on the other processor, empties.
#[derive(Debug)]
pub struct Ring {
    shared: Arc<Shared>,
    posted: u64,
    taken: u64,
    sum: u64,
    consumer: Option<JoinHandle<()>>,
}

fn consume(shared: &Shared) {
    let (mut number, mut sum) = (0_u64, 0_u64);
    loop {
        let slot = &shared.slots[number as usize % SLOTS].0;
        let there = until("a slot", || {
            slot[WORDS - 1].load(Ordering::Acquire) == number + 1
                || shared.stop.0.load(Ordering::Relaxed) != 0
        });
        if there.is_err() || slot[WORDS - 1].load(Ordering::Acquire) != number + 1 {
            break;
        }
        for word in &slot[..WORDS - 1] {
            sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
        number += 1;
        if number.is_multiple_of(GIVE_BACK) {
            shared.taken.0.store(number, Ordering::Release);
        }
    }
    shared.sum.0.store(sum, Ordering::Release);
}

impl Ring {
    /// Starts the consumer on processor `cpu`.
    ///
    /// # Errors
    /// [`crate::BenchError::System`].
    pub fn start(cpu: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            taken: Index::default(),
            sum: Index::default(),
            stop: Index::default(),
        });
        let theirs = Arc::clone(&shared);
        let consumer = thread::spawn(move || {
            if let Ok(_pinned) = Pinned::to(cpu) {
                consume(&theirs);
            }
        });
        Ok(Self {
            shared,
            posted: 0,
            taken: 0,
            sum: 0,
            consumer: Some(consumer),
        })
    }

    #[inline]
    fn post(&mut self) -> Result<()> {
        if self.posted - self.taken >= SLOTS as u64 {
            until("room in the ring", || {
                self.taken = self.shared.taken.0.load(Ordering::Acquire);
                self.posted - self.taken < SLOTS as u64
            })?;
        }
        let slot = &self.shared.slots[self.posted as usize % SLOTS].0;
        for (index, word) in slot[..WORDS - 1].iter().enumerate() {
            let value = self.posted.wrapping_mul(7) + index as u64;
            word.store(value, Ordering::Relaxed);
            self.sum = self.sum.wrapping_add(value);
        }
        self.posted += 1;
        slot[WORDS - 1].store(self.posted, Ordering::Release);
        Ok(())
    }

    /// Million slots per second, over a batch of `slots`.
    ///
    /// # Errors
    /// [`crate::BenchError::Timeout`].
    pub fn rate(&mut self, slots: u32) -> Result<f64> {
        let time = timed(|| (0..slots).try_for_each(|_| self.post()))?;
        Ok(f64::from(slots) * 1e3 / time)
    }

    /// Ends it and checks that everything has arrived as it was.
    ///
    /// # Errors
    /// [`BenchError::Word`] where it has not.
    pub fn finish(mut self) -> Result<()> {
        self.stop();
        let found = self.shared.sum.0.load(Ordering::Acquire);
        if found != self.sum {
            return Err(BenchError::Word {
                index: 0,
                found,
                expected: self.sum,
            });
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.stop.0.store(1, Ordering::Release);
        if let Some(consumer) = self.consumer.take() {
            let _ = consumer.join();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}
