//! Sets of counters that queue pairs share.

use std::sync::Arc;

use crate::objects::counters::QpCounters;
use crate::objects::ids::VerbError;
use crate::storage::share::Memory;

/// Most sets that one function may have; they are numbered from 1 on.
pub const MAX_COUNTER_SETS: u8 = 127;

/// Bytes of the host's memory that a set takes.
const HELD: usize = size_of::<QpCounters>() + 2 * size_of::<usize>();

/// The set that a queue pair counts in. It is there for as long as a queue pair counts in it, even if its owner
/// has freed it since.
#[derive(Debug, Clone, Default)]
pub(crate) struct CounterSet {
    /// 0: none, so that nobody reads what is counted.
    pub number: u8,
    pub counters: Arc<QpCounters>,
}

/// The sets of a function.
#[derive(Debug, Default)]
pub(crate) struct CounterSets {
    /// For queue pairs without a set.
    pub none: Arc<QpCounters>,
    /// The first has number 1.
    pub sets: Vec<Option<Arc<QpCounters>>>,
}

impl CounterSets {
    /// The set of this number.
    pub fn get(&self, number: u8) -> Option<CounterSet> {
        let counters = match usize::from(number).checked_sub(1) {
            None => &self.none,
            Some(at) => self.sets.get(at)?.as_ref()?,
        };
        Some(CounterSet {
            number,
            counters: Arc::clone(counters),
        })
    }

    /// Sets that are there, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u8, &QpCounters)> {
        let numbered = (1..=MAX_COUNTER_SETS).zip(&self.sets);
        numbered.filter_map(|(number, set)| Some((number, &**set.as_ref()?)))
    }

    /// Makes a set of this number, which must be free.
    pub fn insert(
        &mut self,
        number: u8,
        counters: QpCounters,
        memory: &mut Memory,
    ) -> Result<(), VerbError> {
        let at = usize::from(number).checked_sub(1);
        let at = at.filter(|at| *at < usize::from(MAX_COUNTER_SETS));
        let at = at.ok_or(VerbError::NotFound)?;
        if self.sets.len() <= at {
            self.sets.resize(at + 1, None);
        }
        if self.sets[at].is_some() {
            return Err(VerbError::InUse);
        }
        if !memory.take(HELD) {
            return Err(VerbError::Exhausted);
        }
        self.sets[at] = Some(Arc::new(counters));
        Ok(())
    }

    /// The set that a queue pair counts in, as far as its owner still has it: images name sets by number.
    pub fn number(&self, of: &CounterSet) -> u8 {
        let same = |set: &CounterSet| Arc::ptr_eq(&set.counters, &of.counters);
        self.get(of.number).filter(same).map_or(0, |set| set.number)
    }
}

impl CounterSet {
    /// Its owner, or a queue pair, lets go of a set. The last one gives back what it took.
    pub fn release(self, memory: &mut Memory) {
        if self.number != 0 && Arc::into_inner(self.counters).is_some() {
            memory.give(HELD);
        }
    }
}
