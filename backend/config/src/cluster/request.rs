//! Requests for clusters, carried out on the text of a configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use wire::Lid;

use super::network::Network;
use super::placement::{self, Counts, Demand, Present, Refusal};
use crate::edit::{Edit, EditError, Part, Setting};
use crate::{Config, keys};

/// A request for one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub enum ClusterRequest {
    /// Creates a cluster, with VFs for its VMs.
    Create {
        /// Its name.
        name: String,
        /// Number of VMs.
        vms: u64,
        /// Needs of its VMs.
        needs: Needs,
        /// Whether its switches have no VMs of other clusters.
        exclusive_switches: bool,
        /// Keys of the cluster, as `KEY=VALUE`.
        set: Vec<String>,
    },
    /// Gives a cluster more VMs, or has it give up some.
    Resize {
        /// Its name.
        name: String,
        /// Number of VMs after it.
        vms: u64,
        /// Needs of new VMs.
        needs: Needs,
    },
    /// Deletes a cluster, and its VFs with it.
    Delete {
        /// Its name.
        name: String,
    },
}

/// Needs of VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Processors of each.
    pub processors: Option<u64>,
    /// Memory of each, as in `4G`.
    pub memory: Option<String>,
    /// The most of the cluster's VMs on a hypervisor.
    pub per_host: Option<u64>,
    /// The most clusters on a cable.
    pub per_cable: Option<u64>,
    /// Keys of the new VFs, as `KEY=VALUE`.
    pub vf_set: Vec<String>,
}

/// A request as it is written: serde knows no unknown field of variants with common parts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    action: Action,
    name: String,
    vms: Option<u64>,
    processors: Option<u64>,
    memory: Option<String>,
    per_host: Option<u64>,
    per_cable: Option<u64>,
    exclusive_switches: Option<bool>,
    set: Option<Vec<String>>,
    vf_set: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Create,
    Resize,
    Delete,
}

impl TryFrom<Written> for ClusterRequest {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written {
            action,
            name,
            vms,
            processors,
            memory,
            per_host,
            per_cable,
            exclusive_switches,
            set,
            vf_set,
        } = written;
        let of_cluster = exclusive_switches.is_some() || set.is_some();
        if of_cluster && action != Action::Create {
            let what = "`exclusive_switches` and `set` are for `create`";
            return Err(format!("cluster `{name}`: {what}"));
        }
        let needs = Needs {
            processors,
            memory,
            per_host,
            per_cable,
            vf_set: vf_set.unwrap_or_default(),
        };
        match (action, vms) {
            (Action::Create, vms) => Ok(Self::Create {
                name,
                vms: vms.unwrap_or(0),
                needs,
                exclusive_switches: exclusive_switches.unwrap_or(false),
                set: set.unwrap_or_default(),
            }),
            (Action::Resize, Some(vms)) => Ok(Self::Resize { name, vms, needs }),
            (Action::Resize, None) => Err(format!(
                "cluster `{name}`: `vms`, the number after it, is missing"
            )),
            (Action::Delete, None) if needs == Needs::default() => Ok(Self::Delete { name }),
            (Action::Delete, _) => Err(format!(
                "cluster `{name}`: `delete` takes a name, and nothing else"
            )),
        }
    }
}

impl Needs {
    /// The demand for so many VMs; `per_cable` clusters may use a cable where nothing else is asked for.
    ///
    /// # Errors
    /// The mistake, and its remedy.
    pub fn demand(
        &self,
        vms: u64,
        exclusive_switches: bool,
        per_cable: usize,
    ) -> Result<Demand, String> {
        let memory = self.memory.as_deref().map(|text| {
            let bytes = crate::read::size(text).filter(|it| crate::GUEST_MEMORY.contains(it));
            bytes.ok_or_else(|| {
                format!(
                    "`{text}` is no amount of memory; write a number and K, M, G or T, such as 4G"
                )
            })
        });
        Ok(Demand {
            vms,
            processors: self.processors,
            memory: memory.transpose()?,
            per_host: self.per_host,
            exclusive_switches,
            per_cable: { self.per_cable }.map_or(per_cable, |most| most as usize),
        })
    }
}

