//! The default topology: hypervisors around one switch.

use fabric::{LinkRate, NodeId, NodeSpec, Topology};
use wire::Guid;

/// More hypervisors or virtual functions than a switch has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// One switch takes the uplinks of 253 hypervisors and the subnet manager.
    #[error("{0} hypervisors; one switch takes 1 to 253, use a topology of several switches")]
    Hypervisors(u16),
    /// A vSwitch has an uplink and 253 further ports.
    #[error("{0} virtual functions per hypervisor; a vSwitch takes 1 to 253")]
    VirtualFunctions(u16),
}

/// Hypervisors, each with a vSwitch and its virtual functions, around one switch; at that switch's
/// last port also the host of the subnet manager.
///
/// GUIDs follow from the numbers, so that a virtual function keeps its GUID from run to run:
/// `0002:c903:00HH:HHVV` with the hypervisor's number from 1 and the function's from 1; `VV` = 00 is
/// the vSwitch.
#[derive(Debug, Clone)]
pub struct Hypervisors {
    topology: Topology,
    manager: NodeId,
}

const BASE: u64 = 0x0002_c903_0000_0000;
const SWITCH: u64 = BASE | 0x0100_0000;
const MANAGER: u64 = BASE | 0x0100_0001;

impl Hypervisors {
    /// The topology of this many hypervisors with this many virtual functions each.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn new(hypervisors: u16, functions: u16) -> Result<Self, TooMany> {
        if !(1..=253).contains(&hypervisors) {
            return Err(TooMany::Hypervisors(hypervisors));
        }
        if !(1..=253).contains(&functions) {
            return Err(TooMany::VirtualFunctions(functions));
        }
        let mut topology = Topology::new();
        let rate = LinkRate::default();
        let switch = topology.add(NodeSpec::switch(
            Guid::new(SWITCH),
            (hypervisors + 1) as u8,
            "switch",
        ));
        let guid = Guid::new(MANAGER);
        let manager = topology.add(NodeSpec::channel_adapter(guid, guid, "subnet manager"));
        topology.link((switch, (hypervisors + 1) as u8), (manager, 1), rate);
        for hypervisor in 0..hypervisors {
            let number = hypervisor + 1;
            let vswitch = topology.add(NodeSpec::switch(
                guid_of(hypervisor, None),
                (functions + 1) as u8,
                &format!("hypervisor {number} vSwitch"),
            ));
            topology.link((switch, number as u8), (vswitch, 1), rate);
            for function in 0..functions {
                let guid = guid_of(hypervisor, Some(function));
                let vf = topology.add(NodeSpec::virtual_function(
                    guid,
                    &format!("hypervisor {number} VF {}", function + 1),
                ));
                topology.link((vswitch, (function + 2) as u8), (vf, 1), rate);
            }
        }
        Ok(Self { topology, manager })
    }

    /// The nodes and cables.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The host of the subnet manager.
    pub fn manager(&self) -> NodeId {
        self.manager
    }

    /// Port GUID of the subnet manager's host.
    pub fn manager_guid(&self) -> Guid {
        Guid::new(MANAGER)
    }

    /// Port GUID of a virtual function; hypervisor and function count from 0.
    pub fn vf_guid(&self, hypervisor: u16, function: u16) -> Guid {
        guid_of(hypervisor, Some(function))
    }
}

fn guid_of(hypervisor: u16, function: Option<u16>) -> Guid {
    let function = function.map_or(0, |function| u64::from(function) + 1);
    Guid::new(BASE | (u64::from(hypervisor) + 1) << 8 | function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_and_largest() {
        let small = Hypervisors::new(1, 1).unwrap();
        assert_eq!(small.topology().check(), Ok(()));
        assert_eq!(small.topology().nodes().len(), 4);
        assert_eq!(small.vf_guid(0, 0).to_string(), "0002:c903:0000:0101");
        let large = Hypervisors::new(253, 253).unwrap();
        assert_eq!(large.topology().check(), Ok(()));
        assert!(Hypervisors::new(254, 1).is_err());
        assert!(Hypervisors::new(1, 254).is_err());
        assert!(Hypervisors::new(0, 1).is_err());
    }
}
