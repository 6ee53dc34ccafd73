//! Hypervisors and their virtual functions.

use std::path::Path;

use fabric::SmpAccess;
use hca::ServiceLevels;
use toml::de::DeValue;
use wire::PKey;

use super::Reader;
use crate::config::document::{Entry, Section};
use crate::config::{
    Doorbells, GmpClasses, Hypervisor, MadRate, MadRules, SMP_ACCESS, VFS_PER_HYPERVISOR_MAX, Vf,
    Wiring, keys,
};

impl<'d, 'i> Reader<'d, 'i> {
    pub(super) fn hypervisors(
        &mut self,
        root: &Section<'d, 'i>,
        wiring: &Wiring,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Vec<Hypervisor> {
        let sections = root.sections("hypervisor", keys::HYPERVISOR);
        let none = root
            .value("hypervisor")
            .is_none_or(|list| is_empty_array(list.value));
        if none && wiring.file.is_none() {
            self.document.reject_whole(
                "hypervisor",
                "there is none",
                "add a table [[hypervisor]] with a name and a table [[hypervisor.vf]] for each VM",
            );
        }
        let mut free = wiring.free_ports();
        sections
            .iter()
            .filter_map(|section| {
                let switch = self.switch_of(section, wiring);
                if let Some(left) = free.get_mut(switch) {
                    match left.checked_sub(1) {
                        Some(less) => *left = less,
                        None => self.document.reject_section(
                            section,
                            "name",
                            format!(
                                "no port is left for it on the switch `{}`",
                                wiring.switches[switch].name
                            ),
                            "choose another switch with `switch = \"…\"`, or add one",
                        ),
                    }
                }
                self.hypervisor(section, switch, runtime_dir, doorbells)
            })
            .collect()
    }

    fn hypervisor(
        &mut self,
        section: &Section<'d, 'i>,
        switch: usize,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Option<Hypervisor> {
        let name = section.required_text("name");
        if let Some(name) = &name {
            self.check_name(name);
            let mut seen = std::mem::take(&mut self.names.hypervisors);
            self.claim(
                &mut seen,
                &name.with(name.value.to_owned()),
                "name",
                "hypervisor",
            );
            self.names.hypervisors = seen;
        }
        let sections = section.sections("vf", keys::VF);
        if let Some(first_too_many) = sections.get(VFS_PER_HYPERVISOR_MAX) {
            self.document.reject_section(
                first_too_many,
                "name",
                format!("{} VFs on one hypervisor", sections.len()),
                format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}; add a hypervisor"),
            );
        }
        let mut vfs: Vec<Vf> = sections
            .iter()
            .filter_map(|vf| self.vf(vf, runtime_dir, doorbells))
            .collect();
        let spares = section.integer(
            "spare_vfs",
            0..=VFS_PER_HYPERVISOR_MAX as i64,
            "write how many VFs without a VM the hypervisor has, from 0 to 127",
        );
        let name = name?;
        if let Some(spares) = spares {
            let count = sections.len() + spares.value as usize;
            if sections.len() <= VFS_PER_HYPERVISOR_MAX && count > VFS_PER_HYPERVISOR_MAX {
                self.document.reject(
                    &spares,
                    format!(
                        "{count} VFs on one hypervisor, with the {} that have a VM",
                        sections.len()
                    ),
                    format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}"),
                );
            } else {
                let spares = 1..=spares.value;
                vfs.extend(spares.map(|number| self.spare(&name, number, runtime_dir, doorbells)));
            }
        }
        let name = name.value.to_owned();
        Some(Hypervisor {
            switch,
            vswitch_guid: self.derived("vswitch", &name),
            name,
            vfs,
        })
    }

    fn vf(
        &mut self,
        section: &Section<'d, 'i>,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Option<Vf> {
        let name = section.required_text("name");
        if let Some(name) = &name {
            self.check_name(name);
            let mut seen = std::mem::take(&mut self.names.vfs);
            self.claim(&mut seen, &name.with(name.value.to_owned()), "name", "VF");
            self.names.vfs = seen;
        }
        let label = name.as_ref().map_or("", |name| name.value);
        let lid = self.lid(section, label);
        let guid = self.guid(section, label);
        let pkeys = self.pkeys(section);
        let doorbells = self
            .one_of(section, "doorbells", &Doorbells::NAMES)
            .unwrap_or(doorbells);
        let smp = self
            .one_of(section, "smp", &SMP_ACCESS)
            .unwrap_or(SmpAccess::OwnPort);
        let mads = self.mads(section, smp);
        let cluster = self.membership(section, label, smp == SmpAccess::Fabric);
        let virtual_pkeys = self.virtual_pkeys(section, &pkeys);
        let service_levels = self.service_levels(section);
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), runtime_dir);
        Some(Vf {
            name: name.value.to_owned(),
            lid,
            guid: guid?,
            pkeys,
            has_pkeys: section.value("pkeys").is_some(),
            doorbells,
            smp,
            mads,
            cluster,
            virtual_pkeys,
            service_levels,
            socket,
            spare: false,
        })
    }

    /// A virtual function without a VM.
    fn spare(
        &mut self,
        hypervisor: &Entry<&str>,
        number: i64,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Vf {
        let name = format!("{}-spare{number}", hypervisor.value);
        let entry = hypervisor.with(name.as_str());
        self.check_name(&entry);
        let mut seen = std::mem::take(&mut self.names.vfs);
        self.claim(&mut seen, &entry.with(name.clone()), "name", "VF");
        self.names.vfs = seen;
        Vf {
            lid: None,
            guid: self.derived("VF", &name),
            pkeys: vec![PKey::DEFAULT_FULL],
            has_pkeys: false,
            doorbells,
            smp: SmpAccess::OwnPort,
            mads: MadRules {
                classes: GmpClasses::default(),
                rate: Some(MadRate::default()),
                class_rates: Vec::new(),
            },
            cluster: None,
            virtual_pkeys: Vec::new(),
            service_levels: ServiceLevels::default(),
            socket: self.socket(&entry, None, runtime_dir),
            spare: true,
            name,
        }
    }
}

fn is_empty_array(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|array| array.is_empty())
}
