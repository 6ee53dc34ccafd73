//! Access to memory by keys with signatures.

use vm_memory::VolatileSlice;

use super::format::{Format, LONGEST, LONGEST_BLOCK, Place, Side, Signature};
use super::key::{SignatureError, Signed, Wrong};
use crate::budget::Budget;
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError, MemoryKey, Translation};
use crate::memory::sge::Sge;

/// Bytes that are taken from memory at once.
const PIECE: usize = 512;

/// Bytes that are copied in the time of one byte of a check value: one of T10-DIF, the slowest.
const COPIES_PER_DIGEST: usize = 7;

/// Longest time of an access to a block and its signature, which is done in one go. A block in so many pieces that
/// it takes longer counts as memory that is not there.
const LONGEST_ACCESS: Budget = Budget::of_ns(65_536);

/// An access by a key with signatures.
struct Transfer<'a, 'b, D> {
    domain: Domain<'a, D>,
    region: &'a MemoryKey,
    signed: &'a Signed,
    format: &'a Format,
    /// The key, as its user has named it.
    key: u32,
    /// Access to the memory behind.
    access: Access,
    budget: &'b mut Budget,
    /// Least rest of the budget when the access ends.
    least: Budget,
    /// Bytes of memory that were looked up last: the first one, its DMA address, and how many follow it there.
    found: (u64, u64, u64),
}

/// Reads bytes as the key's user sees them, at least one and as many as can be had at once, and returns how many.
///
/// # Errors
/// [`KeyError`] where the key or the memory behind cannot be used.
#[cold]
pub(crate) fn read<D: Dma>(
    domain: Domain<'_, D>,
    key: u32,
    addr: u64,
    needed: Access,
    to: &mut [u8],
    budget: &mut Budget,
) -> Result<usize, KeyError> {
    let (mut transfer, offset) = begin(domain, key, addr, to.len(), needed, budget)?;
    match transfer.format.place(offset) {
        Place::Data { at, left } => transfer.read_data(at, left, to),
        Place::Behind { block, at } => transfer.read_behind(block, at, to),
    }
}

/// Writes bytes as the key's user sees them, as [`read`] reads them.
///
/// # Errors
/// As [`read`].
#[cold]
pub(crate) fn write<D: Dma>(
    domain: Domain<'_, D>,
    key: u32,
    addr: u64,
    needed: Access,
    from: &[u8],
    budget: &mut Budget,
) -> Result<usize, KeyError> {
    let (mut transfer, offset) = begin(domain, key, addr, from.len(), needed, budget)?;
    match transfer.format.place(offset) {
        Place::Data { at, left } => transfer.write_data(at, left, from),
        Place::Behind { block, at } => transfer.write_behind(block, at, from),
    }
}

/// The first page that is not there of what is behind `len` bytes of a key with signatures: the byte that it is
/// needed for, counted from `addr` on, and the memory that is to be there. A byte needs all of its block on either
/// side: a check takes more than a request names.
#[cold]
pub(crate) fn missing<D: Dma>(
    domain: Domain<'_, D>,
    key: u32,
    (addr, len): (u64, u64),
    needed: Access,
) -> Option<(u64, Sge)> {
    let mut uncharged = Budget::NONE;
    let (transfer, offset) = begin(domain, key, addr, len as usize, needed, &mut uncharged).ok()?;
    let Transfer { format, signed, .. } = transfer;
    let mut before = 0;
    while before < len {
        let (memory, stretch) = format.behind(offset.saturating_add(before), len - before);
        let [first, end] = memory.map(|place| place.min(signed.len));
        let mut place = first;
        let mut left = LONGEST_ACCESS;
        while place < end && left.is_left() {
            let (list, keys) = (&signed.list, domain.keys);
            let here = (place, end - place);
            let found =
                keys.translate_list(transfer.region, list, key, here, transfer.access, &mut left);
            match found {
                Ok((_, run)) => place += run.max(1),
                Err(KeyError::Absent(_)) => {
                    let memory = list.stretch(place, end - place)?;
                    return Some((before, memory));
                }
                Err(_) => return None,
            }
        }
        before += stretch;
    }
    None
}

