//! A payload in the memory of its sender, which is in this engine: it goes to where it goes by one copy.

use vm_memory::VolatileSlice;

use crate::budget::Budget;
use crate::memory::access::{CopyError, Cursor, Source, copy};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError};
use crate::objects::refusal::Refusal;
use crate::objects::tags::{Head, RENDEZVOUS};
use crate::objects::work::SendWr;
use crate::objects::work::payload::read_payload;
use crate::transport::payload::{Incoming, Unfilled};

/// The payload of a request in the memory that its list names, or in the request.
pub(super) struct Payload<'a, D> {
    /// The requester's.
    pub domain: Domain<'a, D>,
    pub wr: &'a mut SendWr,
    /// Its length in bytes.
    pub len: u64,
}

impl<D: Dma> Incoming<D> for Payload<'_, D> {
    #[inline]
    fn fill(
        &mut self,
        to: &mut Cursor<'_, D>,
        from: u64,
        budget: &mut Budget,
    ) -> Result<u64, Unfilled> {
        let left = self.len - from;
        let copied = if self.wr.is_inline {
            let bytes = VolatileSlice::from(&mut self.wr.inline[..]);
            let bytes = bytes
                .offset(from as usize)
                .map_err(|_| Unfilled::Source(Refusal::LocalLength))?;
            copy::<D, D>(&mut Source::Bytes(bytes), to, left, budget)
        } else if self.wr.is_mixed() {
            self.copy_pieces(from, to, budget)
        } else {
            let from = Cursor::new(self.domain, &self.wr.sges, from, Access::LOCAL_READ);
            copy(&mut Source::Memory(from), to, left, budget)
        };
        copied.map_err(|error| match error {
            CopyError::From(error) => Unfilled::Source(local(error)),
            CopyError::To(error) => Unfilled::Target(Some(error)),
        })
    }

    fn head(&mut self, budget: &mut Budget) -> Result<Head, Refusal> {
        let mut bytes = [0; RENDEZVOUS];
        let len = self.len.min(RENDEZVOUS as u64) as usize;
        self.read_whole(&mut bytes[..len], budget)?;
        Ok(Head::of(&bytes[..len]))
    }

    fn hold(&self, held: &mut Vec<u8>, budget: &mut Budget) -> Result<bool, Refusal> {
        held.resize(self.len as usize, 0);
        let read = self.read_whole(held, budget);
        if read.is_err() {
            held.clear();
        }
        read.map(|()| true)
    }
}

impl<D: Dma> Payload<'_, D> {
    /// Reads as much as there is room for, whatever is left of the turn.
    fn read_whole(&self, to: &mut [u8], budget: &mut Budget) -> Result<(), Refusal> {
        let needed = Access::LOCAL_READ;
        let read =
            budget.as_a_whole(|left| read_payload(self.domain, self.wr, 0, needed, to, left));
        match read {
            Ok(read) if read == to.len() => Ok(()),
            Ok(_) => Err(Refusal::Local),
            Err(error) => Err(local(error)),
        }
    }

    /// Copies a payload that is inline data and memory in turns, from this byte on.
    #[inline(never)]
    fn copy_pieces(
        &mut self,
        mut offset: u64,
        to: &mut Cursor<'_, D>,
        budget: &mut Budget,
    ) -> Result<u64, CopyError> {
        let SendWr {
            sges,
            inline,
            inlined,
            ..
        } = &mut *self.wr;
        let inline = VolatileSlice::from(&mut inline[..]);
        let mut done = 0;
        for (index, piece) in sges.iter().enumerate() {
            let len = u64::from(piece.len);
            if offset >= len {
                offset -= len;
                continue;
            }
            let left = len - offset;
            let mut from = if *inlined >> index & 1 == 0 {
                let list = std::slice::from_ref(piece);
                Source::Memory(Cursor::new(self.domain, list, offset, Access::LOCAL_READ))
            } else {
                let bytes = inline.subslice((piece.addr + offset) as usize, left as usize);
                Source::Bytes(bytes.map_err(|_| CopyError::From(KeyError::Invalid(piece.lkey)))?)
            };
            let copied = copy::<D, D>(&mut from, to, left, budget)?;
            done += copied;
            if copied < left {
                break;
            }
            offset = 0;
        }
        Ok(done)
    }
}

/// Refusal of a request for its own memory.
pub(super) const fn local(error: KeyError) -> Refusal {
    match error {
        KeyError::Absent(_) => Refusal::LocalAbsent,
        _ => Refusal::Local,
    }
}
