//! Access of the two ends of a connection to their guests' memory. Memory can be in pieces of a byte each, several keys
//! away, so that 64 KiB of them would take longer than others may wait: a copy ends where the turn ends, and goes on in
//! the next one.

use vm_memory::VolatileSlice;

use super::frame::{Bytes, Frame};
use super::requester::Payload;
use crate::budget::Budget;
use crate::memory::access::{CopyError, Cursor, Source, copy, read_list};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::lending::{Lending, Loan, Unread};
use crate::memory::mr::{Access, KeyError};
use crate::memory::sge::Sge;
use crate::objects::reason::{KeyFault, Reason};
use crate::objects::refusal::Refusal;
use crate::objects::tags::Head;
use crate::objects::work::SendWr;
use crate::objects::work::payload::check_local;
use crate::objects::work::payload::read_payload;

/// The part of a message that a payload is, in bytes from the message's first one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Its beginning.
    pub begin: u64,
    /// Its first byte that is yet to go where it goes.
    pub at: u64,
    /// Its end.
    pub end: u64,
    /// It is all of the message.
    pub is_whole: bool,
}

/// The payload that a request brings to its responder: a packet's bytes, a loan of another engine, or memory of a sender
/// in this engine.
pub(crate) trait Incoming<D> {
    /// Copies it from its byte `from` on, as far as the budget goes. Returns how many bytes.
    ///
    /// # Errors
    /// [`Unfilled`].
    fn fill(
        &mut self,
        to: &mut Cursor<'_, D>,
        from: u64,
        budget: &mut Budget,
    ) -> Result<u64, Unfilled>;

    /// The beginning of a message, which tags are matched with.
    ///
    /// # Errors
    /// Refusal of a message without it.
    fn head(&mut self, budget: &mut Budget) -> Result<Head, Refusal>;

    /// Appends all of it to what a completion holds, and returns true, unless it is nowhere that a completion is filled
    /// from.
    ///
    /// # Errors
    /// Refusal of a message whose bytes cannot be read.
    fn hold(&self, held: &mut Vec<u8>, budget: &mut Budget) -> Result<bool, Refusal>;
}

/// Cause of a payload that did not come to where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfilled {
    /// It cannot be had: the message is refused so.
    Source(Refusal),
    /// The memory that it goes to cannot be used, or ends.
    Target(Option<KeyError>),
}

impl Unfilled {
    /// Refusal of the message, where its responder's memory is `at_fault`.
    pub const fn refusal(self, at_fault: Refusal) -> Refusal {
        match self {
            Self::Source(refusal) => refusal,
            Self::Target(error) => refused(error, at_fault),
        }
    }
}

/// Refusal for memory that cannot be used.
pub(crate) const fn refused(error: Option<KeyError>, at_fault: Refusal) -> Refusal {
    match error {
        Some(KeyError::Absent(_)) => Refusal::Absent,
        _ => at_fault,
    }
}

impl<D: Dma> Incoming<D> for Frame {
    fn fill(
        &mut self,
        to: &mut Cursor<'_, D>,
        from: u64,
        budget: &mut Budget,
    ) -> Result<u64, Unfilled> {
        match fill(to, self.bytes(), from as u32, budget) {
            Ok(filled) => Ok(filled.into()),
            Err(Unread::Stale) => Err(Unfilled::Source(Refusal::Stale)),
            Err(Unread::Void) => Err(Unfilled::Source(Refusal::Void)),
            Err(Unread::Fault(error)) => Err(Unfilled::Target(error)),
        }
    }

    fn head(&mut self, _budget: &mut Budget) -> Result<Head, Refusal> {
        self.take_along();
        if self.loan.is_some() {
            return Err(Refusal::Void);
        }
        Ok(Head::of(&self.payload))
    }

    fn hold(&self, held: &mut Vec<u8>, _budget: &mut Budget) -> Result<bool, Refusal> {
        if self.loan.is_none() {
            held.extend_from_slice(&self.payload);
        }
        Ok(self.loan.is_none())
    }
}

