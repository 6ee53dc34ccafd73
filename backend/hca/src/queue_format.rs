//! Formats of a device's queues, as the engine reads and writes them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use thiserror::Error;
use wire::Qpn;

use crate::memory::dma::Dma;
use crate::objects::page_fault::PageFault;
use crate::objects::work::{CompletionEntry, PacketHash, RecvWr, SendWr, WqeError};

/// A completion that could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CqError {
    /// The queue is full: the guest does not poll as fast as it posts.
    #[error("completion queue overrun")]
    Overrun,
    /// The queue's memory is not mapped.
    #[error("completion queue memory is not mapped")]
    Unmapped,
}

/// An asynchronous event (specification 11.6.3), for the face to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// First packet arrived while in Ready-to-Receive.
    CommunicationEstablished(Qpn),
    /// The send queue has drained.
    SendQueueDrained(Qpn),
    /// The last work request of a shared receive queue user was reached.
    LastWqeReached(Qpn),
    /// A connection has gone to its alternate path.
    PathMigrated(Qpn),
    /// A work queue is unusable.
    QpCatastrophic(Qpn),
    /// The peer sent an invalid request.
    QpInvalidRequest(Qpn),
    /// The peer violated access rights.
    QpAccess(Qpn),
    /// A target of dynamic connections has drained.
    DctDrained(Qpn),
    /// An initiator does not have a target's access key.
    DctKeyViolation(Qpn),
    /// An initiator sent an invalid request.
    DctInvalidRequest(Qpn),
    /// An initiator violated access rights.
    DctAccess(Qpn),
    /// A completion queue overran or cannot be written.
    CqError {
        /// The queue.
        cqn: u32,
        /// Why.
        error: CqError,
    },
    /// Fewer work requests than the armed limit remain.
    SrqLimit(u32),
    /// A shared receive queue is unusable.
    SrqCatastrophic(u32),
    /// A page that a queue pair needs is not there. It waits until [`Engine::resume_fault`](crate::Verbs::resume_fault).
    PageFault(PageFault),
    /// The port changed.
    Port(PortChange),
}

/// A change at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChange {
    /// Reached Active.
    Active,
    /// Went to Init.
    Initialize,
    /// Went down.
    Down,
    /// Another LID.
    Lid,
    /// Another P_Key table.
    Pkey,
    /// Another GUID table.
    Guid,
    /// The subnet manager asks clients to register again.
    ClientReregister,
}

/// Attention that a completion queue needs from the engine after an entry or a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Attention {
    /// The queue's arming is not announced: [`QueueFormat::recheck`] is to be called
    /// from time to time.
    pub watch: bool,
    /// The queue's event waits for more entries, but no longer than this, in
    /// nanoseconds; then [`QueueFormat::expire`] is to be called. Zero where no event
    /// begins to wait.
    pub hold: u32,
    /// Entries wait in the queue to be written together: [`QueueFormat::write_out`] is to be called at the turn's end.
    pub unwritten: bool,
}

