//! What a requester reaches of its guest's memory.

use super::frame::Bytes;
use super::requester::Payload;
use super::responder::fill;
use crate::local::message::check_local;
use crate::memory::access::{Cursor, Domain, read_payload};
use crate::memory::dma::Dma;
use crate::memory::lending::{Lending, Loan, Unread};
use crate::memory::mr::Access;
use crate::verbs::reason::{KeyFault, Reason};
use crate::verbs::work::{SendWr, Sge};

impl<D: Dma> Payload for Domain<'_, D> {
    fn check(&self, wr: &SendWr) -> Result<(), Reason> {
        check_local(*self, wr).map_err(|error| Reason::LocalKey(error.into()))
    }

    fn gather(&self, wr: &SendWr, offset: u64, to: &mut [u8]) -> Result<(), Reason> {
        let mut budget = i64::MAX;
        match read_payload(*self, wr, offset, Access::LOCAL_READ, to, &mut budget) {
            Ok(read) if read == to.len() => Ok(()),
            Ok(_) => Err(Reason::LocalKey(KeyFault::Unmapped)),
            Err(error) => Err(Reason::LocalKey(error.into())),
        }
    }

    fn lend(&self, wr: &SendWr, offset: u64, len: u32, own: &mut Lending) -> Option<Box<Loan>> {
        let [sge] = wr.sges[..] else { return None };
        if wr.is_inline || wr.is_mixed() {
            return None;
        }
        let addr = sge.addr.wrapping_add(offset);
        Domain::lend(self, &Sge { addr, len, ..sge }, Access::LOCAL_READ, own)
    }

    fn scatter(&self, wr: &SendWr, offset: u64, from: Bytes<'_>) -> Result<(), Unread<Reason>> {
        let mut to = Cursor::new(*self, &wr.sges, offset, Access::LOCAL_WRITE);
        fill(&mut to, from, &mut { i64::MAX }).map_err(|why| match why {
            Unread::Stale => Unread::Stale,
            Unread::Void => Unread::Void,
            Unread::Fault(error) => {
                let fault = error.map_or(KeyFault::Unmapped, KeyFault::from);
                Unread::Fault(Reason::LocalKey(fault))
            }
        })
    }
}
