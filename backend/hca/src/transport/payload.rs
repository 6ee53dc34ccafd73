//! Access of the two ends of a connection to their guests' memory. Memory can be in pieces of a byte each, several keys
//! away, so that 64 KiB of them would take longer than others may wait: a copy ends where the turn ends, and goes on in
//! the next one.

use vm_memory::VolatileSlice;

use super::frame::Bytes;
use super::requester::Payload;
use crate::memory::access::{CopyError, Cursor, Source, copy, read_list};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::lending::{Lending, Loan, Unread};
use crate::memory::mr::{Access, KeyError};
use crate::memory::sge::Sge;
use crate::objects::reason::{KeyFault, Reason};
use crate::objects::work::SendWr;
use crate::objects::work::payload::check_local;
use crate::objects::work::payload::read_payload;

impl<D: Dma> Payload for Domain<'_, D> {
    fn check(&self, wr: &SendWr) -> Result<(), Reason> {
        check_local(*self, wr).map_err(|error| Reason::LocalKey(error.into()))
    }

    fn gather(
        &self,
        wr: &SendWr,
        offset: u64,
        to: &mut [u8],
        budget: &mut i64,
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
        budget: &mut i64,
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
    budget: &mut i64,
) -> Result<usize, Option<KeyError>> {
    let read = read_list(domain, list, offset, needed, to, budget)?;
    if ends(read, to.len(), *budget) {
        return Err(None);
    }
    Ok(read)
}

/// Whether memory ends where `done` of `len` bytes were copied, and not the budget alone.
const fn ends(done: usize, len: usize, budget: i64) -> bool {
    done < len && (done == 0 || budget > 0)
}

/// Copies `payload` from byte `from` on to keyed memory, as far as the budget goes. Returns how many bytes.
///
/// # Errors
/// Why not; of the memory, what is wrong with it, if not that it ends.
pub(super) fn fill<D: Dma>(
    to: &mut Cursor<'_, D>,
    payload: Bytes<'_>,
    from: u32,
    budget: &mut i64,
) -> Result<u32, Unread<Option<KeyError>>> {
    let mut done = 0;
    let mut take = |piece: VolatileSlice<'_>| {
        let len = piece.len();
        if done > 0 && *budget <= 0 {
            return Ok(());
        }
        match copy::<D, D>(&mut Source::Bytes(piece), to, len as u64, budget) {
            Ok(copied) if ends(copied as usize, len, *budget) => {
                Err(to.window(1, &mut { 0 }).err())
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
