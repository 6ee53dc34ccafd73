//! The subnet as the engine sees it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hca::{MadDatagram, NoRoute, Route, Subnet, VfId};
use wire::{Lid, PKey, Sl};

use super::datagram::packet;
use super::{Management, Message};

#[derive(Debug)]
pub(super) struct EngineSubnet(pub(super) Arc<Management>);

impl Subnet for EngineSubnet {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.generation)
    }

    fn resolve(&mut self, from: VfId, dlid: Lid, sl: Sl, pkey: PKey) -> Result<Route, NoRoute> {
        let from = self.0.port(from).ok_or(NoRoute::Dropped)?;
        let route = self
            .0
            .state
            .lock()
            .fabric
            .resolve(from, dlid, sl, Some(pkey))
            .map_err(|_| NoRoute::Dropped)?;
        let to = *self
            .0
            .functions
            .get(&route.port)
            .ok_or(NoRoute::NoQueuePairs)?;
        Ok(Route { to, mtu: route.mtu })
    }

    fn resolve_multicast(&mut self, from: VfId, mlid: Lid, sl: Sl, pkey: PKey) -> Vec<Route> {
        let Some(from) = self.0.port(from) else {
            return Vec::new();
        };
        let routes = self
            .0
            .state
            .lock()
            .fabric
            .resolve_multicast(from, mlid, sl, Some(pkey));
        routes
            .into_iter()
            .filter_map(|route| {
                Some(Route {
                    to: *self.0.functions.get(&route.port)?,
                    mtu: route.mtu,
                })
            })
            .collect()
    }

    fn send_mad(&mut self, from: VfId, datagram: MadDatagram) {
        let packet = packet(&datagram);
        if self.0.proxy.admit(self.0.now(), from, &packet) {
            // The thread that would receive it may have ended.
            let _ = self.0.sender.send(Message::Send(from, Box::new(packet)));
        }
    }
}