/// The result of a request: the cluster as it is then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Name of the cluster.
    pub name: String,
    /// Its VMs, in the order of their LIDs.
    pub vms: Vec<Vm>,
    /// VMs that are new.
    pub added: Vec<String>,
    /// VMs that go.
    pub removed: Vec<String>,
    /// Cables between its VMs.
    pub distance: Distance,
    /// The cable with most clusters among those that it may use.
    pub fullest_cable: Option<FullestCable>,
}

/// Distances between the VMs of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Distance {
    /// Cables on the shortest paths between all pairs.
    pub sum: u64,
    /// Pairs.
    pub pairs: u64,
    /// Cables between the most distant pair.
    pub longest: u32,
}

/// A cable and the clusters on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FullestCable {
    /// Its ends.
    pub cable: String,
    /// Clusters that may use it.
    pub clusters: usize,
}

/// A VM of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// Its LID in the cluster.
    pub vlid: u16,
}

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is of no use.
    #[error("cluster `{0}`: {1}")]
    Wrong(String, String),
    /// There is no place for its VMs.
    #[error("cluster `{0}` finds no place: {1}")]
    Refused(String, Refusal),
    /// The text cannot be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
}

/// One VM of a cluster here.
#[derive(Debug, Clone)]
struct Member {
    name: String,
    host: usize,
    lid: u16,
    processors: u64,
    memory: u64,
    /// A kind of table that it is.
    part: Part,
}

#[derive(Debug, Clone)]
struct Tenant {
    name: String,
    sm_lid: u16,
    exclusive: bool,
    members: Vec<Member>,
    /// VMs that have no place here.
    others: usize,
}

/// Clusters and hosts, and the text that describes them.
#[derive(Debug)]
pub struct Cloud {
    network: Network,
    tenants: Vec<Tenant>,
    names: BTreeSet<String>,
    edit: Edit,
    busy: BTreeSet<String>,
    per_cable: usize,
}

