//! Send requests and how they lie in a send queue: segments of 16 bytes in
//! blocks of 64.

use std::sync::atomic::AtomicU64;

use crate::bits::{put_dword, put_qword};
use crate::error::{Error, Result};
use crate::function::opcode::codes;
use crate::memory_key::key_update::KeyUpdate;
use crate::queue::segment::{Sge, Writer};
use crate::queue::tags::TagChange;

/// Most segments of a request.
pub const MAX_SEGMENTS: usize = 63;
/// Longest inline data: its length has 10 bits.
const MAX_INLINE: usize = 0x3ff;

codes! {
    /// Kind of a send request.
    #[allow(missing_docs, reason = "the names are the specification's own")]
    SendOpcode: u8 {
        Nop = 0x00,
        SendInvalidate = 0x01,
        RdmaWrite = 0x08,
        RdmaWriteImm = 0x09,
        Send = 0x0a,
        SendImm = 0x0b,
        SendStretch = 0x0e,
        RdmaRead = 0x10,
        CompareSwap = 0x11,
        FetchAdd = 0x12,
        MaskedCompareSwap = 0x14,
        MaskedFetchAdd = 0x15,
        SetPsv = 0x20,
        KeyUpdate = 0x25,
        TagMatching = 0x28,
    }
}

/// Data of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// Gathered from memory, or of reads and atomics scattered to memory.
    Memory(&'a [Sge]),
    /// Within the request.
    Inline(&'a [u8]),
    /// Both, in any order.
    Pieces(&'a [Piece<'a>]),
}

/// A stretch of the data of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// In memory.
    Memory(Sge),
    /// Within the request.
    Inline(&'a [u8]),
}

impl Piece<'_> {
    const fn segments(&self) -> usize {
        match self {
            Self::Memory(_) => 1,
            Self::Inline(data) => (4 + data.len()).div_ceil(16),
        }
    }
}

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address in the region.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
}

/// Operands of an atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Atomic {
    /// To swap in, or to add.
    pub swap_add: u64,
    /// To compare with; of a masked fetch and add, the field boundaries.
    pub compare: u64,
    /// Bits to swap; of a masked compare and swap only.
    pub swap_add_mask: u64,
    /// Bits to compare; of a masked compare and swap only.
    pub compare_mask: u64,
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressVector {
    /// Destination LID.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// Destination queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Destination GID and hop limit, for a global route.
    pub global: Option<([u8; 16], u8)>,
}

/// Work on the IP packet in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet<'a> {
    /// The checksum of the IP header is computed.
    pub network_checksum: bool,
    /// The checksum of TCP or UDP is computed.
    pub transport_checksum: bool,
    /// It is cut into packets with so much of the data each.
    pub mss: Option<u16>,
    /// Its first bytes, within the request; of one that is cut, the headers of each packet.
    pub headers: &'a [u8],
}

impl Packet<'_> {
    const fn segments(&self) -> usize {
        1 + (14 + self.headers.len()).div_ceil(16)
    }

    fn emit(&self, put: &mut Writer<'_>) {
        let flags = u8::from(self.network_checksum) << 6 | u8::from(self.transport_checksum) << 7;
        let mss = u64::from(self.mss.unwrap_or(0));
        // A segment that says nothing comes first.
        put.bytes(&[0; 16]);
        put.word(u64::from(flags) << 24 | mss);
        let mut rest = vec![0; 4];
        rest.extend((self.headers.len() as u16).to_be_bytes());
        rest.extend(self.headers);
        rest.resize((8 + rest.len()).next_multiple_of(16) - 8, 0);
        put.bytes(&rest);
    }
}

/// A send request.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    opcode: SendOpcode,
    data: Data<'a>,
    modifier: u8,
    flags: u8,
    immediate: u32,
    remote: Option<Remote>,
    atomic: Option<Atomic>,
    destination: Option<&'a AddressVector>,
    /// In place of the destination's Q_Key.
    access_key: Option<u64>,
    srqn: Option<u32>,
    packet: Option<Packet<'a>>,
    key_update: Option<KeyUpdate<'a>>,
    tags: Option<TagChange>,
}

