//! Completion queues in images.

use serde::{Deserialize, Serialize};

use super::super::{Buffer, BufferImageV1, Record, checked};
use super::{Arm, CompletionQueue, Compression, MAX_LOG_SIZE, Moderation, Ring};
use crate::bits::completion::COUNTER_MASK;

/// A completion queue in an image, but for its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionQueueImageV1 {
    buffer: BufferImageV1,
    log_size: u32,
    log_stride: u32,
    #[serde(default)]
    padded: bool,
    record: u64,
    eqn: u8,
    uar: u32,
    announced: bool,
    ignore_overrun: bool,
    producer: u32,
    consumer: u32,
    arm: Arm,
    arm_word: u32,
    last_solicited: Option<u32>,
    last_notified: u32,
    fresh: bool,
    fresh_solicited: bool,
    overrun: bool,
    moderation: Moderation,
    held_from: Option<u32>,
    /// Format of compressed completions of received messages, in a queue that has such.
    #[serde(default)]
    compression: Option<u8>,
}

impl CompletionQueue {
    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> CompletionQueueImageV1 {
        CompletionQueueImageV1 {
            buffer: self.ring.buffer.save(),
            log_size: self.ring.log_size,
            log_stride: self.ring.log_stride,
            padded: self.ring.padded,
            record: self.record.addr(),
            eqn: self.eqn,
            uar: self.uar,
            announced: self.announced,
            ignore_overrun: self.ignore_overrun,
            producer: self.producer,
            consumer: self.consumer,
            arm: self.arm,
            arm_word: self.arm_word,
            last_solicited: self.last_solicited,
            last_notified: self.last_notified,
            fresh: self.fresh,
            fresh_solicited: self.fresh_solicited,
            overrun: self.overrun,
            moderation: self.moderation,
            held_from: self.held_from,
            compression: self.compression(),
        }
    }

    /// The queue of an image, which has this number.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(cqn: u32, image: CompletionQueueImageV1) -> Result<Self, String> {
        let sizes = [
            (image.log_size, 0..=MAX_LOG_SIZE),
            (image.log_stride, 6..=7),
        ];
        checked(&sizes, "completion queue")?;
        let mut counters = [
            Some(image.producer),
            Some(image.consumer),
            Some(image.last_notified),
            image.last_solicited,
            image.held_from,
        ]
        .into_iter()
        .flatten();
        if counters.any(|counter| counter > COUNTER_MASK) {
            return Err("a counter of a completion queue has 24 bits".into());
        }
        let len = 1 << (image.log_size + image.log_stride);
        Ok(Self {
            ring: Ring {
                buffer: Buffer::restore(image.buffer, len)?,
                log_size: image.log_size,
                log_stride: image.log_stride,
                padded: image.padded,
            },
            record: Record::new(image.record).map_err(|error| error.to_string())?,
            cqn,
            eqn: image.eqn,
            uar: image.uar,
            announced: image.announced,
            ignore_overrun: image.ignore_overrun,
            producer: image.producer,
            consumer: image.consumer,
            arm: image.arm,
            arm_word: image.arm_word,
            last_solicited: image.last_solicited,
            last_notified: image.last_notified,
            fresh: image.fresh,
            fresh_solicited: image.fresh_solicited,
            overrun: image.overrun,
            moderation: image.moderation,
            held_from: image.held_from,
            compression: image.compression.map(Compression::new),
        })
    }
}
