//! Multicast groups: ATTACH_TO_MCG, DETACH_FROM_MCG.

use hca::Dma;
use wire::{Gid, Qpn};

use crate::bits::command::{Status, attach_to_mcg_in as group};
use crate::command::Commands;
use crate::refusal::{Outcome, Refusal, refuse};

/// The queue pair and the group that a request names.
pub(crate) fn parse(request: &[u8]) -> (Qpn, Gid) {
    let gid = Gid::from_bytes(group::MULTICAST_GID.array(request));
    (Qpn::new(group::QPN.get(request)), gid)
}

/// The same of a queue pair that is to become a member.
pub(crate) fn parse_member(request: &[u8]) -> Result<(Qpn, Gid), Refusal> {
    let (qpn, gid) = parse(request);
    if !gid.is_multicast() {
        return Err(refuse(Status::BadParameter, "not a multicast GID"));
    }
    Ok((qpn, gid))
}

pub(crate) fn attach_to_mcg<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    qpn: Qpn,
    gid: Gid,
) -> Outcome {
    Ok(commands
        .engine
        .verbs(commands.vf)
        .attach_multicast(qpn, gid)?)
}

pub(crate) fn detach_from_mcg<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    qpn: Qpn,
    gid: Gid,
) -> Outcome {
    Ok(commands
        .engine
        .verbs(commands.vf)
        .detach_multicast(qpn, gid)?)
}
