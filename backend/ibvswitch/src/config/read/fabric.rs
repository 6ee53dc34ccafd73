//! Links and addresses of the subnet.

use wire::{LinkWidth, Mtu};

use super::Reader;
use crate::config::document::Section;
use crate::config::names::WIDTHS;
use crate::config::population::Population;
use crate::config::{
    Address, AddressModel, Bandwidth, Fabric, Hypervisor, LinkRate, Manager, ManagerPlace, Subnet,
    Wiring,
};

impl<'d, 'i> Reader<'d, 'i> {
    pub(super) fn fabric(&self, section: Option<&Section<'d, 'i>>) -> Option<Fabric> {
        const MTU_REMEDY: &str = "the MTUs are 256, 512, 1024, 2048 and 4096";
        let mtu = section.and_then(|fabric| {
            let entry = fabric.integer("mtu", 256..=4096, MTU_REMEDY)?;
            let mtu = u32::try_from(entry.value).ok().and_then(Mtu::from_bytes);
            if mtu.is_none() {
                self.document
                    .reject(&entry, "not an InfiniBand MTU", MTU_REMEDY);
            }
            mtu
        });
        let link_width = section.and_then(|fabric| self.one_of(fabric, "link_width", &WIDTHS));
        let link_speed =
            section.and_then(|fabric| self.one_of(fabric, "link_speed", &LinkRate::NAMES));
        let model = section.and_then(|fabric| self.one_of(fabric, "model", &AddressModel::NAMES));
        let bandwidth =
            section.and_then(|fabric| self.one_of(fabric, "bandwidth", &Bandwidth::NAMES));
        let extended_lids = section.and_then(|fabric| self.flag(fabric, "extended_lids"));
        let grh_required = section.and_then(|fabric| self.flag(fabric, "grh_required"));
        Some(Fabric {
            model: model.unwrap_or_default(),
            grh_required: grh_required.unwrap_or(true),
            extended_lids: extended_lids.unwrap_or_default(),
            mtu: mtu.unwrap_or(Mtu::B4096),
            link_width: link_width.unwrap_or(LinkWidth::X4),
            link_speed: link_speed.unwrap_or(LinkRate::Edr),
            bandwidth: bandwidth.unwrap_or_default(),
        })
    }

    /// Whether the model of addresses fits the manager and the number of VFs.
    pub(super) fn addresses(
        &self,
        fabric: &Fabric,
        (wiring, subnets): (&Wiring, &[Subnet]),
        manager: &Manager,
        hypervisors: &[Hypervisor],
    ) {
        const KEY: &str = "fabric.model";
        let external = manager.place == ManagerPlace::External;
        if fabric.model == AddressModel::Dynamic && external {
            self.document.reject_whole(
                KEY,
                "an external subnet manager gives every port a LID",
                "write \"vswitch-prepopulated\", \"vswitch-hybrid\" or \"shared-port\", or sm.manager \
                 = \"embedded\"",
            );
        }
        if fabric.extended_lids {
            self.extended_lids(fabric, manager, hypervisors);
        }
        for number in 0..subnets.len() {
            let is_here = |switch: usize| wiring.switches[switch].subnet == number;
            let all = hypervisors.iter().filter(|it| is_here(it.switch));
            let vfs = all.clone().flat_map(|hypervisor| &hypervisor.vfs);
            let routers = wiring.routers.iter().flat_map(|router| &router.ports);
            let population = Population {
                vswitches: all.clone().filter(|_| fabric.model.has_vswitch()).count(),
                shared_ports: all
                    .filter(|it| {
                        let addresses = it.vfs.iter().map(|vf| vf.model.address);
                        fabric.model.has_physical_function(addresses)
                    })
                    .count(),
                vfs: vfs
                    .filter(|vf| vf.model.address == Address::Dedicated)
                    .count(),
                switches: wiring
                    .switches
                    .iter()
                    .filter(|it| it.subnet == number)
                    .count(),
                routers: routers.filter(|port| is_here(port.switch)).count(),
                lmc: match manager.place {
                    ManagerPlace::Embedded => manager.lmc,
                    ManagerPlace::External => 0,
                },
            };
            if let Err((what, remedy)) = population.check(fabric.model, external) {
                self.document.reject_whole(KEY, what, remedy);
            }
        }
    }

    /// Whether LIDs of 18 bits fit the rest.
    fn extended_lids(&self, fabric: &Fabric, manager: &Manager, hypervisors: &[Hypervisor]) {
        const KEY: &str = "fabric.extended_lids";
        if manager.place == ManagerPlace::External {
            self.document.reject_whole(
                KEY,
                "no subnet manager from outside knows LIDs of 18 bits",
                "write false, or sm.manager = \"embedded\"",
            );
        }
        if fabric.model != AddressModel::Dynamic {
            self.document.reject_whole(
                KEY,
                "VMs get such LIDs when they start",
                "write false, or model = \"vswitch-dynamic\"",
            );
        }
        if manager.lmc > 0 {
            self.document.reject_whole(
                KEY,
                "a VM has one LID of 18 bits",
                "write false, or sm.lmc = 0",
            );
        }
        let mut vms = hypervisors
            .iter()
            .flat_map(|hypervisor| &hypervisor.vfs)
            .filter(|vf| !vf.model.spare && vf.model.lid.is_none());
        if let Some(vf) = vms.find(|vf| vf.model.cluster.is_none()) {
            self.document.reject_whole(
                KEY,
                format!(
                    "`{}` would get a LID of 18 bits, and a guest's registers have 16",
                    vf.model.name
                ),
                "put it in a `cluster`, where it sees another LID, or give it a `lid`, which is of 16",
            );
        }
    }
}
