//! Virtual functions that change places.

use wire::PhysicalState;

use crate::fabric::Fabric;
use crate::nodes::topology::PortRef;
use crate::output::PortEvent;

impl Fabric {
    /// Has two virtual functions change places, as if each were plugged in where the other was. GUIDs,
    /// text, LIDs, keys and tables go along; cables, what was counted, faults, and who has the queue
    /// pairs stay. Both links go down and come up again, which the switches at their other ends tell
    /// the subnet manager (trap 128); it finds each node at its new place.
    ///
    /// Returns false, and changes nothing, where these are not two virtual functions.
    pub fn exchange(&mut self, one: PortRef, other: PortRef) -> bool {
        let are_functions = [one, other]
            .into_iter()
            .all(|at| self.is_virtual_function(at.node) && at.port == 1 && self.port(at).is_some());
        if !are_functions || one.node == other.node {
            return false;
        }
        for at in [one, other] {
            self.take_down(at, PhysicalState::Polling);
        }
        self.nodes.exchange(one.node, other.node);
        for at in [one, other] {
            if let Some(ledger) = self.ledgers.port_mut(at) {
                ledger.told.clear();
                ledger.lease = None;
            }
        }
        for at in [one, other] {
            if let Some(guid) = self.port(at).map(|port| port.guid) {
                self.nodes.found_at(guid, at);
            }
            for event in [
                PortEvent::GidChange,
                PortEvent::LidChange,
                PortEvent::PkeyChange,
                PortEvent::SmChange,
            ] {
                self.tell(at, event);
            }
            self.train(at);
        }
        self.nodes.path_changed();
        true
    }

    /// Has a port forget the subnet that it was in, as one does that is reset on its way to another
    /// one: LIDs, prefix, keys, the manager's address. The next manager finds it as a new one.
    pub fn forget_subnet(&mut self, at: PortRef) {
        if let Some(port) = self.nodes.port_mut(at) {
            port.forget_subnet();
            self.nodes.path_changed();
        }
    }
}
