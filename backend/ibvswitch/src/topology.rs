//! The subnet that a configuration describes: its nodes and cables.
//!
//! A switch has at its ports from 1 the uplinks of the hypervisors' vSwitches, then the cables to
//! other switches, then to routers, at the last port of one the host of the subnet manager; hypervisors on the
//! switches of a file take their lowest free ports. A vSwitch has its uplink at port 1, and from port
//! 2 the physical function whose LID VFs share, if there are such, and the other VFs.

mod builder;
mod twins;

use std::collections::HashMap;

use fabric::{Fabric, NodeId, PortRef, Topology};
use wire::attribute::PortInfo;
use wire::{ExtendedLid, Gid, Guid, Lid, LinkSpeed, LinkSpeedExt, PKey, PortState};

use crate::config::{Config, ManagerPlace};
use crate::control::{self, Link, LinkEnd, Node, NodeKind};
use crate::shared_port::{self, Clustered, Place};
use builder::{Builder, cable_rate};
use twins::name_twins;

/// Port of a vSwitch towards the switch.
const UPLINK: u8 = 1;

/// The nodes and cables of a configuration, and which node is what.
#[derive(Debug)]
pub struct Plan {
    topology: Topology,
    nodes: Vec<PlannedNode>,
    /// The hosts of the subnets' managers.
    managers: Vec<NodeId>,
    /// The subnets' names.
    subnets: Vec<Option<String>>,
    vfs: Vec<PlannedVf>,
    /// The P_Keys of VMs, by GUID.
    pkeys: HashMap<Guid, Vec<PKey>>,
    clustered: Clustered,
}

#[derive(Debug)]
struct PlannedVf {
    name: String,
    hypervisor: String,
    guid: Guid,
    spare: bool,
    port: PortRef,
    /// Where it shares the port.
    place: Option<Place>,
}

#[derive(Debug)]
struct PlannedNode {
    id: NodeId,
    kind: NodeKind,
    name: String,
    hypervisor: Option<String>,
    /// Its subnet; `None` of a router.
    subnet: Option<usize>,
    /// Of a router, the subnets of its ports.
    router_subnets: Vec<usize>,
    /// Whether the configuration says which LID it has.
    pinned: bool,
    /// Whether a VF with a LID of its own has it only while a VM runs.
    dynamic: bool,
}

