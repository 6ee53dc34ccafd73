//! Where VMs are that have moved: kept for the program that takes this one's place, and with the keeper for the
//! daemon that follows one that died.

use keeper::{Kept, Notes};
use tracing::error;
use vswitch::MoveRequest;

use crate::control::allowed;
use crate::daemon::engines::dma::Format;
use crate::daemon::management::Management;
use config::Config;

/// The label under which the keeper has the VM that is at a VF or port; no text where none is there.
const HOLDER: &str = "holder";

/// VFs and ports with VMs that have moved there.
#[derive(Debug, Clone, Default)]
pub struct Places(Vec<(String, String)>);

impl FromIterator<(String, String)> for Places {
    /// By VF or port, the VM that is there.
    fn from_iter<T: IntoIterator<Item = (String, String)>>(holders: T) -> Self {
        Self(holders.into_iter().filter(|(vf, vm)| vf != vm).collect())
    }
}

impl Places {
    /// Has VMs be where they were.
    ///
    /// # Errors
    /// Why one does not move there.
    pub fn take(self, config: &Config, management: &Management<Format>) -> Result<(), String> {
        let requests: Vec<MoveRequest> = { self.0.into_iter() }
            .filter_map(|(vf, vm)| {
                let (hypervisor, _) = config.vf(&vf)?;
                Some(MoveRequest {
                    tag: 0,
                    vm,
                    to: hypervisor.name.clone(),
                    vf: Some(vf),
                    method: None,
                    drop_first: false,
                    every_switch: false,
                    destination_routed: false,
                    allowed: allowed(None),
                })
            })
            .collect();
        if requests.is_empty() {
            return Ok(());
        }
        let outcomes = management.migrate(requests, |_| false);
        for outcome in outcomes.map_err(|error| error.to_string())? {
            outcome.map_err(|error| error.to_string())?;
        }
        management.settle();
        Ok(())
    }
}

/// The VM that was at a VF or port when the daemon before died, if it was another one than at first.
pub fn holder(kept: &mut Kept) -> Option<String> {
    kept.noted(HOLDER).filter(|vm| !vm.is_empty())
}

/// Notes which VM is at a VF or port.
pub fn note(vf: &str, notes: &Notes, vm: Option<&str>) {
    if let Err(error) = notes.note(HOLDER, vm.unwrap_or_default()) {
        error!(
            vf,
            %error,
            "if the daemon dies, its VM will be at its place in the configuration"
        );
    }
}
