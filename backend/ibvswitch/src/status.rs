//! The state of the daemon, put together from its parts for those who ask.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use fabric::{Fabric, PortRef, SmpAccess};
use parking_lot::RwLock;
use vswitch::{Plan, SharedPlace};
use wire::{ExtendedLid, Guid, Sl};

use crate::control::{
    self, Counters, FabricStatus, Mads, NodeKind, Objects, Sandbox, Status, SubnetName,
    SubnetStatus, Topology, VfStatus, elsewhere, used_pkeys,
};
use crate::warnings;
use config::{Config, Hypervisor, Kind, ManagerPlace, SMP_ACCESS, Vf};

/// Work of a subnet manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Managed {
    /// Sweeps completed.
    pub sweeps: u64,
    /// Subnet management packets sent.
    pub smps: u64,
    /// No sweep is due or under way.
    pub up: bool,
}

/// State of a VF's device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    /// The VM that has its addresses at it; `None` where nobody has.
    pub holds: Option<String>,
    /// Reach of the guest's subnet management packets; `None` for the configuration's value.
    pub smp: Option<SmpAccess>,
    /// Whether a VMM is connected.
    pub client_connected: bool,
    /// Whether that VMM does not share its guest's memory.
    pub memory_unshared: bool,
    /// Objects that the guest's driver has created.
    pub objects: Objects,
    /// Traffic through the port.
    pub counters: Counters,
    /// Counts of the guest's management packets, passed and refused.
    pub mads: Mads,
}

/// Knows what a daemon is made of, and describes it.
#[derive(Debug)]
pub struct Observer {
    config: Config,
    plan: Arc<Plan>,
    started: Instant,
    /// Warnings about the files of `[sm]`, if they have been read again.
    reread: RwLock<Option<Vec<String>>>,
}

impl Observer {
    /// For a daemon that begins to serve now.
    pub fn new(config: Config, plan: impl Into<Arc<Plan>>) -> Self {
        Self {
            config,
            plan: plan.into(),
            started: Instant::now(),
            reread: RwLock::default(),
        }
    }

    /// Takes the warnings about the files of `[sm]` that have been read again.
    pub(crate) fn has_reread(&self, warnings: Vec<String>) {
        *self.reread.write() = Some(warnings);
    }

