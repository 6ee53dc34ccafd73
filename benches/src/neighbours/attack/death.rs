//! A guest with all the queue pairs that it can have is reset, or gone.

use super::errored::QueuePairs;
use crate::Result;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::lab::Lab;

/// The attack.
pub(super) struct Death<'a> {
    lab: &'a Lab,
    reset: bool,
}

impl<'a> Death<'a> {
    pub(super) const fn prepare(lab: &'a Lab) -> Self {
        Self { lab, reset: false }
    }
}

impl Attacker for Death<'_> {
    fn strike(&mut self) -> Result<()> {
        let pairs = QueuePairs::create(self.lab, self.lab.scale.most_queue_pairs)?;
        self.reset = !self.reset;
        if self.reset {
            pairs.device.reset()?;
        }
        Ok(())
    }

    /// A reset, and the end of a connection.
    fn enough(&self) -> usize {
        2
    }
}
