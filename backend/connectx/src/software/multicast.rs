//! Multicast groups.

use hca::Dma;
use wire::{Gid, Qpn};

use super::{Commands, Outcome, refuse};
use crate::bits::command::{Status, attach_to_mcg_in as group};

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn attach_to_mcg(&mut self, request: &[u8]) -> Outcome {
        let gid = Gid::from_bytes(group::MULTICAST_GID.array(request));
        if !gid.is_multicast() {
            return Err(refuse(Status::BadParameter, "not a multicast GID"));
        }
        Ok(self
            .engine
            .attach_multicast(self.vf, Qpn::new(group::QPN.get(request)), gid)?)
    }

    pub(super) fn detach_from_mcg(&mut self, request: &[u8]) -> Outcome {
        let gid = Gid::from_bytes(group::MULTICAST_GID.array(request));
        Ok(self
            .engine
            .detach_multicast(self.vf, Qpn::new(group::QPN.get(request)), gid)?)
    }
}
