//! The vSwitch's state of a VM, as plain data: to be kept, sent elsewhere, and to go on with at the VF
//! where the VM comes to be, here or in another daemon.
//!
//! The image holds two kinds of things. LID, GUID, prefix and P_Keys are the subnet's to give, and are not
//! written by an image: the subnet manager gives them where the VM comes to be, by a migration or by what
//! it remembers, and [`VSwitch::restore`](crate::VSwitch::restore) compares them with those that the guest knows, since a guest that
//! knows nothing of the move goes on with them. The M_Key and the lanes of a port are the manager's alone
//! and not in the image. The VM's own state goes with it: its registrations with the subnet
//! administration, which are made again in its place; the counters of its port; the rest of the
//! budgets of its management packets.
//!
//! Packets on their way are not in it: answers that do not come are asked for again by the guest, as after
//! a loss, and so are tables of which only a part has come.
//!
//! An image may come from anywhere, and says nothing that its guest could not have said itself.

use fabric::{CountersImageV1, PortEvent, PortRef};
use hca::{PortView, VfId};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::{Guid, Lid, MadPacket, PKey, Sl};

use super::Core;
use super::cluster::Direction;
use super::output::ForGuest;
use super::registrations::{RegistrationImageV1, TooMany, packet_of};
use crate::filter::{FilterImageV1, Finding};
use crate::model::{GmpClass, View};

/// The image of a VM, in the version that its first key names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmImage {
    /// Version 1.
    V1(VmImageV1),
}

/// Version 1 of the image of a VM. LIDs and P_Keys are as the guest sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmImageV1 {
    /// The VM, by the GUID of its port.
    guid: u64,
    gid_prefix: u64,
    lid: Lid,
    lmc: u8,
    sm_lid: Lid,
    /// The P_Key table, as the subnet manager has written it.
    pkeys: Vec<PKey>,
    /// The counters of the port; none of a shared port.
    counters: Option<CountersImageV1>,
    filter: FilterImageV1,
    registrations: Vec<RegistrationImageV1>,
}

/// Why an image of a VM cannot be restored at a VF. Nothing has changed there, but for requests of the
/// image that were made before the one at fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VmImageError {
    /// There is no such VF.
    #[error("there is no such VF")]
    NoFunction,
    /// Another VM's addresses are at the VF.
    #[error(
        "the image is of the VM with GUID {image}, and the VF has {here}; migrate the VM there before \
         it is restored"
    )]
    OtherVm {
        /// GUID of the image.
        image: Guid,
        /// GUID at the VF; none where it is nobody's.
        here: Guid,
    },
    /// The GUID is at another VF.
    #[error(
        "the image is of the VM with GUID {image}, which is at VF `{at}`; restore it there, or migrate \
         the VM first"
    )]
    Elsewhere {
        /// GUID of the image.
        image: Guid,
        /// The VF.
        at: String,
    },
    /// The LID is another node's.
    #[error(
        "the guest has LID {image}, which here is that of {owner}; give that another LID, or the guest \
         has to be started anew"
    )]
    LidTaken {
        /// LID of the image.
        image: Lid,
        /// The node that has it here.
        owner: String,
    },
    /// The port that the guest knows differs from the port here.
    #[error(
        "the guest has {what} {image}, and the VF has {here}; have the subnet manager give the same, or \
         the guest has to be started anew"
    )]
    Differs {
        /// The attribute that differs.
        what: &'static str,
        /// The value in the image.
        image: String,
        /// The value at the VF.
        here: String,
    },
    /// Something that the VM had entered is not the VM's to enter.
    #[error("the VM's entries at the subnet administration: {what}; save the image anew")]
    Registration {
        /// The error.
        what: &'static str,
    },
}

/// A port as its guest knows it, or knew it before its cluster went to full mode: that mode is not in an image.
struct KnownPort {
    guid: Guid,
    gid_prefix: u64,
    sm_lid: Lid,
    view: PortView,
    pkeys: Vec<PKey>,
}