impl Cloud {
    /// Those of a configuration and its text. VMs may be elsewhere than it says (`moved`: hypervisors by VM); those in `busy`
    /// are given up last.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn new(
        config: &Config,
        text: &str,
        moved: &BTreeMap<String, String>,
        busy: BTreeSet<String>,
    ) -> Result<Self, EditError> {
        let network = Network::of(config);
        let tenants = config.clusters.iter().enumerate().map(|(at, cluster)| {
            let members = config.vfs().filter_map(|(hypervisor, vf)| {
                let (_, lid) = vf.model.cluster.filter(|(of, _)| *of == at)?;
                let name = vf.model.name.clone();
                let hypervisor = moved.get(&name).unwrap_or(&hypervisor.name);
                let part = match vf.kind {
                    crate::Kind::Hca => Part::Vf,
                    crate::Kind::VhostUserNet(_) => Part::Port,
                };
                Some(Member {
                    host: network.host(hypervisor)?,
                    name,
                    lid: lid.value(),
                    processors: vf.needs.processors.unwrap_or(0) as u64,
                    memory: vf.guest_memory.unwrap_or(0),
                    part,
                })
            });
            let passed = config.hardware();
            let passed = passed.filter(|vf| vf.cluster.is_some_and(|(of, _)| of == at));
            Tenant {
                name: cluster.name.clone(),
                sm_lid: cluster.sm_lid.value(),
                exclusive: config.exclusive_switches[at],
                members: members.collect(),
                others: passed.count(),
            }
        });
        let vfs = config.vfs().map(|(_, vf)| vf.model.name.clone());
        let hardware = config.hardware().map(|vf| vf.name.clone());
        Ok(Self {
            tenants: tenants.collect(),
            names: vfs.chain(hardware).collect(),
            network,
            edit: Edit::new(text)?,
            busy,
            per_cable: per_cable(config),
        })
    }

    /// The network.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The most clusters on a cable, where a request has no other limit.
    #[must_use]
    pub const fn per_cable(&self) -> usize {
        self.per_cable
    }

    /// The text as it is now.
    #[must_use]
    pub fn text(&self) -> String {
        self.edit.text()
    }

    /// The names of all clusters.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.tenants.iter().map(|tenant| tenant.name.as_str())
    }

    /// The hosts of a cluster's VMs, in the order of their LIDs, with their names.
    #[must_use]
    pub fn members(&self, cluster: &str) -> Vec<(&str, usize)> {
        let tenant = self.tenants.iter().find(|tenant| tenant.name == cluster);
        let members = tenant.into_iter().flat_map(|tenant| &tenant.members);
        members.map(|vm| (vm.name.as_str(), vm.host)).collect()
    }

    /// Carries a request out.
    ///
    /// # Errors
    /// [`RequestError`]; then part of a request that failed may be in the text.
    pub fn apply(&mut self, request: &ClusterRequest) -> Result<Shown, RequestError> {
        match request {
            ClusterRequest::Create {
                name,
                vms,
                needs,
                exclusive_switches,
                set,
            } => {
                let mut settings = settings(name, set)?;
                if *exclusive_switches {
                    settings.push(Setting::flag("exclusive_switches", true));
                }
                let exclusive = *exclusive_switches
                    || set
                        .iter()
                        .any(|it| it.replace(' ', "") == "exclusive_switches=true");
                self.edit.add(Part::Cluster, name, None, &settings)?;
                let sm_lid = set
                    .iter()
                    .find_map(|it| it.split_once('=').filter(|it| it.0.trim() == "sm_lid"));
                let sm_lid = sm_lid.and_then(|(_, lid)| number(lid.trim()));
                self.tenants.push(Tenant {
                    name: name.clone(),
                    sm_lid: sm_lid.unwrap_or(keys::LID_MAX as u16),
                    exclusive,
                    members: Vec::new(),
                    others: 0,
                });
                let added = self.grow(self.tenants.len() - 1, *vms, needs)?;
                Ok(self.shown(self.tenants.len() - 1, added, Vec::new()))
            }
            ClusterRequest::Resize { name, vms, needs } => {
                let at = self.find(name)?;
                let now = self.tenants[at].members.len() as u64;
                if *vms == 0 {
                    let what = "no VM would be left; use `cluster delete`";
                    return Err(RequestError::Wrong(name.clone(), what.to_owned()));
                }
                let (mut added, mut removed) = (Vec::new(), Vec::new());
                if *vms > now {
                    added = self.grow(at, *vms - now, needs)?;
                } else {
                    removed = self.shrink(at, *vms as usize)?;
                }
                Ok(self.shown(at, added, removed))
            }
            ClusterRequest::Delete { name } => {
                let at = self.find(name)?;
                if self.tenants[at].others > 0 {
                    let what = "VFs that are passed through are in it; take them out with `cluster remove` first";
                    return Err(RequestError::Wrong(name.clone(), what.to_owned()));
                }
                let removed = self.shrink(at, 0)?;
                self.edit.remove(Part::Cluster, name)?;
                let mut shown = self.shown(at, Vec::new(), removed);
                shown.vms.clear();
                self.tenants.remove(at);
                Ok(shown)
            }
        }
    }

    /// The clusters after whose compacting, by moves to these places, a new or larger cluster finds room.
    #[must_use]
    pub fn room_makers(&self, name: &str, demand: &Demand, places: &Counts) -> Vec<String> {
        let own = self.tenants.iter().position(|tenant| tenant.name == name);
        let own = own.unwrap_or(self.tenants.len());
        let hosts = |at: usize| -> Vec<usize> {
            let tenant = self.tenants.get(at).into_iter();
            { tenant.flat_map(|tenant| &tenant.members) }
                .map(|vm| vm.host)
                .collect()
        };
        let fixed = placement::counted(&hosts(own));
        let makers = (0..self.tenants.len()).filter(|&at| {
            let mut moved = hosts(at);
            for step in placement::compact(&self.network, &moved.clone(), places) {
                moved[step.vm] = step.to;
            }
            if at == own || moved == hosts(at) {
                return false;
            }
            let others = (0..self.tenants.len()).filter(|other| *other != own);
            let others: Vec<Present> = others
                .map(|other| Present {
                    hosts: if other == at {
                        moved.clone()
                    } else {
                        hosts(other)
                    },
                    exclusive_switches: self.tenants[other].exclusive,
                })
                .collect();
            placement::place(&self.network, demand, &fixed, &others).is_ok()
        });
        makers.map(|at| self.tenants[at].name.clone()).collect()
    }

    fn find(&mut self, name: &str) -> Result<usize, RequestError> {
        let at = self.tenants.iter().position(|tenant| tenant.name == name);
        at.ok_or_else(|| self.edit.unknown(Part::Cluster, name).into())
    }

    /// The other clusters, as placement sees them.
    fn others(&self, but: usize) -> Vec<Present> {
        let others = self.tenants.iter().enumerate().filter(|(at, _)| *at != but);
        let others = others.map(|(_, tenant)| Present {
            hosts: tenant.members.iter().map(|vm| vm.host).collect(),
            exclusive_switches: tenant.exclusive,
        });
        others.collect()
    }

    fn grow(&mut self, at: usize, vms: u64, needs: &Needs) -> Result<Vec<String>, RequestError> {
        let tenant = &self.tenants[at];
        let cluster = tenant.name.clone();
        let wrong = |what: String| RequestError::Wrong(cluster.clone(), what);
        let demand = needs.demand(vms, tenant.exclusive, self.per_cable);
        let demand = demand.map_err(wrong)?;
        let fixed: Vec<usize> = tenant.members.iter().map(|vm| vm.host).collect();
        let fixed = placement::counted(&fixed);
        let new: Counts = placement::place(&self.network, &demand, &fixed, &self.others(at))
            .map_err(|refusal| RequestError::Refused(cluster.clone(), refusal))?;
        let mut vf_settings = settings(&cluster, &needs.vf_set)?;
        if let Some(processors) = needs.processors {
            vf_settings.push(Setting::number("processors", processors as i64));
        }
        if let Some(memory) = &needs.memory {
            vf_settings.push(Setting::text("guest_memory", memory));
        }
        vf_settings.push(Setting::text("cluster", &cluster));
        let mut added = Vec::new();
        let mut number = 1;
        let mut lid = 1;
        for (host, count) in new {
            let hypervisor = self.network.hosts[host].name.clone();
            for _ in 0..count {
                let name = loop {
                    let name = format!("{cluster}-{number}");
                    number += 1;
                    if self.names.insert(name.clone()) {
                        break name;
                    }
                };
                let tenant = &mut self.tenants[at];
                let taken = |lid: u16| {
                    lid == tenant.sm_lid || { tenant.members.iter() }.any(|vm| vm.lid == lid)
                };
                while taken(lid) && i64::from(lid) < keys::LID_MAX {
                    lid += 1;
                }
                let mut settings = vf_settings.clone();
                settings.push(Setting::number("vlid", lid.into()));
                self.edit
                    .add_new(Part::Vf, &name, Some(&hypervisor), &settings)?;
                tenant.members.push(Member {
                    name: name.clone(),
                    host,
                    lid: Lid::from(lid).value(),
                    processors: needs.processors.unwrap_or(0),
                    memory: demand.memory.unwrap_or(0),
                    part: Part::Vf,
                });
                let at = &mut self.network.hosts[host];
                at.vfs -= 1;
                at.processors = at
                    .processors
                    .map(|it| it.saturating_sub(needs.processors.unwrap_or(0)));
                at.memory = at
                    .memory
                    .map(|it| it.saturating_sub(demand.memory.unwrap_or(0)));
                added.push(name);
            }
        }
        Ok(added)
    }

    fn shrink(&mut self, at: usize, left: usize) -> Result<Vec<String>, RequestError> {
        let tenant = &mut self.tenants[at];
        let hosts: Vec<usize> = tenant.members.iter().map(|vm| vm.host).collect();
        let busy: Vec<bool> = tenant
            .members
            .iter()
            .map(|vm| self.busy.contains(&vm.name))
            .collect();
        let mut given = placement::give_up(&self.network, &hosts, &busy, left);
        given.sort_unstable();
        let mut removed = Vec::new();
        for vm in given.into_iter().rev() {
            let vm = tenant.members.remove(vm);
            self.edit.remove(vm.part, &vm.name)?;
            self.names.remove(&vm.name);
            let host = &mut self.network.hosts[vm.host];
            host.vfs += 1;
            host.processors = host.processors.map(|it| it + vm.processors);
            host.memory = host.memory.map(|it| it + vm.memory);
            removed.push(vm.name);
        }
        removed.reverse();
        Ok(removed)
    }

    /// A cluster as it is now.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn show(&mut self, name: &str) -> Result<Shown, RequestError> {
        let at = self.find(name)?;
        Ok(self.shown(at, Vec::new(), Vec::new()))
    }

    fn shown(&self, at: usize, added: Vec<String>, removed: Vec<String>) -> Shown {
        let tenant = &self.tenants[at];
        let mut members: Vec<&Member> = tenant.members.iter().collect();
        members.sort_by_key(|vm| vm.lid);
        let hosts: Vec<usize> = members.iter().map(|vm| vm.host).collect();
        let vms = members.iter().map(|vm| Vm {
            name: vm.name.clone(),
            hypervisor: self.network.hosts[vm.host].name.clone(),
            vlid: vm.lid,
        });
        let own = self.network.cables(&hosts);
        let others: Vec<Present> = self.others(at);
        let others = others.iter().filter(|_| !own.is_empty());
        let load = self.network.load(others.map(|other| &other.hosts[..]));
        let clusters = own
            .iter()
            .map(|cable| (load.get(cable).copied().unwrap_or(0) + 1, cable));
        let fullest = clusters.max_by_key(|&(count, cable)| (count, std::cmp::Reverse(cable)));
        Shown {
            name: tenant.name.clone(),
            vms: vms.collect(),
            added,
            removed,
            distance: distance(&self.network, &hosts),
            fullest_cable: fullest.map(|(clusters, &cable)| FullestCable {
                cable: self.network.name(cable),
                clusters,
            }),
        }
    }
}

