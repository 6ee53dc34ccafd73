//! Completion queues: a ring of entries, whose arming raises an event.

use std::sync::atomic::Ordering;

use hca::work::{CompletionEntry, RecvKind, Side, Status};
use hca::{CqError, Dma, KeyFault, Reason};
use serde::{Deserialize, Serialize};
use vm_memory::Bytes;

use super::{Buffer, BufferImageV1, Record, checked, write_words};
use crate::bits::completion::{
    ARM_SOLICITED, COUNTER_MASK, CqeOpcode, SYNDROME, Syndrome, VENDOR_SYNDROME, VendorSyndrome,
    mlx5_cqe64 as cqe,
};

/// What an armed queue waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arm {
    /// Nothing.
    No,
    /// Any entry.
    Any,
    /// A solicited one, or an error.
    Solicited,
}

/// How long the event of an armed queue waits for more entries: for so many of
/// them, but no longer than a period. Without either it does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moderation {
    /// Number of entries.
    pub count: u16,
    /// In microseconds, below 4096.
    pub period: u16,
}

/// What becomes of a queue's event.
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
    ) -> Result<(), CqError> {
        let owner = (producer >> self.log_size) as u8 & 1;
        bytes[CQE_SIZE - 1] |= owner;
        let slot = u64::from(producer & ((1 << self.log_size) - 1)) << self.log_stride;
        let at = slot + (1 << self.log_stride) - CQE_SIZE as u64;
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
}

/// A completion queue in an image, but for its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionQueueImageV1 {
    buffer: BufferImageV1,
    log_size: u32,
    log_stride: u32,
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
}

/// How a queue behaves, besides where it is.
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
    /// How long its events wait for more entries.
    pub moderation: Moderation,
}

impl CompletionQueue {
    /// What an image has of it.
    #[must_use]
    pub fn save(&self) -> CompletionQueueImageV1 {
        CompletionQueueImageV1 {
            buffer: self.ring.buffer.save(),
            log_size: self.ring.log_size,
            log_stride: self.ring.log_stride,
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
        }
    }

    /// The queue of an image, which has this number.
    ///
    /// # Errors
    /// What is wrong with it.
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
        })
    }

    /// An empty queue.
    #[must_use]
    pub const fn new(ring: Ring, record: Record, traits: Traits) -> Self {
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
        }
    }

    /// How long its events wait for more entries.
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

    /// What the queue waits for.
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

    /// Makes sure that there is room for an entry. The driver's index is only
    /// read when the last known one does not suffice: it lies in memory that
    /// the driver's processor writes all the time.
    #[inline]
    fn make_room<D: Dma>(&mut self, dma: &D) -> Result<(), CqError> {
        let size = 1 << self.ring.log_size;
        if self.held() < size || self.ignore_overrun {
            return Ok(());
        }
        self.consumer = self.record.load(dma, 0).ok_or(CqError::Unmapped)? & COUNTER_MASK;
        if self.held() < size {
            return Ok(());
        }
        self.overrun = true;
        Err(CqError::Overrun)
    }

    /// Writes an entry. Returns what becomes of the queue's event; where it is
    /// due, the queue is not armed any more.
    ///
    /// # Errors
    /// [`CqError`].
    #[inline]
    pub fn complete<D: Dma>(
        &mut self,
        dma: &D,
        entry: &CompletionEntry,
    ) -> Result<Notice, CqError> {
        self.make_room(dma)?;
        let mut bytes = [0; CQE_SIZE];
        encode(entry, &mut bytes);
        self.ring.write(dma, self.producer, &mut bytes)?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        self.fresh = true;
        if entry.solicited {
            self.last_solicited = Some(self.producer);
            self.fresh_solicited = true;
        }
        let due = match self.arm {
            Arm::No => false,
            Arm::Any => true,
            Arm::Solicited => entry.solicited,
        };
        if !due {
            return Ok(Notice::None);
        }
        if !self.announced
            && let Some(word) = self.record.load(dma, 1)
            && word != self.arm_word
        {
            // Armed anew, perhaps for less than what is known of.
            return Ok(self.request_notification(word));
        }
        Ok(self.notify(self.producer.wrapping_sub(1)))
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
        self.ring.write(dma, self.producer, &mut bytes)?;
        self.producer = (self.producer + 1) & COUNTER_MASK;
        self.ring = ring;
        Ok(())
    }
}

