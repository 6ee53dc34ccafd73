//! The view that the VMs of a cluster have of the subnet.
//!
//! A view is a [`ViewFabric`]: the cluster's VMs, the subnet manager's host, and the switches that serve
//! them, made from what the subnet is when somebody asks and made anew when it has changed since. No
//! question that is answered from it enters the subnet, and there is nothing in it that could tell of
//! anybody else.
//!
//! The management thread makes views, and keeps nobody from the subnet or from the views there are
//! meanwhile. A guest that asks its own port by a command gets no new view, since others wait for its
//! command.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fabric::{Nodes, PortCounters, PortRef, ViewFabric, ViewHost, ViewManager, ViewName};
use hca::VfId;
use tracing::warn;
use wire::attribute::NodeDescription;
use wire::{Guid, Lid, PKey};

use super::cluster::Addresses;
use crate::model::{Cluster, MANAGER, Model, derive_guid};
use crate::sharing::Sharing;

/// Up to which changes of the subnet something is: its generation, and other changes.
pub(crate) type AsOf = (u64, u64);

/// The subnet, and who is where.
pub(crate) struct ViewInput<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) addresses: &'a Addresses,
    pub(crate) sharing: &'a Sharing,
    /// The ports of the VFs, in their order.
    pub(crate) ports: &'a [PortRef],
    /// Where the traffic of a cluster through a port is counted.
    pub(crate) counters: &'a dyn Fn(usize, PortRef) -> Arc<PortCounters>,
}

/// The view of one cluster.
#[derive(Debug)]
pub(crate) struct View {
    /// Index of the cluster, and its name.
    cluster: usize,
    name: String,
    names: Names,
    /// The subnet that its view fabric shows, if it has one.
    pub(crate) as_of: Option<AsOf>,
    pub(crate) pace: Pace,
}

/// A view fabric of the subnet as it was.
#[derive(Debug)]
pub(crate) struct CachedView {
    pub(crate) view_fabric: ViewFabric,
    /// By VF, the host there.
    pub(crate) hosts: HashMap<VfId, usize>,
}

/// Names of switches, and of the manager's host: always the same ones for the same nodes.
#[derive(Debug)]
struct Names {
    given: HashMap<Guid, ViewName>,
    /// LIDs of VMs, running or not, of the manager, and those given.
    taken: HashSet<Lid>,
    /// LIDs are given from the highest down.
    next: Lid,
}

/// The share of the time that goes into making views. Changes of the subnet that follow each other closely
/// are not to keep everybody from the subnet because somebody looks at it all the time.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) spent: Duration,
    at: Duration,
}

impl Pace {
    /// Time that may be spent at once.
    const BURST: Duration = Duration::from_millis(200);
    /// One part in so many of the time that passes may be spent.
    const SHARE: u32 = 5;

    pub(crate) fn new(now: Duration) -> Self {
        Self {
            spent: Duration::ZERO,
            at: now,
        }
    }

    pub(crate) fn permits(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.at);
        self.at += passed;
        self.spent = self.spent.saturating_sub(passed / Self::SHARE);
        self.spent < Self::BURST
    }
}

impl Names {
    /// The name of the node of a port. The manager's has the manager's LID, and no other while it
    /// has not needed one; and its own GUID, which the subnet administration tells as well.
    fn of(
        &mut self,
        nodes: &Nodes,
        cluster: &str,
        port: PortRef,
        manager: ViewManager,
    ) -> ViewName {
        let info = nodes.port_info(port).unwrap_or_default();
        let physical = nodes.node_info(port).unwrap_or_default().port_guid;
        let manages = info.lid.is_unicast() && info.lid.covers(info.lmc, manager.physical);
        let mut name = match self.given.get(&physical) {
            Some(&given) => given,
            None => ViewName {
                lid: Lid::NONE,
                guid: if manages {
                    physical
                } else {
                    self.guid(nodes, cluster, physical)
                },
                description: NodeDescription::new(&if manages {
                    MANAGER.to_owned()
                } else {
                    format!("{cluster} switch {}", self.given.len() + 1)
                }),
            },
        };
        if !name.lid.is_unicast() && !manages {
            name.lid = self.free_lid();
        }
        self.given.insert(physical, name);
        if manages {
            name.lid = manager.lid;
        }
        name
    }

    /// The next LID that nobody has; none when there are no more.
    fn free_lid(&mut self) -> Lid {
        while self.next.is_unicast() {
            let lid = self.next;
            self.next = Lid::new(lid.value() - 1);
            if self.taken.insert(lid) {
                return lid;
            }
        }
        Lid::NONE
    }

    /// A GUID that nobody has in the subnet, nor in this view.
    fn guid(&self, nodes: &Nodes, cluster: &str, physical: Guid) -> Guid {
        let attempts = (0_u32..).map(|attempt| format!("{cluster} {physical} {attempt}"));
        let mut guids = attempts.map(|text| derive_guid("view", &text));
        let given = |guid| self.given.values().any(|name| name.guid == guid);
        let free = |guid: &Guid| nodes.port_by_guid(*guid).is_none() && !given(*guid);
        guids.find(free).unwrap_or_default()
    }
}

