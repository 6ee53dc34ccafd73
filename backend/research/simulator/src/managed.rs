//! Experiments in which subnet managers manage a fabric in memory, packet by packet.

pub mod flood;
pub mod scale;

use std::collections::VecDeque;
use std::time::Duration;

use fabric::{Fabric, Output, Owner, PortRef, SmpAccess};
use nix::time::{ClockId, clock_gettime};
use subnet_manager::{SubnetManager, Transport};
use wire::MadPacket;
use wire::attribute::CapabilityMask;

/// A subnet manager and the port that it talks through.
#[derive(Debug)]
struct Managed {
    manager: SubnetManager,
    port: PortRef,
    /// The manager's clock, which goes on by what the manager waits for.
    now: Duration,
    inbox: VecDeque<MadPacket>,
    /// Whether packets for other ports are kept.
    keeps_others: bool,
    others: Vec<(PortRef, MadPacket)>,
}

/// The port of a manager while the manager has the fabric.
struct Link<'a> {
    fabric: &'a mut Fabric,
    port: PortRef,
    inbox: &'a mut VecDeque<MadPacket>,
    others: Option<&'a mut Vec<(PortRef, MadPacket)>>,
}

impl Transport for Link<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.fabric.inject(self.port, packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.fabric.run();
        while let Some(output) = self.fabric.poll_output() {
            match output {
                Output::Deliver { port, packet } if port == self.port => {
                    self.inbox.push_back(*packet);
                }
                Output::Deliver { port, packet } => {
                    if let Some(others) = &mut self.others {
                        others.push((port, *packet));
                    }
                }
                _ => {}
            }
        }
        self.inbox.pop_front()
    }
}

impl Managed {
    fn new(manager: SubnetManager, port: PortRef, fabric: &mut Fabric) -> Self {
        fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        fabric.set_capabilities(port, CapabilityMask::IS_SM, CapabilityMask::default());
        Self {
            manager,
            port,
            now: Duration::ZERO,
            inbox: VecDeque::new(),
            keeps_others: false,
            others: Vec::new(),
        }
    }

    /// Polls the manager, whose packets arrive.
    fn poll(&mut self, fabric: &mut Fabric) -> Option<Duration> {
        let mut link = Link {
            fabric,
            port: self.port,
            inbox: &mut self.inbox,
            others: self.keeps_others.then_some(&mut self.others),
        };
        self.manager.poll(self.now, &mut link)
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
