//! Virtual clusters, and what their VMs see in place of what is.

use hca::{Foreign, ServiceLevels};
use wire::{Lid, PKey, Sl};

use super::{LID_MAX, LID_REMEDY, Reader, Seen, integer};
use crate::config::document::Section;
use crate::config::{Cluster, View, keys};

const SL_REMEDY: &str = "the service levels are 0 to 15";

/// The clusters, as far as read.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    pub(super) found: Vec<Cluster>,
    /// The virtual LIDs taken in each.
    taken: Vec<Seen<i64>>,
}

impl<'d, 'i> Reader<'d, 'i> {
    pub(super) fn clusters(&mut self, root: &Section<'d, 'i>, extended_lids: bool) {
        let mut names: Seen<String> = Seen::new();
        for section in root.sections("cluster", keys::CLUSTER) {
            let Some(name) = section.required_text("name") else {
                continue;
            };
            self.check_name(&name);
            self.document.claim(
                &mut names,
                &name.with(name.value.to_owned()),
                "name",
                "cluster",
            );
            let sm_lid = section
                .integer("sm_lid", 1..=LID_MAX, LID_REMEDY)
                .map_or(LID_MAX, |entry| entry.value);
            self.names.clusters.taken.push(Seen::from([(
                sm_lid,
                "the subnet manager in this cluster".to_owned(),
            )]));
            self.names.clusters.found.push(Cluster {
                name: name.value.to_owned(),
                sm_lid: Lid::from(sm_lid as u16),
                view: self.view(&section, extended_lids),
            });
        }
    }

    /// What its VMs see of the subnet.
    fn view(&self, section: &Section<'d, 'i>, extended_lids: bool) -> View {
        let view = self.one_of(section, "view", &View::NAMES);
        if let (Some(View::Mirror), true, Some(entry)) = (view, extended_lids, section.text("view"))
        {
            self.document.reject(
                &entry,
                "switches do not show where LIDs of 18 bits lead",
                "leave the key out, or fabric.extended_lids",
            );
        }
        view.unwrap_or_default()
    }

    /// The cluster of a VF and its LID there.
    pub(super) fn membership(
        &mut self,
        section: &Section<'d, 'i>,
        owner: &str,
        manages: bool,
    ) -> Option<(usize, Lid)> {
        let lid = section.integer("vlid", 1..=LID_MAX, LID_REMEDY);
        let Some(cluster) = section.text("cluster") else {
            if let Some(lid) = lid {
                self.document.reject(
                    &lid,
                    "a virtual LID outside of any cluster",
                    "name the VF's `cluster`, or write `lid` for the LID in the subnet",
                );
            }
            return None;
        };
        let clusters = &self.names.clusters.found;
        let Some(index) = clusters
            .iter()
            .position(|known| known.name == cluster.value)
        else {
            self.document.reject(
                &cluster,
                "no such cluster",
                "add a table [[cluster]] of this name",
            );
            return None;
        };
        if manages {
            self.document.reject(
                &cluster,
                "a VM of a cluster sees virtual LIDs and cannot manage the subnet (`smp = \"fabric\"`)",
                "leave one of the two out",
            );
        }
        let taken = &mut self.names.clusters.taken[index];
        let lid = match lid {
            Some(lid) => {
                self.document.claim(taken, &lid, "virtual LID", owner);
                Some(lid.value)
            }
            None => {
                let free = (1..=LID_MAX).find(|lid| !taken.contains_key(lid));
                if let Some(free) = free {
                    taken.insert(free, owner.to_owned());
                }
                free
            }
        };
        Some((index, Lid::from(u16::try_from(lid?).ok()?)))
    }

    /// The P_Keys that a VF's guest sees in place of those in its table.
    pub(super) fn virtual_pkeys(&self, section: &Section<'d, 'i>, pkeys: &[PKey]) -> Vec<PKey> {
        let (Some(list), Some(whole)) = (
            section.array("virtual_pkeys"),
            section.value("virtual_pkeys"),
        ) else {
            return Vec::new();
        };
        if list.len() != pkeys.len() {
            self.document.reject(
                &whole,
                format!("{} entries, but `pkeys` has {}", list.len(), pkeys.len()),
                "write one for each entry of `pkeys`, in their order",
            );
        }
        self.memberships(&list)
    }

    pub(super) fn service_levels(&self, section: &Section<'d, 'i>) -> ServiceLevels {
        let rewrite = self
            .one_of(section, "sl_policy", &[("deny", false), ("rewrite", true)])
            .unwrap_or(false);
        let (Some(list), Some(whole)) = (section.array("sl"), section.value("sl")) else {
            return ServiceLevels::default();
        };
        let levels: Vec<u8> = list
            .iter()
            .filter_map(|entry| {
                let level = integer(entry.value).filter(|level| (0..16).contains(level));
                if level.is_none() {
                    self.document
                        .reject(entry, "not a service level", SL_REMEDY);
                }
                level.map(|level| level as u8)
            })
            .collect();
        let Some(&first) = levels.first() else {
            if list.is_empty() {
                self.document.reject(
                    &whole,
                    "no service level: the port could send nothing",
                    "leave the key out to allow all",
                );
            }
            return ServiceLevels::default();
        };
        ServiceLevels {
            allowed: levels.iter().fold(0, |set, level| set | 1 << level),
            foreign: if rewrite {
                Foreign::Rewritten(Sl::new(first))
            } else {
                Foreign::Denied
            },
        }
    }
}
