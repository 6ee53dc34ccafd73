//! A work request's own memory.

use crate::budget::Budget;
use crate::memory::access::{MAX_COPY_BYTES, Missing, check_list, missing, read_list};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError};
use crate::memory::sge::Piece;
use crate::objects::work::{Operation, SendWr};

/// As [`read_list`], of a request's payload, whatever it consists of.
///
/// # Errors
/// [`KeyError`]; the bytes before it have been read.
#[inline]
pub(crate) fn read_payload<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    offset: u64,
    needed: Access,
    to: &mut [u8],
    budget: &mut Budget,
) -> Result<usize, KeyError> {
    if wr.is_inline || wr.is_mixed() {
        return read_pieces(domain, wr, offset, needed, to, budget);
    }
    read_list(domain, &wr.sges, offset, needed, to, budget)
}

fn read_pieces<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    mut offset: u64,
    needed: Access,
    mut to: &mut [u8],
    budget: &mut Budget,
) -> Result<usize, KeyError> {
    let mut done = 0;
    for piece in wr.pieces() {
        if offset >= piece.len() {
            offset -= piece.len();
            continue;
        }
        let len = (piece.len() - offset).min(to.len() as u64) as usize;
        let (now, rest) = to.split_at_mut(len);
        let read = match piece {
            Piece::Inline(bytes) => {
                now.copy_from_slice(&bytes[offset as usize..][..len]);
                len
            }
            Piece::Memory(sge) => {
                let list = std::slice::from_ref(sge);
                read_list(domain, list, offset, needed, now, budget)?
            }
        };
        done += read;
        if read < len || !budget.is_left() {
            break;
        }
        to = rest;
        offset = 0;
    }
    Ok(done)
}

/// The same of a request's own memory.
#[cold]
pub(crate) fn missing_of<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    offset: u64,
    needed: Access,
) -> Option<Missing> {
    let mut start = 0;
    for piece in wr.pieces() {
        let len = piece.len();
        let into = offset.saturating_sub(start);
        if let Piece::Memory(sge) = piece
            && into < len
            && let Some(found) = missing(domain, std::slice::from_ref(sge), [into, len], needed)
        {
            let at = start + found.at;
            return Some(Missing { at, ..found });
        }
        start += len;
        if start >= offset.saturating_add(MAX_COPY_BYTES) {
            break;
        }
    }
    None
}

/// Checks the requester's own list against its own keys.
///
/// # Errors
/// [`KeyError`] of the first element at fault.
#[inline]
pub(crate) fn check_local<D>(domain: Domain<'_, D>, wr: &SendWr) -> Result<(), KeyError> {
    if wr.is_inline {
        return Ok(());
    }
    let needed = local_access(wr.operation);
    if wr.is_mixed() {
        return check_pieces(domain, wr, needed);
    }
    check_list(domain, &wr.sges, needed)
}

/// Access of a request to its own list.
#[inline]
pub(crate) const fn local_access(operation: Operation) -> Access {
    if operation.fills_list() {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_READ
    }
}

fn check_pieces<D>(domain: Domain<'_, D>, wr: &SendWr, needed: Access) -> Result<(), KeyError> {
    wr.pieces().try_for_each(|piece| match piece {
        Piece::Inline(_) => Ok(()),
        Piece::Memory(sge) => check_list(domain, std::slice::from_ref(sge), needed),
    })
}
