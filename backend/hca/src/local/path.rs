//! The way from a connected queue pair to its peer, found once and kept until
//! the subnet or a queue pair changes.

use std::sync::atomic::Ordering;

use wire::Qpn;

use crate::engine::Engine;
use crate::objects::counters::TrafficCounters;
use crate::objects::counters::traffic::PathId;
use crate::objects::ids::QpIndex;
use crate::objects::qp::Peer;
use crate::objects::qp::attributes::Transport;
use crate::path::{Envelope, WrongKey};
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> Engine<F> {
    /// The peer of a connected queue pair, if a packet to it would arrive and
    /// be taken for this connection's.
    #[inline]
    pub(crate) fn peer(&mut self, index: QpIndex) -> Option<Peer> {
        let generation = self.network.generation.load(Ordering::Acquire);
        let qp = self.objects.qps.get(index.0)?;
        match qp.req.found.peer {
            Some(peer)
                if peer.generation == generation
                    && peer.versions == self.objects.versions(qp.core.vf, peer.vf) =>
            {
                Some(peer)
            }
            _ => self.find_peer(index, generation),
        }
    }

    #[cold]
    fn find_peer(&mut self, index: QpIndex, generation: u64) -> Option<Peer> {
        self.network.lookups += 1;
        let path = self.objects.qps.get(index.0)?.core.attr.path?;
        let route = self
            .network
            .connection_route(&mut self.objects, index, path, generation)?;
        let qp = self.objects.qps.get(index.0)?;
        let dgid = path.global.map(|global| global.dgid);
        let port = route
            .here()
            .filter(|port| !self.objects.vf(*port).elsewhere)?;
        let function = self.objects.function_at(port, dgid, qp.core.attr.dest_qp)?;
        let to = self.objects.vf(function);
        if !to.port.active || to.quiesced.is_some() {
            return None;
        }
        let mut peer_index = *to.qps.get(u32::from(qp.core.attr.dest_qp))?;
        let mut peer = self.objects.qps.get(peer_index.0)?;
        let is_dynamic = qp.core.transport == Transport::Dci;
        if !is_dynamic && !self.objects.connected(qp, peer, route.crossing.is_some()) {
            return None;
        }
        let pkey = self
            .objects
            .vf(qp.core.vf)
            .port
            .pkey(qp.core.attr.pkey_index);
        if !pkey.matches(to.port.pkey(peer.core.attr.pkey_index)) {
            TrafficCounters::add(&to.counters.pkey_violations, 1);
            let envelope = Envelope {
                slid: self.objects.vf(qp.core.vf).port.lid,
                dlid: path.dlid,
                sl: path.sl,
                // A connected packet does not say where it comes from.
                src_qp: Qpn::new(0),
                dest_qp: qp.core.attr.dest_qp,
            };
            self.network
                .subnet
                .wrong_key(function, WrongKey::Partition(pkey), &envelope);
            return None;
        }
        if is_dynamic {
            peer_index = self.answerer_here(index, peer_index, function, &route)?;
            peer = self.objects.qps.get(peer_index.0)?;
        }
        let qp = self.objects.qps.get(index.0)?;
        let (attr, from) = (&qp.core.attr, qp.core.vf);
        if is_dynamic && peer.core.attr.mtu != attr.mtu {
            return None;
        }
        let (mtu, back) = (attr.mtu.bytes(), peer.core.attr.path);
        let versions = self.objects.versions(from, function);
        let back_sl = back.map_or(path.sl, |back| back.sl);
        let back = back.and_then(|path| {
            self.network
                .connection_route(&mut self.objects, peer_index, path, generation)
        });
        // Acknowledgements take the way back, too.
        let back_is_impaired = back.is_none_or(|back| back.is_impaired());
        let away =
            route.is_impaired() || back_is_impaired || self.network.exits.shows(from, function);
        let resolved = Peer {
            qp: peer_index,
            vf: function,
            mtu,
            // Full packets that the way is too narrow for get lost on it.
            longest: if mtu <= route.mtu.bytes() {
                u64::MAX
            } else {
                u64::from(route.mtu.bytes())
            },
            paths: [route.path, back.map_or(PathId::NONE, |route| route.path)],
            levels: [path.sl, back_sl],
            away,
            generation,
            versions,
        };
        // Two that take it for their peer, of subnets apart, have to take turns.
        self.objects.qps.forget_as_peer(peer_index);
        self.objects.qps.get_mut(peer_index.0)?.resp.heard_by = Some(index);
        let req = &mut self.objects.qps.get_mut(index.0)?.req;
        req.found.peer = Some(resolved);
        Some(resolved)
    }
}
