//! Work requests and completions, as the transport sees them: free of any
//! device's encoding.

pub(crate) mod operands;
pub(crate) mod payload;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;
use wire::ipoib::Checked;
use wire::{Gid, Lid, PKey, QKey, Qpn, Sl};

use crate::memory::signature::format::Format;
use crate::memory::signature::key::SignatureError;
use crate::objects::reason::Reason;
pub use crate::objects::reason::Status;

pub use crate::memory::sge::{Piece, Sge};

pub use crate::objects::work::operands::AtomicOperands;

/// Most scatter/gather entries that one work request may carry.
pub const MAX_SGE: usize = 64;
/// Most bytes of a message that a completion holds.
pub const MAX_IN_COMPLETION: usize = 64;

/// Longest message (the port's maximum, 2^30 bytes).
pub const MAX_MESSAGE: u64 = 1 << 30;
/// Most bytes of inline data that one work request may carry.
pub const MAX_INLINE: usize = 1024;

/// Operation of a send work request. The names are those of the InfiniBand specification, chapter 10.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Operation {
    /// Nothing; completes like any other request.
    #[default]
    Nop,
    /// Send to the responder's receive queue.
    Send,
    /// Send with immediate data.
    SendImm,
    /// Send and invalidate the responder's memory region.
    SendInvalidate,
    /// Write to the responder's memory.
    Write,
    /// Write, and consume a receive request to deliver immediate data.
    WriteImm,
    /// Read from the responder's memory.
    Read,
    /// Compare and swap eight bytes.
    CompareSwap,
    /// Fetch and add eight bytes.
    FetchAdd,
    /// Compare and swap under masks.
    MaskedCompareSwap,
    /// Fetch and add with field boundaries.
    MaskedFetchAdd,
    /// Invalidate a local memory region.
    LocalInvalidate,
    /// Change a memory key and its translations (fast registration).
    UpdateKey,
    /// Change the list of tags of the queue pair's shared receive queue.
    ChangeTags,
    /// Set a signature value under way (PSV). The initial values of keys are in their own formats.
    SetSignature,
}

impl Operation {
    /// Whether the request's list is where the answer goes, not where the
    /// payload comes from.
    #[inline]
    #[must_use]
    pub const fn fills_list(self) -> bool {
        matches!(
            self,
            Self::Read
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::MaskedCompareSwap
                | Self::MaskedFetchAdd
        )
    }

    /// Whether it is one of the atomics: their answers have eight bytes.
    #[inline]
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        self.fills_list() && !matches!(self, Self::Read)
    }
}

/// Global route of a datagram or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

impl GlobalRoute {
    /// The header of a packet from this GID.
    #[must_use]
    pub fn header(self, sgid: Gid) -> wire::header::GlobalRoute {
        wire::header::GlobalRoute {
            ip_version: 6,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            payload_length: 0,
            next_header: wire::header::GlobalRoute::IBA_TRANSPORT,
            hop_limit: self.hop_limit,
            sgid,
            dgid: self.dgid,
        }
    }

    /// Decodes it from a packet. No packet has the index of the sender's GID.
    #[must_use]
    pub const fn of(header: &wire::header::GlobalRoute) -> Self {
        Self {
            dgid: header.dgid,
            sgid_index: 0,
            flow_label: header.flow_label,
            traffic_class: header.traffic_class,
            hop_limit: header.hop_limit,
        }
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressVector {
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of the source LID under the LMC.
    pub src_path_bits: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Q_Key as posted; with its top bit set the queue pair's own is sent
    /// (specification 10.2.5).
    pub qkey: QKey,
    /// Global route, if the datagram carries a GRH.
    pub global: Option<GlobalRoute>,
}

/// Offloads for the IP packet in a datagram (RFC 4391), of a queue pair with
/// [`QpDesc::offloads`](crate::QpDesc::offloads).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// Computes the checksum of the network header.
    pub network_checksum: bool,
    /// Computes the checksum of TCP or UDP.
    pub transport_checksum: bool,
    /// Makes segments of a stretch of TCP.
    pub segmentation: Option<Segmentation>,
}

/// Segmentation of a stretch of TCP: its payload is the headers of each segment, and all of their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segmentation {
    /// Bytes of the headers.
    pub header: u16,
    /// Bytes of data in a segment at most.
    pub mss: u16,
}

