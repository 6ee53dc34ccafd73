//! The page that a message lacks.

use crate::memory::access::{Missing, missing};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::mr::Access;
use crate::memory::sge::Sge;
use crate::objects::page_fault::{Half, Needed, PageFault};
use crate::objects::qp::attributes::Inbound;
use crate::objects::qp::{Core, RecvQueue, Requester, Responder};
use crate::objects::work::payload::{local_access, missing_of};
use crate::objects::work::{Operation, SendWr};
use crate::queue_format::QueueFormat;

impl PageFault {
    /// A responder's, of its receive request, which a message fills from byte `committed` to byte `end` at least.
    pub(crate) fn receive<D: Dma>(
        core: &Core,
        memory: Domain<'_, D>,
        inbound: &Inbound,
        [committed, end]: [u64; 2],
    ) -> Self {
        let (index, srqn) = (inbound.wr.index, inbound.srqn);
        let (list, access) = (&inbound.wr.sges, Access::LOCAL_WRITE);
        let found = missing(memory, list, [committed, end], access);
        let needed = Needed::Receive { index, srqn };
        Self::of(core, Half::Responder, needed, committed).unless_behind(found, access)
    }

    /// A responder's, of what its message goes to in this memory, which has come as far as byte `committed` and goes
    /// on to `end` at least.
    pub(crate) fn message<F: QueueFormat>(
        core: &Core,
        resp: &Responder<F>,
        memory: Domain<'_, F::Dma>,
        [committed, end]: [u64; 2],
    ) -> Option<Self> {
        let inbound = resp.inbound.as_ref()?;
        let RecvQueue::Tagged(_) = resp.queue else {
            return Some(Self::receive(core, memory, inbound, [committed, end]));
        };
        // An entry is no receive request, and drivers do not look for one in such a queue.
        let skip = resp.arrival().skip();
        let [at, end] = [committed, end].map(|to| to.saturating_sub(skip));
        let (list, access) = (&inbound.wr.sges, Access::LOCAL_WRITE);
        let found = missing(memory, list, [at, end], access)?;
        let mut at = found.at;
        let left = end - at;
        let element = list.iter().find(|element| {
            let len = u64::from(element.len);
            let here = at < len;
            at -= if here { 0 } else { len };
            here
        })?;
        let len = u64::from(element.len).min(at + left) as u32;
        let needed = Needed::element(&Sge { len, ..*element }, true);
        Some(Self::of(core, Half::Responder, needed, at).unless_behind(Some(found), access))
    }

    /// A requester's, of this request's own memory.
    pub(crate) fn send<F: QueueFormat>(
        core: &Core,
        req: &Requester<F>,
        memory: Domain<'_, F::Dma>,
        wr: &SendWr,
        committed: u64,
    ) -> Self {
        let fills = wr.operation.fills_list();
        let needed = match (&req.queue, wr.sges.first()) {
            // The HCA reads the message of a rendezvous: nobody has posted that.
            (None, Some(entry)) => Needed::element(entry, true),
            _ => Needed::Send {
                index: wr.index,
                fills,
            },
        };
        let access = local_access(wr.operation);
        let found = missing_of(memory, wr, committed, access);
        Self::of(core, Half::Requester, needed, committed).unless_behind(found, access)
    }

    /// A responder's, of memory that the far end names.
    pub(crate) fn remote<D: Dma>(
        core: &Core,
        memory: Domain<'_, D>,
        operation: Operation,
        (key, addr, len): (u32, u64, u32),
        committed: u64,
    ) -> Self {
        let writes = operation != Operation::Read;
        let list = Sge {
            addr,
            lkey: key,
            len,
        };
        let needed = Needed::element(&list, writes);
        let access = match operation {
            Operation::Read => Access::REMOTE_READ,
            operation if operation.is_atomic() => Access::ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        let found = missing(memory, &[list], [committed, len.into()], access);
        Self::of(core, Half::Responder, needed, committed).unless_behind(found, access)
    }

    /// The same, or of the memory behind a key with signatures, where that is missing: a driver that adds up lengths of
    /// what a request names would look in the wrong places.
    fn unless_behind(self, found: Option<Missing>, access: Access) -> Self {
        match found.and_then(|found| found.behind) {
            Some(memory) => Self {
                of: Needed::element(&memory, access.writes()),
                committed: 0,
                ..self
            },
            None => self,
        }
    }

    fn of(core: &Core, half: Half, of: Needed, committed: u64) -> Self {
        Self {
            qpn: core.qpn,
            half,
            of,
            committed: u32::try_from(committed).unwrap_or(u32::MAX),
            packet: core.attr.mtu.bytes() as u16,
        }
    }
}
