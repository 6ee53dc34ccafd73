//! Event queues: what tells the driver that something happened.

use std::sync::atomic::Ordering;

use hca::{Dma, DmaFault};
use serde::{Deserialize, Serialize};
use vm_memory::Bytes;

use super::{Buffer, BufferImageV1, checked};
use crate::bits::event::{EQE_DATA, EQE_DATA_SIZE, EQE_SIZE, EQE_SUBTYPE, EQE_TYPE, EventType};

/// Largest event queue, as a power of two of entries.
pub const LOG_MAX_EQ_SIZE: u32 = 16;

/// Raises a message-signalled interrupt.
pub trait Interrupts: std::fmt::Debug + Send {
    /// Raises vector `vector`. Called from the data path when an armed queue
    /// gets an event, so it should not do more than signal.
    fn raise(&mut self, vector: u16);
}

/// Contents of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Kind of event.
    pub kind: EventType,
    /// Its subtype, zero for most.
    pub subtype: u8,
    /// Its data.
    pub data: [u8; EQE_DATA_SIZE],
}

impl Entry {
    /// An event without data.
    #[must_use]
    pub const fn new(kind: EventType) -> Self {
        Self {
            kind,
            subtype: 0,
            data: [0; EQE_DATA_SIZE],
        }
    }

    /// Puts `value` at byte `offset` (a multiple of four below 28) of the data.
    #[must_use]
    pub fn with(mut self, offset: usize, value: u32) -> Self {
        self.data[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
        self
    }
}

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    buffer: Buffer,
    log_size: u32,
    vector: u16,
    /// Events that this queue gets, a bit per type.
    pub mask: u64,
    /// Whether its consumer index and its arming are announced. If not, every
    /// event raises the interrupt, and nothing is known of its overrun.
    announced: bool,
    producer: u32,
    consumer: u32,
    armed: bool,
    /// The interrupt was raised; of interest to queries only.
    fired: bool,
    /// Entries dropped because the driver did not take earlier ones.
    dropped: u64,
}

/// An event queue in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventQueueImageV1 {
    /// Its number.
    pub(crate) eqn: u8,
    buffer: BufferImageV1,
    log_size: u32,
    vector: u16,
    mask: u64,
    announced: bool,
    producer: u32,
    consumer: u32,
    armed: bool,
    fired: bool,
    dropped: u64,
}

/// Counters of an event queue have 24 bits.
const COUNTER_MASK: u32 = 0x00ff_ffff;

impl EventQueue {
    /// A queue of `1 << log_size` entries that raises interrupt `vector`.
    #[must_use]
    pub const fn new(
        buffer: Buffer,
        log_size: u32,
        vector: u16,
        mask: u64,
        announced: bool,
    ) -> Self {
        Self {
            buffer,
            log_size,
            vector,
            mask,
            announced,
            producer: 0,
            consumer: 0,
            armed: false,
            fired: false,
            dropped: 0,
        }
    }

    /// Its part of an image.
    #[must_use]
    pub fn save(&self, eqn: u8) -> EventQueueImageV1 {
        EventQueueImageV1 {
            eqn,
            buffer: self.buffer.save(),
            log_size: self.log_size,
            vector: self.vector,
            mask: self.mask,
            announced: self.announced,
            producer: self.producer,
            consumer: self.consumer,
            armed: self.armed,
            fired: self.fired,
            dropped: self.dropped,
        }
    }

