//! Virtual clusters, and what their VMs see in place of what is.

use std::time::Duration;

use hca::{Foreign, ServiceLevels};
use toml::de::DeValue;
use wire::{Guid, Lid, PKey, Sl};

use super::{GUID_REMEDY, Reader, lid_at};
use crate::document::{Entry, Section, Seen};
use crate::names::SL_POLICY;
use crate::{Cluster, Elsewhere, FullMode, FullModeEnd, View, keys};

const LEASE_REMEDY: &str = "the lease has 1 to 86400 seconds";
/// P_Keys in a cluster's share.
const SHARE_MAX: usize = 32;
const FULL_MEMBER: u16 = 0x8000;
const SL_REMEDY: &str = "the service levels are 0 to 15";

/// The clusters, as far as read.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    pub(super) found: Vec<Cluster>,
    pub(super) elsewhere: Vec<Elsewhere>,
    pub(super) exclusive: Vec<bool>,
    /// The virtual LIDs taken in each, and one below which all are.
    taken: Vec<(Seen<i64>, i64)>,
    /// The partitions that stand for clusters' own.
    shares: Seen<u16>,
}

/// The cluster's part of each link, where clusters have lanes.
fn share(section: &Section<'_>, has_lanes: bool) -> u8 {
    let Some(entry) = section.integer("share", "write a number from 1 to 255") else {
        return 1;
    };
    if !has_lanes && entry.value != 1 {
        entry.reject(
            "clusters have no lanes of their own",
            "write cluster_lanes = true in [sm], or remove the key",
        );
    }
    entry.value as u8
}

impl<'d> Reader<'d> {
    pub(super) fn clusters(&mut self, root: &Section<'d>, extended_lids: bool, has_lanes: bool) {
        let mut names: Seen<String> = Seen::new();
        for section in root.sections("cluster", keys::CLUSTER) {
            let Some(name) = section.name(&mut names, "cluster") else {
                continue;
            };
            let sm_lid = lid_at(&section, "sm_lid").map_or(keys::LID_MAX, |entry| entry.value);
            let manager = "the subnet manager in this cluster".to_owned();
            let taken = Seen::from([(sm_lid, manager)]);
            self.names.clusters.taken.push((taken, 1));
            let view = view(&section, extended_lids);
            let full_mode = self.full_mode(&section, view);
            self.names.clusters.found.push(Cluster {
                name: name.value.to_owned(),
                sm_lid: Lid::from(sm_lid as u16),
                view,
                full_mode,
                share: share(&section, has_lanes),
            });
            let exclusive = section.flag("exclusive_switches");
            self.names
                .clusters
                .exclusive
                .push(exclusive.unwrap_or(false));
            self.elsewhere(&section);
        }
    }

    /// The rules of its full mode.
    fn full_mode(&mut self, section: &Section<'d>, view: View) -> FullMode {
        let rules = self.full_mode_rules(section);
        let unset = FullMode::default();
        for (key, is_set) in [
            ("full_mode_lease_s", rules.lease != unset.lease),
            ("full_mode_end", rules.end != unset.end),
            ("pkeys", rules.pkeys != unset.pkeys),
        ] {
            if view != View::Full && is_set {
                section.reject(
                    key,
                    "the cluster has no full mode",
                    "write view = \"full\", or remove the key",
                );
            }
        }
        rules
    }

    fn full_mode_rules(&mut self, section: &Section<'d>) -> FullMode {
        let mut rules = FullMode::default();
        if let Some(seconds) = section.integer("full_mode_lease_s", LEASE_REMEDY) {
            rules.lease = Duration::from_secs(seconds.value as u64);
        }
        if let Some(end) = section.one_of("full_mode_end", &FullModeEnd::NAMES) {
            rules.end = end;
        }
        let Some(list) = section.array("pkeys") else {
            return rules;
        };
        if list.value.len() > SHARE_MAX {
            list.reject(
                format!("{} P_Keys", list.value.len()),
                format!("write {SHARE_MAX} at most"),
            );
        }
        for (entry, key) in list.value.iter().zip(self.memberships(&list.value)) {
            let shares = &mut self.names.clusters.shares;
            if key.partition() == PKey::DEFAULT_FULL.partition() {
                entry.reject("the partition of everybody", "write another P_Key");
            } else {
                entry
                    .with(key.partition())
                    .claim(shares, "partition", "the share of a cluster");
                rules.pkeys.push(PKey::new(key.partition() | FULL_MEMBER));
            }
        }
        rules
    }

    /// The P_Key table of a VF in a cluster, which has the cluster's share as well.
    pub(super) fn with_share(
        &self,
        mut table: Vec<PKey>,
        cluster: Option<(usize, Lid)>,
    ) -> Vec<PKey> {
        let cluster = cluster.and_then(|(index, _)| self.names.clusters.found.get(index));
        let share = cluster.map_or(&[][..], |cluster| &cluster.full_mode.pkeys);
        for &key in share {
            let partition = key.partition();
            if !table.iter().any(|own| own.partition() == partition) {
                table.push(key);
            }
        }
        table
    }

