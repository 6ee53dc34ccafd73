//! Nodes and cables, as the control socket tells of them.

use std::collections::HashMap;

use fabric::{Fabric, NodeId, PortRef, VPorts};
use vswitch::{Plan, PlannedNode, PlannedVf, SharedPlace};
use wire::attribute::PortInfo;
use wire::{ExtendedLid, Gid, Lid, LinkSpeed, LinkSpeedExt, PKey, PortState};

use super::duplicate_guids::name_duplicates;
use super::{Adapter, AdapterPort, Link, LinkEnd, Node, NodeKind, Topology};

const fn node_kind(kind: vswitch::NodeKind) -> NodeKind {
    match kind {
        vswitch::NodeKind::Switch => NodeKind::Switch,
        vswitch::NodeKind::Vswitch => NodeKind::Vswitch,
        vswitch::NodeKind::Manager => NodeKind::Manager,
        vswitch::NodeKind::Router => NodeKind::Router,
        vswitch::NodeKind::Host => NodeKind::Host,
        vswitch::NodeKind::Pf => NodeKind::Pf,
        vswitch::NodeKind::Vf => NodeKind::Vf,
    }
}

/// A port of `plan`, which is `fabric` in operation.
pub(super) fn link_end(plan: &Plan, fabric: &Fabric, port: PortRef) -> LinkEnd {
    let node = fabric.node_info(port).unwrap_or_default();
    LinkEnd {
        node: plan.name(port.node).unwrap_or_default().to_owned(),
        guid: node.node_guid.to_string(),
        port: port.port,
    }
}

/// Nodes and cables as they are in `fabric`, which is `plan` in operation.
pub(crate) fn topology(plan: &Plan, fabric: &Fabric) -> Topology {
    let end = |port: PortRef| link_end(plan, fabric, port);
    let shared = || {
        let vfs = plan.functions().iter();
        vfs.filter_map(|vf| Some((vf, vf.place?)))
    };
    let names = names(plan);
    let mut nodes: Vec<Node> = plan
        .nodes()
        .iter()
        .map(|node| Node {
            subnet: node.subnet.and_then(|at| plan.subnets()[at].clone()),
            ..describe(node, plan, fabric, &names)
        })
        .collect();
    nodes.extend(shared().map(|(vf, place)| describe_shared(plan, vf, place, fabric)));
    name_duplicates(&mut nodes);
    let inside = shared().map(|(vf, place)| Link {
        from: end(place.port),
        to: LinkEnd {
            node: vf.name.clone(),
            guid: vf.guid.to_string(),
            port: 1,
        },
        state: plan.own_lids().state(place, fabric).to_string(),
        width: String::new(),
        speed: String::new(),
        clusters: Vec::new(),
    });
    Topology {
        subnets: Vec::new(),
        elsewhere: Vec::new(),
        nodes,
        links: plan
            .topology()
            .links()
            .iter()
            .map(|&(from, to, _)| {
                let info = fabric.port_info(from).unwrap_or_default();
                let (width, speed) = rate_of(fabric, from, &info);
                Link {
                    from: end(from),
                    to: end(to),
                    state: info.port_state.to_string(),
                    width,
                    speed,
                    clusters: Vec::new(),
                }
            })
            .chain(inside)
            .collect(),
    }
}

/// A VF that is no node of the subnet: it shares the port of one.
fn describe_shared(plan: &Plan, vf: &PlannedVf, place: SharedPlace, fabric: &Fabric) -> Node {
    let info = fabric.port_info(place.port).unwrap_or_default();
    let port = plan.name(place.port.node).unwrap_or_default();
    let guid = place.guid(fabric);
    let lid = plan.own_lids().lid(place, fabric);
    let spare = vf.spare;
    let reason = match (guid, lid) {
        (None, _) if spare => "no VM is here".to_owned(),
        _ if place.vport(fabric).is_some() => vport_reason(port, place, fabric, lid),
        (Some(_), _) if plan.own_lids().is_at(place, fabric) => {
            range_reason(port, place, &info, lid)
        }
        (Some(guid), Some(_)) if guid != vf.guid => {
            format!("shares the LID of {port}; moved here with the GUID {guid}")
        }
        (Some(guid), Some(_)) => {
            let gid = Gid::new(info.gid_prefix, guid);
            format!("shares the LID of {port}; told apart by the GID {gid}")
        }
        (None, _) => format!("its GUID is not registered at {port}"),
        (Some(_), None) => "no subnet manager has been here".to_owned(),
    };
    let pkeys = plan.pkeys(fabric, place);
    Node {
        name: vf.name.clone(),
        kind: NodeKind::Vf,
        guid: vf.guid.to_string(),
        port_guid: guid.unwrap_or_default().to_string(),
        hypervisor: Some(vf.hypervisor.clone()),
        ports: 1,
        lid: lid.map(|lid| lid.value().into()),
        reason,
        state: Some(plan.own_lids().state(place, fabric).to_string()),
        pkeys: pkeys.iter().map(ToString::to_string).collect(),
        connected: None,
        holds: None,
        cluster: None,
        subnet: None,
        adapter_ports: Vec::new(),
    }
}

