//! Ports at which a program of this process sends and receives management packets.

use std::collections::VecDeque;

use wire::attribute::CapabilityMask;
use wire::{MadPacket, Transport};

use crate::fabric::Fabric;
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::PortRef;
use crate::output::Output;

/// A port whose queue pairs 0 and 1 a program has, such as a subnet manager.
#[derive(Debug)]
pub struct Station {
    /// The port.
    pub port: PortRef,
    /// Other output of the fabric, until somebody takes it.
    pub others: VecDeque<Output>,
    inbox: VecDeque<MadPacket>,
}

/// A station at its fabric.
#[derive(Debug)]
pub struct Connected<'a> {
    station: &'a mut Station,
    fabric: &'a mut Fabric,
}

impl Station {
    /// Takes the queue pairs of a port for a subnet manager, which the port announces.
    pub fn of_manager(fabric: &mut Fabric, port: PortRef) -> Self {
        fabric.set_capabilities(port, CapabilityMask::IS_SM, CapabilityMask::default());
        Self::new(fabric, port)
    }

    /// Takes the queue pairs of a port.
    pub fn new(fabric: &mut Fabric, port: PortRef) -> Self {
        fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        Self {
            port,
            others: VecDeque::new(),
            inbox: VecDeque::new(),
        }
    }

    /// Takes the packets for other ports out of the other output, and forgets the rest of it.
    pub fn packets_for_others(&mut self) -> impl Iterator<Item = (PortRef, MadPacket)> {
        self.others.drain(..).filter_map(|output| match output {
            Output::Deliver { port, packet } => Some((port, *packet)),
            _ => None,
        })
    }

    /// The transport of the program. Packets travel while it waits for one.
    pub fn at<'a>(&'a mut self, fabric: &'a mut Fabric) -> Connected<'a> {
        Connected {
            station: self,
            fabric,
        }
    }
}

impl Transport for Connected<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.fabric.inject(self.station.port, packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        if self.station.inbox.is_empty() {
            self.fabric.run();
            while let Some(output) = self.fabric.poll_output() {
                match output {
                    Output::Deliver { port, packet } if port == self.station.port => {
                        self.station.inbox.push_back(*packet);
                    }
                    other => self.station.others.push_back(other),
                }
            }
        }
        self.station.inbox.pop_front()
    }
}