impl Plan {
    /// The plan of a configuration.
    pub fn new(config: &Config) -> Self {
        let rate = cable_rate(config.fabric.link_width, config.fabric.link_speed);
        let mut builder = Builder {
            model: config.fabric.model,
            dynamic: config.has_dynamic_lids(),
            ..Builder::default()
        };
        let mut vfs = Vec::new();
        let mut switches = builder.switches(config);
        for hypervisor in &config.hypervisors {
            let end = switches.port(hypervisor.switch);
            builder.subnet = Some(config.subnet_of(hypervisor));
            builder.hypervisor(hypervisor, end, rate, &mut vfs);
        }
        for &(a, b) in &config.wiring.cables {
            let ends = (switches.port(a), switches.port(b));
            builder.topology.link(ends.0, ends.1, rate);
        }
        for router in &config.wiring.routers {
            builder.router(router, &config.wiring, &mut switches, rate);
        }
        let managers = match &config.wiring.file {
            Some(file) => vec![file.manager],
            None => {
                let subnets = config.subnets.iter().enumerate();
                subnets
                    .map(|(number, subnet)| {
                        let host = &subnet.manager;
                        builder.subnet = Some(number);
                        let node =
                            builder.adapter(NodeKind::Manager, &host.name, host.guid, None, true);
                        let end = switches.port(host.switch);
                        builder.topology.link(end, (node, 1), rate);
                        node
                    })
                    .collect()
            }
        };
        if config.manager.place == ManagerPlace::External {
            // It does not know what the configuration says.
            for node in &mut builder.nodes {
                node.pinned = false;
            }
        }
        if config.fabric.extended_lids {
            let legacy = config.wiring.switches.iter();
            let legacy = legacy.filter(|switch| !switch.extended_lids);
            let legacy: Vec<Guid> = legacy.map(|switch| switch.guid).collect();
            builder.topology.extend_lids(&legacy);
        }
        Self {
            topology: builder.topology,
            nodes: builder.nodes,
            managers,
            subnets: config.subnets.iter().map(|it| it.name.clone()).collect(),
            vfs,
            pkeys: config
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.pkeys.clone()))
                .collect(),
            clustered: Clustered::new(config),
        }
    }

    /// The node of this name, or with this node GUID.
    pub fn node(&self, fabric: &Fabric, name: &str) -> Option<NodeId> {
        let guid: Option<Guid> = name.parse().ok();
        let of = |node| {
            let port = PortRef { node, port: 1 };
            fabric.node_info(port).map(|info| info.node_guid)
        };
        let mut nodes = self.nodes.iter();
        let is_it = |node: &&PlannedNode| {
            node.name == name || guid.is_some_and(|guid| of(node.id) == Some(guid))
        };
        nodes.find(is_it).map(|node| node.id)
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> Option<&str> {
        let found = self.nodes.iter().find(|other| other.id == node);
        found.map(|node| node.name.as_str())
    }

    /// The names of all nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// The nodes and cables.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The ports of the subnet managers' hosts, in the order of
    /// [`Config::subnets`](crate::config::Config::subnets).
    pub fn managers(&self) -> impl Iterator<Item = PortRef> + '_ {
        let port = |&node: &NodeId| PortRef { node, port: 1 };
        self.managers.iter().map(port)
    }

    /// The names of all nodes, each with the port at which a program of the host attaches.
    pub fn host_ports(&self) -> impl Iterator<Item = (String, PortRef)> + '_ {
        self.nodes.iter().map(|planned| {
            let port = match planned.kind {
                NodeKind::Switch | NodeKind::Vswitch => 0,
                NodeKind::Manager
                | NodeKind::Router
                | NodeKind::Host
                | NodeKind::Pf
                | NodeKind::Vf => 1,
            };
            let node = planned.id;
            (planned.name.clone(), PortRef { node, port })
        })
    }

    /// The ports of the VFs, in the order of [`Config::vfs`]: some may share one.
    pub fn vfs(&self) -> impl Iterator<Item = PortRef> + '_ {
        self.vfs.iter().map(|vf| vf.port)
    }

    /// The places of the VFs that share a port, in the same order; `None` for the others.
    pub fn places(&self) -> impl Iterator<Item = Option<Place>> + '_ {
        self.vfs.iter().map(|vf| vf.place)
    }

    /// Which VMs have LIDs of their own where they share a port.
    pub fn clustered(&self) -> &Clustered {
        &self.clustered
    }

    /// The P_Key table of a VF that shares its port, without empty entries.
    pub fn pkeys(&self, fabric: &Fabric, place: Place) -> Vec<PKey> {
        let own = place.guid(fabric).and_then(|guid| self.pkeys.get(&guid));
        let port = fabric.pkeys(place.port).unwrap_or_default();
        own.map(|own| shared_port::pkeys(own, port))
            .unwrap_or_default()
    }

    /// Switches of a subnet, vSwitches included.
    pub fn switches(&self, subnet: usize) -> usize {
        let is_switch = |node: &&PlannedNode| node.is_switch() && node.subnet == Some(subnet);
        self.nodes.iter().filter(is_switch).count()
    }

    /// Nodes and cables as they are in `fabric`, which is this plan in operation.
    pub fn describe(&self, fabric: &Fabric) -> control::Topology {
        let names: HashMap<NodeId, &str> = self
            .nodes
            .iter()
            .map(|node| (node.id, node.name.as_str()))
            .collect();
        let end = |port: PortRef| LinkEnd {
            node: names
                .get(&port.node)
                .copied()
                .unwrap_or_default()
                .to_owned(),
            guid: fabric
                .node_info(port)
                .unwrap_or_default()
                .node_guid
                .to_string(),
            port: port.port,
        };
        let shared = || {
            let vfs = self.vfs.iter();
            vfs.filter_map(|vf| Some((vf, vf.place?)))
        };
        let mut nodes: Vec<Node> = self
            .nodes
            .iter()
            .map(|node| Node {
                subnet: self.subnet_name(node),
                ..node.describe(fabric, &self.subnets)
            })
            .collect();
        nodes.extend(shared().map(|(vf, place)| self.describe_shared(vf, place, fabric)));
        name_twins(&mut nodes);
        let inside = shared().map(|(vf, place)| Link {
            from: end(place.port),
            to: LinkEnd {
                node: vf.name.clone(),
                guid: vf.guid.to_string(),
                port: 1,
            },
            state: self.clustered.state(place, fabric).to_string(),
            width: String::new(),
            speed: String::new(),
        });
        control::Topology {
            subnets: Vec::new(),
            nodes,
            links: self
                .topology
                .links()
                .iter()
                .map(|&(from, to, _)| {
                    let info = fabric.port_info(from).unwrap_or_default();
                    let (width, speed) = rate_of(&info);
                    Link {
                        from: end(from),
                        to: end(to),
                        state: info.port_state.to_string(),
                        width,
                        speed,
                    }
                })
                .chain(inside)
                .collect(),
        }
    }
}

impl Plan {
    fn subnet_name(&self, node: &PlannedNode) -> Option<String> {
        self.subnets[node.subnet?].clone()
    }