/// Ask for a completion entry.
const SIGNALED: u8 = 2 << 2;
const SOLICITED: u8 = 1 << 1;
/// Start when all earlier reads and atomics are done.
const FENCE: u8 = 2;

impl<'a> SendRequest<'a> {
    const fn new(opcode: SendOpcode, data: Data<'a>) -> Self {
        Self {
            opcode,
            data,
            modifier: 0,
            flags: SIGNALED,
            immediate: 0,
            remote: None,
            atomic: None,
            destination: None,
            access_key: None,
            srqn: None,
            packet: None,
            key_update: None,
            tags: None,
        }
    }

    /// Nothing.
    pub const fn nop() -> Self {
        Self::new(SendOpcode::Nop, Data::Memory(&[]))
    }

    /// SEND.
    pub const fn send(data: Data<'a>) -> Self {
        Self::new(SendOpcode::Send, data)
    }

    /// SEND with immediate data.
    pub const fn send_imm(data: Data<'a>, immediate: u32) -> Self {
        let mut request = Self::new(SendOpcode::SendImm, data);
        request.immediate = immediate;
        request
    }

    /// SEND that invalidates a key of the peer.
    pub const fn send_invalidate(data: Data<'a>, key: u32) -> Self {
        let mut request = Self::new(SendOpcode::SendInvalidate, data);
        request.immediate = key;
        request
    }

    /// RDMA WRITE.
    pub const fn write(remote: Remote, data: Data<'a>) -> Self {
        let mut request = Self::new(SendOpcode::RdmaWrite, data);
        request.remote = Some(remote);
        request
    }

    /// RDMA WRITE with immediate data.
    pub const fn write_imm(remote: Remote, data: Data<'a>, immediate: u32) -> Self {
        let mut request = Self::new(SendOpcode::RdmaWriteImm, data);
        request.remote = Some(remote);
        request.immediate = immediate;
        request
    }

    /// RDMA READ.
    pub const fn read(remote: Remote, into: &'a [Sge]) -> Self {
        let mut request = Self::new(SendOpcode::RdmaRead, Data::Memory(into));
        request.remote = Some(remote);
        request
    }

    /// An atomic operation; the original value goes to `into`, 8 bytes.
    pub const fn atomic(
        opcode: SendOpcode,
        remote: Remote,
        operands: Atomic,
        into: &'a [Sge],
    ) -> Self {
        let mut request = Self::new(opcode, Data::Memory(into));
        request.remote = Some(remote);
        request.atomic = Some(operands);
        request
    }

    /// A read or an atomic operation with its answer to go anywhere, within the request as well.
    /// For tests of what no driver does.
    pub const fn answered(
        opcode: SendOpcode,
        remote: Remote,
        operands: Atomic,
        into: Data<'a>,
    ) -> Self {
        let mut request = Self::new(opcode, into);
        request.remote = Some(remote);
        if !matches!(opcode, SendOpcode::RdmaRead) {
            request.atomic = Some(operands);
        }
        request
    }

    /// A change to a memory key.
    pub const fn key_update(update: KeyUpdate<'a>) -> Self {
        let mut request = Self::new(SendOpcode::KeyUpdate, Data::Memory(&[]));
        request.immediate = update.key;
        request.key_update = Some(update);
        request
    }

    /// A change to a list of tags, and the memory of an entry that is added. It completes besides as the change says.
    pub const fn change_tags(change: TagChange, memory: &'a [Sge]) -> Self {
        let mut request = Self::new(SendOpcode::TagMatching, Data::Memory(memory));
        request.tags = Some(change);
        request
    }

    /// Without a completion entry, unless it fails.
    pub const fn unsignaled(mut self) -> Self {
        self.flags &= !SIGNALED;
        self
    }

    /// Raises an event where the peer waits for solicited ones.
    pub const fn solicited(mut self) -> Self {
        self.flags |= SOLICITED;
        self
    }

    /// Starts when all earlier reads and atomics are done.
    pub const fn fenced(self) -> Self {
        self.fence(FENCE)
    }

