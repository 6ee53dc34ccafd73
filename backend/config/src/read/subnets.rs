//! Subnets, which switch is in which, and the routers between them.

use wire::{Gid, Guid, Lid};

use super::{PREFIX_REMEDY, Reader, lid_at};
use crate::document::{Entry, Section, Seen, at_most};
use crate::{
    Fabric, MANAGER, Manager, ManagerHost, ManagerPlace, Router, RouterPort, Subnet, Wiring, keys,
};

/// Subnets that a configuration may have.
const SUBNETS_MAX: usize = 64;
/// Names prefixes that may be taken.
const ASSIGNED_REMEDY: &str =
    "write a site-local prefix, such as \"fec0:0000:0000:0001\", or one that you were assigned";
/// Routers that a configuration may have.
const ROUTERS_MAX: usize = 64;

impl<'d> Reader<'d> {
    /// The subnets; where there is no table of one, the one that `[fabric]` and `[sm]` describe. On
    /// which switches their managers are is not known yet.
    pub(super) fn subnets(
        &mut self,
        root: &Section<'d>,
        fabric: &Section<'d>,
        sm: &Section<'d>,
    ) -> Vec<Subnet> {
        let single = fabric.text("subnet_prefix");
        let lid = lid_at(sm, "lid").map_or(Lid::from(1), |entry| Lid::new(entry.value as u16));
        let sections = root.sections("subnet", keys::SUBNET);
        if sections.is_empty() {
            let prefix = single.and_then(|entry| self.prefix(&entry));
            let guid = self.derived("node", MANAGER);
            self.claim_manager_lid(0, lid);
            return vec![Subnet {
                name: None,
                prefix: prefix.unwrap_or(Gid::DEFAULT_PREFIX),
                manager: ManagerHost {
                    name: MANAGER.to_owned(),
                    guid,
                    lid,
                    switch: 0,
                },
            }];
        }
        if let Some(single) = single {
            single.reject(
                "there are tables [[subnet]]",
                "remove this key; each of them has a `prefix`",
            );
        }
        let remedy = format!("a configuration has at most {SUBNETS_MAX}");
        at_most(SUBNETS_MAX, &sections, "subnets", remedy);
        let (mut names, mut prefixes) = (Seen::new(), Seen::new());
        let mut subnets = Vec::with_capacity(sections.len());
        for section in &sections {
            let prefix = section.required_text("prefix");
            let Some(name) = section.name(&mut names, "subnet") else {
                continue;
            };
            let prefix = prefix.and_then(|entry| {
                let prefix = self.prefix(&entry)?;
                if sections.len() > 1 {
                    self.check_routable(&entry, prefix);
                }
                entry
                    .with(prefix)
                    .claim(&mut prefixes, "prefix", name.value);
                Some(prefix)
            });
            let host = format!("{MANAGER} {}", name.value);
            self.claim_manager_lid(subnets.len(), lid);
            subnets.push(Subnet {
                name: Some(name.value.to_owned()),
                prefix: prefix.unwrap_or(Gid::DEFAULT_PREFIX),
                manager: ManagerHost {
                    guid: self.derived("node", &host),
                    name: host,
                    lid,
                    switch: 0,
                },
            });
        }
        if subnets.is_empty() {
            // That none has a name is told.
            return self.subnets_by_default();
        }
        subnets
    }

    /// Stands for what could not be read.
    fn subnets_by_default(&mut self) -> Vec<Subnet> {
        vec![Subnet {
            name: None,
            prefix: Gid::DEFAULT_PREFIX,
            manager: ManagerHost {
                name: MANAGER.to_owned(),
                guid: Guid::NONE,
                lid: Lid::from(1),
                switch: 0,
            },
        }]
    }

    fn claim_manager_lid(&mut self, subnet: usize, lid: Lid) {
        let lid = (subnet, i64::from(lid.value()));
        let lids = &mut self.names.lids;
        lids.insert(lid, "the subnet manager".to_owned());
    }

    /// Gives the manager of the only subnet the LID that a listing says its port has.
    pub(crate) fn move_manager_lid(&mut self, from: Lid, to: Lid) {
        self.names.lids.remove(&(0, i64::from(from.value())));
        self.claim_manager_lid(0, to);
    }

    /// A prefix, which is written as a GUID is: 64 bits in hexadecimal.
    fn prefix(&self, entry: &Entry<'d, &str>) -> Option<u64> {
        let prefix = Gid::parse_prefix(entry.value).ok();
        let prefix = entry.meaning(prefix, "not a 64-bit subnet prefix", PREFIX_REMEDY)?;
        let gid = Gid::new(prefix, Guid::NONE);
        let is_subnet = !gid.is_multicast() && gid != Gid::NONE;
        entry.meaning(
            is_subnet.then_some(prefix),
            "not the prefix of a subnet",
            ASSIGNED_REMEDY,
        )
    }

    /// Whether routers pass packets on to a subnet of this prefix.
    fn check_routable(&self, entry: &Entry<'d, &str>, prefix: u64) {
        let gid = Gid::new(prefix, Guid::NONE);
        if gid.is_link_local() {
            entry.reject(
                "GIDs of this prefix are valid only in their own subnet: no router forwards packets to them",
                ASSIGNED_REMEDY,
            );
        }
    }

