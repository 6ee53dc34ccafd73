//! The formats of this device, as the engine uses them.

use std::marker::PhantomData;

use hca::Steering;
use hca::mr::Klm;
use hca::work::{CompletionEntry, RecvWr, SendWr, WqeError};
use hca::{Attention, CqError, Dma, Event, PortChange, QueueFormat};
use wire::Qpn;

use crate::bits::dynamic::EVENT_QUEUE_TYPE;
use crate::bits::event::{CQ_ERROR_ACCESS, CQ_ERROR_OVERRUN, EventType, PortSubtype};
use crate::bits::queue_pair::qpc;
use crate::bits::shared_receive::srqc;
use crate::paging;
use crate::queue::completion::{CompletionQueue, CompletionQueueImageV1, Notice};
use crate::queue::event::Entry;
use crate::queue::receive::{ReceiveQueue, ReceiveQueueImageV1};
use crate::queue::send::{SendQueue, SendQueueImageV1};
use crate::queue::shared::{SharedQueue, SharedQueueImageV1};
use crate::state::FunctionState;

/// The mlx5 formats over guest memory `D`.
#[derive(Debug)]
pub struct Mlx5<D>(PhantomData<D>);

/// Offset of an object's number in the data of events about completion queues,
/// queue pairs and shared receive queues.
const DATA_NUMBER: usize = 0x18;
/// Offset of the kind of a work queue in the data of events about those.
const DATA_QUEUE_TYPE: usize = 0x14;

impl<D: Dma + 'static> QueueFormat for Mlx5<D> {
    type Dma = D;
    type Vf = FunctionState;
    type Send = SendQueue;
    type Recv = ReceiveQueue;
    type Shared = SharedQueue;
    type Completion = CompletionQueue;
    type SendImage = SendQueueImageV1;
    type RecvImage = ReceiveQueueImageV1;
    type SharedImage = SharedQueueImageV1;
    type CompletionImage = CompletionQueueImageV1;

    fn save_send(queue: &SendQueue) -> SendQueueImageV1 {
        queue.save()
    }

    fn save_recv(queue: &ReceiveQueue) -> ReceiveQueueImageV1 {
        queue.save()
    }

    fn save_shared(queue: &SharedQueue) -> SharedQueueImageV1 {
        queue.save()
    }

    fn save_completion(queue: &CompletionQueue) -> CompletionQueueImageV1 {
        queue.save()
    }

    fn restore_send(
        _: &FunctionState,
        _: &D,
        image: SendQueueImageV1,
    ) -> Result<SendQueue, String> {
        SendQueue::restore(image)
    }

    fn restore_recv(
        _: &FunctionState,
        _: &D,
        image: ReceiveQueueImageV1,
    ) -> Result<ReceiveQueue, String> {
        ReceiveQueue::restore(image)
    }

    fn restore_shared(
        _: &FunctionState,
        _: &D,
        image: SharedQueueImageV1,
    ) -> Result<SharedQueue, String> {
        SharedQueue::restore(image)
    }

    fn restore_completion(
        _: &FunctionState,
        _: &D,
        cqn: u32,
        image: CompletionQueueImageV1,
    ) -> Result<CompletionQueue, String> {
        CompletionQueue::restore(cqn, image)
    }

    // A table of them doubles and has room for a third more.
    const OF_QP: usize = qpc::SIZE + 48;
    const OF_SRQ: usize = srqc::SIZE + 48;

    fn send_held(queue: &SendQueue) -> usize {
        queue.held()
    }

    fn recv_held(queue: &ReceiveQueue) -> usize {
        queue.held()
    }

    fn shared_held(queue: &SharedQueue) -> usize {
        queue.held()
    }

    fn completion_held(queue: &CompletionQueue) -> usize {
        queue.kept()
    }

    #[inline]
    fn send_posted(dma: &D, queue: &SendQueue) -> bool {
        queue
            .posted(dma)
            .is_some_and(|posted| posted != queue.taken())
    }

    #[inline]
    fn ring_send(queue: &mut SendQueue, through: u16) {
        queue.ring(through);
    }

    #[inline]
    fn send_announced(queue: &SendQueue) -> bool {
        queue.is_announced()
    }

    #[inline]
    fn recv_posted(dma: &D, queue: &ReceiveQueue) -> bool {
        queue
            .posted(dma)
            .is_some_and(|posted| posted != queue.taken())
    }

    #[inline]
    fn take_send(dma: &D, queue: &mut SendQueue, wr: &mut SendWr) -> Result<bool, WqeError> {
        queue.take(dma, wr)
    }

    #[inline]
    fn take_recv(dma: &D, queue: &mut ReceiveQueue, wr: &mut RecvWr) -> Result<bool, WqeError> {
        queue.take(dma, wr)
    }

    #[inline]
    fn take_shared(dma: &D, queue: &mut SharedQueue, wr: &mut RecvWr) -> Result<bool, WqeError> {
        queue.take(dma, wr)
    }

    fn shared_available(dma: &D, queue: &SharedQueue) -> u32 {
        queue.available(dma)
    }

    fn reset_queues(send: Option<&mut SendQueue>, recv: Option<&mut ReceiveQueue>) {
        if let Some(queue) = send {
            queue.reset();
        }
        if let Some(queue) = recv {
            queue.reset();
        }
    }

    #[inline]
    fn complete(
        dma: &D,
        vf: &mut FunctionState,
        queue: &mut CompletionQueue,
        entry: &CompletionEntry,
        held: &[u8],
        more: bool,
    ) -> Result<Attention, CqError> {
        let notice = queue.complete(dma, entry, held, more)?;
        Ok(Attention {
            watch: !queue.is_announced(),
            hold: notice.act(dma, vf, queue),
            unwritten: queue.is_unwritten(),
        })
    }

    fn write_out(
        dma: &D,
        vf: &mut FunctionState,
        queue: &mut CompletionQueue,
    ) -> Result<Attention, CqError> {
        let notice = queue.write_out(dma)?;
        Ok(Attention {
            watch: !queue.is_announced(),
            hold: notice.act(dma, vf, queue),
            unwritten: false,
        })
    }

    fn recheck(dma: &D, vf: &mut FunctionState, queue: &mut CompletionQueue) -> Attention {
        let (notice, watch) = queue.recheck(dma);
        Attention {
            watch,
            hold: notice.act(dma, vf, queue),
            unwritten: false,
        }
    }

    fn expire(dma: &D, vf: &mut FunctionState, queue: &mut CompletionQueue) {
        if queue.expire() {
            vf.completion_event(dma, queue.eqn, queue.cqn);
        }
    }

    fn steer(vf: &FunctionState, underlay: Qpn, packet: &[u8]) -> Steering {
        vf.network.steer(underlay, packet)
    }

    fn event(dma: &D, vf: &mut FunctionState, event: Event) {
        vf.event(dma, &entry(event));
    }

    fn hears_of_pages(vf: &FunctionState) -> bool {
        vf.hears_of(EventType::PageFault)
    }

    fn decode_pages(bytes: &[u8], pages: &mut Vec<u64>) {
        pages.extend(paging::entries(bytes));
    }

    fn decode_klms(bytes: &[u8], klms: &mut Vec<Klm>) {
        klms.extend(bytes.as_chunks::<16>().0.iter().map(|klm| {
            let dword = |at| crate::bits::dword(klm, at);
            Klm {
                len: dword(0),
                key: dword(4),
                addr: u64::from(dword(8)) << 32 | u64::from(dword(12)),
            }
        }));
    }
}

