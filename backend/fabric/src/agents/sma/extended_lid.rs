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
        let before = self
            .node(asked.node)
            .filter(|node| node.spec.extended_lids && node.switch.is_none())
            .and_then(|node| node.port(asked.ingress))
            .ok_or(Status::UNSUPPORTED_ATTRIBUTE)?
            .virtual_lid;
        let mut wanted = before;
        if asked.set {
            let [a, b, c, d, ..] = *data;
            wanted = ExtendedLid::parse([a, b, c, d]).ok_or(Status::INVALID_FIELD)?;
        }
        data.fill(0);
        data[..4].copy_from_slice(&ExtendedLid::emit(wanted));
        if wanted != before {
            if let Some(port) = self.nodes.port_mut(at) {
                port.virtual_lid = wanted;
            }
            self.nodes.path_changed();
            self.tell(at, PortEvent::LidChange);
        }
        Ok(())
    }
}
