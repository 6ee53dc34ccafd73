//! The state of the daemon in the text format of Prometheus.

use std::collections::BTreeSet;

use prometheus::{CounterVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use control::{CountersReport, MAD_REFUSALS, Mads, Objects, PORT_ERRORS, Status};

/// The state of the daemon and what its nodes have counted, as Prometheus reads it: text format
/// 0.0.4. A counter of a known label is there from the beginning, at 0: `rate()` sees no increase of a new one.
#[must_use]
pub fn exposition(status: &Status, counters: &CountersReport) -> String {
    let metrics = Metrics::new();
    metrics.daemon(status);
    metrics.vfs(status);
    metrics.adapters(status);
    metrics.passed_through(status);
    metrics.engines(status);
    metrics.ports(counters);
    metrics.nodes(counters);
    metrics.encode()
}

/// The metrics of a daemon that does not answer.
#[must_use]
pub fn away() -> String {
    let metrics = Metrics::new();
    metrics.up(false);
    metrics.encode()
}

fn count_objects(gauges: &IntGaugeVec, vf: &str, objects: &Objects) {
    for (kind, count) in [
        ("pd", objects.pd),
        ("mr", objects.mr),
        ("cq", objects.cq),
        ("eq", objects.eq),
        ("srq", objects.srq),
        ("qp", objects.qp),
    ] {
        gauges.with_label_values(&[vf, kind]).set(count as i64);
    }
}

/// Fates of commands of a guest whose VF is passed through.
const COMMAND_FATES: [&str; 4] = ["answered", "refused", "executed", "failed"];

/// The metrics of one exposition: made, filled once, and written.
struct Metrics(Registry);

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new_custom(Some("ibvswitch".to_owned()), None);
        Self(registry.expect("the prefix is a metric's name"))
    }

    /// Counters of one name, which ends in `_total`, by the values of these labels.
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let counters = IntCounterVec::new(Opts::new(name, help), labels)
            .expect("names of metrics and labels are constants, and valid");
        self.0
            .register(Box::new(counters.clone()))
            .expect("no name is registered twice");
        counters
    }

    /// The same for gauges.
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels)
            .expect("names of metrics and labels are constants, and valid");
        self.0
            .register(Box::new(gauges.clone()))
            .expect("no name is registered twice");
        gauges
    }

    fn encode(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.0.gather())
            .expect("each metric has a name and a kind")
    }

    fn up(&self, up: bool) {
        self.gauges("up", "Whether the daemon answers", &[])
            .with_label_values::<&str>(&[])
            .set(up.into());
    }

    fn daemon(&self, status: &Status) {
        self.up(true);
        self.gauges("build", "Version of the daemon", &["version"])
            .with_label_values(&[&status.version])
            .set(1);
        self.gauges("uptime_seconds", "Time since it began to serve", &[])
            .with_label_values::<&str>(&[])
            .set(status.uptime_s as i64);
        self.counters("sweeps_total", "Sweeps of the subnet manager", &[])
            .with_label_values::<&str>(&[])
            .inc_by(status.fabric.sweeps);
        let help = "Subnet management packets that the subnet manager sent";
        self.counters("sm_smps_total", help, &[])
            .with_label_values::<&str>(&[])
            .inc_by(status.fabric.smps);
    }

    fn vfs(&self, status: &Status) {
        let of = ["vf", "hypervisor"];
        let connected = self.gauges("vf_connected", "Whether a VM is attached", &of);
        let active = self.gauges("vf_active", "Whether the port is Active", &of);
        let lid = self.gauges("vf_lid", "LID of the port, 0 for none", &of);
        let help = "Management packets of the guest that passed";
        let passed = self.counters("vf_mads_passed_total", help, &of);
        let help = "Management packets of the guest that were refused, by reason";
        let refused = self.counters("vf_mads_refused_total", help, &["vf", "kind"]);
        let help = "Objects that the guest's driver has created";
        let objects = self.gauges("vf_objects", help, &["vf", "kind"]);
        let count_mads = |vf: &str, hypervisor: &str, mads: &Mads| {
            passed
                .with_label_values(&[vf, hypervisor])
                .inc_by(mads.passed);
            for reason in MAD_REFUSALS {
                refused.with_label_values(&[vf, reason]);
            }
            for (reason, &count) in &mads.refused {
                refused
                    .with_label_values(&[vf, reason.as_str()])
                    .inc_by(count);
            }
        };
        for vf in &status.passthrough {
            let of = [&vf.name, &vf.hypervisor];
            count_mads(&vf.name, &vf.hypervisor, &vf.mads);
            connected
                .with_label_values(&of)
                .set(vf.client_connected.into());
            active
                .with_label_values(&of)
                .set((vf.state == "Active").into());
            lid.with_label_values(&of).set(vf.lid.into());
            count_objects(&objects, &vf.name, &vf.objects);
        }
        for vf in &status.vfs {
            let of = [&vf.name, &vf.hypervisor];
            let is_connected = vf.client_connected.into();
            connected.with_label_values(&of).set(is_connected);
            let is_active = (vf.state == "Active").into();
            active.with_label_values(&of).set(is_active);
            lid.with_label_values(&of).set(vf.lid.into());
            count_mads(&vf.name, &vf.hypervisor, &vf.mads);
            count_objects(&objects, &vf.name, &vf.objects);
        }
    }

    fn adapters(&self, status: &Status) {
        let of = ["node", "port", "guid"];
        let help = "Whether the port of an adapter without VFs is Active";
        let active = self.gauges("port_active", help, &of);
        let help = "LID of the port of an adapter without VFs, 0 for none";
        let lid = self.gauges("port_lid", help, &of);
        let help = "Rate of the port of an adapter without VFs, and the port at the other end of its cable";
        let cable = self.gauges(
            "port_cable",
            help,
            &["node", "port", "guid", "rate", "peer"],
        );
        for adapter in &status.adapters {
            for port in &adapter.ports {
                let number = port.port.to_string();
                let of = [&adapter.name, &number, &port.guid];
                active
                    .with_label_values(&of)
                    .set((port.state == "Active").into());
                lid.with_label_values(&of)
                    .set(port.lid.unwrap_or_default().into());
                if let (Some(rate), Some(peer)) = (&port.rate, &port.cable) {
                    let [name, number, guid] = of;
                    cable
                        .with_label_values(&[name, number, guid, rate, peer])
                        .set(1);
                }
            }
        }
    }

    fn passed_through(&self, status: &Status) {
        if status.passthrough.is_empty() {
            return;
        }
        let of = ["vf", "device", "isolation"];
        let help = "Whether the VF behind a VF that is passed through works";
        let alive = self.gauges("vf_passthrough_alive", help, &of);
        let help = "Commands of the guest of a VF that is passed through, by result";
        let commands = self.counters("vf_commands_total", help, &["vf", "command", "fate"]);
        let help = "Time that the VF behind took for such commands";
        let opts = Opts::new("vf_command_seconds_total", help);
        let seconds = CounterVec::new(opts, &["vf", "command"]).expect("as for the others");
        let registered = self.0.register(Box::new(seconds.clone()));
        registered.expect("no name is registered twice");
        let help = "Datagrams of the guest of such a VF that are checked, by result";
        let datagrams = self.counters("vf_datagrams_total", help, &["vf", "fate"]);
        for vf in &status.passthrough {
            let of = &vf.datagrams;
            for (fate, count) in [
                ("passed", of.passed),
                ("service level", of.refused_service_level),
                ("address", of.refused_address),
                ("management", of.refused_management),
                ("malformed", of.malformed),
            ] {
                let of = [vf.name.as_str(), fate];
                datagrams.with_label_values(&of).inc_by(count);
            }
            alive
                .with_label_values(&[&vf.name, &vf.device, &vf.isolation])
                .set(vf.alive.into());
            for command in &status.commands {
                for fate in COMMAND_FATES {
                    commands.with_label_values(&[vf.name.as_str(), command, fate]);
                }
                seconds.with_label_values(&[&vf.name, command]);
            }
            for (command, counts) in &vf.commands {
                let counted = [
                    counts.answered,
                    counts.refused,
                    counts.executed,
                    counts.failed,
                ];
                for (fate, count) in COMMAND_FATES.into_iter().zip(counted) {
                    let of = [vf.name.as_str(), command, fate];
                    commands.with_label_values(&of).inc_by(count);
                }
                let time = counts.time_us as f64 / 1e6;
                seconds.with_label_values(&[&vf.name, command]).inc_by(time);
            }
        }
    }

    fn engines(&self, status: &Status) {
        let Some(placement) = &status.placement else {
            return;
        };
        let of = ["engine"];
        let help = "VFs that live in the engine";
        let vfs = self.gauges("engine_vfs", help, &of);
        let help = "Time in which the engine has had work";
        let opts = Opts::new("engine_busy_seconds_total", help);
        let busy = CounterVec::new(opts, &of).expect("as for the others");
        let registered = self.0.register(Box::new(busy.clone()));
        registered.expect("no name is registered twice");
        let help = "Frames that the engine has sent to others";
        let frames = self.counters("engine_crossing_frames_total", help, &of);
        let help = "Bytes that the engine has sent to others, with headers of packets";
        let bytes = self.counters("engine_crossing_bytes_total", help, &of);
        for (number, engine) in placement.engines.iter().enumerate() {
            let of = [number.to_string()];
            vfs.with_label_values(&of).set(engine.vfs.len() as i64);
            let seconds = engine.busy_ms as f64 / 1000.0;
            busy.with_label_values(&of).inc_by(seconds);
            frames.with_label_values(&of).inc_by(engine.crossing_frames);
            bytes.with_label_values(&of).inc_by(engine.crossing_bytes);
        }
    }

    fn ports(&self, counters: &CountersReport) {
        let of = ["node", "port"];
        let count = |name, help| self.counters(name, help, &of);
        let sent = count("port_sent_bytes_total", "Sent by the port");
        let received = count("port_received_bytes_total", "Received by the port");
        let xmit = count("port_sent_packets_total", "Sent by the port");
        let rcv = count("port_received_packets_total", "Received by the port");
        let help = "Errors at the port, by kind";
        let errors = self.counters("port_errors_total", help, &["node", "port", "kind"]);
        for node in &counters.nodes {
            for port in &node.ports {
                let number = port.port.to_string();
                let of = [&node.name, &number];
                sent.with_label_values(&of).inc_by(port.xmit_bytes);
                received.with_label_values(&of).inc_by(port.rcv_bytes);
                xmit.with_label_values(&of).inc_by(port.xmit_packets);
                rcv.with_label_values(&of).inc_by(port.rcv_packets);
                for kind in PORT_ERRORS {
                    errors.with_label_values(&[node.name.as_str(), &number, kind]);
                }
                for (kind, &count) in &port.errors {
                    let of = [&node.name, &number, kind];
                    errors.with_label_values(&of).inc_by(count);
                }
            }
        }
    }

    fn nodes(&self, counters: &CountersReport) {
        let count = |name, help, labels| self.counters(name, help, labels);
        let help = "Subnet management packets that the node answered";
        let answered = count("node_smps_answered_total", help, &["node", "packet"]);
        let help = "Subnet management packets that the node passed on";
        let forwarded = count("node_smps_forwarded_total", help, &["node"]);
        let help = "Subnet management packets that the node dropped";
        let dropped = count("node_smps_dropped_total", help, &["node"]);
        let help = "LIDs with a port in the forwarding table";
        let lids = self.gauges("switch_lids", help, &["node"]);
        // The nodes of one subnet are asked for the same packets.
        let answers = counters
            .nodes
            .iter()
            .flat_map(|node| node.smps.answered.keys());
        let packets: BTreeSet<&String> = answers.collect();
        for node in &counters.nodes {
            let of = [&node.name];
            for packet in &packets {
                answered.with_label_values(&[&node.name, *packet]);
            }
            forwarded.with_label_values(&of).inc_by(node.smps.forwarded);
            dropped.with_label_values(&of).inc_by(node.smps.dropped);
            if let Some(tables) = &node.forwarding {
                lids.with_label_values(&of).set(tables.lids.into());
            }
            for (packet, &count) in &node.smps.answered {
                let of = [&node.name, packet];
                answered.with_label_values(&of).inc_by(count);
            }
        }
    }
}