    /// With a fence of this kind, 0 to 4.
    pub const fn fence(mut self, kind: u8) -> Self {
        self.flags = self.flags & !(7 << 5) | kind << 5;
        self
    }

    /// With this modifier of its opcode, as extended atomics have.
    pub const fn modified(mut self, modifier: u8) -> Self {
        self.modifier = modifier;
        self
    }

    /// To a datagram's destination.
    pub const fn to(mut self, destination: &'a AddressVector) -> Self {
        self.destination = Some(destination);
        self
    }

    /// To a target of dynamic connections, with its access key.
    pub const fn to_target(mut self, target: &'a AddressVector, key: u64) -> Self {
        self.destination = Some(target);
        self.access_key = Some(key);
        self
    }

    /// To a shared receive queue of the peer, over XRC.
    pub const fn to_srq(mut self, srqn: u32) -> Self {
        self.srqn = Some(srqn);
        self
    }

    /// An IP packet, of a queue pair with offloads.
    pub const fn packet(mut self, packet: Packet<'a>) -> Self {
        if packet.mss.is_some() {
            self.opcode = SendOpcode::SendStretch;
        }
        self.packet = Some(packet);
        self
    }

    /// Segments it needs.
    fn segments(&self) -> usize {
        let masked = matches!(self.opcode, SendOpcode::MaskedCompareSwap);
        1 + 3 * usize::from(self.destination.is_some())
            + self.packet.map_or(0, |packet| packet.segments())
            + usize::from(self.srqn.is_some())
            + usize::from(self.remote.is_some())
            + (1 + usize::from(masked)) * usize::from(self.atomic.is_some())
            + self.key_update.map_or(0, |update| update.segments())
            + 2 * usize::from(self.tags.is_some())
            + match self.data {
                Data::Memory(list) => list.len(),
                Data::Inline(data) => Piece::Inline(data).segments(),
                Data::Pieces(pieces) => pieces.iter().map(Piece::segments).sum(),
            }
    }

    /// Writes it to a ring (a power of two words long) from block `counter`
    /// on. Returns its first word, which is the doorbell's too, and how many
    /// blocks it takes, at most `room`.
    #[inline]
    pub(crate) fn emit(
        &self,
        ring: &[AtomicU64],
        counter: u16,
        qpn: u32,
        room: usize,
    ) -> Result<(u64, usize)> {
        let segments = self.segments();
        let blocks = segments.div_ceil(4);
        let long =
            |piece: &Piece<'_>| matches!(piece, Piece::Inline(data) if data.len() > MAX_INLINE);
        let long_inline = match self.data {
            Data::Memory(_) => false,
            Data::Inline(data) => data.len() > MAX_INLINE,
            Data::Pieces(pieces) => pieces.iter().any(long),
        };
        if segments > MAX_SEGMENTS || long_inline || blocks * 8 > ring.len() {
            return Err(Error::TooLong(segments));
        }
        if blocks > room {
            return Err(Error::Full);
        }
        let mut put = Writer {
            ring,
            at: usize::from(counter) * 8 + 1,
        };
        put.word(u64::from(self.flags) << 32 | u64::from(self.immediate));
        if let Some(srqn) = self.srqn {
            put.word(u64::from(srqn) << 32);
            put.word(0);
        }
        if let Some(to) = self.destination {
            to.emit(self.access_key, &mut put);
        }
        if let Some(packet) = self.packet {
            packet.emit(&mut put);
        }
        if let Some(remote) = self.remote {
            put.word(remote.addr);
            put.word(u64::from(remote.key) << 32);
        }
        if let Some(operands) = self.atomic {
            put.word(operands.swap_add);
            put.word(operands.compare);
            if matches!(self.opcode, SendOpcode::MaskedCompareSwap) {
                put.word(operands.swap_add_mask);
                put.word(operands.compare_mask);
            }
        }
        if let Some(update) = self.key_update {
            update.emit(&mut put);
        }
        if let Some(change) = self.tags {
            put.bytes(&change.to_bytes());
        }
        match self.data {
            Data::Memory(list) => list.iter().for_each(|sge| sge.emit(&mut put)),
            Data::Inline(data) => put.inline(data),
            Data::Pieces(pieces) => pieces.iter().for_each(|piece| match piece {
                Piece::Memory(sge) => sge.emit(&mut put),
                Piece::Inline(data) => put.inline(data),
            }),
        }
        let first = u64::from(self.modifier) << 56
            | u64::from(counter) << 40
            | u64::from(self.opcode.code()) << 32
            | u64::from(qpn) << 8
            | segments as u64;
        put.at = usize::from(counter) * 8;
        put.word(first);
        Ok((first, blocks))
    }
}

