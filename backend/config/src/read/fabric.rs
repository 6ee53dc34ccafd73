//! Links and addresses of the subnet.

use wire::{LinkWidth, Mtu};

use super::Reader;
use crate::document::Section;
use crate::names::WIDTHS;
use crate::population::Population;
use crate::{
    Address, AddressModel, Bandwidth, Fabric, Hypervisor, LinkRate, Manager, ManagerPlace, Subnet,
    Wiring,
};

impl<'d> Reader<'d> {
    pub(super) fn fabric(&self, section: &Section<'d>) -> Fabric {
        Fabric {
            model: section
                .one_of("model", &AddressModel::NAMES)
                .unwrap_or_default(),
            grh_required: section.flag("grh_required").unwrap_or(true),
            extended_lids: section.flag("extended_lids").unwrap_or_default(),
            strict: section.flag("strict").unwrap_or_default(),
            mtu: self.mtu(section).unwrap_or(Mtu::B4096),
            link_width: section
                .one_of("link_width", &WIDTHS)
                .unwrap_or(LinkWidth::X4),
            link_speed: section
                .one_of("link_speed", &LinkRate::NAMES)
                .unwrap_or(LinkRate::Edr),
            bandwidth: section
                .one_of("bandwidth", &Bandwidth::NAMES)
                .unwrap_or_default(),
        }
    }

    fn mtu(&self, section: &Section<'d>) -> Option<Mtu> {
        const REMEDY: &str = "the MTUs are 256, 512, 1024, 2048 and 4096";
        let entry = section.integer("mtu", REMEDY)?;
        let mtu = Mtu::from_bytes(entry.value as u32);
        entry.meaning(mtu, "not an InfiniBand MTU", REMEDY)
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
                    .filter(|vf| vf.model.address == Address::Dedicated || vf.model.requires_lid)
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
                "no external subnet manager knows LIDs of 18 bits",
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
        if manager.multipath.is_on() {
            self.document.reject_whole(
                KEY,
                "a VM has one LID of 18 bits, whatever its paths are",
                "write false, or remove sm.lids",
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
