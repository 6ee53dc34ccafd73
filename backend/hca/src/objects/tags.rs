//! Tag matching: what a shared receive queue with a list of tags keeps, and what its queue pairs do.
//!
//! Messages to such a queue begin with a header that says a tag. One whose tag an entry of the list has, under the
//! entry's mask, goes to the entry's memory, the first such entry in the order in which they were added. A message
//! that no entry matches is *unexpected*: it takes a receive request, with its header, and software matches it.
//! Until software has said how many unexpected messages it has seen, and that is as many as there were, entries
//! that it adds match nothing: it may be about to find that an unexpected message was theirs.
//!
//! The header of a rendezvous says where the message lies instead of having it with it. The HCA reads it from
//! there, and tells the sender with a last message that it has done so.

use serde::{Deserialize, Serialize};

use crate::memory::sge::Sge;
use crate::objects::ids::CqIndex;
use crate::objects::work::{TagChange, TagOperation};

/// Entries that a list may have, as a power of two: the most that a ConnectX-5 has. One is always free, the next to
/// be added.
pub const LOG_MAX_TAGS: u8 = 7;

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 16;
/// Bytes of the header of a rendezvous: where the message lies follows.
pub(crate) const RENDEZVOUS: usize = 32;

/// First byte of a header: a message with a tag whose data lies elsewhere.
const OPCODE_RENDEZVOUS: u8 = 1;
/// As above: a message that has been read from where it lay.
const OPCODE_FINISHED: u8 = 2;
/// As above: a message with a tag and its data.
const OPCODE_EAGER: u8 = 3;

/// No entry.
const NONE: u16 = u16::MAX;

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slot {
    state: SlotState,
    tag: u64,
    mask: u64,
    /// Where a message goes.
    memory: Sge,
    /// Read of the entry that a rendezvous has matched.
    fetch: Fetch,
    /// The next one whose message the same queue pair reads.
    next: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SlotState {
    /// May be added.
    #[default]
    Free,
    /// In the list, but messages do not match it yet: software has not seen all that were unexpected before.
    Added,
    /// In the list.
    Listed,
    /// A message has matched it and is not complete.
    Taken,
}

/// A message that lies with its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fetch {
    pub addr: u64,
    pub rkey: u32,
    pub len: u32,
    /// The header of the message that said so.
    pub header: [u8; HEADER],
}

impl Fetch {
    /// The header of the message that tells the sender that its data has been read.
    pub fn finished(&self) -> [u8; HEADER] {
        let mut header = self.header;
        header[..4].copy_from_slice(&[OPCODE_FINISHED, 0, 0, 0]);
        header
    }
}

/// The beginning of a message, copied once: what the message was found to be by it is what software finds, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    bytes: [u8; RENDEZVOUS],
    /// Its length in bytes.
    len: usize,
}

/// Kind of a message, by its beginning. One that is too short for what it claims to be has no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    NoTag,
    Eager(u64),
    Rendezvous(u64, Fetch),
}

impl Head {
    /// The beginning of a message, of which `bytes` may have more.
    pub fn of(bytes: &[u8]) -> Self {
        let len = bytes.len().min(RENDEZVOUS);
        let mut head = Self {
            len,
            ..Self::default()
        };
        head.bytes[..len].copy_from_slice(&bytes[..len]);
        head
    }

    /// As much as there is, to be copied from.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len.min(RENDEZVOUS);
        &mut self.bytes[..len]
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.bytes[..HEADER]);
        header
    }

    fn kind(&self) -> Kind {
        let quad = |at: usize| {
            let bytes = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            u64::from_be_bytes(bytes.copied().unwrap_or_default())
        };
        match self.bytes[0] {
            OPCODE_EAGER if self.len >= HEADER => Kind::Eager(quad(8)),
            OPCODE_RENDEZVOUS if self.len >= RENDEZVOUS => {
                let fetch = Fetch {
                    addr: quad(16),
                    rkey: (quad(24) >> 32) as u32,
                    len: quad(24) as u32,
                    header: self.header(),
                };
                Kind::Rendezvous(quad(8), fetch)
            }
            _ => Kind::NoTag,
        }
    }
}

