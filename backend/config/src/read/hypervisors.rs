//! Hypervisors and their virtual functions.

use std::path::Path;

use connectx::{IpOverInfiniBand, Likeness};
use fabric::SmpAccess;
use toml::de::DeValue;
use vhost_user::port::Claims;
use vhost_user::translate::Mac;
use vswitch::model::{self, derive_guid};
use wire::PKey;

use super::Reader;
use super::clusters::service_levels;
use super::daemon::object_memory;
use super::host::{amount, needs};
use super::mads::mads;
use super::partitions::check_external_pkeys;
use crate::document::{Entry, Section, at_most};
use crate::host::Needs;
use crate::placement::Placement;
use crate::{
    Address, AddressModel, Doorbells, GUEST_MEMORY_OF_ALL, Hypervisor, IPOIB, Kind, LIKENESSES,
    Manager, ManagerPlace, SMP_ACCESS, Subnet, VFS_PER_HYPERVISOR_MAX, Vf, Wiring, keys,
};

const SPARE_VFS_REMEDY: &str = "write how many VFs without a VM the hypervisor has, from 0 to 127";
/// Such ports have LIDs of their own.
pub(super) const NO_ETHERNET: &str = "a port without an HCA has a LID of its own behind a vSwitch, and with this fabric.model \
    hypervisors have no vSwitch";
const SPARE_PORTS_REMEDY: &str =
    "write how many ports without a VM the hypervisor has, from 0 to 127";
const DEDICATED_REMEDY: &str = "leave the key out, or give the VF a LID of its own (`address = \
     \"dedicated\"` with fabric.model = \"vswitch-hybrid\")";

/// Values for VFs that have none of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults<'a> {
    pub(super) runtime_dir: &'a Path,
    pub(super) doorbells: Option<Doorbells>,
    pub(super) object_memory: u64,
    pub(super) model: AddressModel,
    pub(super) address: Address,
    pub(super) guest_memory: Option<u64>,
    /// Index of the subnet.
    pub(super) subnet: usize,
    /// Whether the subnet manager is another program.
    pub(super) is_external: bool,
}

impl<'d> Reader<'d> {
    pub(super) fn hypervisors(
        &mut self,
        root: &Section<'d>,
        (wiring, subnets): (&Wiring, &[Subnet]),
        manager: &Manager,
        defaults: Defaults<'_>,
    ) -> Vec<Hypervisor> {
        let sections = root.sections("hypervisor", keys::HYPERVISOR);
        let none = root
            .value("hypervisor")
            .is_none_or(|list| is_empty_array(list.value));
        if none && wiring.file.is_none() && !self.nodes_unknown {
            self.document.reject_whole(
                "hypervisor",
                "missing",
                "add a table [[hypervisor]] with a name and a table [[hypervisor.vf]] for each VM",
            );
        }
        let mut placement = Placement::new(wiring, subnets);
        sections
            .iter()
            .filter_map(|section| {
                let named = section.text("switch");
                let switch = match named {
                    Some(entry) => self.switch_named(&entry, wiring),
                    None => placement.leaf(),
                };
                if !placement.take(switch) && !self.nodes_unknown {
                    section.reject(
                        "name",
                        format!(
                            "no port is left for it on the switch `{}`",
                            wiring.switches[switch].name
                        ),
                        "choose another switch with `switch = \"…\"`, or add one",
                    );
                }
                let defaults = Defaults {
                    subnet: wiring.switches[switch].subnet,
                    ..defaults
                };
                let hypervisor = self.hypervisor(section, switch, defaults)?;
                self.check_range(section, &hypervisor.vfs, manager);
                Some(hypervisor)
            })
            .collect()
    }

