//! Ports with the same GUID: somebody has set one by a packet, and no migration has.

use fabric::PortRef;
use tracing::warn;
use wire::Lid;

use crate::vswitch::{SubnetState, VSwitch};

impl VSwitch {
    /// A port has another GUID. Where a VM moves, the other port that still has it has given up its
    /// LID.
    pub(crate) fn warn_of_duplicates(&self, state: &SubnetState, port: PortRef) {
        let fabric = &state.fabric;
        let addressed = |port| {
            let info = fabric.port_info(port)?;
            let guid = fabric.guids(port)?.first().copied()?;
            (info.lid != Lid::NONE).then_some(guid)
        };
        let name = |port| {
            let named = self.names.iter().find(|&(_, &at)| at == port);
            named.map_or("", |(name, _)| name.as_str())
        };
        let Some(guid) = addressed(port) else {
            return;
        };
        let mut others = self.ports.iter().filter(|&&other| other != port);
        if let Some(&other) = others.find(|&&other| addressed(other) == Some(guid)) {
            warn!(
                %guid,
                "two ports have one GUID, {} and {}: one of them needs another",
                name(other),
                name(port)
            );
        }
    }
}