impl View {
    /// The view of a cluster of a model, not yet made.
    pub(crate) fn new(model: &Model, index: usize, cluster: &Cluster, now: Duration) -> Self {
        let vms = model.vfs().filter_map(|(_, vf)| vf.cluster);
        let vms = vms.filter(|(of, _)| *of == index).map(|(_, lid)| lid);
        Self {
            cluster: index,
            name: cluster.name.clone(),
            names: Names {
                given: HashMap::new(),
                taken: vms.chain([cluster.sm_lid]).collect(),
                next: Lid::UNICAST_LAST,
            },
            as_of: None,
            pace: Pace::new(now),
        }
    }

    /// Makes it of the subnet. `vms` has the names of VMs whose text the subnet does not know.
    pub(crate) fn make(
        &mut self,
        input: &ViewInput<'_>,
        vms: &HashMap<Guid, String>,
    ) -> Option<CachedView> {
        let (mut hosts, functions) = self.vms(input, vms);
        let first = hosts.first()?.port;
        let physical = input.nodes.port_info(first)?.master_sm_lid;
        let manager = ViewManager {
            physical,
            lid: input.addresses.manager(self.cluster, physical),
        };
        if let Some(port) = port_with(input.nodes, physical) {
            hosts.push(ViewHost {
                port,
                entry: None,
                physical,
                name: self.names.of(input.nodes, &self.name, port, manager),
                pkeys: vec![PKey::DEFAULT_FULL],
                member: false,
            });
        }
        let view_fabric = input.nodes.view_fabric(&hosts, manager, |port| {
            self.names.of(input.nodes, &self.name, port, manager)
        });
        let view_fabric =
            view_fabric.map_err(|error| warn!(cluster = self.name, %error, "no view"));
        Some(CachedView {
            view_fabric: view_fabric.ok()?,
            hosts: functions,
        })
    }

    /// Makes the network that its own manager manages, which takes over what it can from the one `before`.
    pub(crate) fn make_writable(
        &mut self,
        input: &ViewInput<'_>,
        vms: &HashMap<Guid, String>,
        before: Option<&ViewFabric>,
    ) -> Option<CachedView> {
        let (hosts, functions) = self.vms(input, vms);
        let view_fabric = ViewFabric::writable(input.nodes, &hosts, before, |port| {
            let names = &mut self.names;
            names.of(input.nodes, &self.name, port, ViewManager::default())
        });
        let view_fabric =
            view_fabric.map_err(|error| warn!(cluster = self.name, %error, "no view"));
        let mut view_fabric = view_fabric.ok()?;
        view_fabric.share_counters(|port| (input.counters)(self.cluster, port));
        Some(CachedView {
            view_fabric,
            hosts: functions,
        })
    }

    /// The cluster's VMs that can be reached, and which of them is at which VF.
    fn vms(
        &self,
        input: &ViewInput<'_>,
        vms: &HashMap<Guid, String>,
    ) -> (Vec<ViewHost>, HashMap<VfId, usize>) {
        let ViewInput {
            nodes,
            addresses,
            sharing,
            ports,
            ..
        } = *input;
        let mut found: Vec<ViewHost> = Vec::new();
        let mut functions = HashMap::new();
        let mut guids = HashSet::new();
        for (index, &port) in ports.iter().enumerate() {
            let vf = VfId(index as u16);
            let Some(lid) = addresses.lid_in(vf, self.cluster) else {
                continue;
            };
            let (physical, _) = sharing.address(vf, nodes, port);
            let guid = sharing.guid_at(vf, nodes, port);
            // While a VM moves two ports may have its GUID; one has the LID.
            let Some(guid) = guid.filter(|_| physical.is_unicast()) else {
                continue;
            };
            if !guids.insert(guid) {
                continue;
            }
            let place = sharing.place(vf);
            let own = nodes.node_description(port.node);
            let own = own
                .filter(|_| place.is_none())
                .unwrap_or_else(|| NodeDescription::new(vms.get(&guid).map_or("", String::as_str)));
            let table = sharing.pkeys(vf, nodes);
            let table = table.as_deref().or(nodes.pkeys(port)).unwrap_or_default();
            functions.insert(vf, found.len());
            found.push(ViewHost {
                port,
                entry: place.map(|place| place.entry),
                physical,
                name: ViewName {
                    lid,
                    guid,
                    description: own,
                },
                pkeys: addresses.pkeys(vf, table),
                member: true,
            });
        }
        (found, functions)
    }
}

/// The port that a LID leads to.
fn port_with(nodes: &Nodes, lid: Lid) -> Option<PortRef> {
    let ports = nodes.nodes().flat_map(|node| {
        let first = nodes.node_info(PortRef { node, port: 1 });
        let is_switch = nodes.node_info(PortRef { node, port: 0 }).is_some();
        let last = first
            .filter(|_| !is_switch)
            .map_or(0, |info| info.num_ports);
        (u8::from(!is_switch)..=last).map(move |port| PortRef { node, port })
    });
    let has = |port: &PortRef| {
        let info = nodes.port_info(*port).unwrap_or_default();
        lid.is_unicast() && info.lid.covers(info.lmc, lid)
    };
    { ports }.find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_take_their_share_of_the_time_and_no_more() {
        let hour = Duration::from_secs(3600);
        let mut pace = Pace::new(hour);
        assert!(pace.permits(hour));
        pace.spent += Pace::BURST + hour;
        assert!(!pace.permits(hour));
        let later = hour + hour * Pace::SHARE;
        assert!(!pace.permits(later));
        assert!(pace.permits(later + Duration::from_secs(1)));
    }
}
