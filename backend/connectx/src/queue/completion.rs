//! Completion queues: a ring of entries; where it is armed, the next one raises an event.

mod compression;
mod entry;
mod image;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

use hca::work::CompletionEntry;
use hca::{CqError, Dma};
use serde::{Deserialize, Serialize};
use vm_memory::Bytes;

use super::{Buffer, Record, write_words};
use crate::bits::completion::{ARM_SOLICITED, COUNTER_MASK, CqeOpcode, HOLDS_32, HOLDS_64};

pub use compression::{Compression, MAX_COMPRESSED};
use entry::encode;
pub use image::CompletionQueueImageV1;

/// Entries that an armed queue waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arm {
    /// Nothing.
    No,
    /// Any entry.
    Any,
    /// A solicited one, or an error.
    Solicited,
}

/// Time that the event of an armed queue waits for more entries: for so many of
/// them, but no longer than a period. Without either it does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moderation {
    /// Number of entries.
    pub count: u16,
    /// In microseconds, below 4096.
    pub period: u16,
}

/// Treatment of a queue's event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Notice {
    /// None is due, or it goes on waiting.
    None,
    /// It is due.
    Now,
    /// It begins to wait for more entries, no longer than so many nanoseconds.
    After(u32),
}

/// Most entries, as a power of two: the field of a context has five bits, the counters 24.
const MAX_LOG_SIZE: u32 = 23;
/// Bytes of an entry.
const CQE_SIZE: usize = 64;
/// Most bytes of a message in an entry of a stride of 64 bytes, beside what is the entry's own.
const HELD_BESIDE: usize = 32;
/// Offset of the eight bytes that make an entry the driver's.
const OWNER_WORD: usize = CQE_SIZE - 8;

/// Where entries lie; what a resize replaces.
#[derive(Debug)]
pub struct Ring {
    /// Memory.
    pub buffer: Buffer,
    /// Number of entries, as a power of two.
    pub log_size: u32,
    /// Bytes of an entry, as a power of two: 6, or 7 where only the second half
    /// is used.
    pub log_stride: u32,
    /// The first half of such an entry is written, too, so that no cache line is read for it.
    pub padded: bool,
}

impl Ring {
    /// Writes an entry at `producer`. Its last eight bytes, with the bit that
    /// says whose it is, become visible last.
    #[inline]
    fn write<D: Dma>(
        &self,
        dma: &D,
        producer: u32,
        bytes: &mut [u8; CQE_SIZE],
        held: &[u8],
    ) -> Result<(), CqError> {
        let owner = (producer >> self.log_size) as u8 & 1;
        bytes[CQE_SIZE - 1] |= owner;
        let slot = u64::from(producer & ((1 << self.log_size) - 1)) << self.log_stride;
        let at = slot + (1 << self.log_stride) - CQE_SIZE as u64;
        if (self.padded || !held.is_empty()) && at > slot {
            self.write_first_half(dma, slot, held)?;
            if !held.is_empty() {
                bytes[CQE_SIZE - 1] |= HOLDS_64;
            }
        } else if !held.is_empty() {
            let place = bytes[..HELD_BESIDE].get_mut(..held.len());
            place.ok_or(CqError::Unmapped)?.copy_from_slice(held);
            bytes[CQE_SIZE - 1] |= HOLDS_32;
        }
        let window = self
            .buffer
            .write_window(dma, at, CQE_SIZE)
            .ok_or(CqError::Unmapped)?;
        let Some((tail, head)) = bytes.as_chunks::<8>().0.split_last() else {
            return Err(CqError::Unmapped);
        };
        write_words(&window, head);
        window
            .store(u64::from_ne_bytes(*tail), OWNER_WORD, Ordering::Release)
            .map_err(|_| CqError::Unmapped)
    }
}

impl Ring {
    /// Longest message that an entry holds, in bytes.
    #[must_use]
    pub const fn holds(&self) -> u8 {
        if self.log_stride > 6 {
            hca::MAX_IN_COMPLETION as u8
        } else {
            HELD_BESIDE as u8
        }
    }

