//! Links that share their bandwidth among lanes: all engines' frames wait at the same ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use fabric::{Marks, Nodes, PortRef, Queues};
use hca::Shares;
use hca::transport::{Links, Load, Passed};
use parking_lot::Mutex;
use wire::Sl;

/// The links of all subnets.
#[derive(Debug, Default)]
pub(crate) struct SharedLinks {
    queues: Mutex<Queues>,
    engines: AtomicU16,
}

impl SharedLinks {
    /// The links as one more engine sees them.
    pub(crate) fn for_engine(self: &Arc<Self>) -> Box<dyn Links> {
        Box::new(EngineLinks {
            links: Arc::clone(self),
            engine: self.engines.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The marks that switches have made since the last call.
    pub(crate) fn take_marks(&self) -> Marks {
        self.queues.lock().take_marks()
    }

    /// The way of packets of a service level that leave nodes by these ports, for each of the `ends`,
    /// which are ports. They have all of the bandwidth where there are no links, or too many ways.
    ///
    /// # Errors
    /// Index of the port that has no table with the packets' lane, so that they wait there for ever.
    pub(crate) fn way(
        &self,
        nodes: &Nodes,
        left_by: &[PortRef],
        sl: Sl,
        ends: &[PortRef],
    ) -> Result<Vec<Option<Shares>>, usize> {
        let none = || vec![None; ends.len()];
        let Some(hops) = nodes.hops(left_by, sl).filter(|hops| !hops.is_empty()) else {
            return Ok(none());
        };
        let links: Vec<_> = left_by.iter().map(|&at| nodes.shared_link(at)).collect();
        for (at, (link, hop)) in links.iter().zip(&hops).enumerate() {
            if link
                .as_ref()
                .is_some_and(|link| !link.arbiter.serves(hop.lane))
            {
                return Err(at);
            }
        }
        let rate = { links.first() }.and_then(|link| Some(link.as_ref()?.rate));
        let mut links = links.into_iter();
        let way = self.queues.lock().way(&hops, |_| links.next().flatten());
        let Some(way) = way else {
            return Ok(none());
        };
        let shares = |&end| {
            let last = hops
                .iter()
                .position(|hop| nodes.peer(hop.port) == Some(end));
            last.map(|last| Shares {
                way,
                end: last as u16,
                lane: hops[0].lane,
                rate: rate.unwrap_or(u64::MAX),
            })
        };
        Ok(ends.iter().map(shares).collect())
    }
}

/// The links as an engine sees them.
#[derive(Debug)]
struct EngineLinks {
    links: Arc<SharedLinks>,
    engine: u16,
}

impl Links for EngineLinks {
    fn enter(&mut self, now: u64, load: Load) {
        let Load {
            way,
            token,
            packets,
            full,
            last,
            header,
        } = load;
        let load = fabric::Load {
            owner: self.engine,
            token,
            way,
            packets,
            full,
            last,
            header,
        };
        self.links.queues.lock().enter(now, load);
    }

    fn leave(&mut self, now: u64) -> Option<Passed> {
        let arrived = self.links.queues.lock().next(self.engine, now)?;
        Some(Passed {
            token: arrived.token,
            end: arrived.hop,
            at: arrived.at,
            done: arrived.done,
            marked: arrived.marked,
        })
    }

    fn deadline(&self) -> Option<u64> {
        self.links.queues.lock().deadline(self.engine)
    }
}
