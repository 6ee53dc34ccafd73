//! VFs that are passed through.

use fabric::SmpAccess;
use passthrough::Device;
use wire::PKey;

use super::Reader;
use super::clusters::service_levels;
use super::host::needs;
use super::hypervisors::Defaults;
use super::mads::mads;
use crate::document::Section;
use crate::{Hardware, ISOLATION, SMP_ACCESS, keys};

/// Keys of such a VF. Everything else belongs to the VF behind it.
const KEYS: &[&str] = &[
    "name",
    "device",
    "isolation",
    "guest_memory",
    "processors",
    "background",
    "pkeys",
    "smp",
    "gmp",
    "mad_rate",
    "mad_burst",
    "mad_rates",
    "cluster",
    "vlid",
    "sl",
    "sl_policy",
    "socket",
];

impl<'d> Reader<'d> {
    pub(super) fn hardware(
        &mut self,
        section: &Section<'d>,
        defaults: Defaults<'_>,
    ) -> Option<Hardware> {
        let name = section.name(&mut self.names.vfs, "VF");
        for key in keys::VF.iter().filter(|key| !KEYS.contains(&key.name)) {
            if let Some(entry) = section.value(key.name) {
                entry.reject(
                    "a VF that is passed through has this from the VF behind it",
                    "leave the key out, or set it up where that VF is",
                );
            }
        }
        let device = section.text("device")?;
        let device = device.meaning(
            device.value.parse::<Device>().ok(),
            "not a device for passthrough",
            "write the PCI address of a ConnectX VF as `lspci -D` prints it (0000:3b:00.2), or \
             \"unix:\" and the whole path of the vfio-user socket of one",
        );
        let isolation = section.one_of("isolation", &ISOLATION).unwrap_or_default();
        let guest_memory = self.guest_memory(section).or(defaults.guest_memory);
        let smp = section.one_of("smp", &SMP_ACCESS);
        let smp = smp.unwrap_or(SmpAccess::OwnPort);
        let label = name.as_ref().map_or("", |name| name.value);
        let cluster = self.membership(section, label, smp == SmpAccess::Fabric);
        let mads = mads(section, smp);
        let service_levels = service_levels(section);
        let pkeys = self.partitions_of(section, smp);
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), defaults.runtime_dir);
        Some(Hardware {
            name: name.value.to_owned(),
            device: device?,
            isolation,
            smp,
            mads,
            service_levels,
            cluster,
            pkeys,
            guest_memory,
            needs: needs(section),
            socket,
        })
    }

    /// Its P_Key table, where it has another one than the VF behind it.
    fn partitions_of(&self, section: &Section<'d>, smp: SmpAccess) -> Option<Vec<PKey>> {
        let list = section.array("pkeys")?;
        if smp == SmpAccess::Fabric {
            list.reject(
                "a manager of the subnet (`smp = \"fabric\"`) has all partitions of the VF behind it",
                "leave one of the two out",
            );
        }
        Some(self.pkeys(section))
    }
}