impl<D: Dma> Payload for Domain<'_, D> {
    fn check(&self, wr: &SendWr) -> Result<(), Reason> {
        check_local(*self, wr).map_err(|error| Reason::LocalKey(error.into()))
    }

    fn gather(
        &self,
        wr: &SendWr,
        offset: u64,
        to: &mut [u8],
        budget: &mut Budget,
    ) -> Result<usize, Reason> {
        let read = read_payload(*self, wr, offset, Access::LOCAL_READ, to, budget);
        let read = read.map_err(|error| Reason::LocalKey(error.into()))?;
        if ends(read, to.len(), *budget) {
            return Err(Reason::LocalKey(KeyFault::Unmapped));
        }
        Ok(read)
    }

    fn lend(&self, wr: &SendWr, offset: u64, len: u32, own: &mut Lending) -> Option<Box<Loan>> {
        let [sge] = wr.sges[..] else { return None };
        if wr.is_inline || wr.is_mixed() {
            return None;
        }
        let addr = sge.addr.wrapping_add(offset);
        Domain::lend(self, &Sge { addr, len, ..sge }, Access::LOCAL_READ, own)
    }

    fn scatter(
        &self,
        wr: &SendWr,
        offset: u64,
        (payload, from): (Bytes<'_>, u32),
        budget: &mut Budget,
    ) -> Result<u32, Unread<Reason>> {
        let at = offset + u64::from(from);
        let mut to = Cursor::new(*self, &wr.sges, at, Access::LOCAL_WRITE);
        fill(&mut to, payload, from, budget).map_err(|why| match why {
            Unread::Stale => Unread::Stale,
            Unread::Void => Unread::Void,
            Unread::Fault(error) => {
                let fault = error.map_or(KeyFault::Unmapped, KeyFault::from);
                Unread::Fault(Reason::LocalKey(fault))
            }
        })
    }
}

/// Reads what `list` names from byte `offset` on, as far as there is room in `to` and the budget goes. Returns how many
/// bytes.
///
/// # Errors
/// What is wrong with the memory, if not that it ends.
pub(super) fn read<D: Dma>(
    domain: Domain<'_, D>,
    list: &[Sge],
    offset: u64,
    needed: Access,
    to: &mut [u8],
    budget: &mut Budget,
) -> Result<usize, Option<KeyError>> {
    let read = read_list(domain, list, offset, needed, to, budget)?;
    if ends(read, to.len(), *budget) {
        return Err(None);
    }
    Ok(read)
}

/// Whether memory ends where `done` of `len` bytes were copied, and not the budget alone.
const fn ends(done: usize, len: usize, budget: Budget) -> bool {
    done < len && (done == 0 || budget.is_left())
}

/// Copies `payload` from byte `from` on to keyed memory, as far as the budget goes. Returns how many bytes.
///
/// # Errors
/// Why not; of the memory, what is wrong with it, if not that it ends.
pub(super) fn fill<D: Dma>(
    to: &mut Cursor<'_, D>,
    payload: Bytes<'_>,
    from: u32,
    budget: &mut Budget,
) -> Result<u32, Unread<Option<KeyError>>> {
    let mut done = 0;
    let mut take = |piece: VolatileSlice<'_>| {
        let len = piece.len();
        if done > 0 && !budget.is_left() {
            return Ok(());
        }
        match copy::<D, D>(&mut Source::Bytes(piece), to, len as u64, budget) {
            Ok(copied) if ends(copied as usize, len, *budget) => {
                Err(to.window(1, &mut { Budget::NONE }).err())
            }
            Ok(copied) => {
                done += copied as u32;
                Ok(())
            }
            Err(CopyError::To(error) | CopyError::From(error)) => Err(Some(error)),
        }
    };
    match payload {
        Bytes::Here(bytes) => {
            let rest = bytes.get_mut(from as usize..).unwrap_or_default();
            take(VolatileSlice::from(rest)).map_err(Unread::Fault)
        }
        Bytes::Lent(loan) if from == 0 => loan.read(take),
        Bytes::Lent(loan) => loan.part(from, loan.len()).read(take),
    }?;
    Ok(done)
}