/// Encodes everything of an entry but the bit that says whose it is.
#[inline]
fn encode(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) {
    let (opcode, send_opcode) = match entry.side {
        Side::Send { opcode } => (CqeOpcode::Requester, opcode),
        Side::Recv {
            kind,
            immediate,
            srqn,
            source,
        } => {
            cqe::SRQN_UIDX.set(bytes, srqn.unwrap_or(0));
            cqe::IMM_INVAL_PKEY.set(bytes, immediate);
            if let Some(source) = source {
                cqe::ML_PATH.set(bytes, u32::from(source.path_bits));
                cqe::SLID.set(bytes, u32::from(source.slid.value()));
                cqe::FLAGS_RQPN.set(
                    bytes,
                    u32::from(source.grh) << 28
                        | u32::from(source.sl.value()) << 24
                        | source.src_qp.value(),
                );
                if kind == RecvKind::Send {
                    // Management agents learn the partition here.
                    cqe::IMM_INVAL_PKEY.set(bytes, u32::from(source.pkey.value()));
                }
            }
            let opcode = match kind {
                RecvKind::Send => CqeOpcode::ResponderSend,
                RecvKind::SendImm => CqeOpcode::ResponderSendImm,
                RecvKind::SendInvalidate => CqeOpcode::ResponderSendInvalidate,
                RecvKind::WriteImm => CqeOpcode::ResponderWriteImm,
            };
            (opcode, 0)
        }
    };
    cqe::BYTE_CNT.set(bytes, entry.byte_len);
    cqe::SOP_DROP_QPN.set(bytes, u32::from(send_opcode) << 24 | entry.qpn.value());
    cqe::WQE_COUNTER.set(bytes, u32::from(entry.index));
    let opcode = if entry.status == Status::Success {
        cqe::TIMESTAMP.set(bytes, entry.time);
        opcode
    } else {
        encode_error(entry, bytes)
    };
    cqe::OP_OWN.set(
        bytes,
        u32::from(opcode.code() << 4 | u8::from(entry.solicited) << 1),
    );
}

/// The syndrome takes the place of the time stamp.
#[cold]
fn encode_error(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) -> CqeOpcode {
    let syndrome = match entry.status {
        Status::Success => 0,
        Status::LocalLength => Syndrome::LocalLength.code(),
        Status::LocalQpOperation => Syndrome::LocalQpOperation.code(),
        Status::LocalProtection => Syndrome::LocalProtection.code(),
        Status::Flushed => Syndrome::Flushed.code(),
        Status::MemoryBind => Syndrome::MemoryWindowBind.code(),
        Status::BadResponse => Syndrome::BadResponse.code(),
        Status::LocalAccess => Syndrome::LocalAccess.code(),
        Status::RemoteInvalidRequest => Syndrome::RemoteInvalidRequest.code(),
        Status::RemoteAccess => Syndrome::RemoteAccess.code(),
        Status::RemoteOperation => Syndrome::RemoteOperation.code(),
        Status::RetryExceeded => Syndrome::TransportRetryExceeded.code(),
        Status::RnrRetryExceeded => Syndrome::RnrRetryExceeded.code(),
    };
    bytes[SYNDROME] = syndrome;
    bytes[VENDOR_SYNDROME] = vendor_syndrome(entry);
    match entry.side {
        Side::Send { .. } => CqeOpcode::RequesterError,
        Side::Recv { .. } => CqeOpcode::ResponderError,
    }
}

/// What the driver is told besides the status. Of the responder's reasons it
/// hears no more than a packet says: whose key it was, and which, is a matter of
/// another function.
fn vendor_syndrome(entry: &CompletionEntry) -> u8 {
    let local = |fault| match fault {
        KeyFault::Invalid => VendorSyndrome::KeyInvalid,
        KeyFault::Protection => VendorSyndrome::KeyProtection,
        KeyFault::Access => VendorSyndrome::KeyAccess,
        KeyFault::Bounds => VendorSyndrome::KeyBounds,
        KeyFault::Unmapped => VendorSyndrome::KeyUnmapped,
    };
    let vendor = match (entry.status, entry.reason) {
        (Status::RetryExceeded, _) => VendorSyndrome::RetryExceeded,
        (Status::RemoteAccess, _) => VendorSyndrome::RemoteAccess,
        (Status::RemoteOperation, _) => VendorSyndrome::RemoteOperation,
        (Status::RemoteInvalidRequest, _) => VendorSyndrome::RemoteInvalidRequest,
        (_, Reason::Opcode) => VendorSyndrome::Opcode,
        (_, Reason::Segments) => VendorSyndrome::Segments,
        (_, Reason::Counter) => VendorSyndrome::Counter,
        (_, Reason::Transport) => VendorSyndrome::Transport,
        (_, Reason::InlineAnswer) => VendorSyndrome::InlineAnswer,
        (_, Reason::Length) => VendorSyndrome::Length,
        (_, Reason::AnswerLength) => VendorSyndrome::AnswerLength,
        (_, Reason::Pieces) => VendorSyndrome::Pieces,
        (_, Reason::KeyUpdate) => VendorSyndrome::KeyUpdate,
        (_, Reason::LocalKey(fault)) => local(fault),
        _ => return 0,
    };
    vendor.code()
}

