//! The verbs for domains, memory keys, completion queues and shared receive
//! queues.

use crate::memory::mr::{MAX_KLMS, MemoryKey, PAGE_SIZES, Translation};
use crate::objects::Objects;
use crate::objects::cq::{CompletionQueues, Cq};
use crate::objects::ids::{CqIndex, SrqIndex, VerbError};
use crate::objects::srq::Srq;
use crate::objects::tags::{LOG_MAX_TAGS, TagList};
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;
use crate::verbs::Verbs;

/// Bytes of a key's list that take time to give back.
const LONG_LIST: usize = 128 << 10;

/// The ring of a completion queue, and the face state and memory of its function.
pub type CqParts<'a, F> = (
    &'a mut <F as QueueFormat>::Completion,
    &'a mut <F as QueueFormat>::Vf,
    &'a <F as QueueFormat>::Dma,
);

impl<'a, F: QueueFormat> Verbs<'a, F> {
    /// The ring of a shared receive queue and its armed limit (0: not armed).
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn srq_mut(self, srqn: u32) -> Result<(&'a mut F::Shared, u32), VerbError> {
        let index = self.objects.vf(self.vf).srq_index(srqn)?;
        let srq = self
            .objects
            .srqs
            .get_mut(index.0)
            .ok_or(VerbError::NotFound)?;
        Ok((&mut srq.ring, srq.limit))
    }

    /// The ring of a completion queue, with the function's face and memory.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn cq_mut(self, cqn: u32) -> Result<CqParts<'a, F>, VerbError> {
        let state = &mut self.objects.vfs[usize::from(self.vf.0)];
        let index = *state.cqs.get(cqn).ok_or(VerbError::NotFound)?;
        let cq = self
            .objects
            .cqs
            .get_mut(index.0)
            .ok_or(VerbError::NotFound)?;
        Ok((&mut cq.ring, &mut state.face, &state.dma))
    }
}