impl AddressVector {
    fn emit(&self, access_key: Option<u64>, put: &mut Writer<'_>) {
        const EXTENDED: u32 = 1 << 31;
        const GLOBAL: u32 = 1 << 30;
        let mut bytes = [0; 48];
        put_dword(&mut bytes, 0x00, self.qkey);
        if let Some(key) = access_key {
            put_qword(&mut bytes, 0x00, key);
        }
        put_dword(&mut bytes, 0x08, EXTENDED | self.qpn);
        bytes[0x0c] = self.sl & 0xf;
        bytes[0x0e..0x10].copy_from_slice(&self.lid.to_be_bytes());
        if let Some((gid, hop_limit)) = self.global {
            bytes[0x1b] = hop_limit;
            put_dword(&mut bytes, 0x1c, GLOBAL);
            bytes[0x20..].copy_from_slice(&gid);
        }
        put.bytes(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn emit(request: &SendRequest<'_>, counter: u16) -> (Vec<u8>, u64, usize) {
        let ring: Vec<_> = (0..128).map(|_| AtomicU64::new(u64::MAX)).collect();
        let (word, blocks) = request.emit(&ring, counter, 0xabcdef, 16).unwrap();
        let bytes = ring
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        (bytes, word, blocks)
    }

    #[test]
    fn an_inline_write_lies_as_the_manual_says() {
        let remote = Remote {
            addr: 0x1122_3344_5566_7788,
            key: 0x99aa_bbcc,
        };
        let (bytes, word, blocks) = emit(&SendRequest::write(remote, Data::Inline(b"ABCDEFGH")), 0);
        assert_eq!(blocks, 1);
        #[rustfmt::skip]
        assert_eq!(bytes[..48], [
            0, 0, 0, 8, 0xab, 0xcd, 0xef, 3, 0, 0, 0, 8, 0, 0, 0, 0,
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0,
            0x80, 0, 0, 8, b'A', b'B', b'C', b'D', b'E', b'F', b'G', b'H', 0, 0, 0, 0,
        ]);
        assert_eq!(word.to_be_bytes(), bytes[..8]);
        assert!(bytes[48..].iter().all(|&byte| byte == 0xff));
    }

    #[test]
    fn a_request_wraps_at_the_end_of_the_ring() {
        let data = [7; 100];
        let (bytes, _, blocks) = emit(&SendRequest::send(Data::Inline(&data)), 15);
        assert_eq!(blocks, 2);
        assert_eq!(bytes[15 * 64..][..8], [0, 0, 15, 0x0a, 0xab, 0xcd, 0xef, 8]);
        assert_eq!(bytes[15 * 64 + 20..][..44], [7; 44]);
        assert_eq!(bytes[..56], [7; 56]);
        assert_eq!(bytes[56..64], [0; 8]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ring: Vec<_> = (0..128).map(|_| AtomicU64::new(0)).collect();
        let sges = [Sge {
            addr: 0,
            len: 1,
            key: 0,
        }; 63];
        let long = SendRequest::send(Data::Memory(&sges));
        assert!(matches!(
            long.emit(&ring, 0, 1, 16),
            Err(Error::TooLong(64))
        ));
        let fits = SendRequest::send(Data::Memory(&sges[..62]));
        assert_eq!(fits.emit(&ring, 0, 1, 16).unwrap().1, 16);
        assert!(matches!(fits.emit(&ring, 0, 1, 15), Err(Error::Full)));
        let inline = vec![0; 1024];
        let long = SendRequest::send(Data::Inline(&inline));
        assert!(long.emit(&ring, 0, 1, 16).is_err());
    }
}
