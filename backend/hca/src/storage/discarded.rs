//! Things that are of no use any more, kept until they can be dropped where nobody waits.

use std::any::Any;

/// Things that nobody has taken yet; more are dropped on the spot.
const MAX_DISCARDED: usize = 4096;

/// Things that are of no use any more.
#[derive(Default)]
#[must_use]
pub struct Discarded(Vec<Box<dyn Any + Send>>);

impl Discarded {
    /// Keeps something.
    pub(crate) fn keep(&mut self, thing: Box<dyn Any + Send>) {
        if self.0.len() < MAX_DISCARDED {
            self.0.push(thing);
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Discarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Discarded").field(&self.0.len()).finish()
    }
}
