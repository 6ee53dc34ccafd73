//! The subnet as the engine sees it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;
use std::time::Duration;

use fabric::{GlobalAddress, LostHeader, PortRef, Route, Routed};
use hca::transport::{Injection, Links};
use hca::{Envelope, Heading, NoRoute, PathId, PathTraffic, Subnet, VfId, WrongKey};
use wire::congestion::AdapterCongestionEvent;
use wire::{Gid, Lid, MadPacket, Mtu, PKey, Sl};

use super::VSwitch;
use super::congestion::injection;
use super::snapshot::Snapshot;
use crate::core::Core;
use crate::core::cluster::Addresses;

/// Nanoseconds of a path's delay, which is minutes at most.
fn nanoseconds(delay: Duration) -> u64 {
    delay.as_nanos() as u64
}

#[derive(Debug)]
pub(crate) struct EngineSubnet {
    pub(crate) vswitch: Arc<VSwitch>,
    /// Called with the engine in hand.
    pub(crate) waker: Waker,
}

impl EngineSubnet {
    /// The paths by which a packet reaches the members of a group of a cluster in full mode, and the ports that it leaves
    /// on them. The subnet has no such group: its sender sends a copy to each member.
    fn paths_to_group(
        &self,
        snapshot: &Snapshot,
        (from, port): (VfId, PortRef),
        members: &[(VfId, Mtu)],
        (sl, pkey): (Sl, PKey),
    ) -> (Vec<PortRef>, Vec<Route>) {
        let (mut tree, mut routes) = (Vec::new(), Vec::new());
        for &(to, mtu) in members.iter().filter(|(to, _)| *to != from) {
            let Some(end) = self.vswitch.port(to) else {
                continue;
            };
            let lid = snapshot.physical_lid(to, end);
            let (left_by, route) = snapshot.nodes.follow(port, lid.into(), sl, Some(pkey));
            // Those at one port get one copy.
            let known = routes.iter().any(|other: &Route| other.port == end);
            if let (Ok(route), false) = (route, known) {
                tree.extend(left_by);
                routes.push(Route {
                    mtu: route.mtu.min(mtu),
                    ..route
                });
            }
        }
        (tree, routes)
    }

    /// The cluster of a VF, if its manager may read counters of the cluster's traffic.
    fn counted_apart(&self, vf: VfId, addresses: &Addresses) -> Option<usize> {
        let cluster = addresses.cluster_of(vf);
        cluster.filter(|&cluster| self.vswitch.views.may_be_managed(cluster))
    }

    /// Has the vSwitch look for what there is to do.
    fn wake(&self) {
        self.vswitch.wake_by(&self.waker);
    }
}

