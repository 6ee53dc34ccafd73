//! Management of a subnet in operation: managers, migrations, images, links.

use fabric::Fabric;
use hca::VfId;

use super::VSwitch;
use crate::core::image::{VmImage, VmImageError};
use crate::core::link::{self, LinkAction, LinkError, LinkStatus};
use crate::core::migration::{MigrateError, MoveRequest};
use crate::core::subnets::{ManagerStatus, SmError, is_managed, status, sweeps};
use crate::manager_settings::SettingsFiles;
use crate::plan::Plan;

impl VSwitch {
    /// The status of the embedded managers, in the order of the subnets; nothing where there are none.
    #[must_use]
    pub fn manager_status(&self) -> Vec<ManagerStatus> {
        let managers = self.managers.lock();
        let core = self.read();
        status::all(&core.subnets, &managers, &core.fabric, self.now())
    }

    /// The status of the manager of a subnet, or of all managers where no subnet is named.
    ///
    /// # Errors
    /// [`SmError`].
    pub fn manager_status_of(&self, subnet: Option<&str>) -> Result<Vec<ManagerStatus>, SmError> {
        let managers = self.managers.lock();
        let core = self.read();
        status::of(&core.subnets, &managers, &core.fabric, self.now(), subnet)
    }

    /// Full sweeps that the embedded managers have ended.
    #[must_use]
    pub fn sweeps(&self) -> u64 {
        sweeps(&self.managers.lock())
    }

    /// Has the manager of a subnet, or all of them, sweep; with `files`, having first taken over
    /// these in place of the former ones. The end of each sweep is told by
    /// [`Output::Swept`](crate::Output::Swept), with numbers that `tag` gives.
    ///
    /// # Errors
    /// [`SmError`]; some may sweep then.
    pub fn sweep(
        &self,
        subnet: Option<&str>,
        files: Option<SettingsFiles>,
        tag: impl FnMut() -> u64,
    ) -> Result<(), SmError> {
        {
            let managers = &mut *self.managers.lock();
            let core = &mut *self.change();
            status::sweep(&mut core.subnets, managers, subnet, files, tag)?;
        }
        self.wake();
        Ok(())
    }

    /// Begins to move VMs, at the same time where they can. `is_connected` tells which VFs have a VMM:
    /// where the destination is a hypervisor, a free VF with one is taken first, since that is where a
    /// VM waits to be received. For each the error for which it has not begun; the end of the others
    /// is told by [`Output::Moved`](crate::Output::Moved).
    ///
    /// # Errors
    /// [`MigrateError`] for mistakes in names; none has begun then.
    pub fn migrate(
        &self,
        requests: &[MoveRequest],
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<Vec<Option<MigrateError>>, MigrateError> {
        let requests = self.layout.vms_to_move(requests)?;
        let begun = {
            let managers = &mut *self.managers.lock();
            self.with(|core| core.migrate(managers, &requests, &is_connected))
        };
        self.wake();
        Ok(begun)
    }

    /// For each VF, the name of the VM that has its addresses there; `None` where nobody has.
    #[must_use]
    pub fn holders(&self) -> Vec<Option<String>> {
        self.read().holders()
    }

    /// Whether a VM that moves from one VF to another one has the same LID there: both have one of their own, and
    /// the embedded manager of their subnet exchanges them.
    #[must_use]
    pub fn keeps_lid(&self, from: VfId, to: VfId) -> bool {
        self.layout.can_keep_lid(from, to) && is_managed(&self.read().subnets)
    }

    /// Returns the image of the VM at a VF. It includes the packets of its guest that [`VSwitch::poll`] has handled.
    ///
    /// # Errors
    /// [`VmImageError::NoFunction`].
    pub fn save(&self, vf: VfId) -> Result<VmImage, VmImageError> {
        self.with(|core| core.save(vf, self.filter.save(vf, self.now())))
    }

    /// Has the VM at a VF go on from an image. Where the function behind the VF is restored, too, that has
    /// to be done before: what it has counted is in this image as well.
    ///
    /// # Errors
    /// [`VmImageError`].
    pub fn restore(&self, vf: VfId, image: &VmImage) -> Result<(), VmImageError> {
        let restored = self.with(|core| core.restore(vf, image));
        // Counts of the image's requests come before the counts in the image.
        let restored = restored.map(|filter| self.filter.restore(vf, self.now(), filter));
        self.wake();
        restored
    }

    /// Does something with the link at a port of the node with this name or GUID, and tells how the link
    /// is then.
    ///
    /// # Errors
    /// [`LinkError`]; nothing has changed then.
    pub fn change_link(
        &self,
        plan: &Plan,
        at: (&str, u8),
        action: LinkAction,
    ) -> Result<LinkStatus, LinkError> {
        let act = |fabric: &mut Fabric| link::change(fabric, plan, at, action);
        let status = self.with(|core| act(&mut core.fabric));
        self.wake();
        status
    }
}