    /// The configuration it describes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The nodes and cables it describes.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The state of the daemon. `functions` are in the order of [`Config::vfs`]; those missing
    /// count as idle; `managers`, if embedded, are in the order of the subnets.
    pub fn status(&self, fabric: &Fabric, managers: &[Managed], functions: &[Function]) -> Status {
        let functions = functions
            .iter()
            .cloned()
            .chain(std::iter::repeat(Function::default()));
        let mut warnings = warnings::of(&self.config, &self.plan, fabric);
        if let Some(reread) = &*self.reread.read() {
            warnings.retain(|it| !self.config.file_warnings.contains(it));
            warnings.extend_from_slice(reread);
        }
        // A sweep may yet activate ports.
        if managers.iter().all(|manager| manager.up) {
            warnings.extend(warnings::waiting(&self.config, &self.plan, fabric));
        }
        let ports = self.plan.vfs().zip(self.plan.places());
        let vfs = self.config.vfs().zip(ports).zip(functions);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            runtime_dir: self.config.runtime_dir.display().to_string(),
            config: { self.config.file.as_ref() }.map(|path| path.display().to_string()),
            fabric: self.fabric_status(fabric, managers),
            vfs: vfs
                .map(|(((hypervisor, vf), (port, place)), function)| {
                    let mut status = vf_status(hypervisor, vf, fabric, port, function);
                    if let Some(place) = place {
                        self.share(&mut status, vf, fabric, place);
                    }
                    let subnet = &self.config.subnets[self.config.subnet_of(hypervisor)];
                    VfStatus {
                        subnet: subnet.name.clone(),
                        cluster: self.cluster(vf).map(|(name, _)| name),
                        virtual_lid: self.cluster(vf).map(|(_, lid)| lid),
                        ..status
                    }
                })
                .collect(),
            adapters: control::adapters(&self.plan, fabric),
            full_mode: Vec::new(),
            clusters: Vec::new(),
            passthrough: Vec::new(),
            commands: Vec::new(),
            placement: None,
            upgraded: None,
            sandbox: Sandbox::default(),
            warnings,
        }
    }

    fn fabric_status(&self, fabric: &Fabric, managers: &[Managed]) -> FabricStatus {
        let subnets = self.config.subnets.iter().zip(self.plan.managers());
        let managers = managers.iter().copied();
        let managers = managers.chain(std::iter::repeat(Managed::default()));
        let each = subnets.enumerate().zip(managers);
        let all: Vec<SubnetStatus> = each
            .map(|((number, (subnet, port)), manager)| SubnetStatus {
                name: subnet.name.clone().unwrap_or_default(),
                prefix: Guid::from(subnet.prefix).to_string(),
                switches: self.plan.switches(number) as u32,
                sm_lid: fabric
                    .port_info(port)
                    .map_or(0, |info| info.master_sm_lid.value()),
                sweeps: manager.sweeps,
                smps: manager.smps,
            })
            .collect();
        let first = all.first();
        FabricStatus {
            switches: all.iter().map(|subnet| subnet.switches).sum(),
            subnet_prefix: first.map_or(String::new(), |subnet| subnet.prefix.clone()),
            sm_lid: first.map_or(0, |subnet| subnet.sm_lid),
            manager: match self.config.manager.place {
                ManagerPlace::Embedded => control::ManagerPlace::Embedded,
                ManagerPlace::External => control::ManagerPlace::External,
            },
            sweeps: all.iter().map(|subnet| subnet.sweeps).sum(),
            smps: all.iter().map(|subnet| subnet.smps).sum(),
            subnets: match all.len() {
                1 => Vec::new(),
                _ => all,
            },
        }
    }

    /// Makes the status of a port that of a function which shares it.
    fn share(&self, status: &mut VfStatus, vf: &Vf, fabric: &Fabric, place: SharedPlace) {
        let guid = place.guid(fabric);
        let own_lids = self.plan.own_lids();
        status.state = own_lids.state(place, fabric).to_string();
        status.lid = own_lids
            .lid(place, fabric)
            .map_or(0, |lid| lid.value().into());
        let node_guid = vf.model.node_guid.unwrap_or(vf.model.guid);
        status.node_guid = node_guid.to_string();
        status.port_guid = guid.unwrap_or_default().to_string();
        let pkeys = self.plan.pkeys(fabric, place);
        status.pkeys = pkeys.iter().map(ToString::to_string).collect();
    }

    /// The cluster of a VF, and its LID there.
    fn cluster(&self, vf: &Vf) -> Option<(String, u16)> {
        let (index, lid) = vf.model.cluster?;
        let cluster = self.config.clusters.get(index)?;
        Some((cluster.name.clone(), lid.value()))
    }

    /// Nodes and cables, with the LIDs they have now. `functions` are as for [`Observer::status`].
    pub fn topology(&self, fabric: &Fabric, functions: &[Function]) -> Topology {
        let mut topology = control::topology(&self.plan, fabric);
        let vfs = self.config.vfs().map(|(_, vf)| vf.model.name.as_str());
        let functions: HashMap<&str, &Function> = vfs.zip(functions).collect();
        for node in &mut topology.nodes {
            if node.kind == NodeKind::Vf
                && let Some(function) = functions.get(node.name.as_str())
            {
                node.connected = Some(function.client_connected);
                node.holds.clone_from(&function.holds);
            }
        }
        self.show_clusters(&mut topology, fabric);
        let subnets = self.config.subnets.iter();
        let named = subnets.filter_map(|subnet| {
            let prefix = Guid::from(subnet.prefix).to_string();
            let name = subnet.name.clone()?;
            Some(SubnetName { name, prefix })
        });
        topology.subnets = named.collect();
        let passed = self.config.hardware_of();
        topology.elsewhere = passed.map(|(at, vf)| elsewhere(at, vf)).collect();
        topology
    }

    /// Names the clusters of VMs, and those that use each link: on the paths between their VMs, as switches forward now.
    fn show_clusters(&self, topology: &mut Topology, fabric: &Fabric) {
        if self.config.clusters.is_empty() {
            return;
        }
        let of: HashMap<&str, usize> = { self.config.vfs() }
            .filter_map(|(_, vf)| Some((vf.model.name.as_str(), vf.model.cluster?.0)))
            .collect();
        let functions = self.plan.functions().iter();
        let ports: HashMap<String, PortRef> =
            functions.map(|vf| (vf.name.clone(), vf.port)).collect();
        let mut members = vec![Vec::new(); self.config.clusters.len()];
        for node in topology
            .nodes
            .iter_mut()
            .filter(|it| it.kind == NodeKind::Vf)
        {
            // In a plan nobody holds a place.
            let vm = node.holds.as_deref().unwrap_or(&node.name);
            let (Some(&cluster), Some(&port)) = (of.get(vm), ports.get(&node.name)) else {
                continue;
            };
            node.cluster = Some(self.config.clusters[cluster].name.clone());
            if let Some(lid) = node.lid.and_then(ExtendedLid::new) {
                members[cluster].push((port, lid));
            }
        }
        let mut used: HashMap<PortRef, BTreeSet<usize>> = HashMap::new();
        for (cluster, vms) in members.iter().enumerate() {
            for &(from, _) in vms {
                for &(to, lid) in vms.iter().filter(|(to, _)| *to != from) {
                    // The way is the same by each service level that links let pass.
                    let levels = (0..16).map(Sl::new);
                    let mut ways = levels.map(|level| fabric.follow(from, lid, level, None));
                    let way = ways.find(|(_, end)| end.is_ok()).map(|(way, _)| way);
                    for port in way.into_iter().flatten().chain([to]) {
                        used.entry(port).or_default().insert(cluster);
                    }
                }
            }
        }
        let links = self.plan.topology().links().iter();
        for (link, (a, b, _)) in topology.links.iter_mut().zip(links) {
            let both = [a, b].into_iter().filter_map(|port| used.get(port));
            let clusters: BTreeSet<usize> = both.flatten().copied().collect();
            let names = clusters
                .into_iter()
                .map(|at| self.config.clusters[at].name.clone());
            link.clusters = names.collect();
        }
    }
}