/// Why a virtual port has this LID, or none.
fn vport_reason(port: &str, place: SharedPlace, fabric: &Fabric, lid: Option<Lid>) -> String {
    let what = format!("virtual port {} of {port}", place.entry);
    let guid = place.guid(fabric);
    let (Some(guid), Some(vport)) = (guid, place.vport(fabric)) else {
        return format!("{what}, which is not enabled: no VM is here");
    };
    if VPorts::at(fabric, place.port).is_none_or(|vports| !vports.is_enabled()) {
        return format!("{what}; no subnet manager has enabled virtual ports there");
    }
    match lid {
        Some(_) if vport.requires_lid() => format!("{what}, with a LID of its own"),
        Some(_) => {
            let prefix = fabric.port_info(place.port).unwrap_or_default().gid_prefix;
            let gid = Gid::new(prefix, guid);
            format!("{what}, which shares the LID; told apart by the GID {gid}")
        }
        None => format!("{what}, to which no subnet manager has given a LID"),
    }
}

/// Why a VM of a virtual cluster has this LID at a port that it shares, or none.
fn range_reason(port: &str, place: SharedPlace, info: &PortInfo, lid: Option<Lid>) -> String {
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

/// All but the subnet.
fn describe(planned: &PlannedNode, plan: &Plan, fabric: &Fabric, names: &Names<'_>) -> Node {
    let is_router = planned.kind == vswitch::NodeKind::Router;
    let mut ports = adapter_ports(planned, fabric, names);
    let cabled = ports.iter().find(|port| port.rate.is_some());
    let port = PortRef {
        node: planned.id,
        port: cabled.map_or(u8::from(!planned.is_switch()), |port| port.port),
    };
    if ports.len() == 1 {
        ports.clear();
    }
    let info = fabric.port_info(port).unwrap_or_default();
    let node = fabric.node_info(port).unwrap_or_default();
    let ordinary = (info.lid != Lid::NONE).then_some(info.lid);
    let extended = fabric.virtual_lid(port);
    let lid = extended.or(ordinary.map(ExtendedLid::from));
    // It has another one in each subnet.
    let lid = lid.filter(|_| !is_router);
    let dynamic = planned.kind == vswitch::NodeKind::Vf && planned.dynamic;
    let spec = &plan.topology().nodes()[planned.id.index()];
    let listed = spec.lids.get(usize::from(port.port.saturating_sub(1)));
    let listed = listed.copied();
    let reason = match (lid, planned.pinned) {
        _ if is_router => router_reason(planned, fabric, node.num_ports, plan.subnets()),
        // The node's GUID is that of the VM which is configured here.
        (Some(_), _)
            if planned.kind == vswitch::NodeKind::Vf && node.port_guid != node.node_guid =>
        {
            format!("moved here with the GUID {}", node.port_guid)
        }
        (Some(_), _) if extended.is_some() => "of 18 bits, chosen when the VM started".to_owned(),
        (Some(_), false) if dynamic => "chosen when the VM started".to_owned(),
        (None, _) if dynamic => "no VM runs here".to_owned(),
        (Some(_), _) if listed.is_some() && listed == ordinary => "as in the listing".to_owned(),
        (Some(_), true) => "set in the configuration".to_owned(),
        (Some(_), false) => "chosen by the subnet manager".to_owned(),
        (None, _) if planned.is_switch() => "no subnet manager has been here".to_owned(),
        (None, _) if info.port_state == PortState::Down => "the link is down".to_owned(),
        (None, _) => "no subnet manager has been here".to_owned(),
    };
    let pkeys = if planned.is_switch() || is_router {
        Vec::new()
    } else {
        used_pkeys(fabric, port)
    };
    Node {
        name: planned.name.clone(),
        kind: node_kind(planned.kind),
        guid: node.node_guid.to_string(),
        port_guid: node.port_guid.to_string(),
        hypervisor: planned.hypervisor.clone(),
        ports: node.num_ports,
        lid: lid.map(ExtendedLid::value),
        reason,
        state: (!planned.is_switch() && !is_router).then(|| info.port_state.to_string()),
        pkeys,
        connected: None,
        holds: None,
        cluster: None,
        subnet: None,
        adapter_ports: ports,
    }
}

/// Names of nodes.
type Names<'p> = HashMap<NodeId, &'p str>;

fn names(plan: &Plan) -> Names<'_> {
    let nodes = plan.nodes().iter();
    nodes.map(|node| (node.id, node.name.as_str())).collect()
}

