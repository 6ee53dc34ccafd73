//! Contents of the page, queried as long as a browser shows it.

use std::sync::Arc;
use std::time::Duration;

use control::{Adapter, LinkEnd, NodeKind, Status, Topology, VfStatus};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::daemon::{Daemon, State};

/// Minimum interval between queries of the daemon.
const EVERY: Duration = Duration::from_secs(1);
/// Questions to a large subnet take at most one part in so many of the time.
const SHARE: u32 = 10;

/// A moment of the daemon, as a line of JSON. `None` before the first one.
pub(crate) type Line = Option<Arc<str>>;

/// Data for a browser. LIDs are numbers; GUIDs and P_Keys are the strings that InfiniBand tools print.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
enum View {
    /// The daemon answers.
    Serving {
        version: String,
        uptime_s: u64,
        sm_lid: u16,
        sweeps: u64,
        switches: u32,
        vfs: Vec<Vf>,
        adapters: Vec<Adapter>,
        warnings: Vec<String>,
        hypervisors: Vec<String>,
        links: Vec<Link>,
        /// Changes whenever the drawing does.
        drawing: String,
    },
    /// It does not, and why.
    Away { message: String },
}

#[derive(Debug, Serialize)]
struct Vf {
    name: String,
    hypervisor: String,
    holds: Option<String>,
    state: String,
    lid: u32,
    guid: String,
    pkeys: Vec<String>,
    cluster: Option<String>,
    connected: bool,
    xmit_bytes: u64,
    rcv_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Link {
    node: String,
    port: u8,
    peer: String,
    peer_port: u8,
    state: String,
    rate: String,
    /// Bytes that its two ends have sent.
    bytes: u64,
    /// Errors that its ends have counted, by name.
    errors: Vec<(String, u64)>,
}

/// Asks the daemon again and again while there are receivers, and rests while there are none.
pub(crate) async fn watch(daemon: Daemon, lines: watch::Sender<Line>) {
    loop {
        let begun = Instant::now();
        if lines.receiver_count() == 0 {
            // A later browser does not get an old moment for a new one.
            lines.send_replace(None);
        } else {
            let view = match daemon.state().await {
                Ok(state) => View::of(state),
                Err(error) => View::Away {
                    message: error.to_string(),
                },
            };
            if let Ok(line) = serde_json::to_string(&view) {
                lines.send_replace(Some(line.into()));
            }
        }
        let pause = (begun.elapsed() * SHARE).max(EVERY);
        sleep(pause).await;
    }
}

impl View {
    fn of(state: State) -> Self {
        let State {
            status,
            topology,
            counters,
        } = state;
        let links = topology.links.iter().map(|link| {
            let ends = [&link.from, &link.to];
            let ports = || {
                ends.into_iter().filter_map(|end: &LinkEnd| {
                    let node = counters.nodes.iter().find(|node| node.guid == end.guid)?;
                    node.ports.iter().find(|port| port.port == end.port)
                })
            };
            let mut errors: Vec<(String, u64)> = Vec::new();
            for (name, count) in ports().flat_map(|port| &port.errors) {
                match errors.iter_mut().find(|(known, _)| known == name) {
                    Some((_, sum)) => *sum += count,
                    None => errors.push((name.clone(), *count)),
                }
            }
            Link {
                node: link.from.node.clone(),
                port: link.from.port,
                peer: link.to.node.clone(),
                peer_port: link.to.port,
                state: link.state.clone(),
                rate: format!("{} {}", link.width, link.speed),
                bytes: ports().map(|port| port.xmit_bytes).sum(),
                errors,
            }
        });
        Self::Serving {
            links: links.collect(),
            hypervisors: hypervisors(&topology),
            drawing: drawing(&status, &topology),
            version: status.version,
            uptime_s: status.uptime_s,
            sm_lid: status.fabric.sm_lid,
            sweeps: status.fabric.sweeps,
            switches: status.fabric.switches,
            adapters: status.adapters,
            warnings: status.warnings,
            vfs: status.vfs.into_iter().map(Vf::of).collect(),
        }
    }
}

impl Vf {
    fn of(vf: VfStatus) -> Self {
        Self {
            name: vf.name,
            hypervisor: vf.hypervisor,
            holds: vf.holds,
            state: vf.state,
            lid: vf.lid,
            guid: vf.port_guid,
            pkeys: vf.pkeys,
            cluster: vf.cluster,
            connected: vf.client_connected,
            xmit_bytes: vf.counters.xmit_bytes,
            rcv_bytes: vf.counters.rcv_bytes,
        }
    }
}

/// Where VMs can go.
fn hypervisors(topology: &Topology) -> Vec<String> {
    let vfs = topology
        .nodes
        .iter()
        .filter(|node| node.kind == NodeKind::Vf);
    let mut names: Vec<String> = vfs.filter_map(|node| node.hypervisor.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Text that decides on a new drawing: the states of links, LIDs, and places of VMs.
fn drawing(status: &Status, topology: &Topology) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    for link in &topology.links {
        (&link.state, &link.from.guid, link.from.port).hash(&mut hasher);
    }
    for node in &topology.nodes {
        (
            &node.name,
            node.lid,
            &node.state,
            &node.holds,
            node.connected,
        )
            .hash(&mut hasher);
    }
    status.fabric.sm_lid.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