    /// The queue of an image, of a function with so many interrupt vectors.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(image: EventQueueImageV1, vectors: u16) -> Result<Self, String> {
        checked(&[(image.log_size, 0..=LOG_MAX_EQ_SIZE)], "event queue")?;
        let counts = image.producer.max(image.consumer) <= COUNTER_MASK;
        if image.vector >= vectors || !counts {
            return Err(
                "an event queue without a vector, or with counters of more than 24 bits".into(),
            );
        }
        let len = (EQE_SIZE as u64) << image.log_size;
        let buffer = Buffer::restore(image.buffer, len)?;
        let (size, mask) = (image.log_size, image.mask);
        Ok(Self {
            producer: image.producer,
            consumer: image.consumer,
            armed: image.armed,
            fired: image.fired,
            dropped: image.dropped.min(u64::MAX / 2),
            ..Self::new(buffer, size, image.vector, mask, image.announced)
        })
    }

    /// Bytes of the host's memory that its list of pages takes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.buffer.held()
    }

    /// Producer and consumer counters, of 24 bits.
    #[must_use]
    pub const fn counters(&self) -> (u32, u32) {
        (self.producer, self.consumer)
    }

    /// Whether the next event raises the interrupt.
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.armed || !self.announced
    }

    /// Takes note of the driver's consumer index, and arms the queue or not. A
    /// queue that is armed while it holds events raises its interrupt at once.
    pub fn update(&mut self, consumer: u32, arm: bool, interrupts: &mut dyn Interrupts) {
        self.consumer = consumer & COUNTER_MASK;
        if arm {
            self.armed = true;
            self.fired = false;
            if self.consumer != self.producer {
                self.fire(interrupts);
            }
        }
    }

    fn fire(&mut self, interrupts: &mut dyn Interrupts) {
        self.armed = false;
        self.fired = true;
        interrupts.raise(self.vector);
    }

    /// Appends an entry and raises the interrupt if the queue is armed.
    ///
    /// # Errors
    /// [`DmaFault`] when the queue's memory is not mapped.
    pub fn push<D: Dma>(
        &mut self,
        dma: &D,
        entry: &Entry,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(), DmaFault> {
        let held = self.producer.wrapping_sub(self.consumer) & COUNTER_MASK;
        if self.announced && held >= 1 << self.log_size {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(
                    dropped = self.dropped,
                    "event queue overrun: the driver does not take its events"
                );
            }
            return Ok(());
        }
        let mut bytes = [0; EQE_SIZE];
        bytes[EQE_TYPE] = entry.kind.code();
        bytes[EQE_SUBTYPE] = entry.subtype;
        bytes[EQE_DATA..EQE_DATA + EQE_DATA_SIZE].copy_from_slice(&entry.data);
        let owner = (self.producer >> self.log_size) as u8 & 1;
        bytes[EQE_SIZE - 1] = owner;
        let at = u64::from(self.producer & ((1 << self.log_size) - 1)) * EQE_SIZE as u64;
        let window = self
            .buffer
            .write_window(dma, at, EQE_SIZE)
            .ok_or(DmaFault { addr: at })?;
        let (head, tail) = bytes.split_at(EQE_SIZE - 4);
        window.copy_from(head);
        // The owner bit comes last, so that the driver never sees half an entry.
        let tail = u32::from_ne_bytes([tail[0], tail[1], tail[2], tail[3]]);
        window
            .store(tail, EQE_SIZE - 4, Ordering::Release)
            .map_err(|_| DmaFault { addr: at })?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        if self.is_armed() {
            self.fire(interrupts);
        }
        Ok(())
    }

    /// Whether the interrupt was raised and the queue not armed since.
    #[must_use]
    pub const fn has_fired(&self) -> bool {
        self.fired
    }

    /// The interrupt vector.
    #[must_use]
    pub const fn vector(&self) -> u16 {
        self.vector
    }

    /// Number of entries, as a power of two.
    #[must_use]
    pub const fn log_size(&self) -> u32 {
        self.log_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Memory, Raised};

    fn queue(announced: bool) -> EventQueue {
        let buffer = Buffer::new(&0x1000_u64.to_be_bytes(), 0, 0, 256).unwrap();
        EventQueue::new(buffer, 2, 3, u64::MAX, announced)
    }

    fn push(queue: &mut EventQueue, memory: &Memory, raised: &mut Raised) {
        let entry = Entry::new(EventType::Completion).with(0x18, 0x12_3456);
        queue.push(memory, &entry, raised).unwrap();
    }

    #[test]
    fn an_armed_queue_interrupts_once() {
        let memory = Memory::new(0x2000);
        let mut queue = queue(true);
        let mut raised = Raised::default();
        push(&mut queue, &memory, &mut raised);
        assert_eq!(raised.count(3), 0);
        // Armed while it holds an event.
        queue.update(0, true, &mut raised);
        assert_eq!(raised.count(3), 1);
        push(&mut queue, &memory, &mut raised);
        assert_eq!(raised.count(3), 1);
        queue.update(2, true, &mut raised);
        push(&mut queue, &memory, &mut raised);
        assert_eq!(raised.count(3), 2);
        let bytes: [u8; 64] = memory.read(0x1000);
        assert_eq!((bytes[1], bytes[3], bytes[63]), (0, 0, 0));
        assert_eq!(bytes[0x38..0x3c], [0, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn entries_that_were_not_taken_are_not_overwritten() {
        let memory = Memory::new(0x2000);
        let mut queue = queue(true);
        let mut raised = Raised::default();
        for _ in 0..4 {
            push(&mut queue, &memory, &mut raised);
        }
        memory.write(0x1000, &[0xaa; 64]);
        push(&mut queue, &memory, &mut raised);
        assert_eq!(memory.read::<64>(0x1000), [0xaa; 64]);
        queue.update(4, false, &mut raised);
        push(&mut queue, &memory, &mut raised);
        assert_eq!(memory.read::<1>(0x103f), [1]);
    }

    #[test]
    fn without_announcement_every_event_interrupts() {
        let memory = Memory::new(0x2000);
        let mut queue = queue(false);
        let mut raised = Raised::default();
        for _ in 0..9 {
            push(&mut queue, &memory, &mut raised);
        }
        assert_eq!(raised.count(3), 9);
    }
}