/// A change to a memory key, posted as work (fast registration, UMR).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyUpdate {
    /// The memory key, index and variant as its users know it before the change.
    pub mkey: u32,
    /// New variant byte, if it changes.
    pub variant: Option<u8>,
    /// New state: `true` makes the key unusable.
    pub free: Option<bool>,
    /// New start address.
    pub start: Option<u64>,
    /// New length in bytes.
    pub len: Option<u64>,
    /// New page size as a power of two, in bytes.
    pub log_page_size: Option<u8>,
    /// New protection domain.
    pub pd: Option<u32>,
    /// New access rights, each `None` where it stays.
    pub local_read: Option<bool>,
    /// As above.
    pub local_write: Option<bool>,
    /// As above.
    pub remote_read: Option<bool>,
    /// As above.
    pub remote_write: Option<bool>,
    /// As above.
    pub atomic: Option<bool>,
    /// Whether remote invalidation is allowed from now on.
    pub remote_invalidate: Option<bool>,
    /// Restrict to one queue pair, or (`Some(None)`) lift the restriction.
    #[serde(
        default,
        serialize_with = "restriction",
        deserialize_with = "restricted"
    )]
    pub qpn: Option<Option<Qpn>>,
    /// Fail unless the key is free now.
    pub check_free: bool,
    /// Fail unless the key is restricted to the queue pair that asks, or in use and restricted to none.
    #[serde(default)]
    pub check_qpn: bool,
    /// New form of the bytes of a key with signatures, or (`Some(None)`) none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub signatures: Option<Option<Format>>,
    /// Signature values under way that the form names.
    #[serde(default)]
    pub signature_values: [Option<u32>; 2],
    /// Number of signature errors that the owner expects after the next one, modulo 2.
    #[serde(default)]
    pub expected_error: Option<bool>,
    /// Translation entries in the payload: index of the first 16-byte octword
    /// that they replace, and their count. Zero when the payload is none.
    pub translation_offset: u64,
    /// Number of 16-byte octwords of translations in the payload.
    pub translation_octwords: u32,
    /// Payload that the engine has gathered so far.
    pub gathered: Vec<u8>,
    /// Number of bytes of that in the key.
    pub laid: usize,
}

/// Reads a field that is present: JSON writes `None` and `Some(None)` alike.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A restriction is written as the number of a queue pair, and none as the number that no queue pair has: nothing in
/// its place, as there may be in older images, changes nothing.
fn restriction<S: Serializer>(of: &Option<Option<Qpn>>, to: S) -> Result<S::Ok, S::Error> {
    of.map(|qpn| qpn.unwrap_or(Qpn::MULTICAST)).serialize(to)
}

fn restricted<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Qpn>>, D::Error> {
    let of = Option::<Qpn>::deserialize(from)?;
    Ok(of.map(|qpn| Some(qpn).filter(|qpn| *qpn != Qpn::MULTICAST)))
}

/// A change of a queue's list, posted as work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagChange {
    /// The change.
    pub operation: TagOperation,
    /// Whether the change completes at the queue's completion queue.
    pub signaled: bool,
    /// Number of unexpected messages that software has seen, modulo 2^16, if it says so.
    pub seen: Option<u16>,
}

/// A change of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagOperation {
    /// Nothing.
    #[default]
    Nop,
    /// An entry is added, for the memory that the request names. It has the index that the one added before said.
    Append {
        /// Index of the entry that is to be added next.
        next: u16,
        /// Tag, eight bytes in the order of the header.
        tag: u64,
        /// Bits of the tag that count.
        mask: u64,
    },
    /// An entry is taken away, if no message has matched it.
    Remove {
        /// Its index.
        index: u16,
    },
}