/// The adapters without VFs, with their ports.
pub(crate) fn adapters(plan: &Plan, fabric: &Fabric) -> Vec<Adapter> {
    let names = names(plan);
    let all = plan.nodes().iter().map(|node| {
        let port = PortRef {
            node: node.id,
            port: 1,
        };
        let info = fabric.node_info(port).unwrap_or_default();
        Adapter {
            name: node.name.clone(),
            guid: info.node_guid.to_string(),
            ports: adapter_ports(node, fabric, &names),
        }
    });
    all.filter(|adapter| !adapter.ports.is_empty()).collect()
}

/// The ports of an adapter without VFs; nothing of another node.
fn adapter_ports(planned: &PlannedNode, fabric: &Fabric, names: &Names<'_>) -> Vec<AdapterPort> {
    if !matches!(
        planned.kind,
        vswitch::NodeKind::Host | vswitch::NodeKind::Manager
    ) {
        return Vec::new();
    }
    let first = PortRef {
        node: planned.id,
        port: 1,
    };
    let count = fabric.node_info(first).unwrap_or_default().num_ports;
    let describe = |number| {
        let port = PortRef {
            node: planned.id,
            port: number,
        };
        let info = fabric.port_info(port).unwrap_or_default();
        let (width, speed) = rate_of(fabric, port, &info);
        let peer = fabric.peer(port);
        let name_of = |end: PortRef| names.get(&end.node).copied().unwrap_or_default();
        AdapterPort {
            port: number,
            guid: fabric
                .node_info(port)
                .unwrap_or_default()
                .port_guid
                .to_string(),
            lid: (info.lid != Lid::NONE).then(|| info.lid.value().into()),
            state: info.port_state.to_string(),
            rate: peer.map(|_| format!("{width} {speed}")),
            cable: peer.map(|end| format!("{}:{}", name_of(end), end.port)),
        }
    };
    (1..=count).map(describe).collect()
}

/// The LIDs of a router's ports.
fn router_reason(
    planned: &PlannedNode,
    fabric: &Fabric,
    ports: u8,
    subnets: &[Option<String>],
) -> String {
    let describe = |subnet: &str, port: PortRef| {
        let info = fabric.port_info(port).unwrap_or_default();
        // One subnet has no name.
        let place = match subnet {
            "" => format!("at port {}", port.port),
            subnet => format!("in {subnet}"),
        };
        match info.lid {
            Lid::NONE => format!("none {place}, {}", info.port_state),
            lid => format!("LID {lid} {place}"),
        }
    };
    let ports = (1..=ports)
        .zip(&planned.router_subnets)
        .map(|(port, &subnet)| {
            let node = planned.id;
            (PortRef { node, port }, subnet)
        })
        .filter(|&(port, _)| fabric.peer(port).is_some())
        .map(|(port, subnet)| describe(subnets[subnet].as_deref().unwrap_or_default(), port));
    ports.collect::<Vec<_>>().join("; ")
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
fn rate_of(fabric: &Fabric, port: PortRef, info: &PortInfo) -> (String, String) {
    let width = info.active_width().unwrap_or_default().to_string();
    let speed = match info.active_speed_ext() {
        Some(extended) if extended != LinkSpeedExt::None => extended.to_string(),
        _ if fabric.link_rate(port).is_some_and(|rate| rate.fdr10) => "FDR10".to_owned(),
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
    use config::{Config, DEFAULT, Directories, HYPERVISORS_MAX, VFS_PER_HYPERVISOR_MAX};
    use testing::Configuration;

    fn config(text: &str) -> Config {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        Config::parse("f", text, dirs).expect("is right")
    }

    #[test]
    fn the_built_in_configuration() {
        let plan = Plan::new(&config(DEFAULT).model());
        let fabric = Fabric::new(plan.topology()).expect("is a fabric");
        let described = topology(&plan, &fabric);
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
            fabric.port_by_guid(config(DEFAULT).hypervisors[0].vfs[0].model.guid)
        );
    }

    /// The largest configuration that is allowed makes a fabric.
    #[test]
    fn the_largest_configuration() {
        let mut text = Configuration::new();
        for h in 0..HYPERVISORS_MAX {
            text = text.hypervisor(&format!("h{h}"), []);
            let vfs = if h == 0 { VFS_PER_HYPERVISOR_MAX } else { 1 };
            text = (0..vfs).fold(text, |it, v| it.vf(&format!("v{h}.{v}")));
        }
        let config = config(&text.to_string());
        assert_eq!(Plan::new(&config.model()).topology().check(), Ok(()));
    }

    #[test]
    fn rates_are_those_of_the_links() {
        let text = Configuration::new()
            .set("fabric.link_width", "1X")
            .set("fabric.link_speed", "HDR")
            .hypervisor("h", []);
        let plan = Plan::new(&config(&text.to_string()).model());
        let &(_, _, rate) = &plan.topology().links()[0];
        assert_eq!(
            (rate.width, rate.speed, rate.extended),
            (LinkWidth::X1, LinkSpeed::Qdr, LinkSpeedExt::Hdr)
        );
    }
}
