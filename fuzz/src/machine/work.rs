//! Common parts of all requests: the places of their payload, and their first segments.

use arbitrary::{Arbitrary, Unstructured};
use test_driver::bits::{put_dword, put_qword};

use crate::Machine;
use crate::machine::guest::{Objects, PAYLOAD, Qp, RECEIVES, SHARED, element};

/// Opcodes of requests that move data, and one that there is not.
pub const OPCODES: [u8; 12] = [
    0x00, 0x08, 0x09, 0x0a, 0x0b, 0x01, 0x10, 0x11, 0x12, 0x14, 0x15, 0x1b,
];

/// Value that is seldom there: short inputs should reach far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seldom<T>(pub Option<T>);

impl<'a, T: Arbitrary<'a>> Arbitrary<'a> for Seldom<T> {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        const WHERE_IT_IS: u8 = 0xe0;
        Ok(Self(match from.arbitrary()? {
            WHERE_IT_IS.. => Some(from.arbitrary()?),
            _ => None,
        }))
    }
}

/// A piece of memory, by a key of those that there are, or seldom by any.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    key: u8,
    addr: u16,
    len: u16,
    wild: Option<(u64, u32)>,
}

impl<'a> Arbitrary<'a> for Piece {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        // Short inputs are to get far: with most keys being none, hardly a request would.
        const WILD: u8 = 0xf0;
        let key = from.arbitrary()?;
        let wild = match key {
            WILD.. => Some(from.arbitrary()?),
            _ => None,
        };
        let addr = from.arbitrary()?;
        let len = from.arbitrary::<u8>()?;
        // As short as a word of an atomic, or as long as some pages.
        let len = match len {
            0..0x80 => len.into(),
            _ => u16::from(len & 0x7f) << 7,
        };
        Ok(Self {
            key,
            addr,
            len,
            wild,
        })
    }
}

impl Piece {
    /// Address, key and length, with one of these keys.
    pub fn with(self, keys: &[u32]) -> (u64, u32, u32) {
        match self.wild {
            Some((addr, key)) => (addr, key, u32::from(self.len) << 16),
            None => (
                PAYLOAD + u64::from(self.addr),
                keys[usize::from(self.key) % keys.len()],
                u32::from(self.len),
            ),
        }
    }

    /// A kind of request as programs make it, and its places at the other end and here.
    pub fn of_work(opcode: u8, addr: u16) -> (u8, [Self; 2]) {
        let opcode = 1 + opcode % 9;
        let atomic = matches!(OPCODES[usize::from(opcode)], 0x11 | 0x12);
        let len = if atomic { 8 } else { 1 << (addr % 14) };
        // Within the payload, and aligned.
        let at = |addr: u16| Self::of_first((addr % 0xc000) & !7, len);
        (opcode, [at(addr), at(addr.rotate_left(8))])
    }

    /// `len` bytes from byte `addr` of the payload on, by the first of the keys.
    pub const fn of_first(addr: u16, len: u16) -> Self {
        Self::of(0, addr, len)
    }

    /// The same by any of the keys.
    pub const fn of(key: u8, addr: u16, len: u16) -> Self {
        Self {
            key,
            addr,
            len,
            wild: None,
        }
    }
}

/// A request to a queue pair's send queue.
#[derive(Debug)]
pub struct Request(pub Vec<u8>);

impl Request {
    /// One with a control segment alone, that asks for a completion.
    pub fn new(qp: &Qp, opcode: u8, immediate: u32) -> Self {
        let mut bytes = vec![0; 16];
        put_dword(&mut bytes, 0, u32::from(qp.posted) << 8 | u32::from(opcode));
        bytes[11] = 2 << 2;
        put_dword(&mut bytes, 12, immediate);
        Self(bytes)
    }

    /// Other flags in place of those that ask for a completion.
    pub fn flags(&mut self, flags: u8) {
        self.0[11] = flags;
    }

    /// Goes to queue pair `number` at `lid`, with an access key, or a Q_Key in its upper half.
    pub fn to(&mut self, lid: u16, number: u32, key: u64, global: bool) {
        let mut vector = [0; 48];
        put_qword(&mut vector, 0, key);
        put_dword(&mut vector, 8, 1 << 31 | number & 0x00ff_ffff);
        vector[14..16].copy_from_slice(&lid.to_be_bytes());
        if global {
            put_dword(&mut vector, 0x1c, 1 << 30);
            vector[0x2f] = lid as u8;
        }
        self.0.extend_from_slice(&vector);
    }

    /// Adds the segments for the other end, if the opcode has them: at this address, by this key, with these
    /// operands.
    pub fn remote(&mut self, (addr, key, _): (u64, u32, u32), operands: [u64; 2]) {
        let opcode = self.0[3];
        if matches!(opcode, 0x08 | 0x09 | 0x10..=0x15) {
            let mut segment = [0; 16];
            put_qword(&mut segment, 0, addr);
            put_dword(&mut segment, 8, key);
            self.0.extend_from_slice(&segment);
        }
        // Those with masks have as many of these again.
        let times = match opcode {
            0x11 | 0x12 => 1,
            0x14 | 0x15 => 2,
            _ => 0,
        };
        for _ in 0..times {
            let operands = operands.map(u64::to_be_bytes);
            self.0.extend_from_slice(operands.as_flattened());
        }
    }

    /// Data that is within it.
    pub fn inline(&mut self, data: &[u8]) {
        self.0
            .extend_from_slice(&(1 << 31 | data.len() as u32).to_be_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(16), 0);
    }

    /// Where its data is.
    pub fn list(&mut self, list: &[Piece], keys: &[u32]) {
        for piece in list.iter().take(16) {
            let (addr, key, len) = piece.with(keys);
            self.0.extend_from_slice(&element(addr, key, len));
        }
    }
}

impl Machine {
    /// Posts a receive request of up to four elements to a queue pair, to which `posted` have been posted.
    pub fn post_receive(
        &mut self,
        vf: usize,
        qp: &Qp,
        posted: &mut u16,
        list: &[Piece],
        keys: &[u32],
    ) {
        let mut request = Request(Vec::new());
        request.list(&list[..list.len().min(4)], keys);
        if request.0.len() < 64 {
            request.0.extend_from_slice(&0x100_u64.to_be_bytes());
            request.0.resize(64, 0);
        }
        let at = qp.ring + u64::from(*posted) % RECEIVES * 64;
        *posted = posted.wrapping_add(1);
        let record = u32::from(*posted).to_be_bytes();
        self.guest(vf).write(at, &request.0);
        self.guest(vf).write(qp.record, &record);
    }

    /// Writes a request to place `index` of a shared receive queue of function `vf`, with the one that follows and
    /// its list, and says that so many have been posted.
    pub fn post_shared(
        &mut self,
        vf: usize,
        objects: &Objects,
        (index, next): (u8, u16),
        list: impl FnOnce(&mut Request),
        count: u16,
    ) {
        let mut request = Request(vec![0; 16]);
        request.0[2..4].copy_from_slice(&next.to_be_bytes());
        list(&mut request);
        let at = objects.srq_ring + u64::from(index) % SHARED * 64;
        request.0.truncate(64);
        let guest = self.guest(vf);
        guest.write(at, &request.0);
        guest.write(objects.srq_record, &u32::from(count).to_be_bytes());
    }
}