/// Result of matching a message that arrives at a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arrival {
    #[default]
    NoTag,
    Unexpected,
    /// Its data goes to an entry's memory.
    Expected {
        index: u16,
        header: [u8; HEADER],
    },
    /// Its data is to be read, to an entry's memory.
    Rendezvous {
        index: u16,
    },
}

impl Arrival {
    /// Bytes at the beginning of the message that are not data.
    pub const fn skip(&self) -> u64 {
        match self {
            Self::NoTag | Self::Unexpected => 0,
            Self::Expected { .. } => HEADER as u64,
            // Nothing of it is.
            Self::Rendezvous { .. } => u64::MAX,
        }
    }

    /// The entry that the message has matched.
    pub const fn matched(&self) -> Option<u16> {
        match self {
            Self::NoTag | Self::Unexpected => None,
            Self::Expected { index, .. } | Self::Rendezvous { index } => Some(*index),
        }
    }
}

/// A queue's list of tags.
#[derive(Debug)]
pub(crate) struct TagList {
    /// Where everything of the queue completes.
    pub cq: CqIndex,
    /// The HCA reads the messages of rendezvous.
    pub rendezvous: bool,
    slots: Vec<Slot>,
    /// Entries that are in the list, in the order in which they were added.
    order: Vec<u16>,
    /// The entry that is added next.
    next: u16,
    /// Unexpected messages, modulo 2^16, and how many of them software says that it has seen.
    unexpected: u16,
    seen: u16,
}

/// A list in an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TagListImageV1 {
    pub cqn: u32,
    rendezvous: bool,
    slots: Vec<Slot>,
    order: Vec<u16>,
    next: u16,
    unexpected: u16,
    seen: u16,
}

/// Answer to a query of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagView {
    /// Index of the entry that is added next.
    pub next: u16,
    /// Unexpected messages, modulo 2^16.
    pub unexpected: u16,
    /// Number of them that software has seen, modulo 2^16.
    pub seen: u16,
    /// Entries in the list.
    pub listed: usize,
    /// Entries that there may be, as a power of two.
    pub log_size: u8,
    /// The HCA reads the messages of rendezvous.
    pub rendezvous: bool,
}

/// The change cannot be made: no such entry, or it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSuchTag;

impl TagList {
    /// A list of `1 << log_size` entries, at most [`LOG_MAX_TAGS`], of which none is in use.
    pub fn new(cq: CqIndex, log_size: u8, rendezvous: bool) -> Self {
        let size = 1 << log_size.min(LOG_MAX_TAGS);
        Self {
            cq,
            rendezvous,
            slots: vec![Slot::default(); size],
            order: Vec::with_capacity(size),
            next: 0,
            unexpected: 0,
            seen: 0,
        }
    }

    /// Bytes of the host's memory that a list takes.
    pub const fn held(log_size: u8) -> usize {
        size_of::<Self>() + (size_of::<Slot>() + 2) * (1 << log_size as usize)
    }

    pub fn log_size(&self) -> u8 {
        self.slots.len().ilog2() as u8
    }

    pub fn view(&self) -> TagView {
        TagView {
            next: self.next,
            unexpected: self.unexpected,
            seen: self.seen,
            listed: self.order.len(),
            log_size: self.log_size(),
            rendezvous: self.rendezvous,
        }
    }