fn begin<'a, 'b, D: Dma>(
    domain: Domain<'a, D>,
    key: u32,
    addr: u64,
    len: usize,
    needed: Access,
    budget: &'b mut Budget,
) -> Result<(Transfer<'a, 'b, D>, u64), KeyError> {
    let region = (domain.keys).check(key, domain.pd, addr, len as u64, needed)?;
    let Translation::Signed(signed) = &region.translation else {
        return Err(KeyError::Invalid(key));
    };
    let format = signed.format.as_ref().ok_or(KeyError::Invalid(key))?;
    let transfer = Transfer {
        domain,
        region,
        signed,
        format,
        key,
        access: needed.behind_indirection(),
        least: budget.less(LONGEST_ACCESS),
        found: (0, 0, 0),
        budget,
    };
    Ok((transfer, addr.wrapping_sub(region.start)))
}

impl<'a, D: Dma> Transfer<'a, '_, D> {
    /// DMA address of byte `at` of what the key's list describes, and how many of `len` bytes lie there. The rest
    /// of their block is looked up with them: an access is to all of it, most often.
    fn place(&mut self, at: u64, len: u64) -> Result<(u64, u64), KeyError> {
        let (first, addr, run) = self.found;
        if let Some(into) = at.checked_sub(first).filter(|into| *into < run) {
            return Ok((addr.wrapping_add(into), len.min(run - into)));
        }
        let mut look = |len| {
            let (list, keys) = (&self.signed.list, self.domain.keys);
            keys.translate_list(
                self.region,
                list,
                self.key,
                (at, len),
                self.access,
                self.budget,
            )
        };
        let around = len.max(LONGEST_BLOCK as u64 + LONGEST as u64);
        // The bytes behind may not be there.
        let (addr, run) = look(around).or_else(|_| look(len))?;
        self.found = (at, addr, run);
        Ok((addr, len.min(run)))
    }

    /// Memory at byte `at` of what the key's list describes: at least one and at most `len` bytes.
    fn window(&mut self, at: u64, len: usize) -> Result<VolatileSlice<'a>, KeyError> {
        let (addr, run) = self.place(at, len as u64)?;
        let dma = self.domain.dma;
        let window = if self.access.writes() {
            dma.write_window(addr, run as usize)
        } else {
            dma.read_window(addr, run as usize)
        };
        let window = window.filter(|window| !window.is_empty());
        let window = window.ok_or(KeyError::Unmapped(self.key))?;
        self.budget.take_window(window.len());
        if *self.budget < self.least {
            return Err(KeyError::Unmapped(self.key));
        }
        Ok(window)
    }

    /// Reads all of `to` from byte `at` of memory on.
    fn fetch(&mut self, mut at: u64, mut to: &mut [u8]) -> Result<(), KeyError> {
        while !to.is_empty() {
            // A check is the HCA's own: whose access it belongs to needs no other right for it.
            let window = self.window(at, to.len())?;
            let done = window.copy_to(to);
            at = at.saturating_add(done as u64);
            to = &mut to[done..];
        }
        Ok(())
    }

    /// Writes all of `from` from byte `at` of memory on.
    fn store(&mut self, mut at: u64, mut from: &[u8]) -> Result<(), KeyError> {
        while !from.is_empty() {
            let window = self.window(at, from.len())?;
            let done = window.len().min(from.len());
            window.copy_from(&from[..done]);
            at = at.saturating_add(done as u64);
            from = &from[done..];
        }
        Ok(())
    }

    /// Computes the `signature` behind block `number` of its side from the data in memory.
    fn compute(&mut self, signature: &Signature, number: u64) -> Result<[u8; LONGEST], KeyError> {
        let mut running = signature.algorithm.begin(signature.ones);
        let mut piece = [0; PIECE];
        let mut at = number * u64::from(signature.block);
        let end = at.saturating_add(signature.block.into());
        while at < end {
            let (place, left) = self.format.data(at);
            let len = (end - at).min(left).min(PIECE as u64) as usize;
            self.fetch(place, &mut piece[..len])?;
            running.update(&piece[..len]);
            self.budget.take_bytes(COPIES_PER_DIGEST * len);
            at += len as u64;
        }
        Ok(signature.encode(number, running.finish()))
    }

    /// Compares what is behind a block of the side that data come from with what it should be.
    fn check(&mut self, side: Side, number: u64, seen: [u8; LONGEST]) -> Result<(), KeyError> {
        let Some(signature) = self.format.of(side) else {
            return Ok(());
        };
        let compared = signature.compared(self.format.check);
        let expected = signature.decode(seen);
        if compared == 0 || signature.escapes(expected) {
            return Ok(());
        }
        let actual = signature.decode(self.compute(&signature, number)?);
        let differs = (expected ^ actual) & compared;
        if differs == 0 {
            return Ok(());
        }
        const GUARD: u64 = 0xffff << 48;
        const APPLICATION: u64 = 0xffff << 32;
        let wrong = if signature.tags.is_none() || differs & GUARD != 0 {
            Wrong::Guard
        } else if differs & APPLICATION != 0 {
            Wrong::Application
        } else {
            Wrong::Reference
        };
        let error = SignatureError {
            key: self.key,
            side,
            wrong,
            expected,
            actual,
            offset: self.format.start(side, number),
        };
        // The first error is told of, until the key is made anew.
        if self.signed.errors.replace(self.signed.expected) != self.signed.expected {
            self.domain.keys.fail(error);
        }
        Ok(())
    }

    /// Where what is behind a block of memory is.
    fn behind(&self, memory: &Signature, number: u64) -> u64 {
        let start = self.format.start(Side::Memory, number);
        start.saturating_add(memory.block.into())
    }

    fn read_data(&mut self, at: u64, left: u64, to: &mut [u8]) -> Result<usize, KeyError> {
        let (place, follow) = self.format.data(at);
        let most = left.min(follow).min(to.len() as u64) as usize;
        let window = self.window(place, most)?;
        let done = window.copy_to(&mut to[..most]);
        if let (Some(memory), Some(number)) = (
            self.format.memory,
            self.format.ends(at.saturating_add(done as u64)),
        ) {
            let mut seen = [0; LONGEST];
            let behind = self.behind(&memory, number);
            self.fetch(behind, &mut seen[..memory.width()])?;
            self.check(Side::Memory, number, seen)?;
        }
        Ok(done)
    }

    fn read_behind(&mut self, number: u64, at: usize, to: &mut [u8]) -> Result<usize, KeyError> {
        let Some(wire) = self.format.wire else {
            return Err(KeyError::Invalid(self.key));
        };
        let mut made = self.compute(&wire, number)?;
        if let (Some(copied), Some(memory)) = (self.format.copy, self.format.memory) {
            let mut kept = [0; LONGEST];
            let behind = self.behind(&memory, number);
            self.fetch(behind, &mut kept[..memory.width()])?;
            take_along(&wire, copied, &kept, &mut made);
        }
        let len = (wire.width() - at).min(to.len());
        to[..len].copy_from_slice(&made[at..at + len]);
        Ok(len)
    }

    fn write_data(&mut self, at: u64, left: u64, from: &[u8]) -> Result<usize, KeyError> {
        let (place, follow) = self.format.data(at);
        let most = left.min(follow).min(from.len() as u64) as usize;
        let window = self.window(place, most)?;
        let done = window.len().min(most);
        window.copy_from(&from[..done]);
        if self.format.copy.is_none()
            && let (Some(memory), Some(number)) = (
                self.format.memory,
                self.format.ends(at.saturating_add(done as u64)),
            )
        {
            let made = self.compute(&memory, number)?;
            self.store(self.behind(&memory, number), &made[..memory.width()])?;
        }
        Ok(done)
    }

    fn write_behind(&mut self, number: u64, at: usize, from: &[u8]) -> Result<usize, KeyError> {
        let Some(wire) = self.format.wire else {
            return Err(KeyError::Invalid(self.key));
        };
        let len = (wire.width() - at).min(from.len());
        let mut seen = self.signed.seen.get();
        let other = self.signed.seen_of.get();
        if at > 0 && other.is_some_and(|other| other != number) {
            // A packet that begins amid a signature has come again, after others: its first bytes have been compared.
            seen[..at].copy_from_slice(&self.compute(&wire, number)?[..at]);
        }
        seen[at..at + len].copy_from_slice(&from[..len]);
        self.signed.seen.set(seen);
        self.signed.seen_of.set(Some(number));
        if at + len < wire.width() {
            return Ok(len);
        }
        self.check(Side::Wire, number, seen)?;
        if let (Some(copied), Some(memory)) = (self.format.copy, self.format.memory) {
            let mut made = self.compute(&memory, number)?;
            take_along(&memory, copied, &seen, &mut made);
            self.store(self.behind(&memory, number), &made[..memory.width()])?;
        }
        Ok(len)
    }
}

/// Puts the bytes that go along as they are into what was made.
fn take_along(of: &Signature, copied: u8, kept: &[u8; LONGEST], made: &mut [u8; LONGEST]) {
    for at in 0..of.width() {
        if copied & of.bit(at) != 0 {
            made[at] = kept[at];
        }
    }
}
