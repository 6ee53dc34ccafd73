//! Routers: nodes with a port in each of several subnets, which pass packets with a global route
//! header from one to the other (IBA, chapter 19).
//!
//! The subnets are parts of one fabric that no cable joins, each with a manager, LIDs and forwarding
//! tables of its own, and each with a prefix of its own, the upper half of its GIDs. In each of them a
//! router is an end, as an adapter is: no subnet management packet gets past it. It passes on what
//! comes to its LID for a GID of another subnet, with the hop limit lowered and LIDs of that subnet.
//!
//! A real router is told by the subnet administrations and by its neighbours where a GID is, and which router leads
//! to which subnet; this one reads it from the fabric.

use std::collections::{HashSet, VecDeque};

use wire::attribute::NodeType;
use wire::{ExtendedLid, Gid, Lid, PKey, PortState, Sl};

use crate::agents::directed::Origin;
use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::node::Node;
use crate::nodes::topology::{NodeId, PortRef};
use crate::packet::Transit;
use crate::paths::route::{NoRoute, Route};

/// Fields of a global route header that decide a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalAddress {
    /// Where it is to end.
    pub dgid: Gid,
    /// Number of subnets that it may still be in, this one included; 0 means the same as 1.
    pub hop_limit: u8,
}

/// Headers of a packet after routers have passed it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// Source LID: the last router's.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: ExtendedLid,
    /// Hop limit.
    pub hop_limit: u8,
}

/// The end of a packet's way, and what it looks like there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routed {
    /// The path: all its links and what they take, the lane of the first.
    pub route: Route,
    /// `None` where it does not cross a router.
    pub crossing: Option<Crossing>,
}

/// Where a router sends a packet.
struct Onward {
    /// By this port of it.
    exit: PortRef,
    headers: Crossing,
}

impl Nodes {
    /// Follows a packet as [`Nodes::follow`] does, and further where routers pass it on.
    ///
    /// # Errors
    /// The second value has the errors of [`Nodes::resolve`], and [`NoRoute::HopLimit`] and
    /// [`NoRoute::NotRouted`].
    pub fn follow_routed(
        &self,
        from: PortRef,
        dlid: ExtendedLid,
        sl: Sl,
        pkey: Option<PKey>,
        global: Option<GlobalAddress>,
    ) -> (Vec<PortRef>, Result<Routed, NoRoute>) {
        let (mut left_by, end) = self.follow(from, dlid, sl, pkey);
        let mut route = match end {
            Ok(route) => route,
            Err(reason) => return (left_by, Err(reason)),
        };
        let (mut global, mut crossing) = (global, None);
        // Hop limits end this.
        while self.is_router(route.port.node) {
            let Onward { exit, headers } = match self.onward(route.port, global) {
                Ok(Some(onward)) => onward,
                Ok(None) => break,
                Err(reason) => return (left_by, Err(reason)),
            };
            let (links, end) = self.follow(exit, headers.dlid, sl, pkey);
            left_by.extend(links);
            route = match end {
                Ok(next) => Route {
                    port: next.port,
                    mtu: route.mtu.min(next.mtu),
                    vl: route.vl,
                    hops: route.hops.saturating_add(next.hops),
                    delay: route.delay + next.delay,
                },
                Err(reason) => return (left_by, Err(reason)),
            };
            crossing = Some(headers);
            global = global.map(|global| GlobalAddress {
                hop_limit: headers.hop_limit,
                ..global
            });
        }
        (left_by, Ok(Routed { route, crossing }))
    }

    pub(crate) fn is_router(&self, node: NodeId) -> bool {
        self.node(node)
            .is_some_and(|node| node.spec.kind == NodeType::Router)
    }