/// The formats of one kind of HCA: how its queues lie in guest memory.
///
/// All functions take the DMA space of the virtual function that owns the
/// queue. They run on the data path: no allocation, no system call.
pub trait QueueFormat: Debug + Sized + Send + 'static {
    /// Guest memory.
    type Dma: Dma;
    /// State of a virtual function: event queues, doorbell pages, interrupts.
    type Vf: Debug + Send;
    /// A send queue.
    type Send: Debug + Send;
    /// A receive queue.
    type Recv: Debug + Send;
    /// A shared receive queue.
    type Shared: Debug + Send;
    /// A completion queue.
    type Completion: Debug + Send;

    /// A send queue in an image. Requests that the face has fetched are fetched again.
    type SendImage: Image;
    /// A receive queue in an image.
    type RecvImage: Image;
    /// A shared receive queue in an image.
    type SharedImage: Image;
    /// A completion queue in an image.
    type CompletionImage: Image;

    /// The image of a send queue.
    fn save_send(queue: &Self::Send) -> Self::SendImage;
    /// The image of a receive queue.
    fn save_recv(queue: &Self::Recv) -> Self::RecvImage;
    /// The image of a shared receive queue.
    fn save_shared(queue: &Self::Shared) -> Self::SharedImage;
    /// The image of a completion queue.
    fn save_completion(queue: &Self::Completion) -> Self::CompletionImage;

    /// The send queue of an image, which may say anything.
    ///
    /// # Errors
    /// What is wrong with it.
    fn restore_send(
        vf: &Self::Vf,
        dma: &Self::Dma,
        image: Self::SendImage,
    ) -> Result<Self::Send, String>;

    /// The receive queue of an image.
    ///
    /// # Errors
    /// What is wrong with it.
    fn restore_recv(
        vf: &Self::Vf,
        dma: &Self::Dma,
        image: Self::RecvImage,
    ) -> Result<Self::Recv, String>;

    /// The shared receive queue of an image.
    ///
    /// # Errors
    /// What is wrong with it.
    fn restore_shared(
        vf: &Self::Vf,
        dma: &Self::Dma,
        image: Self::SharedImage,
    ) -> Result<Self::Shared, String>;

    /// The completion queue of an image, which has this number.
    ///
    /// # Errors
    /// What is wrong with it.
    fn restore_completion(
        vf: &Self::Vf,
        dma: &Self::Dma,
        cqn: u32,
        image: Self::CompletionImage,
    ) -> Result<Self::Completion, String>;

    /// Bytes of the host's memory that the face keeps of each queue pair, beside
    /// its queues.
    const OF_QP: usize = 0;
    /// The same of each shared receive queue.
    const OF_SRQ: usize = 0;

    /// Bytes of the host's memory that a send queue has beside itself.
    fn send_held(_queue: &Self::Send) -> usize {
        0
    }

    /// The same of a receive queue.
    fn recv_held(_queue: &Self::Recv) -> usize {
        0
    }

    /// The same of a shared receive queue.
    fn shared_held(_queue: &Self::Shared) -> usize {
        0
    }

    /// The same of a completion queue.
    fn completion_held(_queue: &Self::Completion) -> usize {
        0
    }

    /// Whether requests are posted beyond those taken.
    fn send_posted(dma: &Self::Dma, queue: &Self::Send) -> bool;

    /// A doorbell says that everything before `through`, counted modulo 2^16 as
    /// the queue counts, is posted.
    fn ring_send(queue: &mut Self::Send, through: u16);

    /// Whether requests remain of those that the last look at the queue's record found posted. `true` where that is
    /// not known. Requests posted since then are announced by a doorbell of their own, or found by polling.
    #[inline]
    fn send_announced(_queue: &Self::Send) -> bool {
        true
    }

    /// Whether receive requests are posted beyond those taken.
    fn recv_posted(dma: &Self::Dma, queue: &Self::Recv) -> bool;

    /// Takes the next send request into `wr` (which is clear). `Ok(false)` when
    /// there is none. On an error the request counts as taken.
    ///
    /// # Errors
    /// [`WqeError`] for a request that makes no sense.
    fn take_send(
        dma: &Self::Dma,
        queue: &mut Self::Send,
        wr: &mut SendWr,
    ) -> Result<bool, WqeError>;

    /// Takes the next receive request, as [`QueueFormat::take_send`].
    ///
    /// # Errors
    /// [`WqeError`] for a request that makes no sense.
    fn take_recv(
        dma: &Self::Dma,
        queue: &mut Self::Recv,
        wr: &mut RecvWr,
    ) -> Result<bool, WqeError>;

    /// Takes the next request of a shared receive queue.
    ///
    /// # Errors
    /// [`WqeError`] for a request that makes no sense.
    fn take_shared(
        dma: &Self::Dma,
        queue: &mut Self::Shared,
        wr: &mut RecvWr,
    ) -> Result<bool, WqeError>;

    /// Requests posted to a shared receive queue and not taken.
    fn shared_available(dma: &Self::Dma, queue: &Self::Shared) -> u32;

    /// Back to the state of an empty queue, when its queue pair is reset.
    fn reset_queues(send: Option<&mut Self::Send>, recv: Option<&mut Self::Recv>);

    /// Writes a completion entry and, where the queue is armed, raises its event
    /// or lets it wait for more entries. The entry holds the message `held`, of
    /// [`MAX_IN_COMPLETION`](crate::MAX_IN_COMPLETION) bytes at most, if there are any. Where `more` may come in the same
    /// turn, the entry may wait for those until [`QueueFormat::write_out`].
    ///
    /// # Errors
    /// [`CqError`]; the queue is unusable from then on.
    fn complete(
        dma: &Self::Dma,
        vf: &mut Self::Vf,
        queue: &mut Self::Completion,
        entry: &CompletionEntry,
        held: &[u8],
        more: bool,
    ) -> Result<Attention, CqError>;

    /// Writes the entries that wait in a queue.
    ///
    /// # Errors
    /// [`CqError`]; the queue is unusable from then on.
    fn write_out(
        _dma: &Self::Dma,
        _vf: &mut Self::Vf,
        _queue: &mut Self::Completion,
    ) -> Result<Attention, CqError> {
        Ok(Attention::default())
    }

    /// Looks again at a queue whose arming is not announced (doorbell pages
    /// that the guest writes without telling); raises its event if it is due.
    fn recheck(dma: &Self::Dma, vf: &mut Self::Vf, queue: &mut Self::Completion) -> Attention;

    /// Raises the event of a queue that has waited for more entries long enough,
    /// if it still waits.
    fn expire(dma: &Self::Dma, vf: &mut Self::Vf, queue: &mut Self::Completion);

    /// Finds the receive queue for a packet that has come to an underlay queue pair
    /// ([`Transport::Underlay`](crate::Transport::Underlay)), and what it took to find it. Bounded: a packet is
    /// looked at as a whole.
    fn steer(_vf: &Self::Vf, _underlay: Qpn, _packet: &[u8]) -> Steering {
        Steering::default()
    }

    /// Delivers an asynchronous event.
    fn event(dma: &Self::Dma, vf: &mut Self::Vf, event: Event);

    /// Whether the owner of a function hears of [`Event::PageFault`]. Where it does not, memory that is not there
    /// is like memory that is none.
    fn hears_of_pages(_vf: &Self::Vf) -> bool {
        true
    }

    /// Decodes translation entries of a key update: `bytes` as they lie in the
    /// payload, appended to `pages` or `klms` by the kind of the key. Entries of pages say by
    /// [`NO_READ`](crate::NO_READ) and [`NO_WRITE`](crate::NO_WRITE) what may not be done with them.
    fn decode_pages(bytes: &[u8], pages: &mut Vec<u64>);

    /// As [`QueueFormat::decode_pages`], for indirect keys.
    fn decode_klms(bytes: &[u8], klms: &mut Vec<crate::memory::klm::Klm>);
}

/// Result of steering a packet that has come to an underlay queue pair
/// ([`Transport::Underlay`](crate::Transport::Underlay)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steering {
    /// The receive queue that takes it, and the hash that it was chosen by; none where it is dropped.
    pub to: Option<(Qpn, PacketHash)>,
    /// Number of entries of flow tables that were looked at, wherever it goes.
    pub entries: u32,
    /// Number of flow tables that they were in.
    pub tables: u32,
}

/// Data that a face keeps of one of its queues in an image.
pub trait Image: Serialize + DeserializeOwned + Debug + Clone + PartialEq + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Debug + Clone + PartialEq + Send + 'static> Image for T {}