fn vf_status(
    hypervisor: &Hypervisor,
    vf: &Vf,
    fabric: &Fabric,
    port: PortRef,
    function: Function,
) -> VfStatus {
    let info = fabric.port_info(port).unwrap_or_default();
    let node_guid = fabric
        .node_info(port)
        .filter(|node| node.port_guid != vf.model.guid)
        .map_or(vf.model.node_guid.unwrap_or(vf.model.guid), |node| {
            node.node_guid
        });
    VfStatus {
        name: vf.model.name.clone(),
        hypervisor: hypervisor.name.clone(),
        state: info.port_state.to_string(),
        lid: fabric
            .virtual_lid(port)
            .unwrap_or_else(|| info.lid.into())
            .value(),
        subnet: None,
        cluster: None,
        virtual_lid: None,
        sm_lid: info.master_sm_lid.value(),
        node_guid: node_guid.to_string(),
        port_guid: fabric
            .node_info(port)
            .map_or(vf.model.guid, |node| node.port_guid)
            .to_string(),
        pkeys: used_pkeys(fabric, port),
        smp: smp_name(function.smp.unwrap_or(vf.model.smp)).to_owned(),
        mads: function.mads,
        doorbells: vf.doorbells.unwrap_or_default(),
        ethernet: match vf.kind {
            Kind::Hca => None,
            Kind::VhostUserNet(mac) => Some(mac.to_string()),
        },
        holds: function.holds,
        socket: vf.socket.display().to_string(),
        client_connected: function.client_connected,
        memory_unshared: function.memory_unshared,
        objects: function.objects,
        counters: function.counters,
    }
}

fn smp_name(access: SmpAccess) -> &'static str {
    let found = SMP_ACCESS.iter().find(|(_, known)| *known == access);
    found.map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::{DEFAULT, Directories};

    #[test]
    fn a_subnet_that_nobody_manages() {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        let config = Config::parse("f", DEFAULT, dirs).expect("is right");
        let plan = Plan::new(&config.model());
        let fabric = Fabric::new(plan.topology()).expect("is a fabric");
        let observer = Observer::new(config, plan);
        let busy = Function {
            client_connected: true,
            ..Function::default()
        };
        let managed = Managed {
            sweeps: 3,
            smps: 70,
            up: true,
        };
        let status = observer.status(&fabric, &[managed], &[busy]);
        assert_eq!((status.fabric.switches, status.fabric.smps), (3, 70));
        let [vm1, vm2] = &status.vfs[..] else {
            panic!("two VFs")
        };
        assert_eq!((vm1.state.as_str(), vm1.lid), ("Initialize", 0));
        assert_eq!(vm1.node_guid, vm1.port_guid);
        assert!(
            status.warnings[0].starts_with("ports that stay in Initialize: sw1:1, hv1:1, hv1:2, "),
            "{:?}",
            status.warnings
        );
        assert_eq!((vm1.client_connected, vm2.client_connected), (true, false));
    }
}
