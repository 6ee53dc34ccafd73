//! Shared receive queues.

use crate::objects::ids::CqIndex;
use crate::objects::tags::TagList;
use crate::queue_format::{Event, QueueFormat};
use crate::storage::slab::Slab;

/// All shared receive queues, by index.
pub(crate) type SharedQueues<F> = Slab<Srq<F>>;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq<F: QueueFormat> {
    pub srqn: u32,
    pub pd: u32,
    /// XRC domain and completion queue of an XRC one.
    pub xrc: Option<(u32, CqIndex)>,
    /// Tags that messages are matched with.
    pub tags: Option<Box<TagList>>,
    pub ring: F::Shared,
    /// The limit event is due when fewer requests remain; 0: not armed.
    pub limit: u32,
    /// Queue pairs that receive from here.
    pub users: u32,
    /// The owner knows that its completion queue failed.
    pub failed: bool,
    /// Index that completions of an XRC one carry; see
    /// [`CompletionEntry::user_index`](crate::work::CompletionEntry::user_index).
    pub user_index: Option<u32>,
}

impl<F: QueueFormat> Srq<F> {
    pub const fn new(srqn: u32, pd: u32, xrc: Option<(u32, CqIndex)>, ring: F::Shared) -> Self {
        Self {
            srqn,
            pd,
            xrc,
            tags: None,
            ring,
            limit: 0,
            users: 0,
            failed: false,
            user_index: None,
        }
    }

    /// The completion queue of its own, if it has one.
    pub fn cq(&self) -> Option<CqIndex> {
        let tags = self.tags.as_ref().map(|tags| tags.cq);
        tags.or(self.xrc.map(|(_, cq)| cq))
    }

    /// Raises the limit event if it is armed and due.
    pub fn check_limit(&mut self, dma: &F::Dma, face: &mut F::Vf) {
        if self.limit > 0 && F::shared_available(dma, &self.ring) < self.limit {
            self.limit = 0;
            F::event(dma, face, Event::SrqLimit(self.srqn));
        }
    }
}