    /// Writes an array of mini CQEs where an entry would be; the title behind which it is makes it the driver's.
    fn write_array<D: Dma>(
        &self,
        dma: &D,
        producer: u32,
        minis: &[[u8; 8]; CQE_SIZE / 8],
    ) -> Result<(), CqError> {
        let slot = u64::from(producer & ((1 << self.log_size) - 1)) << self.log_stride;
        let at = slot + (1 << self.log_stride) - CQE_SIZE as u64;
        if self.padded && at > slot {
            self.write_first_half(dma, slot, &[])?;
        }
        let window = self.buffer.write_window(dma, at, CQE_SIZE);
        write_words(&window.ok_or(CqError::Unmapped)?, minis);
        Ok(())
    }

    /// Writes the half of an entry that has nothing, or a message.
    fn write_first_half<D: Dma>(&self, dma: &D, slot: u64, held: &[u8]) -> Result<(), CqError> {
        let mut half = [0; CQE_SIZE];
        let place = half.get_mut(..held.len());
        place.ok_or(CqError::Unmapped)?.copy_from_slice(held);
        let window = self.buffer.write_window(dma, slot, CQE_SIZE);
        write_words(&window.ok_or(CqError::Unmapped)?, half.as_chunks::<8>().0);
        Ok(())
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: Ring,
    record: Record,
    /// Its number.
    pub cqn: u32,
    /// The event queue that its events go to.
    pub eqn: u8,
    /// The doorbell page it is armed through.
    pub uar: u32,
    /// Whether arming is announced, or seen in the record only.
    announced: bool,
    ignore_overrun: bool,
    producer: u32,
    /// The driver's consumer index when it was last looked at.
    consumer: u32,
    arm: Arm,
    /// Arm word of the record that was last acted upon.
    arm_word: u32,
    /// Producer index behind the last solicited entry, if any.
    last_solicited: Option<u32>,
    /// Producer index when the last event was raised.
    last_notified: u32,
    /// Entries, and solicited ones among them, since the last event.
    fresh: bool,
    fresh_solicited: bool,
    overrun: bool,
    moderation: Moderation,
    /// Index of the first entry that the event tells of which waits, if one does.
    held_from: Option<u32>,
    /// State of compressed completions, in a queue that has such.
    compression: Option<Box<Compression>>,
}

/// Properties of a queue, besides its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Its number.
    pub cqn: u32,
    /// The event queue that its events go to.
    pub eqn: u8,
    /// The doorbell page it is armed through.
    pub uar: u32,
    /// Whether arming is announced by a doorbell that the device sees.
    pub announced: bool,
    /// Write on although the driver has not taken earlier entries.
    pub ignore_overrun: bool,
    /// Time that its events wait for more entries.
    pub moderation: Moderation,
    /// Format of compressed completions of received messages, in a queue that has such.
    pub compression: Option<u8>,
}