    /// Its VMs that have their VFs at other daemons.
    fn elsewhere(&mut self, cluster: &Section<'d>) {
        let index = self.names.clusters.found.len() - 1;
        let mut guids: Seen<u64> = Seen::new();
        for section in cluster.sections("elsewhere", keys::ELSEWHERE) {
            let owner = "a VM at another daemon";
            let virtual_lid = lid_at(&section, "vlid");
            let lid = lid_at(&section, "lid");
            let guid = section.text("guid").and_then(|entry| {
                let guid: Option<Guid> = entry.value.parse().ok();
                let guid = guid.filter(|guid| *guid != Guid::NONE);
                let guid = entry.meaning(guid, "not a port's GUID", GUID_REMEDY)?;
                entry.with(guid.value()).claim(&mut guids, "GUID", owner);
                Some(guid)
            });
            for (key, is_there) in [
                ("vlid", virtual_lid.is_some()),
                ("lid", lid.is_some()),
                ("guid", guid.is_some()),
            ] {
                if !is_there && section.value(key).is_none() {
                    section.reject(
                        key,
                        "the place of the VM is missing",
                        "write `vlid`, its LID in the cluster, and `lid` and `guid` of its port",
                    );
                }
            }
            let (Some(virtual_lid), Some(lid), Some(guid)) = (virtual_lid, lid, guid) else {
                continue;
            };
            virtual_lid.claim(
                &mut self.names.clusters.taken[index].0,
                "virtual LID",
                owner,
            );
            self.names.clusters.elsewhere.push(Elsewhere {
                cluster: index,
                virtual_lid: Lid::from(virtual_lid.value as u16),
                lid: Lid::from(lid.value as u16),
                guid,
            });
        }
    }

    /// Where others of a cluster are at other daemons, connections are all that its VMs have of it.
    pub(super) fn check_elsewhere(&self, section: &Section<'d>, cluster: Option<(usize, Lid)>) {
        let mut elsewhere = self.names.clusters.elsewhere.iter();
        let has_others = |(index, _)| elsewhere.any(|other| other.cluster == index);
        if cluster.is_some_and(has_others) {
            section.reject(
                "cluster",
                "a cluster with VMs elsewhere has VFs that are passed through, and no others",
                "name another cluster, or give the VF a `device`",
            );
        }
    }

    /// The cluster of a VF and its LID there.
    pub(super) fn membership(
        &mut self,
        section: &Section<'d>,
        owner: &str,
        manages: bool,
    ) -> Option<(usize, Lid)> {
        let lid = lid_at(section, "vlid");
        let Some(cluster) = section.text("cluster") else {
            if let Some(lid) = lid {
                lid.reject(
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
            let names = clusters.iter().map(|known| known.name.as_str());
            let remedy = vswitch::near(cluster.value, names, "");
            let what = "there is no cluster of this name";
            cluster.reject(
                what,
                format!("add a table [[cluster]], or write another name: {remedy}"),
            );
            return None;
        };
        if manages {
            cluster.reject("a VM of a cluster sees virtual LIDs and cannot manage the subnet (`smp = \"fabric\"`)",
                "leave one of the two out",
            );
        }
        let (taken, first) = &mut self.names.clusters.taken[index];
        let lid = if let Some(lid) = lid {
            lid.claim(taken, "virtual LID", owner);
            lid.value
        } else {
            *first = (*first..=keys::LID_MAX).find(|lid| !taken.contains_key(lid))?;
            taken.insert(*first, owner.to_owned());
            *first
        };
        Some((index, Lid::new(lid as u16)))
    }

    /// The P_Keys that a VF's guest sees in place of those in its table.
    pub(super) fn virtual_pkeys(&self, section: &Section<'d>, pkeys: &[PKey]) -> Vec<PKey> {
        let Some(list) = section.array("virtual_pkeys") else {
            return Vec::new();
        };
        let count = list.value.len();
        if count != pkeys.len() {
            list.reject(
                format!("{count} entries, but `pkeys` has {}", pkeys.len()),
                "write one for each entry of `pkeys`, in their order",
            );
        }
        self.memberships(&list.value)
    }
}

/// Returns the view that its VMs have of the subnet.
fn view(section: &Section<'_>, extended_lids: bool) -> View {
    let view = section.one_of("view", &View::NAMES);
    let shows_switches = view.is_some_and(|view| view != View::OwnPort);
    if let (true, true, Some(entry)) = (shows_switches, extended_lids, section.text("view")) {
        entry.reject(
            "switches do not show where LIDs of 18 bits lead",
            "leave the key out, or fabric.extended_lids",
        );
    }
    view.unwrap_or_default()
}

pub(super) fn service_levels(section: &Section<'_>) -> ServiceLevels {
    let rewrite = section.one_of("sl_policy", &SL_POLICY).unwrap_or(false);
    let Some(list) = section.array("sl") else {
        return ServiceLevels::default();
    };
    let level = |entry: &Entry<'_, &DeValue<'_>>| {
        entry.meaning(entry.integer(0..=15), "not a service level", SL_REMEDY)
    };
    let levels: Vec<i64> = list.value.iter().filter_map(level).collect();
    let Some(&first) = levels.first() else {
        if list.value.is_empty() {
            list.reject(
                "no service level: the port could send nothing",
                "leave the key out to allow all",
            );
        }
        return ServiceLevels::default();
    };
    ServiceLevels {
        allowed: levels.iter().fold(0, |set, level| set | 1 << level),
        foreign: if rewrite {
            Foreign::Rewritten(Sl::new(first as u8))
        } else {
            Foreign::Denied
        },
    }
}
