//! Access of the two ends of a connection to their guests' memory, a frame at a time. Memory can be in pieces of a
//! byte each, several keys away, so that 64 KiB of them would take longer than others may wait: the work of a frame
//! is bounded by [`FRAME_COST`], and ends with a whole packet.

use vm_memory::VolatileSlice;
use wire::Mtu;

use super::frame::{Bytes, MAX_PAYLOAD};
use super::requester::Payload;
use crate::memory::access::{CopyError, Cursor, Source, as_a_whole, copy, read_list};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::lending::{Lending, Loan, Unread};
use crate::memory::mr::{Access, KeyError};
use crate::memory::sge::Sge;
use crate::objects::reason::{KeyFault, Reason};
use crate::objects::work::SendWr;
use crate::objects::work::payload::check_local;
use crate::objects::work::payload::read_payload;

/// Largest cost of the payload of a frame, in bytes that could be copied in the time; its last packet may cost
/// more. Thirty times its bytes: blocks of 512 bytes with check values are within it, and lists of some hundred
/// elements.
const FRAME_COST: i64 = 32 * MAX_PAYLOAD as i64;
/// The same of a frame that has to come as a whole: nobody sends the rest of it.
const WHOLE_COST: i64 = 16 * FRAME_COST;

/// Where the copy of a frame's payload may end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// Length of a packet.
    packet: u32,
    /// Number of bytes of the first packet that are not copied.
    skipped: u32,
    /// Cost at which it ends.
    cost: i64,
}

impl Cut {
    /// Between packets. So many bytes of the first are not copied.
    pub(super) const fn packets(mtu: Mtu, skipped: u32) -> Self {
        Self {
            packet: mtu.bytes(),
            skipped,
            cost: FRAME_COST,
        }
    }

    /// Nowhere, other than in vain.
    pub(super) const NONE: Self = Self {
        packet: 1,
        skipped: 0,
        cost: WHOLE_COST,
    };
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
        mtu: Mtu,
        budget: &mut i64,
    ) -> Result<usize, Reason> {
        let read = packets(to, mtu, budget, |at, to, left| {
            read_payload(*self, wr, offset + at, Access::LOCAL_READ, to, left)
        });
        read.map_err(|error| Reason::LocalKey(error.map_or(KeyFault::Unmapped, KeyFault::from)))
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
        from: Bytes<'_>,
        mtu: Mtu,
        budget: &mut i64,
    ) -> Result<u32, Unread<Reason>> {
        let mut to = Cursor::new(*self, &wr.sges, offset, Access::LOCAL_WRITE);
        fill(&mut to, from, Cut::packets(mtu, 0), budget).map_err(|why| match why {
            Unread::Stale => Unread::Stale,
            Unread::Void => Unread::Void,
            Unread::Fault(error) => {
                let fault = error.map_or(KeyFault::Unmapped, KeyFault::from);
                Unread::Fault(Reason::LocalKey(fault))
            }
        })
    }
}

/// Reads what `list` names: all that there is room for in `to`, or some whole packets of it. Returns how many bytes.
///
/// # Errors
/// What is wrong with the memory, if not that it ends.
pub(super) fn read<D: Dma>(
    domain: Domain<'_, D>,
    list: &[Sge],
    needed: Access,
    to: &mut [u8],
    mtu: Mtu,
    budget: &mut i64,
) -> Result<usize, Option<KeyError>> {
    packets(to, mtu, budget, |at, to, left| {
        read_list(domain, list, at, needed, to, left)
    })
}

/// Has `read` fill `to`, or some whole packets of it if it costs too much, and at least one.
fn packets(
    to: &mut [u8],
    mtu: Mtu,
    budget: &mut i64,
    read: impl Fn(u64, &mut [u8], &mut i64) -> Result<usize, KeyError>,
) -> Result<usize, Option<KeyError>> {
    let mut left = FRAME_COST;
    let mut done = read(0, to, &mut left)?;
    if done < to.len() {
        if left > 0 {
            return Err(None);
        }
        let end = done
            .max(1)
            .next_multiple_of(mtu.bytes() as usize)
            .min(to.len());
        let rest = to.get_mut(done..end).unwrap_or_default();
        if as_a_whole(&mut left, |left| read(done as u64, rest, left))? < rest.len() {
            return Err(None);
        }
        done = end;
    }
    *budget -= FRAME_COST - left;
    Ok(done)
}

/// Copies `payload` to keyed memory: all of it, or as far as `cut` says if it costs too much. Returns how many bytes.
///
/// # Errors
/// Why not; of the memory, what is wrong with it, if not that it ends.
pub(super) fn fill<D: Dma>(
    to: &mut Cursor<'_, D>,
    payload: Bytes<'_>,
    Cut {
        packet,
        skipped,
        cost,
    }: Cut,
    budget: &mut i64,
) -> Result<u32, Unread<Option<KeyError>>> {
    let mut left = cost;
    let mut done = 0;
    let mut take = |from: VolatileSlice<'_>| {
        let (begin, end) = (done, done + from.len() as u32);
        while done < end {
            // Of what was taken from it some may not have been copied.
            let rest = from.offset((done - begin) as usize);
            let mut source = Source::Bytes(rest.map_err(|_| None)?);
            let some = left > 0;
            let copied = if some {
                copy::<D, D>(&mut source, to, (end - done).into(), &mut left)
            } else {
                let whole = (done + skipped).max(1).next_multiple_of(packet) - skipped;
                let most = whole.min(end) - done;
                if most == 0 {
                    break;
                }
                as_a_whole(&mut left, |left| {
                    copy::<D, D>(&mut source, to, most.into(), left)
                })
            };
            done += match copied {
                Ok(0) if some && left <= 0 => 0,
                Ok(0) => return Err(to.window(1, &mut { 0 }).err()),
                Ok(copied) => copied as u32,
                Err(CopyError::To(error) | CopyError::From(error)) => return Err(Some(error)),
            };
        }
        Ok(())
    };
    match payload {
        Bytes::Here(bytes) => take(VolatileSlice::from(bytes)).map_err(Unread::Fault),
        Bytes::Lent(loan) => loan.read(take),
    }?;
    *budget -= cost - left;
    Ok(done)
}