    fn slot_mut(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    fn slot(&self, index: u16) -> Option<&Slot> {
        self.slots.get(usize::from(index))
    }

    fn in_step(&self) -> bool {
        self.seen == self.unexpected
    }

    /// Changes the list; whether the entry that was to go was there yet.
    pub fn change(&mut self, change: &TagChange, memory: Sge) -> Result<bool, NoSuchTag> {
        let done = match change.operation {
            TagOperation::Nop => true,
            TagOperation::Append { next, tag, mask } => {
                let index = self.next;
                self.slot(next).ok_or(NoSuchTag)?;
                let slot = self.slot_mut(index).ok_or(NoSuchTag)?;
                if slot.state != SlotState::Free {
                    return Err(NoSuchTag);
                }
                *slot = Slot {
                    state: SlotState::Added,
                    tag,
                    mask,
                    memory,
                    ..Slot::default()
                };
                self.order.push(index);
                self.next = next;
                if self.in_step() && change.seen.is_none() {
                    self.arm(index);
                }
                true
            }
            TagOperation::Remove { index } => self.take_off(index).is_some_and(|slot| {
                slot.state = SlotState::Free;
                true
            }),
        };
        if let Some(seen) = change.seen {
            self.seen = seen;
            if self.in_step() {
                for at in 0..self.order.len() {
                    self.arm(self.order[at]);
                }
            }
        }
        Ok(done)
    }

    fn arm(&mut self, index: u16) {
        if let Some(slot) = self.slot_mut(index) {
            slot.state = SlotState::Listed;
        }
    }

    /// Takes an entry out of the list, if it is there.
    fn take_off(&mut self, index: u16) -> Option<&mut Slot> {
        let at = self.order.iter().position(|listed| *listed == index)?;
        self.order.remove(at);
        self.slot_mut(index)
    }

    /// The first entry that matches a tag, and has room for so many bytes if that is known.
    fn find(&self, tag: u64, len: u32) -> Option<u16> {
        let matches = |index: &&u16| {
            let slot = self.slot(**index);
            slot.is_some_and(|slot| {
                slot.state == SlotState::Listed && (slot.tag ^ tag) & slot.mask == 0
            })
        };
        let index = *self.order.iter().find(matches)?;
        let room = self.slot(index)?.memory.len;
        (room >= len).then_some(index)
    }

    /// Matches a message by its header, and returns the memory that it goes to, if it has matched an entry. A queue
    /// pair that does not `fetch` leaves rendezvous to software, and so does one whose entry has no room for the
    /// message.
    pub fn classify(&mut self, head: &Head, fetches: bool) -> (Arrival, Option<Sge>) {
        let (found, fetch) = match head.kind() {
            Kind::NoTag => return (Arrival::NoTag, None),
            Kind::Eager(tag) => (self.find(tag, 0), None),
            Kind::Rendezvous(tag, fetch) if fetches => (self.find(tag, fetch.len), Some(fetch)),
            Kind::Rendezvous(..) => (None, None),
        };
        let Some((index, slot)) = found.and_then(|index| Some((index, self.take_off(index)?)))
        else {
            return (Arrival::Unexpected, None);
        };
        slot.state = SlotState::Taken;
        let memory = Some(slot.memory);
        match fetch {
            None => {
                let header = head.header();
                (Arrival::Expected { index, header }, memory)
            }
            Some(fetch) => {
                slot.fetch = fetch;
                (Arrival::Rendezvous { index }, memory)
            }
        }
    }

    /// An unexpected message has taken a receive request.
    pub fn count_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// A message that has matched this entry is complete.
    pub fn free(&mut self, index: u16) {
        if let Some(slot) = self
            .slot_mut(index)
            .filter(|slot| slot.state == SlotState::Taken)
        {
            *slot = Slot::default();
        }
    }

    /// Where a message lies that has matched this entry, and where it goes.
    pub fn fetch(&self, index: u16) -> Option<(Fetch, Sge)> {
        let slot = self
            .slot(index)
            .filter(|slot| slot.state == SlotState::Taken)?;
        let len = slot.fetch.len.min(slot.memory.len);
        Some((slot.fetch, Sge { len, ..slot.memory }))
    }

    /// Its image, with the number of its completion queue.
    pub fn save(&self, cqn: u32) -> TagListImageV1 {
        TagListImageV1 {
            cqn,
            rendezvous: self.rendezvous,
            slots: self.slots.clone(),
            order: self.order.clone(),
            next: self.next,
            unexpected: self.unexpected,
            seen: self.seen,
        }
    }

    /// The list of an image; `None` where it is invalid.
    pub fn restore(image: TagListImageV1, cq: CqIndex) -> Option<Self> {
        let size = image.slots.len();
        let sound = size.is_power_of_two() && size <= 1 << LOG_MAX_TAGS;
        if !sound || usize::from(image.next) >= size || image.order.len() > size {
            return None;
        }
        let mut list = Self {
            slots: image.slots,
            next: image.next,
            unexpected: image.unexpected,
            seen: image.seen,
            ..Self::new(cq, size.ilog2() as u8, image.rendezvous)
        };
        for index in image.order {
            let state = list.slot(index)?.state;
            let listed = matches!(state, SlotState::Added | SlotState::Listed);
            if !listed || list.order.contains(&index) {
                return None;
            }
            list.order.push(index);
        }
        Some(list)
    }
}

/// State of a queue pair that receives by a list of tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tagged {
    /// It has no send queue, and reads the messages of rendezvous.
    pub fetches: bool,
    /// Result of matching the message that arrives, and its header.
    pub arrival: Arrival,
    pub head: Head,
    /// Entries whose messages it reads, from the first to the last, and the one that it reads next. Each leads to
    /// the one behind it.
    first: u16,
    last: u16,
    next: u16,
    /// The next one has been asked for; that it is there is to be told.
    asked: bool,
}