impl<F: QueueFormat> Verbs<'_, F> {
    // Memory keys.

    /// Creates a memory key and returns its index; the key is
    /// `index << 8 | variant`.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], [`VerbError::NotFound`] for the domain, or
    /// [`VerbError::Invalid`] for a page size that is none of [`PAGE_SIZES`] or
    /// more than [`MAX_KLMS`] stretches.
    pub fn create_key(&mut self, key: MemoryKey) -> Result<u32, VerbError> {
        let state = self.objects.vf_mut(self.vf);
        let pd = key.pd;
        let valid = match &key.translation {
            Translation::Physical | Translation::Stretch { .. } => true,
            Translation::Pages { log_size, .. } => PAGE_SIZES.contains(log_size),
            Translation::Indirect(list) => list.entries().len() <= MAX_KLMS,
            Translation::Uniform { log_size, .. } => PAGE_SIZES.contains(log_size),
            Translation::Signed(signed) => {
                signed.list.entries().len() <= MAX_KLMS
                    && signed.format.is_none_or(|format| format.is_valid())
            }
        };
        let refusal = if state.pds.get(pd).is_none() {
            Some(VerbError::NotFound)
        } else if !valid {
            Some(VerbError::Invalid)
        } else {
            // Small ones that do not fit are told from others later.
            let held = key.translation.held();
            (held >= LONG_LIST && held > state.memory.left()).then_some(VerbError::Exhausted)
        };
        if let Some(refusal) = refusal {
            self.requests.discard(key);
            return Err(refusal);
        }
        let index = state.keys.insert(key, &mut state.memory);
        let index = index.ok_or(VerbError::Exhausted)?;
        state.hold_pd(pd);
        Ok(index)
    }

    // Completion queues.

    /// Creates a completion queue; `make` builds its ring, knowing its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn create_cq(&mut self, make: impl FnOnce(u32) -> F::Completion) -> Result<u32, VerbError> {
        let Objects { vfs, cqs, .. } = &mut self.objects;
        let Vf {
            cqs: numbers,
            memory,
            ..
        } = &mut vfs[usize::from(self.vf.0)];
        if !numbers.make_room(memory) {
            return Err(VerbError::Exhausted);
        }
        let mut held = 0;
        let number = numbers.insert_with(|cqn| {
            let ring = make(cqn);
            held = F::completion_held(&ring);
            CqIndex(cqs.insert(Cq::new(self.vf, cqn, ring)))
        });
        let number = number.ok_or(VerbError::Exhausted)?;
        if memory.take_all([Objects::<F>::OF_CQ, held]) {
            return Ok(number);
        }
        if let Some(index) = numbers.remove(number) {
            cqs.remove(index.0);
        }
        Err(VerbError::Exhausted)
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by queue pairs.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<F::Completion, VerbError> {
        let index = self.objects.vf(self.vf).cq_index(cqn)?;
        if self.objects.cqs.get(index.0).is_some_and(|cq| cq.users > 0) {
            return Err(VerbError::InUse);
        }
        self.objects.vf_mut(self.vf).cqs.remove(cqn);
        let polling = &mut self.requests.completions.scheduler.polling;
        polling.forget_watched(self.objects, index);
        let cq = self
            .objects
            .cqs
            .remove(index.0)
            .ok_or(VerbError::NotFound)?;
        let held = [Objects::<F>::OF_CQ, F::completion_held(&cq.ring)];
        self.objects.vf_mut(self.vf).memory.give_all(held);
        Ok(cq.ring)
    }

    // Shared receive queues.

    /// Creates a shared receive queue. `xrc` names the XRC domain and the
    /// completion queue of an XRC one.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], or [`VerbError::NotFound`] for what it names.
    pub fn create_srq(
        &mut self,
        pd: u32,
        xrc: Option<(u32, u32)>,
        ring: F::Shared,
    ) -> Result<u32, VerbError> {
        self.objects
            .vf(self.vf)
            .pds
            .get(pd)
            .ok_or(VerbError::NotFound)?;
        let xrc = match xrc {
            Some((xrcd, cqn)) => {
                self.objects
                    .vf(self.vf)
                    .xrcds
                    .get(xrcd)
                    .ok_or(VerbError::NotFound)?;
                Some((xrcd, self.objects.vf(self.vf).cq_index(cqn)?))
            }
            None => None,
        };
        let Objects { vfs, srqs, cqs, .. } = &mut self.objects;
        let state = &mut vfs[usize::from(self.vf.0)];
        let held = [Objects::<F>::OF_SRQ, F::shared_held(&ring)];
        if !state.srqs.make_room(&mut state.memory) || !state.memory.take_all(held) {
            return Err(VerbError::Exhausted);
        }
        let number = state
            .srqs
            .insert_with(|srqn| SrqIndex(srqs.insert(Srq::new(srqn, pd, xrc, ring))));
        let Some(number) = number else {
            state.memory.give_all(held);
            return Err(VerbError::Exhausted);
        };
        state.hold_pd(pd);
        if let Some((xrcd, cq)) = xrc {
            state.hold_xrcd(xrcd);
            if let Some(cq) = cqs.get_mut(cq.0) {
                cq.users += 1;
            }
        }
        Ok(number)
    }

    /// Creates a shared receive queue whose messages are matched with tags: a list of `1 << log_size` entries, at
    /// most [`LOG_MAX_TAGS`]. Everything of it completes at this completion queue. Messages of rendezvous are read
    /// by those of its queue pairs that have no send queue, if it offers that (`rendezvous`).
    ///
    /// # Errors
    /// As [`Verbs::create_srq`], and [`VerbError::Invalid`] for a longer list.
    pub fn create_tagged_srq(
        &mut self,
        pd: u32,
        (cqn, log_size, rendezvous): (u32, u8, bool),
        ring: F::Shared,
    ) -> Result<u32, VerbError> {
        if log_size > LOG_MAX_TAGS {
            return Err(VerbError::Invalid);
        }
        let cq = self.objects.vf(self.vf).cq_index(cqn)?;
        let held = TagList::held(log_size);
        self.objects.vf_mut(self.vf).take_memory(held)?;
        let created = self.create_srq(pd, None, ring);
        let Ok(number) = created else {
            self.objects.vf_mut(self.vf).give_memory(held);
            return created;
        };
        let tags = Box::new(TagList::new(cq, log_size, rendezvous));
        let index = self.objects.vf(self.vf).srq_index(number)?;
        self.objects.attach_tags(index, tags);
        Ok(number)
    }

    /// Has completions of an XRC shared receive queue carry this index from now on, or the queue's number again; see
    /// [`CompletionEntry::user_index`](crate::work::CompletionEntry::user_index).
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn index_srq(&mut self, srqn: u32, user_index: Option<u32>) -> Result<(), VerbError> {
        let srq = self.objects.vf(self.vf).srq_index(srqn)?;
        let srq = self.objects.srqs.get_mut(srq.0);
        srq.ok_or(VerbError::NotFound)?.user_index = user_index;
        Ok(())
    }

    /// Arms the limit event of a shared receive queue: it is raised once, when
    /// fewer than `limit` requests remain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn arm_srq(&mut self, srqn: u32, limit: u32) -> Result<(), VerbError> {
        let index = self.objects.vf(self.vf).srq_index(srqn)?;
        let srq = self
            .objects
            .srqs
            .get_mut(index.0)
            .ok_or(VerbError::NotFound)?;
        srq.limit = limit;
        let state = &mut self.objects.vfs[usize::from(self.vf.0)];
        srq.check_limit(&state.dma, &mut state.face);
        Ok(())
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by queue pairs.
    pub fn destroy_srq(&mut self, srqn: u32) -> Result<(), VerbError> {
        let index = self.objects.vf(self.vf).srq_index(srqn)?;
        if self
            .objects
            .srqs
            .get(index.0)
            .is_some_and(|srq| srq.users > 0)
        {
            return Err(VerbError::InUse);
        }
        if let Some(srq) = self.objects.srqs.remove(index.0) {
            let state = self.objects.vf_mut(self.vf);
            state.srqs.remove(srqn);
            let held = [Objects::<F>::OF_SRQ, F::shared_held(&srq.ring)];
            state.memory.give_all(held);
            state.release_pd(srq.pd);
            if let Some((xrcd, _)) = srq.xrc {
                state.release_xrcd(xrcd);
            }
            if let Some(tags) = &srq.tags {
                state.memory.give(TagList::held(tags.log_size()));
            }
            self.objects.cqs.release_cq(srq.cq());
        }
        Ok(())
    }
}

impl<F: QueueFormat> CompletionQueues<F> {
    pub(crate) fn release_cq(&mut self, cq: Option<CqIndex>) {
        if let Some(cq) = cq.and_then(|cq| self.get_mut(cq.0)) {
            cq.users -= 1;
        }
    }
}
