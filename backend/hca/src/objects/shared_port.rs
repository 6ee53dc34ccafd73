//! Functions that share a port, and with it its LID: which of them a packet is for.
//!
//! As on Shared Port hardware, a packet with a global route header is for the function with its
//! destination GID; the others are for the function that has the queue pair of their number, which is
//! why no two functions of a port have queue pairs of the same number (*Towards the InfiniBand SR-IOV
//! vSwitch Architecture*, III).
//!
//! A function in a virtual cluster has one of the port's LIDs for itself, which leads to nobody else
//! (*Towards Virtual InfiniBand Clusters with Network and Performance Isolation*, 3.3.4).

use wire::{Gid, Qpn};

use crate::objects::Objects;
use crate::objects::ids::VfId;
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;

/// Whether no function at the port of `vf` has a queue pair of this number.
pub(crate) fn is_free<F: QueueFormat>(vfs: &[Vf<F>], vf: VfId, number: u32) -> bool {
    let sharers = vfs[usize::from(vf.0)].sharers.iter();
    let mut others = sharers.filter(|&&sharer| sharer != vf);
    others.all(|sharer| vfs[usize::from(sharer.0)].qps.get(number).is_none())
}

impl<F: QueueFormat> Objects<F> {
    /// The function that a packet is for which reaches the port of `at` by a LID of `at`; `None` when
    /// it is nobody's there.
    #[inline]
    pub fn function_at(&self, at: VfId, dgid: Option<Gid>, qpn: Qpn) -> Option<VfId> {
        let Vf { sharers, port, .. } = self.vf(at);
        if sharers.is_empty() || port.cluster.is_some() {
            return Some(at);
        }
        let in_none = |function: &VfId| self.vf(*function).port.cluster.is_none();
        let mut sharers = sharers.iter().copied().filter(in_none);
        match dgid {
            Some(gid) => sharers.find(|&function| self.vf(function).port.has_gid(gid)),
            None => {
                let number = u32::from(qpn);
                sharers.find(|&function| self.vf(function).qps.get(number).is_some())
            }
        }
    }

    /// The functions at the port of `at`, one after the other, from the first.
    pub fn sharer(&self, at: VfId, index: usize) -> Option<VfId> {
        match &self.vf(at).sharers[..] {
            [] => (index == 0).then_some(at),
            sharers => sharers.get(index).copied(),
        }
    }
}