impl Subnet for EngineSubnet {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.vswitch.generation)
    }

    fn traffic(&self) -> Arc<PathTraffic> {
        self.vswitch.paths.lock().traffic()
    }

    fn links(&self) -> Option<Box<dyn Links>> {
        let links = self.vswitch.links.as_ref()?;
        Some(links.for_engine())
    }

    fn injection(&self, at: VfId) -> Option<Arc<Injection>> {
        self.vswitch.links.as_ref()?;
        let port = self.vswitch.port(at)?;
        let snapshot = self.vswitch.snapshot();
        injection(snapshot.nodes.adapter_congestion(port)?)
    }

    fn held_back(&mut self, at: VfId, event: AdapterCongestionEvent) {
        if let Some(port) = self.vswitch.port(at) {
            let now = self.vswitch.now().as_nanos() as u64;
            self.vswitch.held.add(port, event, now);
        }
    }

    fn resolve(&mut self, from: VfId, heading: &Heading) -> Result<hca::Route, NoRoute> {
        let &Heading {
            dlid,
            sl,
            pkey,
            global,
        } = heading;
        let port = self.vswitch.port(from).ok_or(NoRoute::Dropped)?;
        let Snapshot {
            nodes,
            addresses,
            sharing,
            ..
        } = &**self.vswitch.snapshot();
        let destination = addresses.destination(from, dlid);
        let destination = destination.ok_or(NoRoute::Dropped)?;
        // In full mode both the cluster's network and the subnet have to have a path.
        let tenancy = addresses.tenancy(from);
        let own_mtu = tenancy.map(|tenancy| tenancy.path_mtu(from, dlid, sl, pkey));
        if own_mtu == Some(None) {
            return Err(NoRoute::Dropped);
        }
        let own_mtu = own_mtu.flatten();
        let apart = self
            .counted_apart(from, addresses)
            .map(|cluster| (cluster, sl));
        let sl = tenancy.map_or(sl, |tenancy| tenancy.wire_level(from, sl));
        let global = global.map(|(dgid, hop_limit)| GlobalAddress { dgid, hop_limit });
        let (mut left_by, route) = nodes.follow_routed(port, destination, sl, Some(pkey), global);
        // Traps have room for 16 bits.
        let dlid = destination.physical().unwrap_or_default();
        let counts = |port| self.vswitch.layout.functions.contains_key(&port);
        let (slid, _) = sharing.address(from, nodes, port);
        let header = LostHeader {
            slid,
            dlid,
            sl,
            pkey,
        };
        let to = route.map(|Routed { route, crossing }| {
            let crossing = crossing.map(|crossing| hca::Crossing {
                slid: crossing.slid,
                dlid: crossing.dlid.physical().unwrap_or_default(),
                hop_limit: crossing.hop_limit,
            });
            let dlid = crossing.map_or(dlid, |crossing| crossing.dlid);
            let to = self.vswitch.layout.function_with(nodes, route.port, dlid);
            (route, crossing, to)
        });
        if let Ok((.., Some(to))) = to
            && !addresses.together(from, to)
        {
            return Err(NoRoute::Dropped);
        }
        let (to, shares) = match (&self.vswitch.links, to) {
            (Some(links), Ok((route, ..))) => match links.way(nodes, &left_by, sl, &[route.port]) {
                Ok(shares) => (to, shares[0]),
                Err(stuck) => {
                    let at = left_by[stuck];
                    left_by.truncate(stuck);
                    (Err(fabric::NoRoute::Stalled(at)), None)
                }
            },
            (_, to) => (to, None),
        };
        let held = to == Err(fabric::NoRoute::Stalled(port));
        if left_by.is_empty() && to.is_err() && !held {
            return Err(NoRoute::Dropped);
        }
        let faulty = nodes.is_lossy(&left_by);
        let lost = to.err().map(|reason| (reason, header));
        let mut paths = self.vswitch.paths.lock();
        let path = paths.number(nodes, (false, apart), sl, &left_by, lost, counts);
        drop(paths);
        match to {
            Ok((Route { mtu, delay, .. }, crossing, Some(to))) => Ok(hca::Route {
                end: hca::End::Here(to),
                mtu: own_mtu.map_or(mtu, |own| own.min(mtu)),
                path,
                faulty,
                delay: nanoseconds(delay),
                shares,
                crossing,
            }),
            Ok((.., None)) => Err(NoRoute::Lost(path)),
            Err(_) => {
                // Somebody may want to know.
                self.wake();
                Err(if held {
                    NoRoute::Held(path)
                } else {
                    NoRoute::Lost(path)
                })
            }
        }
    }

    fn group_lid(&self, from: VfId, mgid: Gid, lid: Lid) -> Lid {
        let snapshot = self.vswitch.snapshot();
        let port = self.vswitch.port(from);
        port.map_or(lid, |port| snapshot.group_lid(from, port, mgid, lid))
    }

    fn resolve_multicast(&mut self, from: VfId, mlid: Lid, sl: Sl, pkey: PKey) -> Vec<hca::Route> {
        let Some(port) = self.vswitch.port(from) else {
            return Vec::new();
        };
        let snapshot = self.vswitch.snapshot();
        let Snapshot {
            nodes, addresses, ..
        } = &**snapshot;
        let tenancy = addresses.tenancy(from);
        let members = tenancy.map(|tenancy| tenancy.group(from, mlid, sl, pkey));
        let apart = self
            .counted_apart(from, addresses)
            .map(|cluster| (cluster, sl));
        let sl = tenancy.map_or(sl, |tenancy| tenancy.wire_level(from, sl));
        let (tree, routes): (Vec<_>, _) = match members {
            Some(members) => self.paths_to_group(&snapshot, (from, port), &members, (sl, pkey)),
            None => {
                let tree = nodes.trace_multicast(port, mlid, sl, Some(pkey));
                let routes = nodes.resolve_multicast(port, mlid, sl, Some(pkey));
                (tree.into_iter().map(|(port, _)| port).collect(), routes)
            }
        };
        let counts = |port| self.vswitch.layout.functions.contains_key(&port);
        let mut paths = self.vswitch.paths.lock();
        let path = paths.number(nodes, (true, apart), sl, &tree, None, counts);
        drop(paths);
        let faulty = nodes.is_lossy(&tree);
        let ends: Vec<_> = routes.iter().map(|route| route.port).collect();
        let shares = self
            .vswitch
            .links
            .as_ref()
            .map_or(Ok(Vec::new()), |links| links.way(nodes, &tree, sl, &ends));
        // Copies that wait for ever at one port keep the others.
        let shares = shares.unwrap_or_default().into_iter();
        { routes.into_iter() }
            .zip(shares.chain(std::iter::repeat(None)))
            .filter_map(|(route, shares)| {
                let functions = self.vswitch.layout.functions_at(route.port).into_iter();
                // Of those at one port the engine finds all that are in the sender's cluster.
                let to = { functions }.find(|&to| addresses.together(from, to))?;
                Some(hca::Route {
                    end: hca::End::Here(to),
                    mtu: route.mtu,
                    path,
                    faulty,
                    delay: nanoseconds(route.delay),
                    shares,
                    crossing: None,
                })
            })
            .collect()
    }

    fn lose(&mut self, path: PathId, packets: u64, words: u64) -> Option<u64> {
        let Core { fabric, paths, .. } = &mut *self.vswitch.change();
        paths.learn(self.vswitch.paths.lock().take_news());
        let (left_by, sl) = paths.left_by(path);
        let before = fabric.lose(left_by, sl, packets, words);
        if before.is_some() {
            // A port may have something to tell.
            self.wake();
        }
        before
    }

    fn lose_multicast(&mut self, path: PathId, words: u64) -> Option<Vec<VfId>> {
        let Core { fabric, paths, .. } = &mut *self.vswitch.change();
        paths.learn(self.vswitch.paths.lock().take_news());
        let (left_by, sl) = paths.left_by(path);
        let reached = fabric.lose_multicast(left_by, sl, words)?;
        self.wake();
        let functions = reached.into_iter();
        Some(
            functions
                .flat_map(|port| self.vswitch.layout.functions_at(port))
                .collect(),
        )
    }

    fn wrong_key(&mut self, at: VfId, key: WrongKey, packet: &Envelope) {
        if let Some(port) = self.vswitch.port(at) {
            self.vswitch
                .wrong_keys
                .lock()
                .insert(port, (at, key, *packet));
            self.wake();
        }
    }

    fn send_mad(&mut self, from: VfId, packet: MadPacket) {
        if self.vswitch.filter.admit(self.vswitch.now(), from, &packet) {
            self.vswitch.take_packet(from, packet, &self.waker);
        }
    }
}
