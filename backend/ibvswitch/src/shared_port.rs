//! Functions that share a port of the subnet, and with it its LID: the Shared Port model of *Towards
//! the InfiniBand SR-IOV vSwitch Architecture*, III, and what it lends to hybrid ones.
//!
//! The port is the physical function's. Each virtual function has a place in its table of GUIDs; whose
//! GUID stands there has its addresses there.

use fabric::{Fabric, PortRef};
use wire::{Guid, PKey, PortState};

/// A function's place at a shared port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The port.
    pub port: PortRef,
    /// The function's entry of the port's table of GUIDs; entry 0 is the port's own.
    pub entry: u8,
}

impl Place {
    /// The GUID that stands there; `None` while there is none.
    #[must_use]
    pub fn guid(&self, fabric: &Fabric) -> Option<Guid> {
        let guids = fabric.guids(self.port)?;
        let guid = guids.get(usize::from(self.entry)).copied();
        guid.filter(|guid| !guid.is_none())
    }

    /// The state of the port as the function has it: without a GUID nobody can reach it.
    #[must_use]
    pub fn state(&self, fabric: &Fabric) -> PortState {
        let state = fabric.port_info(self.port).unwrap_or_default().port_state;
        match self.guid(fabric) {
            None => state.min(PortState::Initialize),
            Some(_) => state,
        }
    }
}

/// The P_Key table of a function that is to have `own` at a port that has `port`: of its partitions
/// those that the port is in, too, and a full member only where the port is one.
#[must_use]
pub fn pkeys(own: &[PKey], port: &[PKey]) -> Vec<PKey> {
    let held = own.iter().filter_map(|&own| {
        let mut same = port
            .iter()
            .filter(|other| other.partition() == own.partition());
        same.any(|other| other.is_full() || *other == own)
            .then_some(own)
            .or_else(|| {
                let limited = PKey::new(own.partition());
                port.contains(&limited).then_some(limited)
            })
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_is_more_than_its_port() {
        let keys = |keys: &[u16]| keys.iter().copied().map(PKey::new).collect::<Vec<_>>();
        let port = keys(&[0xffff, 0x0001, 0x8002]);
        let cases: [(&[u16], &[u16]); 5] = [
            (&[0xffff, 0x8002], &[0xffff, 0x8002]),
            // Less than the port.
            (&[0x7fff, 0x0002], &[0x7fff, 0x0002]),
            // More than the port.
            (&[0x8001], &[0x0001]),
            (&[0x0001], &[0x0001]),
            // Not the port's.
            (&[0x8003, 0x8002], &[0x8002]),
        ];
        for (own, held) in cases {
            assert_eq!(pkeys(&keys(own), &port), keys(held), "{own:x?}");
        }
    }
}