    /// A VF that is no node of the subnet: it shares the port of one.
    fn describe_shared(&self, vf: &PlannedVf, place: Place, fabric: &Fabric) -> Node {
        let info = fabric.port_info(place.port).unwrap_or_default();
        let port = self.name(place.port.node).unwrap_or_default();
        let guid = place.guid(fabric);
        let lid = self.clustered.lid(place, fabric);
        let spare = vf.spare;
        let reason = match (guid, lid) {
            (Some(_), _) if self.clustered.is_at(place, fabric) => {
                range_reason(port, place, &info, lid)
            }
            (Some(guid), Some(_)) if guid != vf.guid => {
                format!("shares the LID of {port}; moved here with the GUID {guid}")
            }
            (Some(guid), Some(_)) => {
                let gid = Gid::new(info.gid_prefix, guid);
                format!("shares the LID of {port}; told apart by the GID {gid}")
            }
            (None, _) if spare => "no VM is here".to_owned(),
            (None, _) => format!("its GUID is not registered at {port}"),
            (Some(_), None) => "no subnet manager has been here".to_owned(),
        };
        let pkeys = self.pkeys(fabric, place);
        Node {
            name: vf.name.clone(),
            kind: NodeKind::Vf,
            guid: vf.guid.to_string(),
            port_guid: guid.unwrap_or_default().to_string(),
            hypervisor: Some(vf.hypervisor.clone()),
            ports: 1,
            lid: lid.map(|lid| lid.value().into()),
            reason,
            state: Some(self.clustered.state(place, fabric).to_string()),
            pkeys: pkeys.iter().map(ToString::to_string).collect(),
            connected: None,
            holds: None,
            subnet: None,
        }
    }
}

/// Why a VM of a virtual cluster has this LID at a port that it shares, or none.
fn range_reason(port: &str, place: Place, info: &PortInfo, lid: Option<Lid>) -> String {
    let (entry, base, more) = (place.entry, info.lid, (1u16 << info.lmc) - 1);
    match lid {
        Some(_) => {
            let last = base.value() + more;
            format!(
                "of a cluster: {port} has the LIDs {base} to {last}, and this is {base} + {entry}"
            )
        }
        None if base == Lid::NONE => "no subnet manager has been here".to_owned(),
        None => format!(
            "of a cluster, at place {entry} of {port}, which with an LMC of {} has {more} LIDs beside \
             its own",
            info.lmc
        ),
    }
}

impl PlannedNode {
    /// All but the subnet.
    fn describe(&self, fabric: &Fabric, subnets: &[Option<String>]) -> Node {
        let is_router = self.kind == NodeKind::Router;
        let port = PortRef {
            node: self.id,
            port: u8::from(!self.is_switch()),
        };
        let info = fabric.port_info(port).unwrap_or_default();
        let node = fabric.node_info(port).unwrap_or_default();
        let ordinary = (info.lid != Lid::NONE).then_some(info.lid);
        let extended = fabric.virtual_lid(port);
        let lid = extended.or(ordinary.map(ExtendedLid::from));
        // It has another one in each subnet.
        let lid = lid.filter(|_| !is_router);
        let dynamic = self.kind == NodeKind::Vf && self.dynamic;
        let reason = match (lid, self.pinned) {
            _ if is_router => self.router_reason(fabric, node.num_ports, subnets),
            // The node's GUID is that of the VM which is configured here.
            (Some(_), _) if self.kind == NodeKind::Vf && node.port_guid != node.node_guid => {
                format!("moved here with the GUID {}", node.port_guid)
            }
            (Some(_), _) if extended.is_some() => {
                "of 18 bits, chosen when the VM started".to_owned()
            }
            (Some(_), false) if dynamic => "chosen when the VM started".to_owned(),
            (None, _) if dynamic => "no VM runs here".to_owned(),
            (Some(_), true) => "set in the configuration".to_owned(),
            (Some(_), false) => "chosen by the subnet manager".to_owned(),
            (None, _) if self.is_switch() => "no subnet manager has been here".to_owned(),
            (None, _) if info.port_state == PortState::Down => "the link is down".to_owned(),
            (None, _) => "no subnet manager has been here".to_owned(),
        };
        let pkeys = match self.is_switch() || is_router {
            true => Vec::new(),
            false => used_pkeys(fabric, port),
        };
        Node {
            name: self.name.clone(),
            kind: self.kind,
            guid: node.node_guid.to_string(),
            port_guid: node.port_guid.to_string(),
            hypervisor: self.hypervisor.clone(),
            ports: node.num_ports,
            lid: lid.map(ExtendedLid::value),
            reason,
            state: (!self.is_switch() && !is_router).then(|| info.port_state.to_string()),
            pkeys,
            connected: None,
            holds: None,
            subnet: None,
        }
    }

