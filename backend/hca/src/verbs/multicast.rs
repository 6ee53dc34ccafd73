//! Multicast groups: who is attached, and the way of a packet to them.

use wire::{Gid, Qpn};

use crate::objects::ids::VerbError;
use crate::objects::qp::attributes::Transport;
use crate::queue_format::QueueFormat;
use crate::verbs::Verbs;

/// Most queue pairs of one function in a group: a packet goes to all of them in one turn.
pub const MAX_GROUP_MEMBERS: usize = 256;

/// Most underlay queue pairs of one function among them: for each of them the packet goes through flow tables. A network
/// interface is in a group with one of them, and interfaces of other partitions are in other groups.
pub(crate) const MAX_GROUP_UNDERLAYS: usize = 4;

/// A group, and a virtual cluster: the packet is for members of the group that are in the cluster.
pub(crate) type Group = (Gid, Option<u16>);

/// Bytes of the host's memory that an attachment takes at most: an entry of a table that doubles, and
/// a list.
pub(crate) const ATTACHMENT: usize = 160;

impl<F: QueueFormat> Verbs<'_, F> {
    /// Attaches a datagram queue pair to a multicast group.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], [`VerbError::Invalid`] for another transport,
    /// [`VerbError::Exhausted`].
    pub fn attach_multicast(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.objects.qp_index(self.vf, qpn)?;
        let transport = self.objects.qps.get(index.0).map(|qp| qp.core.transport);
        if !transport.is_some_and(Transport::is_address) {
            return Err(VerbError::Invalid);
        }
        let crowded = transport == Some(Transport::Underlay)
            && self.objects.underlays(self.vf, mgid) >= MAX_GROUP_UNDERLAYS;
        let state = self.objects.vf_mut(self.vf);
        if state
            .multicast
            .get(&mgid)
            .is_some_and(|members| members.contains(&index))
        {
            return Ok(());
        }
        let members = state.multicast.get(&mgid).map_or(0, Vec::len);
        let room = state.multicast_left > 0 && members < MAX_GROUP_MEMBERS && !crowded;
        if !room || !state.memory.take(ATTACHMENT) {
            return Err(VerbError::Exhausted);
        }
        state.multicast_left -= 1;
        state.multicast.entry(mgid).or_default().push(index);
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn detach_multicast(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.objects.qp_index(self.vf, qpn)?;
        let state = self.objects.vf_mut(self.vf);
        let members = state.multicast.get_mut(&mgid).ok_or(VerbError::NotFound)?;
        let at = members
            .iter()
            .position(|&member| member == index)
            .ok_or(VerbError::NotFound)?;
        members.swap_remove(at);
        if members.is_empty() {
            state.multicast.remove(&mgid);
        }
        state.multicast_left += 1;
        state.memory.give(ATTACHMENT);
        Ok(())
    }
}
