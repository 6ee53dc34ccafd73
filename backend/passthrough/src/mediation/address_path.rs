//! Paths of connections: who is at the other end, by which service level, with which headers.

use connectx::bits::Span;
use connectx::bits::command::{Opcode, Status};
use connectx::bits::queue_pair::{ads, qpc};
use hca::Foreign;

use super::{Judge, Refusal, refuse};
use crate::cluster::Membership;
use crate::mediation::guest::Guest;

/// The paths in the context of a queue pair: which, and whether it is the one that a connection begins with.
const PATHS: [(Span, bool); 2] = [
    (qpc::PRIMARY_ADDRESS_PATH, true),
    (qpc::SECONDARY_ADDRESS_PATH, false),
];
/// Hop limit of a header that is added here. Packets stay in the subnet, where nobody looks at it.
const HOP_LIMIT: u32 = 64;

impl Judge<'_> {
    /// Makes of the paths of a connection what the VF is to have. Those of datagrams are in work requests.
    pub(super) fn translate_paths(
        &mut self,
        opcode: Opcode,
        number: u32,
        context: &mut [u8],
    ) -> Result<(), Refusal> {
        if !self.guest.connected.contains(&number) {
            return Ok(());
        }
        for (place, is_primary) in PATHS {
            let path = place.get_mut(context);
            let begins = is_primary && opcode == Opcode::Init2Rtr;
            if begins || ads::RLID.get(path) != 0 || ads::GRH.is_set(path) {
                self.check_level(path)?;
                self.find_peer((number, is_primary), path)?;
            }
        }
        Ok(())
    }

    fn check_level(&self, path: &mut [u8]) -> Result<(), Refusal> {
        let levels = self.facts.policy.service_levels;
        if levels.allowed & 1 << ads::SL.get(path) != 0 {
            return Ok(());
        }
        match levels.foreign {
            Foreign::Denied => refuse(
                Status::BadParameter,
                "a service level that is not the guest's",
            ),
            Foreign::Rewritten(level) => {
                ads::SL.set(path, level.value().into());
                Ok(())
            }
        }
    }

    /// Puts the peer's LID in the subnet in the place of that in the cluster, and says by a global route
    /// header who it is, where ports share LIDs.
    fn find_peer(&mut self, of: (u32, bool), path: &mut [u8]) -> Result<(), Refusal> {
        let Some(membership) = &self.facts.policy.membership else {
            return Ok(());
        };
        let gid = global(path);
        let Some(peer) = membership.cluster.find(ads::RLID.get(path) as u16, gid) else {
            return refuse(
                Status::BadParameter,
                "nobody in the cluster has this address",
            );
        };
        ads::RLID.set(path, peer.lid.into());
        // The LID that one of a range stands for is the peer's, and so is the way there.
        ads::MLID.set(path, 0);
        // Else packets would not leave the adapter, whatever the LID.
        ads::FL.set(path, 0);
        if gid.is_none() && (self.facts.grh_required || peer.grh_required) {
            ads::GRH.set(path, 1);
            ads::RGID_RIP.set(path, &peer.gid);
            for (field, value) in [
                (ads::SRC_ADDR_INDEX, 0),
                (ads::HOP_LIMIT, HOP_LIMIT),
                (ads::TCLASS, 0),
                (ads::FLOW_LABEL, 0),
            ] {
                field.set(path, value);
            }
            self.guest.headers_added.insert(of);
        } else {
            self.guest.headers_added.remove(&of);
        }
        Ok(())
    }
}

/// The GID that a path has a header for.
fn global(path: &[u8]) -> Option<[u8; 16]> {
    ads::GRH.is_set(path).then(|| ads::RGID_RIP.array(path))
}

impl Guest {
    /// Shows in the context of a queue pair the paths as the guest knows them.
    pub(crate) fn show_paths(&self, number: u32, membership: &Membership, context: &mut [u8]) {
        if !self.connected.contains(&number) {
            return;
        }
        for (place, is_primary) in PATHS {
            let path = place.get_mut(context);
            let lid = ads::RLID.get(path) as u16;
            if lid == 0 {
                continue;
            }
            let shown = membership.cluster.lid_of(lid, global(path)).unwrap_or(0);
            ads::RLID.set(path, shown.into());
            if self.headers_added.contains(&(number, is_primary)) {
                ads::GRH.set(path, 0);
                ads::HOP_LIMIT.set(path, 0);
                ads::RGID_RIP.set(path, &[0; 16]);
            }
        }
    }
}
