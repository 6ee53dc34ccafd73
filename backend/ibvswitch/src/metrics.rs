//! The state of the daemon in the text format of Prometheus.

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::control::{CountersReport, Status};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVf {
    vf: String,
    hypervisor: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVfKind {
    vf: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPort {
    node: String,
    port: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPortKind {
    node: String,
    port: u32,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNodePacket {
    node: String,
    packet: String,
}

/// The state of the daemon and what its nodes have counted, as Prometheus reads it.
#[must_use]
pub fn exposition(status: &Status, counters: &CountersReport) -> String {
    let mut registry = Registry::with_prefix("ibvswitch");
    daemon(&mut registry, status);
    vfs(&mut registry, status);
    ports(&mut registry, counters);
    nodes(&mut registry, counters);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

fn daemon(registry: &mut Registry, status: &Status) {
    let info = Family::<Version, Gauge>::default();
    let version = status.version.clone();
    info.get_or_create(&Version { version }).set(1);
    registry.register("build", "Version of the daemon", info);
    let uptime = Gauge::<i64>::default();
    uptime.set(status.uptime_s as i64);
    let help = "Time since it began to serve";
    registry.register_with_unit("uptime", help, Unit::Seconds, uptime);
    for (name, help, value) in [
        (
            "sweeps",
            "Sweeps of the subnet manager",
            status.fabric.sweeps,
        ),
        (
            "sm_smps",
            "Packets the subnet manager sent",
            status.fabric.smps,
        ),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

fn vfs(registry: &mut Registry, status: &Status) {
    let connected = Family::<OfVf, Gauge>::default();
    let active = Family::<OfVf, Gauge>::default();
    let lid = Family::<OfVf, Gauge>::default();
    let passed = Family::<OfVf, Counter>::default();
    let refused = Family::<OfVfKind, Counter>::default();
    let objects = Family::<OfVfKind, Gauge>::default();
    for vf in &status.vfs {
        let of = OfVf {
            vf: vf.name.clone(),
            hypervisor: vf.hypervisor.clone(),
        };
        connected.get_or_create(&of).set(vf.client_connected.into());
        active.get_or_create(&of).set((vf.state == "Active").into());
        lid.get_or_create(&of).set(vf.lid.into());
        passed.get_or_create(&of).inc_by(vf.mads.passed);
        let kind = |kind: &str| OfVfKind {
            vf: vf.name.clone(),
            kind: kind.to_owned(),
        };
        for (reason, &count) in &vf.mads.refused {
            refused.get_or_create(&kind(reason)).inc_by(count);
        }
        let o = &vf.objects;
        for (name, count) in [
            ("pd", o.pd),
            ("mr", o.mr),
            ("cq", o.cq),
            ("eq", o.eq),
            ("srq", o.srq),
            ("qp", o.qp),
        ] {
            objects.get_or_create(&kind(name)).set(count as i64);
        }
    }
    registry.register("vf_connected", "Whether a VM is attached", connected);
    registry.register("vf_active", "Whether the port is Active", active);
    registry.register("vf_lid", "LID of the port, 0 for none", lid);
    let help = "Management packets of the guest that were let pass";
    registry.register("vf_mads_passed", help, passed);
    let help = "Management packets of the guest that were refused, by reason";
    registry.register("vf_mads_refused", help, refused);
    registry.register("vf_objects", "What the guest's driver has created", objects);
}

fn ports(registry: &mut Registry, counters: &CountersReport) {
    let [sent, received] = [(); 2].map(|()| Family::<OfPort, Counter>::default());
    let [xmit, rcv] = [(); 2].map(|()| Family::<OfPort, Counter>::default());
    let errors = Family::<OfPortKind, Counter>::default();
    for node in &counters.nodes {
        for port in &node.ports {
            let of = OfPort {
                node: node.name.clone(),
                port: port.port.into(),
            };
            sent.get_or_create(&of).inc_by(port.xmit_bytes);
            received.get_or_create(&of).inc_by(port.rcv_bytes);
            xmit.get_or_create(&of).inc_by(port.xmit_packets);
            rcv.get_or_create(&of).inc_by(port.rcv_packets);
            for (kind, &count) in &port.errors {
                let of = OfPortKind {
                    node: of.node.clone(),
                    port: of.port,
                    kind: kind.clone(),
                };
                errors.get_or_create(&of).inc_by(count);
            }
        }
    }
    registry.register_with_unit("port_sent", "Sent by the port", Unit::Bytes, sent);
    let help = "Received by the port";
    registry.register_with_unit("port_received", help, Unit::Bytes, received);
    registry.register("port_sent_packets", "Sent by the port", xmit);
    registry.register("port_received_packets", "Received by the port", rcv);
    registry.register("port_errors", "Errors at the port, by kind", errors);
}

fn nodes(registry: &mut Registry, counters: &CountersReport) {
    let answered = Family::<OfNodePacket, Counter>::default();
    let forwarded = Family::<OfNode, Counter>::default();
    let dropped = Family::<OfNode, Counter>::default();
    let lids = Family::<OfNode, Gauge>::default();
    for node in &counters.nodes {
        let of = OfNode {
            node: node.name.clone(),
        };
        forwarded.get_or_create(&of).inc_by(node.smps.forwarded);
        dropped.get_or_create(&of).inc_by(node.smps.dropped);
        if let Some(tables) = &node.forwarding {
            lids.get_or_create(&of).set(tables.lids.into());
        }
        for (packet, &count) in &node.smps.answered {
            let of = OfNodePacket {
                node: node.name.clone(),
                packet: packet.clone(),
            };
            answered.get_or_create(&of).inc_by(count);
        }
    }
    let help = "Subnet management packets that the node answered";
    registry.register("node_smps_answered", help, answered);
    let help = "Subnet management packets that the node passed on";
    registry.register("node_smps_forwarded", help, forwarded);
    let help = "Subnet management packets that the node dropped";
    registry.register("node_smps_dropped", help, dropped);
    registry.register(
        "switch_lids",
        "LIDs with a port in the forwarding table",
        lids,
    );
}
