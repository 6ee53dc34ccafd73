//! The verbs for sets of counters of queue pairs.

use std::sync::Arc;

use crate::engine::Engine;
use crate::objects::counters::QpCounters;
use crate::objects::counters::set::{CounterSet, MAX_COUNTER_SETS};
use crate::objects::ids::{VerbError, VfId};
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> Engine<F> {
    /// Allocates a set of counters for queue pairs, and returns its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_counters(&mut self, vf: VfId) -> Result<u8, VerbError> {
        let Vf { sets, memory, .. } = self.objects.vf_mut(vf);
        let free = (1..=MAX_COUNTER_SETS).find(|number| sets.get(*number).is_none());
        let number = free.ok_or(VerbError::Exhausted)?;
        sets.insert(number, QpCounters::default(), memory)?;
        Ok(number)
    }

    /// Frees a set of counters. Nobody reads the later counts of its queue pairs.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn dealloc_counters(&mut self, vf: VfId, number: u8) -> Result<(), VerbError> {
        let Vf { sets, memory, .. } = self.objects.vf_mut(vf);
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
    pub fn qp_counters(&self, vf: VfId, number: u8) -> Result<Arc<QpCounters>, VerbError> {
        let set = self
            .objects
            .vf(vf)
            .sets
            .get(number)
            .filter(|set| set.number != 0);
        Ok(set.ok_or(VerbError::NotFound)?.counters)
    }
}
