//! The vLID of an adapter's port, where the node speaks the extended LID space.

use wire::ExtendedLid;
use wire::mad::Status;
use wire::smp::DATA;

use super::Asked;
use crate::fabric::Fabric;
use crate::output::PortEvent;

impl Fabric {
    pub(super) fn extended_lid(
        &mut self,
        asked: Asked,
        data: &mut [u8; DATA],
    ) -> Result<(), Status> {
        let at = asked.port(asked.ingress);
        let node = self.nodes.node_mut(asked.node);
        let port = node
            .filter(|node| node.spec.extended_lids && node.switch.is_none())
            .and_then(|node| node.port_mut(asked.ingress))
            .ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let mut changed = false;
        if asked.set {
            let [a, b, c, d, ..] = *data;
            let wanted = ExtendedLid::parse([a, b, c, d]).ok_or(Status::INVALID_FIELD)?;
            changed = std::mem::replace(&mut port.virtual_lid, wanted) != wanted;
        }
        data.fill(0);
        data[..4].copy_from_slice(&ExtendedLid::emit(port.virtual_lid));
        if changed {
            self.path_changed();
            self.tell(at, PortEvent::LidChange);
        }
        Ok(())
    }
}