/// Event of a list, in a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagEvent {
    /// A message without a tag has taken a receive request.
    NoTag,
    /// A message that no entry has matched has taken a receive request.
    Unexpected,
    /// A message has matched an entry, and its data is there.
    Whole,
    /// A rendezvous has matched an entry, and its data is to come.
    Matched,
    /// The data of a rendezvous is there.
    Received,
    /// A message has matched an entry, and its data does not come.
    Canceled,
}

/// A send work request, copied once from the guest's queue.
///
/// The engine keeps these and hands them out to be filled, so that the data
/// path allocates nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendWr {
    /// The operation.
    pub operation: Operation,
    /// The face's own opcode; returned in the completion.
    pub opcode: u8,
    /// The face's index of the request; returned in the completion.
    pub index: u16,
    /// Whether success produces a completion entry (errors always do).
    pub signaled: bool,
    /// Whether the responder's completion is a solicited event.
    pub solicited: bool,
    /// Wait for earlier reads and atomics.
    pub fence: bool,
    /// Immediate data (host order), the key to invalidate, or the signature value to set.
    pub immediate: u32,
    /// Remote address of a one-sided operation.
    pub remote_addr: u64,
    /// Remote key of a one-sided operation.
    pub rkey: u32,
    /// Operands of an atomic.
    pub atomic: AtomicOperands,
    /// Destination of a datagram, or of a request of an initiator of dynamic connections.
    pub address: Option<AddressVector>,
    /// Offloads for the IP packet in the datagram.
    #[serde(default)]
    pub offload: Option<Offload>,
    /// Access key of that destination (dynamic connections).
    #[serde(default)]
    pub access_key: u64,
    /// Shared receive queue at the responder (XRC).
    pub xrc_srqn: u32,
    /// Memory-key change.
    pub key_update: Option<Box<KeyUpdate>>,
    /// Change of a list of tags; of other operations it means nothing.
    #[serde(default)]
    pub tags: TagChange,
    /// Gather (or, for reads and atomics, scatter) list.
    pub sges: Vec<Sge>,
    /// Inline data; used instead of `sges` when `is_inline`. Of a request that fills its list it is the answer, where
    /// the completion holds that and memory does not.
    pub inline: Vec<u8>,
    /// The whole payload is in `inline`.
    pub is_inline: bool,
    /// Where inline data and memory follow each other: which elements of
    /// `sges`, a bit each, are stretches of `inline`, at the offset that their
    /// `addr` is.
    pub inlined: u64,
    /// Why it failed; set where it does, and taken by its completion.
    pub reason: Reason,
}

/// A list that is longer than any request has: [`MAX_SGE`] elements, or
/// [`MAX_INLINE`] bytes of inline data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a work request has at most {MAX_SGE} elements and {MAX_INLINE} bytes of inline data")]
pub struct ListTooLong;

impl SendWr {
    /// A request with room for the longest lists, so that filling it never
    /// allocates.
    #[must_use]
    pub fn with_capacity() -> Self {
        Self {
            sges: Vec::with_capacity(MAX_SGE),
            inline: Vec::with_capacity(MAX_INLINE),
            ..Self::default()
        }
    }

    /// Prepares for the next request; keeps the room.
    #[inline]
    pub fn clear(&mut self) {
        self.operation = Operation::Nop;
        self.signaled = false;
        self.solicited = false;
        self.fence = false;
        self.immediate = 0;
        self.address = None;
        self.offload = None;
        self.key_update = None;
        self.sges.clear();
        self.inline.clear();
        self.is_inline = false;
        self.inlined = 0;
    }

    /// Adds memory to the end of the payload.
    ///
    /// # Errors
    /// [`ListTooLong`].
    #[inline]
    pub fn push_memory(&mut self, sge: Sge) -> Result<(), ListTooLong> {
        if self.is_inline {
            self.list_inline(0)?;
            self.is_inline = false;
        }
        if self.sges.len() >= MAX_SGE {
            return Err(ListTooLong);
        }
        self.sges.push(sge);
        Ok(())
    }

