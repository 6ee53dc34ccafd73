//! Nodes at the places for hosts of a generated topology.

use fabric::{LinkRate, NodeId, NodeSpec, Topology};
use wire::Guid;

/// Nodes at the places for hosts of a generated topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// A channel adapter each.
    Adapters,
    /// A hypervisor each: a vSwitch with its uplink at port 1 and this many virtual functions at the
    /// ports from 2.
    Hypervisors {
        /// Virtual functions, up to 253.
        functions: u8,
    },
}

const BASE: u64 = 0x0002_c903_0000_0000;
/// Above the GUIDs of all hosts.
const SWITCH: u64 = BASE | 0x0200_0000;

/// The most nodes that a generator makes: some twenty subnets full.
pub(crate) const MAX_NODES: u64 = 1 << 20;
/// As many hosts as there are GUIDs `0002:c903:00HH:HHVV` for.
pub(crate) const MAX_HOSTS: u64 = 0xffff;

/// A topology that grows.
///
/// GUIDs follow from the numbers: `0002:c903:02SS:SSSS` the switches, `0002:c903:00HH:HHVV` the
/// hosts from 1, where `VV` = 00 is the adapter or the vSwitch and the others its functions.
#[derive(Debug)]
pub(crate) struct Builder {
    topology: Topology,
    hosts: Hosts,
    switches: u64,
    placed: u64,
}

impl Builder {
    pub(crate) fn new(hosts: Hosts) -> Self {
        Self {
            topology: Topology::new(),
            hosts,
            switches: 0,
            placed: 0,
        }
    }

    pub(crate) fn switch(&mut self, ports: u8, description: &str) -> NodeId {
        let guid = Guid::new(SWITCH + self.switches);
        self.switches += 1;
        self.topology
            .add(NodeSpec::switch(guid, ports, description))
    }

    pub(crate) fn cable(&mut self, a: (NodeId, u8), b: (NodeId, u8)) {
        self.topology.link(a, b, LinkRate::default());
    }

    /// Places the next host at a port of a switch.
    pub(crate) fn host(&mut self, at: (NodeId, u8)) {
        self.placed += 1;
        let number = self.placed;
        let guid = |function: u64| Guid::new(BASE | number << 8 | function);
        let node = match self.hosts {
            Hosts::Adapters => {
                let spec = NodeSpec::channel_adapter(guid(0), guid(0), &format!("host {number}"));
                self.topology.add(spec)
            }
            Hosts::Hypervisors { functions } => {
                let functions = functions.min(253);
                let name = format!("hypervisor {number} vSwitch");
                let spec = NodeSpec::switch(guid(0), functions + 1, &name);
                let vswitch = self.topology.add(spec);
                for function in 1..=functions {
                    let name = format!("hypervisor {number} VF {function}");
                    let spec = NodeSpec::virtual_function(guid(function.into()), &name);
                    let vf = self.topology.add(spec);
                    self.cable((vswitch, function + 1), (vf, 1));
                }
                vswitch
            }
        };
        self.cable(at, (node, 1));
    }

    pub(crate) fn finish(self) -> Topology {
        self.topology
    }
}