    /// Where a router sends a packet that has come to its port `at`; `None` when it is for the router
    /// itself.
    fn onward(
        &self,
        at: PortRef,
        global: Option<GlobalAddress>,
    ) -> Result<Option<Onward>, NoRoute> {
        let Some(GlobalAddress { dgid, hop_limit }) = global else {
            return Ok(None);
        };
        if self.has_gid(at, dgid) {
            return Ok(None);
        }
        // Local addresses mean nothing beyond their subnet (IBA 4.1.1).
        if dgid.is_link_local() {
            return Err(NoRoute::NotRouted(at));
        }
        if hop_limit < 2 {
            return Err(NoRoute::HopLimit(at));
        }
        let (exit, dlid) = self.exit(at.node, dgid).ok_or(NoRoute::NotRouted(at))?;
        let slid = self.port(exit).map_or(Lid::NONE, |port| port.info.lid);
        Ok(Some(Onward {
            exit,
            headers: Crossing {
                slid,
                dlid,
                hop_limit: hop_limit - 1,
            },
        }))
    }

    /// The port by which a router reaches a GID, and the LID to which it sends there: the GID's, or
    /// the next router's.
    fn exit(&self, router: NodeId, dgid: Gid) -> Option<(PortRef, ExtendedLid)> {
        if let Some(exit) = self.port_in(router, dgid.prefix()) {
            let port = self.port_by_guid(dgid.guid())?;
            let is_there = self.has_gid(port, dgid);
            return Some((exit, self.end_lid(port).filter(|_| is_there)?));
        }
        let (exit, next) = self.next_router(router, dgid.prefix())?;
        Some((exit, self.end_lid(next)?))
    }

    /// The first step of the way with the fewest routers to the subnet of a prefix: the port to leave
    /// by, and the next router's port.
    fn next_router(&self, router: NodeId, prefix: u64) -> Option<(PortRef, PortRef)> {
        let mut seen = HashSet::from([router]);
        let mut queue = VecDeque::from([(router, None)]);
        while let Some((at, first)) = queue.pop_front() {
            for out in self.active_ports(at) {
                let shared = self.port(out)?.info.gid_prefix;
                for &other in self.routers() {
                    let Some(entry) = self.port_in(other, shared) else {
                        continue;
                    };
                    if !seen.insert(other) {
                        continue;
                    }
                    let first = first.unwrap_or((out, entry));
                    if self.port_in(other, prefix).is_some() {
                        return Some(first);
                    }
                    queue.push_back((other, Some(first)));
                }
            }
        }
        None
    }

    /// A router's port in the subnet of a prefix.
    fn port_in(&self, router: NodeId, prefix: u64) -> Option<PortRef> {
        let is_in = |&at: &PortRef| {
            let port = self.port(at);
            port.is_some_and(|port| port.info.gid_prefix == prefix)
        };
        self.active_ports(router).find(is_in)
    }

    fn active_ports(&self, node: NodeId) -> impl Iterator<Item = PortRef> + '_ {
        let last = self.node(node).map_or(0, Node::last_port);
        let ports = 1..=last;
        let ports = ports.map(move |port| PortRef { node, port });
        ports.filter(|&at| {
            let port = self.port(at);
            port.is_some_and(|port| port.state() == PortState::Active)
        })
    }

    /// The LID of a port, of whichever kind it has.
    fn end_lid(&self, port: PortRef) -> Option<ExtendedLid> {
        let ordinary = self.port(port)?.info.lid;
        if ordinary.is_unicast() {
            Some(ordinary.into())
        } else {
            self.virtual_lid(port)
        }
    }
}

impl Fabric {
    /// A management packet has come to a router's port by its LID.
    pub(crate) fn reach_router(&mut self, at: PortRef, mut transit: Transit) {
        let global = transit.packet.grh.map(|grh| GlobalAddress {
            dgid: grh.dgid,
            hop_limit: grh.hop_limit,
        });
        match self.onward(at, global) {
            Ok(None) => self.arrive(at, at.port, transit),
            Ok(Some(Onward { exit, headers })) => {
                let packet = &mut transit.packet;
                packet.slid = headers.slid;
                // Management is between LIDs of 16 bits.
                packet.dlid = headers.dlid.physical().unwrap_or_default();
                if let Some(grh) = &mut packet.grh {
                    grh.hop_limit = headers.hop_limit;
                }
                self.push(Transit {
                    at: exit,
                    origin: Origin::Own(exit.port),
                    hops: 0,
                    packet: transit.packet,
                });
            }
            Err(reason) => self.count_refused(at, reason, 1),
        }
    }
}