impl Notice {
    /// Raises the event if it is due. Returns how long it waits otherwise, in
    /// nanoseconds, if it begins to.
    #[inline]
    pub(crate) fn act<D: Dma>(
        self,
        dma: &D,
        vf: &mut FunctionState,
        queue: &CompletionQueue,
    ) -> u32 {
        match self {
            Self::None => 0,
            Self::Now => {
                vf.completion_event(dma, queue.eqn, queue.cqn);
                0
            }
            Self::After(nanoseconds) => nanoseconds,
        }
    }
}

/// The entry that tells the driver of an event.
fn entry(event: Event) -> Entry {
    let numbered = |kind: EventType, number: u32| Entry::new(kind).with(DATA_NUMBER, number);
    match event {
        Event::CommunicationEstablished(qpn) => {
            numbered(EventType::CommunicationEstablished, qpn.value())
        }
        Event::SendQueueDrained(qpn) => numbered(EventType::SendQueueDrained, qpn.value()),
        Event::LastWqeReached(qpn) => numbered(EventType::SrqLastWqe, qpn.value()),
        Event::PathMigrated(qpn) => numbered(EventType::PathMigrated, qpn.value()),
        Event::QpCatastrophic(qpn) => numbered(EventType::WqCatastrophic, qpn.value()),
        Event::QpInvalidRequest(qpn) => numbered(EventType::WqInvalidRequest, qpn.value()),
        Event::QpAccess(qpn) => numbered(EventType::WqAccess, qpn.value()),
        Event::DctDrained(dctn) => numbered(EventType::DctDrained, dctn.value()),
        Event::DctKeyViolation(dctn) => numbered(EventType::DctKeyViolation, dctn.value()),
        Event::DctInvalidRequest(dctn) => numbered(EventType::WqInvalidRequest, dctn.value())
            .with(DATA_QUEUE_TYPE, EVENT_QUEUE_TYPE << 24),
        Event::DctAccess(dctn) => numbered(EventType::WqAccess, dctn.value())
            .with(DATA_QUEUE_TYPE, EVENT_QUEUE_TYPE << 24),
        Event::SrqLimit(srqn) => numbered(EventType::SrqLimit, srqn),
        Event::SrqCatastrophic(srqn) => numbered(EventType::SrqCatastrophic, srqn),
        Event::CqError { cqn, error } => {
            let syndrome = match error {
                CqError::Overrun => CQ_ERROR_OVERRUN,
                CqError::Unmapped => CQ_ERROR_ACCESS,
            };
            Entry::new(EventType::CqError)
                .with(0x0, cqn)
                .with(0x8, u32::from(syndrome))
        }
        Event::PageFault(fault) => paging::entry(fault),
        Event::Port(change) => port_entry(change),
    }
}

/// The entry that tells the driver of a change of the port.
pub(crate) fn port_entry(change: PortChange) -> Entry {
    let subtype = match change {
        PortChange::Active => PortSubtype::Active,
        PortChange::Initialize => PortSubtype::Initialized,
        PortChange::Down => PortSubtype::Down,
        PortChange::Lid => PortSubtype::Lid,
        PortChange::Pkey => PortSubtype::Pkey,
        PortChange::Guid => PortSubtype::Guid,
        PortChange::ClientReregister => PortSubtype::ClientReregister,
    };
    // The port's number is the high half of a byte.
    Entry {
        subtype: subtype.code(),
        ..Entry::new(EventType::PortChange).with(0x8, 1 << 28)
    }
}
