//! The verbs that need a function alone: domains, keys, sets of counters.

use std::sync::Arc;

use wire::Qpn;

use crate::memory::mr::MemoryKey;
use crate::objects::counters::QpCounters;
use crate::objects::counters::set::{CounterSet, MAX_COUNTER_SETS};
use crate::objects::ids::{CqIndex, QpIndex, SrqIndex, VerbError};
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;

impl<F: QueueFormat> Vf<F> {
    /// Allocates a set of counters for queue pairs, and returns its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_counters(&mut self) -> Result<u8, VerbError> {
        let Vf { sets, memory, .. } = self;
        let free = (1..=MAX_COUNTER_SETS).find(|number| sets.get(*number).is_none());
        let number = free.ok_or(VerbError::Exhausted)?;
        sets.insert(number, QpCounters::default(), memory)?;
        Ok(number)
    }

    /// Frees a set of counters. Nobody reads the later counts of its queue pairs.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn dealloc_counters(&mut self, number: u8) -> Result<(), VerbError> {
        let Vf { sets, memory, .. } = self;
        let at = usize::from(number).checked_sub(1);
        let slot = at.and_then(|at| sets.sets.get_mut(at));
        let counters = slot.and_then(Option::take).ok_or(VerbError::NotFound)?;
        CounterSet { number, counters }.release(memory);
        Ok(())
    }

    /// A set of counters.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn qp_counters(&self, number: u8) -> Result<Arc<QpCounters>, VerbError> {
        let set = self.sets.get(number).filter(|set| set.number != 0);
        Ok(set.ok_or(VerbError::NotFound)?.counters)
    }

    /// Gives a reserved number back.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn release_qpn(&mut self, qpn: Qpn) -> Result<(), VerbError> {
        let numbers = &mut self.qps;
        if numbers.get(qpn.value()) != Some(&QpIndex::NOBODY) {
            return Err(VerbError::NotFound);
        }
        numbers.remove(qpn.value());
        Ok(())
    }

    // Protection and XRC domains.

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_pd(&mut self) -> Result<u32, VerbError> {
        let Vf { pds, memory, .. } = self;
        alloc(pds, memory)
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by memory keys, queue
    /// pairs or shared receive queues.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), VerbError> {
        free(&mut self.pds, pd)
    }

    /// Allocates an XRC domain.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_xrcd(&mut self) -> Result<u32, VerbError> {
        let Vf { xrcds, memory, .. } = self;
        alloc(xrcds, memory)
    }

    /// Frees an XRC domain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by queue pairs or
    /// shared receive queues.
    pub fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), VerbError> {
        free(&mut self.xrcds, xrcd)
    }

    /// Destroys the memory key with this index.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_key(&mut self, index: u32) -> Result<MemoryKey, VerbError> {
        let state = self;
        let key = state.keys.remove(index, &mut state.memory);
        let key = key.ok_or(VerbError::NotFound)?;
        state.release_pd(key.pd);
        Ok(key)
    }

    // Signature values under way.

    /// Creates a signature value under way (PSV) of a protection domain.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], or [`VerbError::NotFound`] for the domain.
    pub fn create_psv(&mut self, pd: u32) -> Result<u32, VerbError> {
        let state = self;
        state.pds.get(pd).ok_or(VerbError::NotFound)?;
        let Vf { psvs, memory, .. } = state;
        let number = psvs.make_room(memory).then(|| psvs.insert(pd)).flatten();
        let number = number.ok_or(VerbError::Exhausted)?;
        state.hold_pd(pd);
        Ok(number)
    }

    /// Destroys a signature value under way. Keys that name it go on: they need it where they are made only.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_psv(&mut self, number: u32) -> Result<(), VerbError> {
        let state = self;
        let pd = state.psvs.remove(number).ok_or(VerbError::NotFound)?;
        state.release_pd(pd);
        Ok(())
    }

    /// Takes bytes of a function's share of the host's memory for what its face keeps.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn take_memory(&mut self, bytes: usize) -> Result<(), VerbError> {
        let fits = self.memory.take(bytes);
        fits.then_some(()).ok_or(VerbError::Exhausted)
    }

    /// Gives bytes back that [`Vf::take_memory`] has taken.
    pub fn give_memory(&mut self, bytes: usize) {
        self.memory.give(bytes);
    }

    pub(crate) fn cq_index(&self, cqn: u32) -> Result<CqIndex, VerbError> {
        self.cqs.get(cqn).copied().ok_or(VerbError::NotFound)
    }

    pub(crate) fn srq_index(&self, srqn: u32) -> Result<SrqIndex, VerbError> {
        self.srqs.get(srqn).copied().ok_or(VerbError::NotFound)
    }
}

/// Allocates a domain.
fn alloc(domains: &mut Numbers<u32>, memory: &mut Memory) -> Result<u32, VerbError> {
    let number = domains.make_room(memory).then(|| domains.insert(0));
    number.flatten().ok_or(VerbError::Exhausted)
}

/// Frees a domain that nothing is of.
fn free(domains: &mut Numbers<u32>, number: u32) -> Result<(), VerbError> {
    match domains.get(number) {
        None => Err(VerbError::NotFound),
        Some(0) => {
            domains.remove(number);
            Ok(())
        }
        Some(_) => Err(VerbError::InUse),
    }
}
