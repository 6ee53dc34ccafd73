//! Routes that a function has looked up.

use wire::{Gid, Lid, PKey, Sl};

use crate::path::{Heading, NoRoute, Route};

/// Result of resolving a route, cached for packets with one heading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedRoute {
    pub heading: Heading,
    pub generation: u64,
    pub route: Result<Route, NoRoute>,
}

impl CachedRoute {
    /// Whether this still answers for such a packet.
    #[inline]
    pub fn holds(&self, heading: &Heading, generation: u64) -> bool {
        self.generation == generation && self.heading == *heading
    }
}

/// Where multicast packets to a group go.
#[derive(Debug)]
pub(crate) struct CachedFanout {
    pub mgid: Gid,
    /// The group's LID as its sender knows it, and as the subnet does.
    pub mlid: Lid,
    pub here: Lid,
    pub pkey: PKey,
    pub sl: Sl,
    pub generation: u64,
    pub routes: Vec<Route>,
}

/// Slots of the multicast route cache.
pub(crate) const FANOUT_CACHE: usize = 16;

/// Slots of the datagram route cache.
pub(crate) const ROUTE_CACHE: usize = 64;

/// Where datagrams of a function go, as last resolved. No image has it.
#[derive(Debug)]
pub(crate) struct Ways {
    pub routes: [Option<CachedRoute>; ROUTE_CACHE],
    pub fanouts: [Option<CachedFanout>; FANOUT_CACHE],
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            routes: [None; ROUTE_CACHE],
            fanouts: [const { None }; FANOUT_CACHE],
        }
    }
}
