//! Experiments in which subnet managers manage a fabric in memory, packet by packet.

pub mod flood;
pub mod scale;

use std::time::Duration;

use fabric::{Fabric, PortRef, Station};
use nix::time::{ClockId, clock_gettime};
use subnet_manager::SubnetManager;

/// A subnet manager and the port that it talks through.
#[derive(Debug)]
struct Managed {
    manager: SubnetManager,
    station: Station,
    /// The manager's clock, which goes on by what the manager waits for.
    now: Duration,
}

impl Managed {
    fn new(manager: SubnetManager, port: PortRef, fabric: &mut Fabric) -> Self {
        Self {
            manager,
            station: Station::of_manager(fabric, port),
            now: Duration::ZERO,
        }
    }

    /// Polls the manager, whose packets arrive.
    fn poll(&mut self, fabric: &mut Fabric) -> Option<Duration> {
        self.manager.poll(self.now, &mut self.station.at(fabric))
    }

    /// Polls the manager until there is a result, and lets time pass as the manager asks for; `None` where it waits for
    /// nothing.
    fn until<T>(
        &mut self,
        fabric: &mut Fabric,
        result: impl Fn(&mut SubnetManager) -> Option<T>,
    ) -> Option<T> {
        loop {
            let next = self.poll(fabric);
            if let Some(result) = result(&mut self.manager) {
                return Some(result);
            }
            self.now = next?;
        }
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