    fn hypervisor(
        &mut self,
        section: &Section<'d>,
        switch: usize,
        mut defaults: Defaults<'_>,
    ) -> Option<Hypervisor> {
        let name = section.name(&mut self.names.hypervisors, "hypervisor");
        let sections = section.sections("vf", keys::VF);
        let remedy =
            format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}; add a hypervisor");
        at_most(
            VFS_PER_HYPERVISOR_MAX,
            &sections,
            "VFs on one hypervisor",
            remedy,
        );
        defaults.address = self.address(section, defaults);
        defaults.guest_memory = self.guest_memory(section);
        if let (Some(name), AddressModel::Hybrid) = (&name, defaults.model) {
            // Nodes are called by their names.
            let physical = format!("{}-pf", name.value);
            name.with(physical.as_str()).check_name();
            name.with(physical)
                .claim(&mut self.names.vfs, "name", "physical function");
        }
        let (hardware, software): (Vec<_>, Vec<_>) =
            sections.iter().partition(|vf| vf.value("device").is_some());
        let hardware = hardware.into_iter();
        let hardware = hardware.filter_map(|vf| self.hardware(vf, defaults));
        let hardware = hardware.collect();
        let software = software.into_iter();
        let mut vfs: Vec<Vf> = software.filter_map(|vf| self.vf(vf, defaults)).collect();
        let ports = section.sections("port", keys::PORT);
        if sections.len() <= VFS_PER_HYPERVISOR_MAX
            && let Some(first_too_many) = ports.get(VFS_PER_HYPERVISOR_MAX - sections.len())
        {
            first_too_many.reject(
                "name",
                format!(
                    "{} VFs and ports on one hypervisor",
                    sections.len() + ports.len()
                ),
                format!("it has at most {VFS_PER_HYPERVISOR_MAX}; add a hypervisor"),
            );
        }
        vfs.extend(ports.iter().filter_map(|port| self.port(port, defaults)));
        let spares = [
            ("spare_vfs", false, SPARE_VFS_REMEDY),
            ("spare_ports", true, SPARE_PORTS_REMEDY),
        ];
        let spares = spares.map(|(key, ethernet, remedy)| {
            let count = section.integer(key, remedy);
            (count, ethernet)
        });
        let name = name?;
        let configured = sections.len() + ports.len();
        let mut count = configured;
        for (spares, ethernet) in spares {
            let Some(spares) = spares else { continue };
            count += spares.value as usize;
            if ethernet && !defaults.model.has_vswitch() {
                spares.reject(
                    NO_ETHERNET,
                    "choose another fabric.model, such as \"vswitch-hybrid\"",
                );
            } else if configured <= VFS_PER_HYPERVISOR_MAX && count > VFS_PER_HYPERVISOR_MAX {
                spares.reject(
                    format!(
                        "{count} VFs on one hypervisor, with the {} that have a VM",
                        configured
                    ),
                    format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}"),
                );
            } else {
                let spares = 1..=spares.value;
                vfs.extend(spares.map(|number| self.spare(&name, number, ethernet, defaults)));
            }
        }
        let name = name.value.to_owned();
        Some(Hypervisor {
            switch,
            vswitch_guid: self.derived("vswitch", &name),
            physical_guid: self.derived("PF", &name),
            name,
            processors: processors(section),
            memory: amount(section, "memory"),
            vfs,
            hardware,
        })
    }

    fn vf(&mut self, section: &Section<'d>, defaults: Defaults<'_>) -> Option<Vf> {
        let name = section.name(&mut self.names.vfs, "VF");
        let label = name.as_ref().map_or("", |name| name.value);
        if let Some(entry) = section.value("isolation") {
            entry.reject(
                "only a VF that is passed through has it",
                "leave the key out, or add `device`",
            );
        }
        let lid = self.lid(section, label, defaults.subnet);
        let guid = self.guid(section, label);
        let node_guid = self.node_guid(section, label, guid);
        let pkeys = self.pkeys(section);
        let doorbells = section
            .one_of("doorbells", &Doorbells::NAMES)
            .unwrap_or(defaults.doorbells);
        let like = section.one_of("like", &LIKENESSES).unwrap_or_default();
        let ipoib = section.one_of("ipoib", &IPOIB).unwrap_or_default();
        let guest_memory = self.guest_memory(section).or(defaults.guest_memory);
        let (address, requires_lid) = self.address_at(section, defaults);
        let smp = self.smp(section, address);
        if requires_lid {
            // The port of others has a LID for it.
        } else if address == Address::Shared {
            self.check_shared(section);
        } else if defaults.is_external && pkeys != [PKey::DEFAULT_FULL] {
            check_external_pkeys(section, guid);
        }
        let mads = mads(section, smp);
        let cluster = self.membership(section, label, smp == SmpAccess::Fabric);
        self.check_elsewhere(section, cluster);
        let virtual_pkeys = self.virtual_pkeys(section, &pkeys);
        let pkeys = self.with_share(pkeys, cluster);
        let service_levels = service_levels(section);
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), defaults.runtime_dir);
        let model = model::Vf {
            name: name.value.to_owned(),
            address,
            requires_lid: requires_lid
                || defaults.model == AddressModel::Virtualized && cluster.is_some(),
            lid,
            guid: guid?,
            node_guid,
            pkeys,
            has_pkeys: section.value("pkeys").is_some(),
            smp,
            mads,
            cluster,
            virtual_pkeys,
            service_levels,
            spare: false,
            ethernet: false,
        };
        Some(Vf {
            model,
            kind: Kind::Hca,
            doorbells,
            like,
            ipoib,
            object_memory: object_memory(section).unwrap_or(defaults.object_memory),
            guest_memory,
            needs: needs(section),
            claims: Claims::Any,
            socket,
        })
    }

    /// Whether the VFs of this table, of a hypervisor or a VF, have LIDs of their own.
    fn address(&self, section: &Section<'d>, defaults: Defaults<'_>) -> Address {
        let configured = section.one_of("address", &Address::NAMES);
        let of_all = match defaults.model {
            AddressModel::Hybrid | AddressModel::Virtualized => {
                return configured.unwrap_or(defaults.address);
            }
            AddressModel::SharedPort => Address::Shared,
            AddressModel::Prepopulated | AddressModel::Dynamic => Address::Dedicated,
        };
        if let (Some(entry), Some(other)) = (section.text("address"), configured)
            && other != of_all
        {
            entry.reject(
                "`fabric.model` decides for all VFs",
                "leave the key out, or write fabric.model = \"vswitch-hybrid\"",
            );
        }
        of_all
    }

    /// The address of a VF, and whether it has a LID of its own although it shares a port.
    fn address_at(&self, section: &Section<'d>, defaults: Defaults<'_>) -> (Address, bool) {
        match (self.address(section, defaults), defaults.model) {
            (address, AddressModel::Virtualized) => {
                (Address::Shared, address == Address::Dedicated)
            }
            (address, _) => (address, false),
        }
    }

    /// Returns the memory that VMMs may share, in bytes.
    pub(super) fn guest_memory(&self, section: &Section<'d>) -> Option<u64> {
        amount(section, "guest_memory")
    }

    /// Whether there is address space for all that VMMs may share.
    pub(super) fn check_guest_memory(&self, hypervisors: &[Hypervisor]) {
        let each = || {
            hypervisors.iter().flat_map(|hypervisor| {
                let of_vfs = hypervisor.vfs.iter().map(|vf| vf.guest_memory);
                let of_hardware = hypervisor.hardware.iter().map(|vf| vf.guest_memory);
                of_vfs.chain(of_hardware)
            })
        };
        let given: u64 = each().flatten().fold(0, u64::saturating_add);
        let others = each().filter(Option::is_none).count() as u64;
        if given.saturating_add(others << 30) > GUEST_MEMORY_OF_ALL {
            self.document.reject_whole(
                "hypervisor.vf.guest_memory",
                format!(
                    "the VFs may share {} GiB together, and {others} others at least 1 GiB each; the \
                     daemon has address space for {} GiB",
                    given.div_ceil(1 << 30),
                    GUEST_MEMORY_OF_ALL >> 30
                ),
                "lower it to what the VMs have, or serve some of them by another daemon",
            );
        }
    }

    /// Returns the reach of subnet management packets. Queue pair 0 of a shared port is its physical function's.
    fn smp(&self, section: &Section<'d>, address: Address) -> SmpAccess {
        let configured = section.one_of("smp", &SMP_ACCESS);
        if address == Address::Dedicated {
            return configured.unwrap_or(SmpAccess::OwnPort);
        }
        if let (Some(SmpAccess::OwnPort | SmpAccess::Fabric), Some(entry)) =
            (configured, section.text("smp"))
        {
            entry.reject(
                "queue pair 0 of a shared port belongs to its physical function",
                DEDICATED_REMEDY,
            );
        }
        SmpAccess::Deny
    }

    /// Rejects keys that a VF that shares a LID cannot have.
    fn check_shared(&self, section: &Section<'d>) {
        if let Some(entry) = section.value("lid") {
            let what = "a VF that shares a LID has none of its own";
            entry.reject(what, DEDICATED_REMEDY);
        }
    }

    /// Whether the LIDs of a hypervisor's port suffice for its VFs in clusters. Which LMC a manager
    /// from outside gives the port nobody knows here.
    fn check_range(&self, section: &Section<'d>, vfs: &[Vf], manager: &Manager) {
        // A virtual port in a cluster gets a LID from elsewhere.
        let in_range = |vf: &&Vf| vf.model.is_clustered() && !vf.model.requires_lid;
        let clustered = vfs.iter().filter(in_range).count();
        let range = 1usize << manager.lmc;
        if manager.place == ManagerPlace::Embedded && clustered >= range {
            section.reject("name",
                format!(
                    "{clustered} of its VFs share a port and are in a cluster, where each needs a LID \
                     beside the port's own, but with sm.lmc = {} the port has 2^{0} - 1 = {} such LIDs",
                    manager.lmc,
                    range - 1
                ),
                "raise sm.lmc (7 gives 127), or move VFs to other hypervisors",
            );
        }
    }

    /// A virtual function without a VM.
    fn spare(
        &mut self,
        hypervisor: &Entry<'d, &str>,
        number: i64,
        ethernet: bool,
        defaults: Defaults<'_>,
    ) -> Vf {
        let of = if ethernet { "spare-port" } else { "spare" };
        let name = format!("{}-{of}{number}", hypervisor.value);
        let entry = hypervisor.with(name.as_str());
        entry.check_name();
        entry
            .with(name.clone())
            .claim(&mut self.names.vfs, "name", "VF");
        self.derived("VF", &name);
        let model = model::Vf::spare(&name);
        Vf {
            model: match defaults.address {
                _ if ethernet => model.ethernet(),
                address if defaults.model == AddressModel::Virtualized => {
                    model.virtualized(address == Address::Dedicated)
                }
                Address::Dedicated => model,
                Address::Shared => model.shared(),
            },
            kind: if ethernet {
                Kind::VhostUserNet(derived_mac(&name))
            } else {
                Kind::Hca
            },
            doorbells: defaults.doorbells,
            like: Likeness::default(),
            ipoib: IpOverInfiniBand::default(),
            object_memory: defaults.object_memory,
            guest_memory: defaults.guest_memory,
            needs: Needs::default(),
            claims: Claims::Any,
            socket: self.socket(&entry, None, defaults.runtime_dir),
        }
    }
}

/// The Ethernet address of the guest of a port with this name, where none is configured.
pub(super) fn derived_mac(name: &str) -> Mac {
    let [.., a, b, c, d, e] = u64::from(derive_guid("port", name)).to_be_bytes();
    // Locally administered.
    Mac([2, a, b, c, d, e])
}

/// The processors of a host for VMs.
fn processors(section: &Section<'_>) -> Option<u64> {
    let remedy = "write the number of processors for VMs, or leave the key out";
    section.number("processors", remedy)
}

fn is_empty_array(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|array| array.is_empty())
}
