//! What a move came to.

use std::collections::HashMap;
use std::time::Duration;

use subnet_manager::{Deadlock, Moved, Wait};
use wire::{ExtendedLid, Guid, Lid};

use crate::places::Place;
use crate::vswitch::{SubnetState, VSwitch};

/// A VM that has moved.
#[derive(Debug, Clone)]
pub struct Migrated {
    /// The VM.
    pub vm: String,
    /// Its GUID, before and after.
    pub guid: Guid,
    /// Where it was.
    pub from: Place,
    /// Where it is.
    pub to: Place,
    /// Its LID.
    pub lid: ExtendedLid,
    /// Its LID before, where that is another one.
    pub former_lid: Option<Lid>,
    /// In which way it has moved.
    pub how: How,
}

/// In which way a VM has moved.
#[derive(Debug, Clone)]
pub enum How {
    /// The embedded subnet manager has moved it.
    Manager {
        /// What that took.
        moved: Box<Moved>,
        /// The names of the switches and VMs in there.
        names: HashMap<Guid, String>,
    },
    /// It shares a port, and is registered at another one.
    Registration,
    /// Its node has changed places with a spare one's.
    Exchange {
        /// How long it took until the subnet manager had made its port Active.
        active_after: Duration,
    },
}

impl How {
    pub(super) fn by_manager(vswitch: &VSwitch, state: &SubnetState, moved: Moved) -> Self {
        let circle = match &moved.deadlock {
            Some(
                Deadlock::Possible(circle) | Deadlock::Lasting(circle) | Deadlock::Standing(circle),
            ) => &circle.channels[..],
            _ => &[],
        };
        let switches = { moved.per_switch.iter() }.map(|switch| switch.guid);
        let switches = switches.chain(circle.iter().map(|&(guid, _)| guid));
        let (switch, vm) = match moved.waited {
            Some(Wait::Switch { switch, vm }) => (Some(switch), Some(vm)),
            Some(Wait::Place { vm }) => (None, Some(vm)),
            Some(Wait::Itself | Wait::Turn) | None => (None, None),
        };
        let switches = switches.chain(switch);
        let mut names: HashMap<Guid, String> = switches
            .map(|guid| (guid, node_name(state, guid)))
            .collect();
        names.extend(vm.map(|vm| (vm, vswitch.name_of(vm))));
        Self::Manager {
            moved: Box::new(moved),
            names,
        }
    }
}

/// The text of the node where this GUID is.
fn node_name(state: &SubnetState, guid: Guid) -> String {
    let port = state.fabric.port_by_guid(guid);
    let text = port.and_then(|port| state.fabric.node_description(port.node));
    text.and_then(|text| Some(text.text()?.to_owned()))
        .unwrap_or_else(|| guid.to_string())
}