#[cfg(test)]
mod tests {
    use hca::work::Source;
    use wire::{Lid, PKey, Qpn, Sl};

    use super::*;
    use crate::testing::{Memory, vector};

    const RING: u64 = 0x1000;
    const RECORD: u64 = 0x4000;

    fn ring(at: u64, log_size: u32) -> Ring {
        Ring {
            buffer: Buffer::new(&at.to_be_bytes(), 0, 0, 64 << log_size).unwrap(),
            log_size,
            log_stride: 6,
        }
    }

    fn queue(announced: bool) -> CompletionQueue {
        let traits = Traits {
            cqn: 5,
            eqn: 1,
            uar: 4,
            announced,
            ignore_overrun: false,
            moderation: Moderation::default(),
        };
        CompletionQueue::new(ring(RING, 2), Record::new(RECORD).unwrap(), traits)
    }

    fn entry(solicited: bool) -> CompletionEntry {
        CompletionEntry {
            qpn: Qpn::new(0xab_cdef),
            index: 0,
            status: Status::Success,
            reason: Reason::Status,
            byte_len: 0,
            solicited,
            time: 0,
            side: Side::Send { opcode: 0 },
        }
    }

    fn recv(kind: RecvKind, immediate: u32, srqn: Option<u32>, source: Option<Source>) -> Side {
        Side::Recv {
            kind,
            immediate,
            srqn,
            source,
        }
    }

    #[test]
    fn entries_are_those_that_the_library_expects() {
        let source = Source {
            slid: Lid::new(0xbeef),
            src_qp: Qpn::new(0x123),
            sl: Sl::new(5),
            grh: true,
            pkey: PKey::new(0x8001),
            path_bits: 3,
        };
        let cases = [
            (
                "cqe_requester",
                0x1234,
                Status::Success,
                4096,
                false,
                Side::Send { opcode: 0x10 },
            ),
            (
                "cqe_send_imm_shared",
                5,
                Status::Success,
                13,
                true,
                recv(RecvKind::SendImm, 0xcafe_0001, Some(0x77), None),
            ),
            (
                "cqe_datagram",
                6,
                Status::Success,
                140,
                false,
                recv(RecvKind::Send, 0, None, Some(source)),
            ),
            (
                "cqe_requester_error",
                9,
                Status::RemoteAccess,
                0,
                true,
                Side::Send { opcode: 8 },
            ),
            (
                "cqe_responder_flushed",
                10,
                Status::Flushed,
                0,
                true,
                recv(RecvKind::Send, 0, None, None),
            ),
        ];
        for (name, index, status, byte_len, solicited, side) in cases {
            let entry = CompletionEntry {
                qpn: Qpn::new(0xab_cdef),
                index,
                status,
                reason: Reason::Status,
                byte_len,
                solicited,
                time: 0x0123_4567_89ab_cdef,
                side,
            };
            let mut bytes = [0; 64];
            encode(&entry, &mut bytes);
            assert_eq!(bytes.as_slice(), vector(name), "{name}");
        }
    }