/// Next step of a queue pair in a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It reads the message.
    Read(Fetch, Sge),
    /// It tells the sender that it has.
    Finish(Fetch),
}

impl Tagged {
    pub const fn new(fetches: bool) -> Self {
        Self {
            fetches,
            arrival: Arrival::NoTag,
            head: Head {
                bytes: [0; RENDEZVOUS],
                len: 0,
            },
            first: NONE,
            last: NONE,
            next: NONE,
            asked: false,
        }
    }

    /// Goes on as in an image. Whether it reads messages it knows better: an image may say anything.
    pub fn restore(&mut self, image: Self) {
        let fetches = self.fetches;
        *self = Self { fetches, ..image };
    }

    /// The message that has matched this entry is to be read.
    pub fn push(&mut self, list: &mut TagList, index: u16) {
        let Some(slot) = list.slot_mut(index) else {
            return;
        };
        slot.next = NONE;
        if self.first == NONE {
            self.first = index;
        } else if let Some(last) = list.slot_mut(self.last) {
            last.next = index;
        }
        self.last = index;
        if self.next == NONE {
            self.next = index;
        }
    }

    /// Whether there is something to send.
    pub const fn has_steps(&self) -> bool {
        self.next != NONE
    }

    /// The next step.
    pub fn step(&mut self, list: &TagList) -> Option<Step> {
        let Some((fetch, memory)) = list.fetch(self.next) else {
            self.next = NONE;
            return None;
        };
        self.asked = !self.asked;
        if self.asked {
            return Some(Step::Read(fetch, memory));
        }
        self.next = list.slot(self.next).map_or(NONE, |slot| slot.next);
        Some(Step::Finish(fetch))
    }

    /// The first message has been read, and the sender knows: its entry, which is free from now on, and its length.
    pub fn pop(&mut self, list: &mut TagList) -> Option<(u16, u32)> {
        let index = self.first;
        let (_, memory) = list.fetch(index)?;
        self.first = list.slot(index).map_or(NONE, |slot| slot.next);
        if self.first == NONE {
            self.last = NONE;
        }
        list.free(index);
        Some((index, memory.len))
    }

    /// It reads nothing any more.
    pub fn forget_steps(&mut self) {
        *self = Self {
            arrival: self.arrival,
            head: self.head,
            ..Self::new(self.fetches)
        };
    }
}

#[cfg(test)]
mod tests;