/// The clusters for which a cable has room: as many as data lanes can be, or with lanes of clusters those that links here have but
/// for the one of all others.
fn per_cable(config: &Config) -> usize {
    /// Data lanes of the links of the fabric.
    const LANES: u8 = 8;
    if !config.manager.cluster_lanes {
        return placement::CLUSTERS_PER_CABLE_MAX;
    }
    let lanes = config.manager.max_lanes.unwrap_or(LANES).min(LANES);
    usize::from(lanes.saturating_sub(1).max(1))
}

/// Distances between VMs on these hosts.
#[must_use]
pub fn distance(network: &Network, hosts: &[usize]) -> Distance {
    let counts = placement::counted(hosts);
    let vms = hosts.len() as u64;
    let pairs = counts
        .keys()
        .flat_map(|&a| counts.keys().map(move |&b| (a, b)));
    Distance {
        sum: placement::cost(network, &counts),
        pairs: vms * vms.saturating_sub(1) / 2,
        longest: { pairs.filter_map(|(a, b)| network.between(a, b)) }
            .max()
            .unwrap_or(0),
    }
}

fn settings(cluster: &str, texts: &[String]) -> Result<Vec<Setting>, RequestError> {
    let read = texts.iter().map(|text| {
        let setting = text.parse::<Setting>();
        setting.map_err(|what| RequestError::Wrong(cluster.to_owned(), format!("`{text}`: {what}")))
    });
    read.collect()
}

/// A number as in the configuration file, decimal or hexadecimal.
fn number(text: &str) -> Option<u16> {
    match text.trim_matches('"').strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Directories;

    /// With lanes of clusters a cable has room for as many as there are lanes, but for the one of all others.
    #[test]
    fn clusters_on_a_cable_follow_the_lanes() {
        let limit = |sm: &str| {
            let text = format!("[sm]\n{sm}\n[[hypervisor]]\nname = 'hv1'\n");
            let dirs = Directories {
                chosen: None,
                fallback: Path::new("/run/ibvswitch"),
            };
            let config = Config::parse("test", &text, dirs).expect("is right");
            let cloud = Cloud::new(&config, &text, &BTreeMap::new(), BTreeSet::new());
            cloud.expect("is TOML").per_cable()
        };
        assert_eq!(limit(""), 15);
        assert_eq!(limit("cluster_lanes = true"), 7);
        assert_eq!(limit("cluster_lanes = true\nqos_max_vls = 4"), 3);
    }
}