    /// Adds inline data to the end of the payload.
    ///
    /// # Errors
    /// [`ListTooLong`].
    #[inline]
    pub fn push_inline(&mut self, bytes: &[u8]) -> Result<(), ListTooLong> {
        let start = self.inline.len();
        if start + bytes.len() > MAX_INLINE {
            return Err(ListTooLong);
        }
        self.inline.extend_from_slice(bytes);
        if self.sges.is_empty() {
            self.is_inline = true;
            return Ok(());
        }
        self.list_inline(start)
    }

    /// Makes the inline data from byte `start` on an element of the list.
    #[cold]
    fn list_inline(&mut self, start: usize) -> Result<(), ListTooLong> {
        let len = self.inline.len() - start;
        if len == 0 {
            return Ok(());
        }
        if self.sges.len() >= MAX_SGE {
            return Err(ListTooLong);
        }
        self.inlined |= 1 << self.sges.len();
        self.sges.push(Sge {
            addr: start as u64,
            lkey: 0,
            len: len as u32,
        });
        Ok(())
    }

    /// Whether inline data and memory follow each other: the payload is to be
    /// read by [`SendWr::pieces`].
    #[inline]
    #[must_use]
    pub const fn is_mixed(&self) -> bool {
        self.inlined != 0
    }

    /// The payload, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let whole = self.is_inline.then_some(Piece::Inline(&self.inline));
        let listed = self.sges.iter().enumerate().map(|(index, sge)| {
            if self.inlined >> index & 1 == 0 {
                return Piece::Memory(sge);
            }
            let bytes = self.inline.get(sge.addr as usize..);
            Piece::Inline(
                bytes
                    .and_then(|bytes| bytes.get(..sge.len as usize))
                    .unwrap_or(&[]),
            )
        });
        whole.into_iter().chain(listed)
    }

    /// The answer that its completion holds, if it does.
    #[inline]
    #[must_use]
    pub fn held(&self) -> &[u8] {
        if self.operation.fills_list() {
            &self.inline
        } else {
            &[]
        }
    }

    /// Length of the payload in bytes, of inline data and memory alike.
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        if self.is_inline {
            self.inline.len() as u64
        } else {
            self.sges.iter().map(|sge| u64::from(sge.len)).sum()
        }
    }
}

/// A receive work request, copied once from the guest's queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecvWr {
    /// The face's index of the request; returned in the completion.
    pub index: u16,
    /// Scatter list.
    pub sges: Vec<Sge>,
    /// The message, where its completion holds it and memory does not. It is complete then: no image has it.
    #[serde(skip)]
    pub held: Vec<u8>,
}

impl RecvWr {
    /// A request with room for the longest list.
    #[must_use]
    pub fn with_capacity() -> Self {
        Self {
            index: 0,
            sges: Vec::with_capacity(MAX_SGE),
            held: Vec::with_capacity(MAX_IN_COMPLETION),
        }
    }

    /// Prepares for the next request; keeps the room.
    #[inline]
    pub fn clear(&mut self) {
        self.sges.clear();
        self.held.clear();
    }
}

/// A work request that cannot be executed as it stands. The queue pair that
/// posted it goes to the error state; nobody else notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The queue's own memory is not mapped.
    #[error("work queue memory is not mapped")]
    Unmapped,
    /// The encoding is not one the device knows; `index` and `opcode` are as
    /// far as they could be read.
    #[error("malformed work queue entry {index} (opcode {opcode:#x})")]
    Malformed {
        /// Index of the entry.
        index: u16,
        /// Its opcode.
        opcode: u8,
        /// The fault.
        reason: Reason,
    },
}

/// Kind of a receive completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvKind {
    /// Plain send.
    Send,
    /// Send with immediate.
    SendImm,
    /// Send with invalidate.
    SendInvalidate,
    /// RDMA write with immediate.
    WriteImm,
}

