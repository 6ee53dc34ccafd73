//! Numbers of queue pairs that are nobody's: programs name their connections by them to a connection manager, where
//! no queue pair of the connection's own has a number to name it by.

use wire::Qpn;

use crate::objects::ids::{QpIndex, VerbError};
use crate::objects::shared_port::is_free;
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;
use crate::verbs::Verbs;

impl QpIndex {
    /// Where reserved numbers lead: to no queue pair.
    pub(crate) const NOBODY: Self = Self(u32::MAX);
}

impl<F: QueueFormat> Verbs<'_, F> {
    /// Takes a number that no queue pair at the function's port has, and that none gets until it is given back.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`]: reserved numbers count as queue pairs do.
    pub fn reserve_qpn(&mut self) -> Result<Qpn, VerbError> {
        let Vf { qps, memory, .. } = self.objects.vf_mut(self.vf);
        if !qps.make_room(memory) {
            return Err(VerbError::Exhausted);
        }
        let mut numbers = std::mem::take(&mut self.objects.vf_mut(self.vf).qps);
        let vfs = &self.objects.vfs;
        let number =
            numbers.insert_free(|number| is_free(vfs, self.vf, number), |_| QpIndex::NOBODY);
        self.objects.vf_mut(self.vf).qps = numbers;
        number.map(Qpn::new).ok_or(VerbError::Exhausted)
    }
}
