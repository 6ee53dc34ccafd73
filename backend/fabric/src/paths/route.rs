//! Paths: what becomes of a packet, hop by hop, without sending one.

use std::time::Duration;

use wire::attribute::LinearBlock;
use wire::{ExtendedLid, Lid, Mtu, PKey, PortState, Sl, Vl};

use crate::nodes::Nodes;
use crate::nodes::topology::{NodeId, PortRef};

/// Links a LID-routed packet may cross: more means that forwarding tables make a circle.
pub(crate) const HOP_LIMIT: u8 = 64;

/// A path to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The port at its end.
    pub port: PortRef,
    /// The largest payload that every link takes.
    pub mtu: Mtu,
    /// The lane on the first link.
    pub vl: Vl,
    /// Links crossed; 0 for the way back to the sender itself.
    pub hops: u8,
    /// Delay of slow links.
    pub delay: Duration,
}

/// Why a packet does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoRoute {
    /// The destination is no unicast LID, or no multicast LID where one is needed.
    #[error("LID {0} is not of the kind that this packet needs")]
    WrongKind(ExtendedLid),
    /// A port on the way sends no data, or has no cable.
    #[error("{0} is not Active")]
    NotActive(PortRef),
    /// A switch's forwarding table drops the LID.
    #[error("node {0:?} has no forwarding table entry for the LID")]
    Dropped(NodeId),
    /// The SL-to-VL table at a port drops the service level.
    #[error("{0} drops the service level")]
    Lane(PortRef),
    /// A switch checks partitions at a port, and the packet's is not in the table.
    #[error("{0} drops the partition")]
    Partition(PortRef),
    /// A port on the way gets no credits: what is to leave by it waits there, and is discarded.
    #[error("{0} gets no credits")]
    Stalled(PortRef),
    /// The path ends at a port that has another LID.
    #[error("the path ends at {0}, which has another LID")]
    NotThere(PortRef),
    /// It has been in as many subnets as its hop limit lets it.
    #[error("{0} is a router's, and the packet's hop limit ends there")]
    HopLimit(PortRef),
    /// The router knows of no such GID, or of no way to its subnet.
    #[error("{0} is a router's that knows no way to the GID")]
    NotRouted(PortRef),
    /// The forwarding tables make a circle, or the path is longer than any subnet's.
    #[error("the forwarding tables make a circle through node {0:?}")]
    Circle(NodeId),
}

/// A place on a path: a node, the port by which it was entered, and what the path so far allows.
#[derive(Clone, Copy)]
struct Walk {
    at: PortRef,
    mtu: Mtu,
    vl: Vl,
    hops: u8,
    delay: Duration,
}

