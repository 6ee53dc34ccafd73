//! Queues that are plain lists.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hca::mr::Klm;
use hca::work::{CompletionEntry, RecvWr, SendWr, WqeError};
use hca::{Attention, CqError, Event, QueueFormat};

use super::memory::Memory;

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

thread_local! {
    /// Queues by the numbers that images have of them, as real ones are by their addresses.
    static QUEUES: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Gives a queue a number.
fn register<T: Clone + 'static>(make: impl FnOnce(u64) -> T) -> T {
    QUEUES.with_borrow_mut(|queues| {
        let queue = make(queues.len() as u64);
        queues.push(Box::new(queue.clone()));
        queue
    })
}

/// The queue with this number.
fn registered<T: Clone + 'static>(number: u64) -> Result<T, String> {
    QUEUES.with_borrow(|queues| {
        let queue = queues.get(number as usize);
        let queue = queue.and_then(|queue| queue.downcast_ref());
        queue.cloned().ok_or_else(|| format!("no queue {number}"))
    })
}

/// A work queue: what is posted, or an error in its place.
#[derive(Debug)]
pub struct Ring<T>(Arc<Mutex<VecDeque<Result<T, WqeError>>>>, u64);

impl<T> Clone for Ring<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), self.1)
    }
}

impl<T: Send + 'static> Ring<T> {
    pub fn new() -> Self {
        register(|number| Self(Arc::default(), number))
    }

    pub fn push(&self, entry: Result<T, WqeError>) {
        locked(&self.0).push_back(entry);
    }

    pub fn len(&self) -> usize {
        locked(&self.0).len()
    }

    fn take(&self) -> Option<Result<T, WqeError>> {
        let mut ring = locked(&self.0);
        // A queue that cannot be read stays that way.
        if matches!(ring.front(), Some(Err(WqeError::Unmapped))) {
            return Some(Err(WqeError::Unmapped));
        }
        ring.pop_front()
    }
}

/// A completion queue.
#[derive(Debug, Clone)]
pub struct Cq {
    entries: Arc<Mutex<Vec<CompletionEntry>>>,
    /// Messages that entries hold.
    held: Arc<Mutex<Vec<Vec<u8>>>>,
    capacity: usize,
    unmapped: Arc<AtomicBool>,
    number: u64,
}

impl Cq {
    pub fn new(capacity: usize) -> Self {
        register(|number| Self {
            entries: Arc::new(Mutex::new(Vec::with_capacity(capacity))),
            held: Arc::default(),
            capacity,
            unmapped: Arc::default(),
            number,
        })
    }

    pub fn poll(&self) -> Vec<CompletionEntry> {
        locked(&self.entries).drain(..).collect()
    }

    /// The messages that entries since the last call hold.
    pub fn held(&self) -> Vec<Vec<u8>> {
        locked(&self.held).drain(..).collect()
    }

    pub fn unmap(&self) {
        self.unmapped.store(true, Ordering::Relaxed);
    }
}

/// Events of a function.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *locked(&self.0))
    }
}

/// The queue formats of the laboratory.
#[derive(Debug)]
pub struct Plain;

impl QueueFormat for Plain {
    type Dma = Memory;
    type Vf = Events;
    type Send = Ring<SendWr>;
    type Recv = Ring<RecvWr>;
    type Shared = Ring<RecvWr>;
    type Completion = Cq;
    type SendImage = u64;
    type RecvImage = u64;
    type SharedImage = u64;
    type CompletionImage = u64;

    fn save_send(queue: &Ring<SendWr>) -> u64 {
        queue.1
    }

    fn save_recv(queue: &Ring<RecvWr>) -> u64 {
        queue.1
    }

    fn save_shared(queue: &Ring<RecvWr>) -> u64 {
        queue.1
    }

    fn save_completion(queue: &Cq) -> u64 {
        queue.number
    }

    fn restore_send(_: &Events, _: &Memory, image: u64) -> Result<Ring<SendWr>, String> {
        registered(image)
    }