/// Where a datagram, or what a dynamic connection's target has received, came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Source LID.
    pub slid: Lid,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Service level.
    pub sl: Sl,
    /// The first 40 bytes of the buffer hold a GRH.
    pub grh: bool,
    /// P_Key of the packet.
    pub pkey: PKey,
    /// Low bits of the destination LID under the LMC.
    pub path_bits: u8,
    /// Checksums that were found right; of a queue pair with
    /// [`QpDesc::offloads`](crate::QpDesc::offloads) alone.
    pub checked: Checked,
}

/// The hash of a packet's addresses and ports, by which the queue that it goes to is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketHash {
    /// The hash; 0 where there is none.
    pub value: u32,
    /// Fields that it was computed of, as the face encodes them.
    pub kind: u8,
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionEntry {
    /// Queue pair, as its owner numbers it.
    pub qpn: Qpn,
    /// Index that the owner has given to the queue pair or, where the request came from an XRC shared receive queue,
    /// to that; `None`: it knows them by number.
    pub user_index: Option<u32>,
    /// [`SendWr::index`] or [`RecvWr::index`].
    pub index: u16,
    /// Outcome.
    pub status: Status,
    /// Why a send request failed.
    pub reason: Reason,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Whether this is a solicited (or an error) completion.
    pub solicited: bool,
    /// When it completed, in the clock's nanoseconds. Completions of a burst
    /// may have the same time; none of a send request has one from before it was
    /// posted.
    pub time: u64,
    /// Its side.
    pub side: Side,
}

/// The side of a queue pair that a completion belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Completion of a send work request.
    Send {
        /// [`SendWr::opcode`].
        opcode: u8,
    },
    /// Completion of no request: a block did not match its signature. The request goes on, and has a completion of
    /// its own.
    Signature(SignatureError),
    /// Completion of a receive work request.
    Recv {
        /// The kind of message.
        kind: RecvKind,
        /// Immediate data (host order), or the invalidated key.
        immediate: u32,
        /// Shared receive queue, if the request came from one.
        srqn: Option<u32>,
        /// Its source, of a datagram or at a target of dynamic connections.
        source: Option<Source>,
    },
    /// Completion of a receive work request of a [`Transport::ReceiveQueue`](crate::Transport::ReceiveQueue). The
    /// queue pair is the underlay queue pair that the packet came to.
    Steered {
        /// Its source.
        source: Source,
        /// Hash that its queue was chosen by.
        hash: PacketHash,
        /// The sum of the IP packet as RFC 1071 has it, which is not inverted.
        checksum: u16,
    },
    /// Completion of a message to a shared receive queue with a list of tags. Where it has matched an entry, the
    /// index of the completion is the entry's.
    Tagged {
        /// The kind of message.
        kind: RecvKind,
        /// Immediate data (host order), or the invalidated key.
        immediate: u32,
        /// The queue.
        srqn: u32,
        /// Its outcome.
        event: TagEvent,
        /// Its header, of one that has just matched an entry; else zeros.
        header: [u8; 16],
    },
    /// Completion of a change of a list of tags.
    Tags {
        /// The queue.
        srqn: u32,
        /// The change that was asked for.
        operation: TagOperation,
        /// Whether it has: an entry that a message has matched does not go.
        done: bool,
        /// Unexpected messages so far, modulo 2^16.
        unexpected: u16,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_know_what_changes_to_nothing() {
        for change in [None, Some(None), Some(Some(Qpn::new(7)))] {
            let update = KeyUpdate {
                qpn: change,
                signatures: change.map(|_| None),
                ..KeyUpdate::default()
            };
            let text = serde_json::to_string(&update).unwrap();
            assert_eq!(serde_json::from_str::<KeyUpdate>(&text).unwrap(), update);
            // As they were written before.
            let older = text.replace("16777215", "null");
            let read: KeyUpdate = serde_json::from_str(&older).unwrap();
            assert_eq!(read.qpn, change.filter(Option::is_some));
        }
    }
}