impl KnownPort {
    fn of(core: &Core, vf: VfId, port: PortRef) -> Self {
        let addresses = core.clusters.addresses().as_managed();
        let view = addresses.view(vf, &core.fabric, &core.shared, port);
        let gid = view.gids.first().copied().unwrap_or_default();
        let info = core.fabric.port_info(port).unwrap_or_default();
        Self {
            guid: gid.guid(),
            gid_prefix: info.gid_prefix,
            sm_lid: core.clusters.managers_lid(vf, info.master_sm_lid),
            pkeys: addresses.pkeys(vf, &view.pkeys),
            view,
        }
    }

    /// Holds what the guest was told against what the subnet has here.
    fn check(
        &self,
        core: &Core,
        vf: VfId,
        port: PortRef,
        image: &VmImageV1,
    ) -> Result<(), VmImageError> {
        let guid = Guid::new(image.guid);
        if guid != self.guid || guid.is_none() {
            let all = (0..).map(VfId).zip(&core.layout.places);
            let mut others = all.filter(|&(other, _)| other != vf && !guid.is_none());
            let at = others.find(|&(other, _)| core.vm_at(other) == Some(guid));
            return Err(match at {
                Some((_, place)) => VmImageError::Elsewhere {
                    image: guid,
                    at: place.name.clone(),
                },
                None => VmImageError::OtherVm {
                    image: guid,
                    here: self.guid,
                },
            });
        }
        let (lid, lmc) = (self.view.lid, self.view.lmc);
        if image.lid != lid {
            if let Some(owner) = owner_of(core, vf, port, image.lid) {
                let image = image.lid;
                return Err(VmImageError::LidTaken { image, owner });
            }
            return Err(differs("the LID", image.lid, lid));
        }
        if image.lmc != lmc {
            return Err(differs("the LID mask control", image.lmc, lmc));
        }
        if image.gid_prefix != self.gid_prefix {
            let [there, here] = [image.gid_prefix, self.gid_prefix];
            let hexadecimal = |prefix| format!("{prefix:#018x}");
            let what = "the GID prefix";
            return Err(differs(what, hexadecimal(there), hexadecimal(here)));
        }
        // Queue pairs name their partitions by index.
        let entry = |table: &[PKey], at: usize| table.get(at).copied().unwrap_or(PKey::INVALID);
        for at in 0..image.pkeys.len().max(self.pkeys.len()) {
            let [there, here] = [&image.pkeys, &self.pkeys].map(|table| entry(table, at));
            if there != here {
                return Err(differs("in its P_Key table", there, here));
            }
        }
        Ok(())
    }
}

/// The node that has a LID which a guest at a VF sees, if one has it.
fn owner_of(core: &Core, vf: VfId, port: PortRef, lid: Lid) -> Option<String> {
    let physical = core.clusters.physical(vf, lid)?;
    let route = core.fabric.resolve(port, physical, Sl::default(), None);
    let at = route.ok()?.port;
    let mut functions = core.layout.functions_at(at).into_iter();
    match functions.next() {
        Some(function) => Some(format!("VF `{}`", core.layout.name(function))),
        None => {
            let text = core.fabric.node_description(at.node)?;
            Some(format!("`{text}`"))
        }
    }
}

impl Core {
    /// The counters of a port are those of a VM that has the port for itself.
    fn counts_alone(&self, vf: VfId) -> bool {
        self.shared.place(vf).is_none()
    }

    /// The image of the VM at a VF. `filter` is what its filter keeps.
    pub(crate) fn save(&self, vf: VfId, filter: FilterImageV1) -> Result<VmImage, VmImageError> {
        let port = self.layout.port(vf).ok_or(VmImageError::NoFunction)?;
        let known = KnownPort::of(self, vf, port);
        let own = self.counts_alone(vf);
        Ok(VmImage::V1(VmImageV1 {
            guid: known.guid.value(),
            gid_prefix: known.gid_prefix,
            lid: known.view.lid,
            lmc: known.view.lmc,
            sm_lid: known.sm_lid,
            pkeys: known.pkeys,
            counters: own.then(|| self.fabric.save_counters(port)).flatten(),
            filter,
            registrations: self.save_registrations(vf, port),
        }))
    }

