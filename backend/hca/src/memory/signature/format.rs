//! The form of a stream of bytes with signatures, in memory and on the wire (BSF).

use serde::{Deserialize, Serialize};

use super::digest::Algorithm;

/// Bytes of the longest check value.
pub const LONGEST: usize = 8;
/// Bytes of the longest block.
pub const LONGEST_BLOCK: u16 = 4160;

/// Application and reference tags of T10-DIF, and when they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tags {
    /// Application tag.
    pub application: u16,
    /// Bits of the application tag that are compared.
    pub application_mask: u16,
    /// Reference tag of the first block.
    pub reference: u32,
    /// The reference tag of each block is one more than that of the block before.
    pub increments: bool,
    /// The escape: tags of a block that is not checked.
    pub escape: Escape,
}

/// Tags of T10-DIF of a block that is not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Escape {
    /// None.
    Never,
    /// An application tag of ones.
    Application,
    /// An application tag and a reference tag of ones.
    Both,
}

/// The signature behind each block of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Algorithm of the check value of the data.
    pub algorithm: Algorithm,
    /// The computation begins with ones, not with zeros.
    pub ones: bool,
    /// Tags behind the check value: of T10-DIF, which has them in every case.
    pub tags: Option<Tags>,
    /// Bytes of data in a block.
    pub block: u16,
}

impl Signature {
    /// Bytes behind each block.
    #[must_use]
    pub const fn width(&self) -> usize {
        match self.tags {
            Some(_) => 8,
            None => 4,
        }
    }

    /// Bytes of a block, with what is behind it.
    const fn stride(&self) -> u64 {
        self.block as u64 + self.width() as u64
    }

    /// Encodes the signature behind block `number`, whose data have this check value: the first
    /// [`Signature::width`] bytes.
    pub(super) fn encode(&self, number: u64, value: u32) -> [u8; LONGEST] {
        match self.tags {
            Some(tags) => {
                let added = if tags.increments { number as u32 } else { 0 };
                let reference = tags.reference.wrapping_add(added);
                let upper = value << 16 | u32::from(tags.application);
                (u64::from(upper) << 32 | u64::from(reference)).to_be_bytes()
            }
            // The reflected CRCs go on the wire in this order, as that of iSCSI does.
            None => {
                let mut bytes = [0; LONGEST];
                bytes[..4].copy_from_slice(&value.to_le_bytes());
                bytes
            }
        }
    }

    /// Decodes the signature behind a block to the form of completions: of T10-DIF the check value, the application
    /// tag and the reference tag from the topmost bit on; of others the check value in the upper half.
    pub(super) fn decode(&self, bytes: [u8; LONGEST]) -> u64 {
        match self.tags {
            Some(_) => u64::from_be_bytes(bytes),
            None => {
                let [a, b, c, d, ..] = bytes;
                u64::from(u32::from_le_bytes([a, b, c, d])) << 32
            }
        }
    }

    /// The bit of a mask for byte `at` of the signature behind a block.
    pub(super) const fn bit(&self, at: usize) -> u8 {
        match self.tags {
            Some(_) => 0x80 >> at,
            None => 0x10 << at,
        }
    }

    /// The bits of what [`Signature::decode`] gives that are compared under `mask`.
    pub(super) fn compared(&self, mask: u8) -> u64 {
        let mut bytes = [0; LONGEST];
        for (at, byte) in bytes.iter_mut().enumerate().take(self.width()) {
            if mask & self.bit(at) != 0 {
                *byte = 0xff;
            }
        }
        let application = self.tags.map_or(u16::MAX, |tags| tags.application_mask);
        let ignored = u64::from(!application) << 32;
        match self.tags {
            Some(_) => self.decode(bytes) & !ignored,
            None => self.decode(bytes),
        }
    }

    /// Whether tags say that their block is not to be looked at.
    pub(super) fn escapes(&self, seen: u64) -> bool {
        let application = (seen >> 32) as u16 == u16::MAX;
        let reference = seen as u32 == u32::MAX;
        match self.tags.map_or(Escape::Never, |tags| tags.escape) {
            Escape::Never => false,
            Escape::Application => application,
            Escape::Both => application && reference,
        }
    }
}

/// The side of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The guest's memory.
    Memory,
    /// The wire.
    Wire,
}