    /// The place of the subnet that a table names, or of the first.
    pub(crate) fn subnet_of(&self, section: &Section<'d>, subnets: &[Subnet]) -> usize {
        let Some(entry) = section.text("subnet") else {
            return 0;
        };
        let is_it = |subnet: &Subnet| subnet.name.as_deref() == Some(entry.value);
        let found = subnets.iter().position(is_it);
        if found.is_none() {
            let names = subnets.iter().filter_map(|subnet| subnet.name.as_deref());
            let remedy = match names.clone().next() {
                None => "remove this key, or add tables [[subnet]]".to_owned(),
                Some(_) => vswitch::near(entry.value, names, ""),
            };
            entry.reject("there is no subnet of this name", remedy);
        }
        found.unwrap_or(0)
    }

    /// Puts the managers of several subnets on their switches, and reads the routers.
    pub(crate) fn join_subnets(
        &mut self,
        root: &Section<'d>,
        wiring: &mut Wiring,
        subnets: &mut [Subnet],
    ) {
        let sections = root.sections("subnet", &[]);
        let named = sections.iter().filter(|s| s.value("name").is_some());
        for ((number, subnet), section) in subnets.iter_mut().enumerate().zip(named) {
            let Some(default) = self.leaf(root, wiring, number) else {
                section.reject(
                    "name",
                    "no switch is in this subnet",
                    "name it as the `subnet` of a table [[switch]]",
                );
                continue;
            };
            let Some(entry) = section.text("sm_switch") else {
                subnet.manager.switch = default;
                continue;
            };
            let switch = self.switch_named(&entry, wiring);
            if wiring.switches[switch].subnet != number {
                entry.reject("this switch is in another subnet",
                    "name one of this subnet, or leave the key out for the first of it with a hypervisor",
                );
            }
            subnet.manager.switch = switch;
        }
        let sections = root.sections("router", keys::ROUTER);
        let remedy = format!("a configuration has at most {ROUTERS_MAX}");
        at_most(ROUTERS_MAX, &sections, "routers", remedy);
        let mut seen = Seen::new();
        for section in &sections {
            let router = self.router(section, wiring, &mut seen);
            wiring.routers.extend(router);
        }
    }

    fn router(
        &mut self,
        section: &Section<'d>,
        wiring: &Wiring,
        seen: &mut Seen<String>,
    ) -> Option<Router> {
        let name = section.name(seen, "router")?;
        let guid = self.derived("router", name.value);
        if section.value("switches").is_none() {
            section.reject(
                "switches",
                "missing",
                "add `switches = [\"…\", \"…\"]` to this table: one of each subnet that it joins",
            );
        }
        let mut ports: Vec<RouterPort> = Vec::new();
        for entry in section
            .array("switches")
            .map_or_else(Vec::new, |list| list.value)
        {
            let what = "not the name of a switch";
            let text = entry.meaning(entry.value.as_str(), what, "write it in double quotes");
            let Some(text) = text else { continue };
            let entry = entry.with(text);
            let switch = self.switch_named(&entry, wiring);
            let subnet = wiring.switches[switch].subnet;
            let is_in = |port: &RouterPort| wiring.switches[port.switch].subnet == subnet;
            if ports.iter().any(is_in) {
                entry.reject(
                    "the router is in this switch's subnet already",
                    "name one switch of each subnet",
                );
            }
            let of_port = format!("{} port {}", name.value, ports.len() + 1);
            let guid = self.derived("router", &of_port);
            ports.push(RouterPort { guid, switch });
        }
        if section.value("switches").is_some() && ports.len() < 2 {
            section.reject(
                "switches",
                "a router joins two subnets at least",
                "name a switch of each",
            );
        }
        Some(Router {
            name: name.value.to_owned(),
            guid,
            ports,
        })
    }

    /// Whether the rest of the configuration goes along with several subnets.
    pub(super) fn check_several_subnets(
        &self,
        subnets: &[Subnet],
        fabric: &Fabric,
        manager: &Manager,
    ) {
        if subnets.len() < 2 {
            return;
        }
        let one = "or configure one subnet";
        if manager.place == ManagerPlace::External {
            self.document.reject_whole(
                "sm.manager",
                "an external subnet manager manages one subnet, and there are several",
                format!("write \"embedded\", which gives each a manager of its own, {one}"),
            );
        }
        if fabric.model.has_shared_ports() {
            self.document.reject_whole(
                "fabric.model",
                "routers do not find VFs that share a LID",
                format!("write \"vswitch-prepopulated\" or \"vswitch-dynamic\", {one}"),
            );
        }
        if fabric.extended_lids {
            self.document.reject_whole(
                "fabric.extended_lids",
                "LIDs of 18 bits are for virtual clusters, which are in one subnet",
                format!("write false, {one}"),
            );
        }
        if !self.names.clusters.found.is_empty() {
            self.document.reject_whole(
                "cluster",
                "the LIDs of a virtual cluster are of one subnet, and there are several",
                format!("remove the clusters, {one}"),
            );
        }
    }
}
