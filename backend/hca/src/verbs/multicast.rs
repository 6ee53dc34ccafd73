//! Multicast groups: who is attached, and the way of a packet to them.

use wire::{Gid, Mtu, Psn, Qpn};

use crate::engine::Engine;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VerbError, VfId};
use crate::objects::qp::attributes::Transport;
use crate::objects::vf::quiesce::{For, QUIESCED};
use crate::objects::work::AddressVector;
use crate::path::{End, Route};
use crate::queue_format::QueueFormat;
use crate::transport::datagram::Datagram;
use crate::transport::{DATAGRAM_WORDS, Destination};

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

impl<F: QueueFormat> Engine<F> {
    /// Attaches a datagram queue pair to a multicast group.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], [`VerbError::Invalid`] for another transport,
    /// [`VerbError::Exhausted`].
    pub fn attach_multicast(&mut self, vf: VfId, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.objects.qp_index(vf, qpn)?;
        let transport = self.objects.qps.get(index.0).map(|qp| qp.core.transport);
        if !transport.is_some_and(Transport::is_address) {
            return Err(VerbError::Invalid);
        }
        let crowded = transport == Some(Transport::Underlay)
            && self.objects.underlays(vf, mgid) >= MAX_GROUP_UNDERLAYS;
        let state = self.objects.vf_mut(vf);
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
    pub fn detach_multicast(&mut self, vf: VfId, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.objects.qp_index(vf, qpn)?;
        let state = self.objects.vf_mut(vf);
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

    /// Sends a packet to every queue pair attached to its group, at its own port and at the ports that
    /// it reaches, but not to `blocked`.
    pub(crate) fn multicast(
        &mut self,
        from: VfId,
        blocked: Option<QpIndex>,
        address: &AddressVector,
        datagram: &mut Datagram<'_>,
        psn: Psn,
        budget: &mut i64,
    ) {
        // A multicast packet has a GRH whose destination GID names the group,
        // and goes to the multicast queue pair number (9.8.1, 10.5.2).
        let Some(global) = address.global else { return };
        if address.dest_qp != Qpn::MULTICAST {
            return;
        }
        let cluster = self.objects.vf(from).port.cluster;
        let group = (global.dgid, cluster);
        self.serve_port(from, group, blocked, datagram, budget);
        let slot =
            self.network
                .fan_out(&mut self.objects, from, address, global.dgid, datagram.pkey);
        if let Some(fanout) = &self.objects.vf(from).ways.fanouts[slot] {
            datagram.dlid = fanout.here;
        }
        if self.network.exits.are_watched() || self.objects.is_impaired(from, slot) {
            return self.launch_multicast(from, group, slot, address, datagram, psn);
        }
        let fanout = self.objects.vf(from).ways.fanouts[slot].as_ref();
        if let Some(first) = fanout.and_then(|fanout| fanout.routes.first()) {
            let words = datagram.payload.len() as u64 / 4 + DATAGRAM_WORDS;
            self.network.traffic.add(first.path, words, 1);
        }
        let mut at = 0;
        while let Some(&route) = self.objects.vf(from).ways.fanouts[slot]
            .as_ref()
            .and_then(|fanout| fanout.routes.get(at))
        {
            at += 1;
            if let Some(port) = self.objects.reached(from, &route, datagram) {
                self.receive_multicast(port, group, datagram, budget);
            }
        }
    }

    /// Sends a packet in a frame.
    #[cold]
    fn launch_multicast(
        &mut self,
        from: VfId,
        (gid, cluster): Group,
        slot: usize,
        address: &AddressVector,
        datagram: &Datagram<'_>,
        psn: Psn,
    ) {
        let fanout = self.objects.vf(from).ways.fanouts[slot].as_ref();
        let routes = fanout.map_or(&[][..], |fanout| &fanout.routes);
        let first = routes.first().copied();
        let first = first.unwrap_or(Route::clean(End::Here(from), Mtu::B4096));
        let reached = |route: &&Route| self.objects.reached(from, route, datagram).is_some();
        let here = routes.iter().filter(reached).copied().collect();
        // One copy goes over each link.
        let mut away: Vec<_> = routes.iter().filter(|it| it.here().is_none()).collect();
        away.dedup_by_key(|route| route.end);
        let away: Vec<_> = away.into_iter().copied().collect();
        let to = Destination::Group(here, gid, cluster);
        self.launch_datagram(from, to, first, address, datagram, psn);
        for route in away {
            self.launch_datagram(from, Destination::Away, route, address, datagram, psn);
        }
    }

    /// A datagram for a group has come to a port.
    pub(crate) fn receive_multicast(
        &mut self,
        port: VfId,
        group: Group,
        datagram: &mut Datagram<'_>,
        budget: &mut i64,
    ) {
        // Of one at rest it is counted when it comes.
        if self.objects.vf(port).back != QUIESCED {
            let counters = &self.objects.vf(port).counters;
            counters.received_for_group(datagram.sl);
        }
        self.serve_port(port, group, None, datagram, budget);
    }

    /// Serves the members of all functions at a port that are in the sender's virtual cluster.
    fn serve_port(
        &mut self,
        vf: VfId,
        (group, cluster): Group,
        blocked: Option<QpIndex>,
        datagram: &mut Datagram<'_>,
        budget: &mut i64,
    ) {
        let mut at = 0;
        while let Some(function) = self.objects.sharer(vf, at) {
            at += 1;
            if self.objects.vf(function).port.cluster == cluster {
                self.serve_members(function, group, blocked, datagram, budget);
            }
        }
    }

    /// Serves the members of a function.
    pub(crate) fn serve_members(
        &mut self,
        vf: VfId,
        group: Gid,
        blocked: Option<QpIndex>,
        datagram: &mut Datagram<'_>,
        budget: &mut i64,
    ) {
        if self.objects.vf(vf).back == QUIESCED {
            if self.objects.vf(vf).multicast.contains_key(&group) {
                self.hold_datagram(vf, For::Group(group), Qpn::MULTICAST, datagram);
            }
            return;
        }
        let mut at = 0;
        while let Some(&member) = self
            .objects
            .vf(vf)
            .multicast
            .get(&group)
            .and_then(|members| members.get(at))
        {
            at += 1;
            if Some(member) != blocked {
                *budget -= (datagram.payload.len() as i64).max(DELIVERY_COST);
                self.receive_datagram(member, datagram);
            }
        }
    }
}

impl<F: QueueFormat> Objects<F> {
    /// Number of underlay queue pairs of a function in a group.
    fn underlays(&self, vf: VfId, mgid: Gid) -> usize {
        let members = self
            .vf(vf)
            .multicast
            .get(&mgid)
            .map_or(&[][..], Vec::as_slice);
        let members = members.iter().filter_map(|index| self.qps.get(index.0));
        members
            .filter(|qp| qp.core.transport == Transport::Underlay)
            .count()
    }

    /// The port of this program where a packet gets by this way: the HCA itself has served the sender's
    /// own.
    pub(crate) fn reached(
        &self,
        from: VfId,
        route: &Route,
        datagram: &Datagram<'_>,
    ) -> Option<VfId> {
        let own = |port: &VfId| self.sharer(*port, 0) == self.sharer(from, 0);
        let fits = datagram.payload.len() <= route.mtu.bytes() as usize;
        route.here().filter(|port| fits && !own(port))
    }

    /// Whether links lose or delay what goes there, or some of it leaves the engine.
    pub(crate) fn is_impaired(&self, from: VfId, slot: usize) -> bool {
        let fanout = self.vf(from).ways.fanouts[slot].as_ref();
        let mut routes = fanout.into_iter().flat_map(|fanout| &fanout.routes);
        routes.any(|route| {
            let near = route.here().is_some_and(|to| !self.vf(to).elsewhere);
            route.is_impaired() || !near
        })
    }
}

/// Smallest charge for the delivery of a packet, in bytes.
const DELIVERY_COST: i64 = 256;