/// The form of a key's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// Signatures in memory.
    pub memory: Option<Signature>,
    /// Signatures on the wire.
    pub wire: Option<Signature>,
    /// Bytes of signatures that are compared at their source, a bit each. Of T10-DIF the topmost bit is the first
    /// byte's; of others the four upper bits count, the topmost of which is the last byte's.
    pub check: u8,
    /// Bytes that are copied where both sides have the same structure, a bit each; `None` where the structures
    /// differ.
    pub copy: Option<u8>,
}

/// Meaning of an offset on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A byte of data with this number, and as many follow in its block.
    Data { at: u64, left: u64 },
    /// A byte of what is behind this block.
    Behind { block: u64, at: usize },
}

impl Format {
    /// Whether it can be: blocks have a size, and structures that are said to be the same are.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let signatures = [self.memory, self.wire];
        let fits = |signature: &Signature| {
            let of_tags = matches!(signature.algorithm, Algorithm::T10Dif | Algorithm::Checksum);
            (1..=LONGEST_BLOCK).contains(&signature.block) && signature.tags.is_some() == of_tags
        };
        let same = match (self.memory, self.wire) {
            (Some(memory), Some(wire)) => {
                memory.block == wire.block && memory.width() == wire.width()
            }
            _ => false,
        };
        signatures.iter().flatten().all(fits) && (self.copy.is_none() || same)
    }

    /// The signature of one side.
    pub(super) const fn of(&self, side: Side) -> Option<Signature> {
        match side {
            Side::Memory => self.memory,
            Side::Wire => self.wire,
        }
    }

    /// Bytes on the wire of `len` bytes in memory. An incomplete block has no signature behind it.
    pub(crate) fn wire_len(&self, len: u64) -> u64 {
        let data = match self.memory {
            None => len,
            Some(memory) => {
                let block = u64::from(memory.block);
                len / memory.stride() * block + (len % memory.stride()).min(block)
            }
        };
        match self.wire {
            None => data,
            Some(wire) => {
                let blocks = data / u64::from(wire.block);
                data.saturating_add(blocks.saturating_mul(wire.width() as u64))
            }
        }
    }

    /// Finds the meaning of byte `offset` on the wire.
    pub(super) fn place(&self, offset: u64) -> Place {
        let Some(wire) = self.wire else {
            return Place::Data {
                at: offset,
                left: u64::MAX,
            };
        };
        let (number, within) = (offset / wire.stride(), offset % wire.stride());
        let block = u64::from(wire.block);
        if within < block {
            Place::Data {
                at: number * block + within,
                left: block - within,
            }
        } else {
            Place::Behind {
                block: number,
                at: (within - block) as usize,
            }
        }
    }

    /// Where in memory the blocks are that an access to byte `offset` on the wire, and to as many of the `len` bytes there
    /// as are of the same block, takes: first byte and end. And how many bytes these are.
    pub(super) fn behind(&self, offset: u64, len: u64) -> ([u64; 2], u64) {
        let (first, end, stretch) = match (self.wire, self.place(offset)) {
            (Some(wire), _) => {
                let (number, within) = (offset / wire.stride(), offset % wire.stride());
                let block = u64::from(wire.block);
                let first = number * block;
                (first, first.saturating_add(block), wire.stride() - within)
            }
            (None, Place::Data { at, .. }) => (at, at.saturating_add(len), len),
            (None, Place::Behind { .. }) => (0, 0, len),
        };
        let memory = match self.memory {
            None => [first, end],
            Some(memory) => {
                let block = u64::from(memory.block);
                let [from, to] = [first / block, end.div_ceil(block)];
                [from, to].map(|number| number.saturating_mul(memory.stride()))
            }
        };
        (memory, stretch.min(len))
    }

    /// Where a byte of data is in memory, and how many follow it there.
    pub(super) fn data(&self, at: u64) -> (u64, u64) {
        let Some(memory) = self.memory else {
            return (at, u64::MAX);
        };
        let block = u64::from(memory.block);
        let within = at % block;
        // Beyond any list, where that is more than there are.
        let start = (at / block).saturating_mul(memory.stride());
        (start.saturating_add(within), block - within)
    }

    /// Where a block of one side begins, on that side.
    pub(super) fn start(&self, side: Side, block: u64) -> u64 {
        let stride = self.of(side).map_or(0, |of| of.stride());
        block.saturating_mul(stride)
    }

    /// The block of memory that ends with the data before byte `at`.
    pub(super) fn ends(&self, at: u64) -> Option<u64> {
        let block = u64::from(self.memory?.block);
        (at > 0 && at.is_multiple_of(block)).then(|| at / block - 1)
    }
}