    /// The LIDs of a router's ports.
    fn router_reason(&self, fabric: &Fabric, ports: u8, subnets: &[Option<String>]) -> String {
        let describe = |subnet: &str, port: PortRef| {
            let info = fabric.port_info(port).unwrap_or_default();
            match info.lid {
                Lid::NONE => format!("none in {subnet}, {}", info.port_state),
                lid => format!("LID {lid} in {subnet}"),
            }
        };
        let ports = (1..=ports)
            .zip(&self.router_subnets)
            .map(|(port, &subnet)| {
                let port = PortRef {
                    node: self.id,
                    port,
                };
                describe(subnets[subnet].as_deref().unwrap_or_default(), port)
            });
        ports.collect::<Vec<_>>().join("; ")
    }

    fn is_switch(&self) -> bool {
        matches!(self.kind, NodeKind::Switch | NodeKind::Vswitch)
    }
}

/// A port's P_Key table without the empty entries at its end.
pub(crate) fn used_pkeys(fabric: &Fabric, port: PortRef) -> Vec<String> {
    let pkeys = fabric.pkeys(port).unwrap_or_default();
    let used = pkeys
        .iter()
        .rposition(|&pkey| pkey != PKey::INVALID)
        .map_or(0, |last| last + 1);
    pkeys[..used].iter().map(ToString::to_string).collect()
}

/// Lanes and signalling rate in use at a port, as InfiniBand tools name them.
fn rate_of(info: &PortInfo) -> (String, String) {
    let width = info.active_width().unwrap_or_default().to_string();
    let speed = match LinkSpeedExt::from_code(info.link_speed_ext_active) {
        Some(extended) if extended != LinkSpeedExt::None => extended.to_string(),
        _ => LinkSpeed::from_code(info.link_speed_active)
            .map_or_else(|| "none".to_owned(), |speed| speed.to_string()),
    };
    (width, speed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wire::LinkWidth;

    use super::*;
    use crate::config::{DEFAULT, Directories, HYPERVISORS_MAX, VFS_PER_HYPERVISOR_MAX};

    fn config(text: &str) -> Config {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        Config::parse("f", text, dirs).expect("is right")
    }

    #[test]
    fn the_built_in_configuration() {
        let plan = Plan::new(&config(DEFAULT));
        let fabric = Fabric::new(plan.topology()).expect("is a fabric");
        let described = plan.describe(&fabric);
        let names: Vec<_> = described
            .nodes
            .iter()
            .map(|node| (node.kind, node.name.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                (NodeKind::Switch, "sw1"),
                (NodeKind::Vswitch, "hv1"),
                (NodeKind::Vf, "vm1"),
                (NodeKind::Vswitch, "hv2"),
                (NodeKind::Vf, "vm2"),
                (NodeKind::Manager, "subnet manager"),
            ]
        );
        // Nobody has assigned LIDs yet.
        assert!(described.nodes.iter().all(|node| node.lid.is_none()));
        let links: Vec<_> = described
            .links
            .iter()
            .map(|Link { from, to, .. }| {
                format!("{} {} - {} {}", from.node, from.port, to.node, to.port)
            })
            .collect();
        assert_eq!(
            links,
            [
                "sw1 1 - hv1 1",
                "hv1 2 - vm1 1",
                "sw1 2 - hv2 1",
                "hv2 2 - vm2 1",
                "sw1 3 - subnet manager 1",
            ]
        );
        assert_eq!(plan.switches(0), 3);
        assert_eq!(plan.vfs().count(), 2);
        assert_eq!(
            plan.vfs().next(),
            fabric.port_by_guid(config(DEFAULT).hypervisors[0].vfs[0].guid)
        );
    }

    /// What a configuration may ask for, a fabric can be.
    #[test]
    fn the_largest_configuration() {
        let text: String = (0..HYPERVISORS_MAX)
            .map(|h| {
                let vfs = if h == 0 { VFS_PER_HYPERVISOR_MAX } else { 1 };
                let vfs: String = (0..vfs)
                    .map(|v| format!("[[hypervisor.vf]]\nname = \"v{h}.{v}\"\n"))
                    .collect();
                format!("[[hypervisor]]\nname = \"h{h}\"\n{vfs}")
            })
            .collect();
        assert_eq!(Plan::new(&config(&text)).topology().check(), Ok(()));
    }

    #[test]
    fn rates_are_those_of_the_links() {
        let text = format!(
            "[fabric]\nlink_width = \"1X\"\nlink_speed = \"HDR\"\n{}",
            "[[hypervisor]]\nname = \"h\"\n"
        );
        let plan = Plan::new(&config(&text));
        let &(_, _, rate) = &plan.topology().links()[0];
        assert_eq!(
            (rate.width, rate.speed, rate.extended),
            (LinkWidth::X1, LinkSpeed::Qdr, LinkSpeedExt::Hdr)
        );
    }
}