    fn restore_recv(_: &Events, _: &Memory, image: u64) -> Result<Ring<RecvWr>, String> {
        registered(image)
    }

    fn restore_shared(_: &Events, _: &Memory, image: u64) -> Result<Ring<RecvWr>, String> {
        registered(image)
    }

    fn restore_completion(_: &Events, _: &Memory, _: u32, image: u64) -> Result<Cq, String> {
        registered(image)
    }

    fn send_posted(_: &Memory, queue: &Ring<SendWr>) -> bool {
        queue.len() > 0
    }

    fn ring_send(_: &mut Ring<SendWr>, _through: u16) {}

    fn recv_posted(_: &Memory, queue: &Ring<RecvWr>) -> bool {
        queue.len() > 0
    }

    fn take_send(_: &Memory, queue: &mut Ring<SendWr>, wr: &mut SendWr) -> Result<bool, WqeError> {
        let Some(posted) = queue.take() else {
            return Ok(false);
        };
        let mut posted = posted?;
        // Into the room that is there, as a real face does.
        let (mut sges, mut inline) = (std::mem::take(&mut wr.sges), std::mem::take(&mut wr.inline));
        sges.extend_from_slice(&posted.sges);
        inline.extend_from_slice(&posted.inline);
        std::mem::swap(&mut posted.sges, &mut sges);
        std::mem::swap(&mut posted.inline, &mut inline);
        *wr = posted;
        Ok(true)
    }

    fn take_recv(_: &Memory, queue: &mut Ring<RecvWr>, wr: &mut RecvWr) -> Result<bool, WqeError> {
        let Some(posted) = queue.take() else {
            return Ok(false);
        };
        let posted = posted?;
        wr.index = posted.index;
        wr.sges.extend_from_slice(&posted.sges);
        Ok(true)
    }

    fn take_shared(
        dma: &Memory,
        queue: &mut Ring<RecvWr>,
        wr: &mut RecvWr,
    ) -> Result<bool, WqeError> {
        Self::take_recv(dma, queue, wr)
    }

    fn shared_available(_: &Memory, queue: &Ring<RecvWr>) -> u32 {
        queue.len() as u32
    }

    fn reset_queues(send: Option<&mut Ring<SendWr>>, recv: Option<&mut Ring<RecvWr>>) {
        if let Some(send) = send {
            locked(&send.0).clear();
        }
        if let Some(recv) = recv {
            locked(&recv.0).clear();
        }
    }

    fn complete(
        _: &Memory,
        _: &mut Events,
        queue: &mut Cq,
        entry: &CompletionEntry,
        held: &[u8],
        _: bool,
    ) -> Result<Attention, CqError> {
        if queue.unmapped.load(Ordering::Relaxed) {
            return Err(CqError::Unmapped);
        }
        let mut entries = locked(&queue.entries);
        if entries.len() >= queue.capacity {
            return Err(CqError::Overrun);
        }
        entries.push(*entry);
        if !held.is_empty() {
            locked(&queue.held).push(held.to_vec());
        }
        Ok(Attention::default())
    }

    fn recheck(_: &Memory, _: &mut Events, _: &mut Cq) -> Attention {
        Attention::default()
    }

    fn expire(_: &Memory, _: &mut Events, _: &mut Cq) {}

    fn event(_: &Memory, vf: &mut Events, event: Event) {
        locked(&vf.0).push(event);
    }

    fn decode_pages(bytes: &[u8], pages: &mut Vec<u64>) {
        pages.extend(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|entry| u64::from_be_bytes(*entry)),
        );
    }

    fn decode_klms(bytes: &[u8], klms: &mut Vec<Klm>) {
        klms.extend(bytes.as_chunks::<16>().0.iter().map(|entry| Klm {
            len: u32::from_be_bytes(entry[0..4].try_into().unwrap()),
            key: u32::from_be_bytes(entry[4..8].try_into().unwrap()),
            addr: u64::from_be_bytes(entry[8..16].try_into().unwrap()),
        }));
    }
}
