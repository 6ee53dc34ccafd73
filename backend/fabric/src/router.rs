//! Subnets joined by a router: packets with a global route header go from one to the other.
//!
//! LIDs and forwarding tables end at a subnet's edge. A virtual machine that moves to another subnet
//! gets another LID there, of which its peers in the first one need not know: they send to its GID,
//! whose upper half says which subnet it is in, by way of the router.

use wire::{ExtendedLid, Gid, PKey, Sl};

use crate::fabric::Fabric;
use crate::route::{NoRoute, Route};
use crate::topology::PortRef;

/// A router with a port in each of some subnets. It only looks: the subnets are other people's.
#[derive(Debug)]
pub struct Router<'a> {
    ports: Vec<(&'a Fabric, PortRef)>,
}

/// The way of a packet with a global route header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalPath {
    /// In the sender's subnet: to the destination, or to the router.
    pub first: Route,
    /// The destination's subnet, and the way from the router there.
    pub second: Option<(usize, Route)>,
}

/// Why there is no router, or no way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoGlobalPath {
    /// Nobody could tell these subnets apart.
    #[error("subnets {0} and {1} have the same prefix; give each its own (fabric.subnet_prefix)")]
    SamePrefix(usize, usize),
    /// There is no such subnet.
    #[error("there is no subnet number {0}")]
    NoSubnet(usize),
    /// No subnet has this prefix, or no port of it this GID.
    #[error("no port has the GID {0}")]
    NoPort(Gid),
    /// It is in a subnet, but has no LID there.
    #[error("the port of GID {0} has no LID")]
    NoLid(Gid),
    /// The packet is lost in a subnet.
    #[error("in subnet {0}: {1}")]
    Lost(usize, NoRoute),
}

impl<'a> Router<'a> {
    /// A router with these ports, one in each subnet; subnets are numbered in this order.
    ///
    /// # Errors
    /// [`NoGlobalPath::SamePrefix`].
    pub fn new(ports: Vec<(&'a Fabric, PortRef)>) -> Result<Self, NoGlobalPath> {
        let prefix = |&(fabric, port): &(&Fabric, PortRef)| Self::prefix(fabric, port);
        for (number, port) in ports.iter().enumerate() {
            let same = |other: &(&Fabric, PortRef)| prefix(other) == prefix(port);
            if let Some(other) = ports[..number].iter().position(same) {
                return Err(NoGlobalPath::SamePrefix(other, number));
            }
        }
        Ok(Self { ports })
    }

    fn prefix(fabric: &Fabric, port: PortRef) -> Option<u64> {
        Some(fabric.port_info(port)?.gid_prefix)
    }

    /// The way from a port of a subnet to a GID.
    ///
    /// # Errors
    /// [`NoGlobalPath`].
    pub fn resolve(
        &self,
        (subnet, from): (usize, PortRef),
        dgid: Gid,
        sl: Sl,
        pkey: Option<PKey>,
    ) -> Result<GlobalPath, NoGlobalPath> {
        let &(here, own) = self
            .ports
            .get(subnet)
            .ok_or(NoGlobalPath::NoSubnet(subnet))?;
        let holds = |fabric: &Fabric| {
            let port = fabric.port_by_guid(dgid.guid())?;
            fabric.gids(port).any(|gid| gid == dgid).then_some(port)
        };
        let mut subnets = self.ports.iter().enumerate();
        let found = subnets.find_map(|(number, &(fabric, _))| Some((number, holds(fabric)?)));
        let (target, port) = found.ok_or(NoGlobalPath::NoPort(dgid))?;
        let (there, entrance) = self.ports[target];
        let dlid = lid(there, port).ok_or(NoGlobalPath::NoLid(dgid))?;
        if target == subnet {
            let first = here.resolve_extended(from, dlid, sl, pkey);
            let first = first.map_err(|reason| NoGlobalPath::Lost(subnet, reason))?;
            return Ok(GlobalPath {
                first,
                second: None,
            });
        }
        let router = here
            .port_info(own)
            .map_or(ExtendedLid::from(wire::Lid::NONE), |info| info.lid.into());
        let first = here.resolve_extended(from, router, sl, pkey);
        let first = first.map_err(|reason| NoGlobalPath::Lost(subnet, reason))?;
        let second = there.resolve_extended(entrance, dlid, sl, pkey);
        let second = second.map_err(|reason| NoGlobalPath::Lost(target, reason))?;
        Ok(GlobalPath {
            first,
            second: Some((target, second)),
        })
    }
}

/// The LID of a port, of whichever kind it has.
fn lid(fabric: &Fabric, port: PortRef) -> Option<ExtendedLid> {
    let ordinary = fabric.port_info(port)?.lid;
    match ordinary.is_unicast() {
        true => Some(ordinary.into()),
        false => fabric.virtual_lid(port),
    }
}