impl Nodes {
    /// The path of a unicast data packet from a port to a LID.
    ///
    /// With `pkey`, switches that enforce partitions check it; without, the path is what the
    /// forwarding tables say. Membership at the two ends is the adapters' to check.
    ///
    /// # Errors
    /// [`NoRoute`]: on hardware the packet vanishes there.
    pub fn resolve(
        &self,
        from: PortRef,
        dlid: Lid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<Route, NoRoute> {
        self.resolve_extended(from, dlid.into(), sl, pkey)
    }

    /// As [`Nodes::resolve`], in the extended LID space: a vLID is looked up in the second tables
    /// of the switches. One without drops it, and an adapter that does not speak the extended LID
    /// space cannot send to it.
    ///
    /// # Errors
    /// As [`Nodes::resolve`].
    pub fn resolve_extended(
        &self,
        from: PortRef,
        dlid: ExtendedLid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<Route, NoRoute> {
        self.walk(from, dlid, sl, pkey, |_, _| ())
    }

    /// The ports by which a unicast data packet leaves the nodes on its path, and the lane there:
    /// one for each link. None on the way back to the sender itself.
    ///
    /// # Errors
    /// As [`Nodes::resolve`].
    pub fn trace(
        &self,
        from: PortRef,
        dlid: Lid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<Vec<(PortRef, Vl)>, NoRoute> {
        let mut crossed = Vec::new();
        self.walk(from, dlid.into(), sl, pkey, |port, vl| {
            crossed.push((port, vl));
        })?;
        Ok(crossed)
    }

    /// [`Nodes::trace`] and [`Nodes::resolve`] in one, for a unicast LID of either space: the ports by
    /// which a data packet leaves nodes, as far as the packet gets, and where it ends.
    ///
    /// # Errors
    /// The second value has the errors of [`Nodes::resolve`].
    pub fn follow(
        &self,
        from: PortRef,
        dlid: ExtendedLid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> (Vec<PortRef>, Result<Route, NoRoute>) {
        let mut crossed = Vec::new();
        let route = self.walk(from, dlid, sl, pkey, |port, _| crossed.push(port));
        (crossed, route)
    }

    fn walk(
        &self,
        from: PortRef,
        dlid: ExtendedLid,
        sl: Sl,
        pkey: Option<PKey>,
        mut leave: impl FnMut(PortRef, Vl),
    ) -> Result<Route, NoRoute> {
        let node = self.node(from.node);
        let speaks = dlid.physical().map_or_else(
            || node.is_some_and(|node| node.spec.extended_lids),
            Lid::is_unicast,
        );
        if !speaks {
            return Err(NoRoute::WrongKind(dlid));
        }
        let source = self.port(from).ok_or(NoRoute::NotActive(from))?;
        if source.answers_to_extended(dlid) {
            return Ok(Route {
                port: from,
                mtu: source.info.active_mtu(),
                vl: self.loop_back(from, sl)?,
                hops: 0,
                delay: Duration::ZERO,
            });
        }
        let mut walk = self.depart(from, sl, pkey)?;
        leave(from, walk.vl);
        loop {
            let node = walk.at.node;
            let arrived = |port, walk: Walk| Route {
                port,
                mtu: walk.mtu,
                vl: walk.vl,
                hops: walk.hops,
                delay: walk.delay,
            };
            let Some(_) = self.switch(node) else {
                return match self.port(walk.at) {
                    Some(port) if port.answers_to_extended(dlid) => Ok(arrived(walk.at, walk)),
                    _ => Err(NoRoute::NotThere(walk.at)),
                };
            };
            let management = PortRef { node, port: 0 };
            if self
                .port(management)
                .is_some_and(|port| port.answers_to_extended(dlid))
            {
                return Ok(arrived(management, walk));
            }
            if walk.hops >= HOP_LIMIT {
                return Err(NoRoute::Circle(node));
            }
            let out = match dlid.physical() {
                Some(dlid) => self.forwarding_port(node, dlid)?,
                None => self.secondary_port(node, dlid)?,
            };
            if out == walk.at {
                return Err(NoRoute::Circle(node));
            }
            let vl;
            (walk, vl) = self.cross(walk, out, sl, pkey)?;
            leave(out, vl);
        }
    }

    /// The ports that a multicast data packet reaches, the sender's own not among them: whether an
    /// adapter loops a packet back to its own queue pairs is the adapter's affair.
    ///
    /// Copies that are dropped on the way are not told of, as on hardware.
    pub fn resolve_multicast(
        &self,
        from: PortRef,
        mlid: Lid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Vec<Route> {
        self.walk_group(from, mlid, sl, pkey, |_, _| ())
    }

    /// The ports by which the copies of a multicast data packet leave the nodes on their way, and
    /// the lane there: one for each link.
    pub fn trace_multicast(
        &self,
        from: PortRef,
        mlid: Lid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Vec<(PortRef, Vl)> {
        let mut crossed = Vec::new();
        self.walk_group(from, mlid, sl, pkey, |port, vl| crossed.push((port, vl)));
        crossed
    }

    fn walk_group(
        &self,
        from: PortRef,
        mlid: Lid,
        sl: Sl,
        pkey: Option<PKey>,
        mut leave: impl FnMut(PortRef, Vl),
    ) -> Vec<Route> {
        let mut reached = Vec::new();
        if !mlid.is_multicast() {
            return reached;
        }
        let mut walks: Vec<_> = self.depart(from, sl, pkey).into_iter().collect();
        for walk in &walks {
            leave(from, walk.vl);
        }
        // Tables that make circles would copy a packet without end: a port is entered once.
        let mut entered = std::collections::HashSet::new();
        while let Some(walk) = walks.pop() {
            if !entered.insert(walk.at) {
                continue;
            }
            let Some(switch) = self.switch(walk.at.node) else {
                if walk.at != from {
                    reached.push(Route {
                        port: walk.at,
                        mtu: walk.mtu,
                        vl: walk.vl,
                        hops: walk.hops,
                        delay: walk.delay,
                    });
                }
                continue;
            };
            for port in switch.multicast.ports(mlid) {
                let out = PortRef { port, ..walk.at };
                if port != 0
                    && port != walk.at.port
                    && let Ok((walk, vl)) = self.cross(walk, out, sl, pkey)
                {
                    leave(out, vl);
                    walks.push(walk);
                }
            }
        }
        reached.sort_by_key(|route| route.port);
        reached
    }

    /// The port by which a switch sends a unicast LID on; `None` where it drops it.
    pub fn forwarding(&self, node: NodeId, dlid: Lid) -> Option<u8> {
        Some(self.forwarding_port(node, dlid).ok()?.port)
    }

    /// The port by which a switch sends a unicast LID on.
    pub(crate) fn forwarding_port(&self, node: NodeId, dlid: Lid) -> Result<PortRef, NoRoute> {
        let switch = self.switch(node).ok_or(NoRoute::Dropped(node))?;
        let within = dlid.is_unicast() && dlid.value() <= switch.info.linear_fdb_top;
        match switch.linear.port(dlid) {
            LinearBlock::DROP => Err(NoRoute::Dropped(node)),
            port if within => Ok(PortRef { node, port }),
            _ => Err(NoRoute::Dropped(node)),
        }
    }

    /// The port by which a switch sends a vLID on.
    fn secondary_port(&self, node: NodeId, dlid: ExtendedLid) -> Result<PortRef, NoRoute> {
        let table = self
            .switch(node)
            .and_then(|switch| switch.secondary.as_ref());
        match table.map_or(LinearBlock::DROP, |table| table.port(dlid)) {
            LinearBlock::DROP => Err(NoRoute::Dropped(node)),
            port => Ok(PortRef { node, port }),
        }
    }

    /// Whether data that came in at `at` by port `from` (0: the node's own) may leave by `out`, and
    /// on which lane.
    pub(crate) fn admit(
        &self,
        at: PortRef,
        from: u8,
        out: PortRef,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<Vl, NoRoute> {
        let port = self
            .port(out)
            .filter(|port| port.state() == PortState::Active && port.is_linked())
            .ok_or(NoRoute::NotActive(out))?;
        let peer = port.peer.ok_or(NoRoute::NotActive(out))?;
        // A port that is armed receives data already.
        self.port(peer)
            .filter(|port| port.state() >= PortState::Armed)
            .ok_or(NoRoute::NotActive(peer))?;
        if let Some(pkey) = pkey
            && self.switch(out.node).is_some()
        {
            let inbound = self
                .port(PortRef { port: from, ..at })
                .filter(|port| from != 0 && port.info.partition_enforcement_inbound);
            if inbound.is_some_and(|port| !port.holds(pkey)) {
                return Err(NoRoute::Partition(PortRef { port: from, ..at }));
            }
            if port.info.partition_enforcement_outbound && !port.holds(pkey) {
                return Err(NoRoute::Partition(out));
            }
        }
        port.lane(from, sl).ok_or(NoRoute::Lane(out))
    }

    /// Whether a port sends data to itself, and on which lane.
    pub(crate) fn loop_back(&self, at: PortRef, sl: Sl) -> Result<Vl, NoRoute> {
        let port = self
            .port(at)
            .filter(|port| port.state() == PortState::Active)
            .ok_or(NoRoute::NotActive(at))?;
        port.lane(0, sl).ok_or(NoRoute::Lane(at))
    }

    /// The first link of a path.
    fn depart(&self, from: PortRef, sl: Sl, pkey: Option<PKey>) -> Result<Walk, NoRoute> {
        let vl = self.admit(from, 0, from, sl, pkey)?;
        let (peer, mtu, delay) = self.beyond(from)?;
        Ok(Walk {
            at: peer,
            mtu,
            vl,
            hops: 1,
            delay,
        })
    }

    /// A further link, and the lane on it.
    fn cross(
        &self,
        walk: Walk,
        out: PortRef,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<(Walk, Vl), NoRoute> {
        let vl = self.admit(walk.at, walk.at.port, out, sl, pkey)?;
        let (peer, mtu, delay) = self.beyond(out)?;
        let walk = Walk {
            at: peer,
            mtu: walk.mtu.min(mtu),
            vl: walk.vl,
            hops: walk.hops + 1,
            delay: walk.delay + delay,
        };
        Ok((walk, vl))
    }

    /// Where data gets that leaves by a port, how much of it at a time, and how long that takes.
    fn beyond(&self, out: PortRef) -> Result<(PortRef, Mtu, Duration), NoRoute> {
        let port = self.port(out).ok_or(NoRoute::NotActive(out))?;
        let peer = port.peer.ok_or(NoRoute::NotActive(out))?;
        if port.is_starved() {
            return Err(NoRoute::Stalled(out));
        }
        let delay = port.fault.map_or(Duration::ZERO, |fault| fault.delay);
        Ok((peer, port.info.active_mtu(), delay))
    }
}