impl CompletionQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(ring: Ring, record: Record, traits: Traits) -> Self {
        Self {
            ring,
            record,
            cqn: traits.cqn,
            eqn: traits.eqn,
            uar: traits.uar,
            announced: traits.announced,
            ignore_overrun: traits.ignore_overrun,
            producer: 0,
            consumer: 0,
            // Where arming is seen in the record only, the driver's first one
            // cannot be: its word is zero, as the record was before. Such a
            // queue is born armed; at worst there is one event too many.
            arm: if traits.announced { Arm::No } else { Arm::Any },
            arm_word: 0,
            last_solicited: None,
            last_notified: 0,
            fresh: false,
            fresh_solicited: false,
            overrun: false,
            moderation: traits.moderation,
            held_from: None,
            compression: traits.compression.map(Compression::new),
        }
    }

    /// Format of compressed completions of received messages, in a queue that has such.
    #[must_use]
    pub fn compression(&self) -> Option<u8> {
        self.compression
            .as_ref()
            .map(|compression| compression.format)
    }

    /// Bytes of the host's memory that it takes, besides itself.
    #[must_use]
    pub fn kept(&self) -> usize {
        let compression = self.compression.as_deref().map_or(0, size_of_val);
        self.ring.buffer.held() + compression
    }

    /// Time that its events wait for more entries.
    #[must_use]
    pub const fn moderation(&self) -> Moderation {
        self.moderation
    }

    /// Lets events wait otherwise from now on. One that waits already does not
    /// wait longer for it.
    pub const fn moderate(&mut self, moderation: Moderation) {
        self.moderation = moderation;
    }

    /// Writes on, or not, although the driver has not taken earlier entries.
    pub const fn set_ignore_overrun(&mut self, ignore: bool) {
        self.ignore_overrun = ignore;
    }

    /// Whether arming is announced by a doorbell.
    #[must_use]
    pub const fn is_announced(&self) -> bool {
        self.announced
    }

    /// Entries that the queue waits for.
    #[must_use]
    pub const fn arm(&self) -> Arm {
        self.arm
    }

    /// Producer index, consumer index as last seen, index of the last event,
    /// and index behind the last solicited entry, of 24 bits each.
    #[must_use]
    pub fn counters(&self) -> [u32; 4] {
        [
            self.producer,
            self.consumer,
            self.last_notified,
            self.last_solicited.unwrap_or(0),
        ]
    }

    /// Whether the queue overran.
    #[must_use]
    pub const fn overran(&self) -> bool {
        self.overrun
    }

    /// The ring, for queries.
    #[must_use]
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Entries written that the driver has not taken, at most.
    #[inline]
    const fn held(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER_MASK
    }

    /// Makes sure that there is room for an entry, behind so many that wait. The driver's index is only
    /// read when the last known one does not suffice: it lies in memory that
    /// the driver's processor writes all the time.
    #[inline]
    fn make_room<D: Dma>(&mut self, dma: &D, waiting: u32) -> Result<(), CqError> {
        let size = 1 << self.ring.log_size;
        if self.held() + waiting < size || self.ignore_overrun {
            return Ok(());
        }
        self.consumer = self.record.load(dma, 0).ok_or(CqError::Unmapped)? & COUNTER_MASK;
        if self.held() + waiting < size {
            return Ok(());
        }
        self.overrun = true;
        Err(CqError::Overrun)
    }

    /// Writes an entry, and the message `held` into it, if there are any bytes. One of a queue of compressed
    /// completions may wait until [`CompletionQueue::write_out`], where `more` may come before that. Returns what becomes
    /// of the queue's event; where it is due, the queue is not armed any more.
    ///
    /// # Errors
    /// [`CqError`].
    #[inline]
    pub fn complete<D: Dma>(
        &mut self,
        dma: &D,
        entry: &CompletionEntry,
        held: &[u8],
        more: bool,
    ) -> Result<Notice, CqError> {
        if self.compression.is_some() {
            return self.gather(dma, entry, held, more);
        }
        self.make_room(dma, 0)?;
        self.write_entry(dma, entry, held)
    }

    #[inline]
    fn write_entry<D: Dma>(
        &mut self,
        dma: &D,
        entry: &CompletionEntry,
        held: &[u8],
    ) -> Result<Notice, CqError> {
        let mut bytes = [0; CQE_SIZE];
        encode(entry, &mut bytes);
        self.ring.write(dma, self.producer, &mut bytes, held)?;
        Ok(self.written(dma, 1, entry.solicited))
    }

    /// So many completions have been written.
    #[inline]
    fn written<D: Dma>(&mut self, dma: &D, count: u32, solicited: bool) -> Notice {
        let first = self.producer;
        self.producer = (first + count) & COUNTER_MASK;
        self.fresh = true;
        if solicited {
            self.last_solicited = Some(self.producer);
            self.fresh_solicited = true;
        }
        let due = match self.arm {
            Arm::No => false,
            Arm::Any => true,
            Arm::Solicited => solicited,
        };
        if !due {
            return Notice::None;
        }
        if !self.announced
            && let Some(word) = self.record.load(dma, 1)
            && word != self.arm_word
        {
            // Armed anew, perhaps for less than what is known of.
            return self.request_notification(word);
        }
        self.notify(first)
    }

    /// An event is due for the entries from this index on. It is raised, or
    /// waits.
    #[inline]
    fn notify(&mut self, first: u32) -> Notice {
        if self.moderation.count > 1 && self.moderation.period > 0 {
            return self.notify_moderated(first);
        }
        self.notified();
        Notice::Now
    }

    #[cold]
    fn notify_moderated(&mut self, first: u32) -> Notice {
        let Moderation { count, period } = self.moderation;
        let from = self.held_from.unwrap_or(first);
        if self.producer.wrapping_sub(from) & COUNTER_MASK >= u32::from(count) {
            self.notified();
            Notice::Now
        } else if self.held_from.is_none() {
            self.held_from = Some(from);
            Notice::After(u32::from(period) * 1000)
        } else {
            Notice::None
        }
    }

    /// The event has waited for its whole period. Returns whether it is due:
    /// whether it still waits.
    pub fn expire(&mut self) -> bool {
        let waits = self.held_from.is_some();
        if waits {
            self.notified();
        }
        waits
    }

    const fn notified(&mut self) {
        self.held_from = None;
        self.arm = Arm::No;
        self.last_notified = self.producer;
        self.fresh = false;
        self.fresh_solicited = false;
    }

    /// The driver arms the queue with `word`. Returns what becomes of the event
    /// at once, which is one for entries that the driver had not taken and that
    /// no event has told of. Programs count on one event per entry where they
    /// arm before they poll, as perftest does.
    pub fn request_notification(&mut self, word: u32) -> Notice {
        let consumer = word & COUNTER_MASK;
        let solicited = word & ARM_SOLICITED != 0;
        self.arm_word = word;
        self.arm = if solicited { Arm::Solicited } else { Arm::Any };
        let behind = |index: u32| {
            let distance = index.wrapping_sub(consumer) & COUNTER_MASK;
            distance != 0 && distance <= COUNTER_MASK / 2
        };
        let due = if solicited {
            self.fresh_solicited && self.last_solicited.is_some_and(behind)
        } else {
            self.fresh && consumer != self.producer
        };
        if due {
            return self.notify(consumer);
        }
        // The entries that an event waited to tell of have been taken.
        self.held_from = None;
        Notice::None
    }

    /// Looks whether the driver armed the queue without announcing it. Returns
    /// what becomes of the event, and whether the queue should be looked at
    /// again although nothing completes.
    pub fn recheck<D: Dma>(&mut self, dma: &D) -> (Notice, bool) {
        let Some((consumer, word)) = self.record.load_both(dma) else {
            return (Notice::None, false);
        };
        self.consumer = consumer & COUNTER_MASK;
        let notice = if word == self.arm_word {
            Notice::None
        } else {
            self.request_notification(word)
        };
        (notice, self.consumer != self.producer)
    }

    /// Continues in another ring. The entry that says so is the last in the old
    /// one and counts in the new one too; the driver copies what precedes it.
    ///
    /// # Errors
    /// [`CqError::Overrun`] when the old ring has no room for it; nothing has
    /// changed then.
    pub fn resize<D: Dma>(&mut self, dma: &D, ring: Ring) -> Result<(), CqError> {
        let size = 1_u32 << self.ring.log_size;
        self.consumer = self.record.load(dma, 0).ok_or(CqError::Unmapped)? & COUNTER_MASK;
        if self.held() >= size || self.held() + 1 >= 1 << ring.log_size {
            return Err(CqError::Overrun);
        }
        let mut bytes = [0; CQE_SIZE];
        bytes[CQE_SIZE - 1] = CqeOpcode::Resize.code() << 4;
        self.ring.write(dma, self.producer, &mut bytes, &[])?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        self.ring = ring;
        Ok(())
    }
}