    /// Has the VM at a VF go on from an image; what its filter is to keep.
    ///
    /// # Errors
    /// [`VmImageError`].
    pub(crate) fn restore<'a>(
        &mut self,
        vf: VfId,
        image: &'a VmImage,
    ) -> Result<&'a FilterImageV1, VmImageError> {
        let VmImage::V1(image) = image;
        let port = self.layout.port(vf).ok_or(VmImageError::NoFunction)?;
        let known = KnownPort::of(self, vf, port);
        known.check(self, vf, port, image)?;
        for registration in &image.registrations {
            self.restore_registration(vf, port, registration)
                .map_err(|what| VmImageError::Registration { what })?;
        }
        if let Some(counters) = &image.counters
            && self.counts_alone(vf)
        {
            self.fabric.restore_counters(port, counters);
        }
        if self.rules(vf).is_some_and(|vm| vm.view == View::Full) {
            // Its cluster may have been in full mode, or be in it here.
            self.tell_of_mode(vf, port);
        } else if image.sm_lid != known.sm_lid {
            let changed = ForGuest::Port(vf, PortEvent::SmChange, known.view);
            self.outputs.put_guest(changed);
        }
        Ok(&image.filter)
    }

    /// The requests by which the guest at a VF has had something entered.
    fn save_registrations(&self, vf: VfId, port: PortRef) -> Vec<RegistrationImageV1> {
        let Some(vm) = self.vm_at(vf) else {
            return Vec::new();
        };
        let info = self.fabric.port_info(port).unwrap_or_default();
        let requests = self.registrations.requests(vm).into_iter();
        let image = |mut packet: MadPacket| {
            (packet.slid, _) = self.shared.address(vf, &self.fabric, port);
            packet.dlid = info.master_sm_lid;
            let seen = { &self.clusters }.translate(vf, Direction::ToGuest, &mut packet);
            seen.ok().map(|()| RegistrationImageV1::new(&packet))
        };
        requests.filter_map(image).collect()
    }

    /// Enters here what the image of a VM has entered where it was.
    fn restore_registration(
        &mut self,
        vf: VfId,
        port: PortRef,
        image: &RegistrationImageV1,
    ) -> Result<(), &'static str> {
        if self.clusters.tenancy(vf).is_some() {
            // A cluster in full mode has nothing entered at the subnet's administration.
            return Ok(());
        }
        let vm = self.vm_at(vf);
        let vm = vm.ok_or("nobody's addresses are at this VF")?;
        let view = self.view(vf, port);
        let info = self.fabric.port_info(port).unwrap_or_default();
        let sm = self.clusters.seen(vf, info.master_sm_lid);
        let sm = sm.ok_or("this VF knows no subnet manager")?;
        let mut packet = packet_of(image, &view, (sm, info.master_sm_sl))?;
        let rules = self.rules(vf);
        let may_ask = rules.is_some_and(|vm| vm.mads.classes.contains(GmpClass::SubnAdm));
        if !may_ask || !self.passes_contents(vf, port, &mut packet) || {
            self.clusters.translate(vf, Direction::ToWire, &mut packet)
        }
        .is_err()
        {
            return Err("a request is not this VM's to make, or names what the VM does not know");
        }
        let entered = self.registrations.enter(vm, vf, packet, self.now);
        entered.map_err(|TooMany| "there are more than a VM may have")
    }

    /// Whether the contents of a packet are its sender's to say, entered in the filter's accounts.
    fn passes_contents(&mut self, vf: VfId, port: PortRef, packet: &mut MadPacket) -> bool {
        match self.examine_contents(vf, port, packet) {
            Ok(()) => {
                self.outputs.find(vf, Finding::Passed);
                true
            }
            Err(reason) => {
                self.refuse(vf, reason, packet);
                false
            }
        }
    }
}

fn differs(what: &'static str, image: impl ToString, here: impl ToString) -> VmImageError {
    VmImageError::Differs {
        what,
        image: image.to_string(),
        here: here.to_string(),
    }
}