    #[test]
    fn the_owner_bit_turns_with_every_pass() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        for pass in 0..3_u8 {
            for slot in 0..4 {
                assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
                let bytes: [u8; 64] = memory.read(RING + slot * 64);
                assert_eq!(bytes[63] & 1, pass & 1);
            }
            memory.write32(RECORD, u32::from(pass + 1) * 4);
        }
    }

    #[test]
    fn large_entries_use_their_second_half() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        queue.ring.log_stride = 7;
        memory.write(RING, &[0xf1; 256]);
        let _ = queue.complete(&memory, &entry(false)).unwrap();
        assert_eq!(memory.read::<64>(RING), [0xf1; 64]);
        assert_eq!(memory.read::<1>(RING + 127), [0]);
        assert_eq!(memory.read::<1>(RING + 128 + 127), [0xf1]);
    }

    #[test]
    fn an_overrun_is_found_from_the_drivers_index() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        for _ in 0..4 {
            let _ = queue.complete(&memory, &entry(false)).unwrap();
        }
        assert_eq!(
            queue.complete(&memory, &entry(false)),
            Err(CqError::Overrun)
        );
        assert!(queue.overran());
        memory.write32(RECORD, 1);
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
        // An index ahead of the device's is not believed either.
        memory.write32(RECORD, 100);
        assert_eq!(
            queue.complete(&memory, &entry(false)),
            Err(CqError::Overrun)
        );
        queue.ignore_overrun = true;
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
    }

    #[test]
    fn an_armed_queue_notifies_once() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        assert_eq!(queue.request_notification(0), Notice::None);
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::Now));
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
        // Armed for what was not there at index 1: one is there, so at once.
        assert_eq!(queue.request_notification(1 << 28 | 1), Notice::Now);
        assert_eq!(queue.request_notification(2 << 28 | 2), Notice::None);
    }

    #[test]
    fn armed_for_solicited_entries_others_do_not_count() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        assert_eq!(queue.request_notification(ARM_SOLICITED), Notice::None);
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
        assert_eq!(queue.complete(&memory, &entry(true)), Ok(Notice::Now));
        assert_eq!(
            queue.request_notification(1 << 28 | ARM_SOLICITED | 2),
            Notice::None
        );
        assert_eq!(queue.complete(&memory, &entry(true)), Ok(Notice::Now));
        assert_eq!(queue.complete(&memory, &entry(true)), Ok(Notice::None));
        assert_eq!(
            queue.request_notification(2 << 28 | ARM_SOLICITED | 3),
            Notice::Now
        );
    }

    #[test]
    fn an_entry_that_an_event_told_of_is_not_told_again() {
        // perftest takes the event, arms, and then polls one entry: an event
        // more than there are entries, and it runs ahead of its peer.
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        assert_eq!(queue.request_notification(0), Notice::None);
        for taken in 0..5 {
            assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::Now));
            assert_eq!(
                queue.request_notification((taken + 1) << 28 | taken),
                Notice::None
            );
            memory.write32(RECORD, taken + 1);
        }
    }

    #[test]
    fn arming_that_nobody_announces_is_seen_in_the_record() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(false);
        assert_eq!(queue.recheck(&memory), (Notice::None, false));
        // The first arming cannot be told from none.
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::Now));
        // Nothing is due, but the driver may arm for this entry yet.
        assert_eq!(queue.recheck(&memory), (Notice::None, true));
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
        memory.write32(RECORD + 4, 1 << 28);
        assert_eq!(queue.recheck(&memory), (Notice::Now, true));
        assert_eq!(queue.recheck(&memory), (Notice::None, true));
        memory.write32(RECORD, 2);
        memory.write32(RECORD + 4, 2 << 28 | 2);
        assert_eq!(queue.recheck(&memory), (Notice::None, false));
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::Now));
    }

    #[test]
    fn a_queue_whose_first_arming_cannot_be_seen_is_born_armed() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(false);
        // What libmlx5 writes when it arms for the first time: all zero.
        memory.write32(RECORD + 4, 0);
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::Now));
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
    }

    #[test]
    fn what_was_armed_last_counts_although_nobody_announced_it() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(false);
        memory.write32(RECORD + 4, ARM_SOLICITED);
        assert_eq!(queue.complete(&memory, &entry(false)), Ok(Notice::None));
        assert_eq!(queue.complete(&memory, &entry(true)), Ok(Notice::Now));
    }

    #[test]
    fn a_resize_continues_where_the_driver_copies_to() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        memory.write32(RECORD, 0);
        let _ = queue.complete(&memory, &entry(false)).unwrap();
        let _ = queue.complete(&memory, &entry(false)).unwrap();
        queue.resize(&memory, ring(0x2000, 3)).unwrap();
        // The old ring ends with the entry that says so.
        assert_eq!(memory.read::<1>(RING + 2 * 64 + 63), [5 << 4]);
        let _ = queue.complete(&memory, &entry(false)).unwrap();
        assert_eq!(queue.counters()[0], 4);
        assert_eq!(
            memory.read::<4>(0x2000 + 3 * 64 + 56),
            [0, 0xab, 0xcd, 0xef]
        );
        // Three entries (and the end) do not fit into two.
        assert_eq!(
            queue.resize(&memory, ring(0x3000, 1)),
            Err(CqError::Overrun)
        );
    }

    #[test]
    fn memory_that_went_away_is_an_error() {
        let memory = Memory::new(0x5000);
        let mut queue = queue(true);
        queue.ring = ring(0x9000, 2);
        assert_eq!(
            queue.complete(&memory, &entry(false)),
            Err(CqError::Unmapped)
        );
    }
}
