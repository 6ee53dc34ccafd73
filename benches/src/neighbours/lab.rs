//! The daemon, and the VFs of the neighbour and of those who attack it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use config::Config;
use control::{Client, EngineCalls, Request, Response};
use fabric::{NodeId, PortRef, Topology};
use tempfile::TempDir;
use testing::Configuration;
use topologies::{FatTree, Hosts};

use super::tenants::Tenants;
use super::{Attack, Doorbells, Scale};
use crate::daemons::process::Process;
use crate::{BenchError, Context, Pinned, Processors, Result};

/// The neighbour's VFs, and the attacker's between them; each on a hypervisor of its own. Hypervisors are dealt
/// out: of two engines the attacker's VF has one.
const VFS: [&str; 3] = [NEAR, HOSTILE, FAR];
pub(super) const NEAR: &str = "near";
pub(super) const FAR: &str = "far";
pub(super) const HOSTILE: &str = "hostile";
/// Another VF of the attacker's, on a hypervisor of its own, where the attack is between two.
pub(super) const ACCOMPLICE: &str = "accomplice";
/// The accomplice's hypervisor.
pub(super) const BEHIND_A_LINK: &str = "hv3";
/// The VF behind the attacker's, of another daemon, where the attacker's is passed through.
const BEHIND: &str = "behind";

/// The attacker's ports, of VMs without an InfiniBand driver, on the same hypervisor as the first of [`VFS`];
/// and the Ethernet addresses of their guests.
pub(super) const PORTS: [(&str, [u8; 6]); 2] = [
    ("card", [0x52, 0x54, 0, 0, 0, 1]),
    ("other", [0x52, 0x54, 0, 0, 0, 2]),
];

/// A daemon that serves [`VFS`] and, where it is told to, [`PORTS`].
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) scale: Scale,
    pub(super) doorbells: Doorbells,
    pub(super) processors: Processors,
    pub(super) tenants: Option<Tenants>,
    // In this order: the daemon, the one with the VF behind the attacker's, and the directory that they are in.
    process: Process,
    _behind: Option<Process>,
    config: Config,
    _dir: TempDir,
}

impl Lab {
    /// Starts it with what an attack needs: a fat-tree around it if there is to be a subnet to sweep, ports, tenants, or
    /// a daemon with the VF behind the attacker's.
    pub(super) fn start(
        context: &Context,
        scale: Scale,
        doorbells: Doorbells,
        attack: Attack,
    ) -> Result<Self> {
        let dir =
            tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
        let processors = context.processors;
        let mut text = Configuration::new()
            .set("log", "error")
            .set("engine.doorbells", doorbells.name())
            .set("engine.threads", if context.apart { 2 } else { 1 });
        if doorbells == Doorbells::Poll {
            text = text.set("engine.cpu", processors.engine);
        }
        let mut switches = vec![];
        if attack == Attack::Sweep {
            let file = dir.path().join("topology");
            switches = write_tree(scale.tree, &file)?;
            text = text
                .set("fabric.topology", file.display().to_string())
                .set("sm.sweep_interval", 1);
        }
        // The engine's thread chooses for itself.
        let _others = others(processors, doorbells)?;
        let behind = { attack.is_passed_through() }.then(|| behind(context, dir.path()));
        let behind = behind.transpose()?;
        let accomplice = (attack == Attack::LossyKlm).then_some(&ACCOMPLICE);
        for (number, vf) in VFS.iter().chain(accomplice).enumerate() {
            text = text.hypervisor(&format!("hv{number}"), []);
            if let Some(switch) = switches.get(number) {
                text = text.at(switch);
            }
            text = text.vf(vf);
            if let (&HOSTILE, Some((_, socket))) = (vf, &behind) {
                text = text.key("device", format!("unix:{}", socket.display()));
            }
            if (attack, *vf) == (Attack::Ipoib, HOSTILE) {
                text = text.key("ipoib", "enhanced");
            }
            if attack == Attack::Vhost && number == 0 {
                text = PORTS
                    .iter()
                    .fold(text, |it, (name, mac)| it.port(name, mac[5]));
            }
        }
        let tenants = (attack == Attack::Managers).then_some(scale.tenants);
        if let Some(tenants) = tenants {
            text = Tenants::configure(text, tenants);
        }
        let (process, config) = Process::start(dir.path(), &text, &context.program)?;
        Ok(Self {
            scale,
            doorbells,
            processors,
            tenants: tenants
                .map(|tenants| Tenants::start(tenants, dir.path()))
                .transpose()?,
            process,
            _behind: behind.map(|(process, _)| process),
            config,
            _dir: dir,
        })
    }

    /// The socket of a VF or port.
    pub(super) fn socket(&self, name: &str) -> PathBuf {
        let passed = || self.config.hardware().find(|vf| vf.name == name);
        let vf = self.config.vf(name).map(|(_, vf)| &vf.socket);
        let socket = vf.or_else(|| passed().map(|vf| &vf.socket));
        socket.cloned().unwrap_or_else(|| name.into())
    }

    /// The socket on which the daemon is asked for a sweep.
    pub(super) fn control(&self) -> PathBuf {
        self.config.control_socket()
    }

    /// Times of the calls of the daemon's engines since the last question.
    pub(super) fn engine_calls(&self) -> Result<EngineCalls> {
        let asked = Client::connect(&self.control())
            .and_then(|mut daemon| daemon.ask(&Request::EngineCalls {}));
        match asked {
            Ok(Response::EngineCalls(calls)) => Ok(calls),
            Ok(other) => Err(BenchError::Subnet(format!("the daemon answered {other:?}"))),
            Err(error) => Err(BenchError::Subnet(error.to_string())),
        }
    }

    /// Ends the daemon, which somebody keeps from answering.
    pub(super) fn kill(&self) {
        self.process.kill();
    }

    /// Keeps the calling thread and those that it starts off the processor of
    /// an engine that polls.
    pub(super) fn others(&self) -> Result<Option<Pinned>> {
        others(self.processors, self.doorbells)
    }
}

/// Starts a daemon with the VF behind the attacker's in a folder of `dir`; it, and the VF's socket.
fn behind(context: &Context, dir: &Path) -> Result<(Process, PathBuf)> {
    let dir = dir.join(BEHIND);
    fs::create_dir(&dir).map_err(BenchError::system("create a directory for sockets"))?;
    let text = Configuration::new()
        .set("log", "error")
        .set("engine.doorbells", "trap")
        .hypervisor("hv", [BEHIND]);
    let (process, config) = Process::start(&dir, &text, &context.program)?;
    let socket = config.vf(BEHIND).map(|(_, vf)| vf.socket.clone());
    Ok((process, socket.unwrap_or_default()))
}

fn others(processors: Processors, doorbells: Doorbells) -> Result<Option<Pinned>> {
    (doorbells == Doorbells::Poll)
        .then(|| Pinned::away_from(processors.engine))
        .transpose()
}

/// Writes a fat-tree to `file` in which hypervisors have a free port at each of
/// some leaves, from where a host was taken away; returns the leaves' names.
fn write_tree(spec: &str, file: &Path) -> Result<Vec<String>> {
    let wrong = |what: String| BenchError::Subnet(format!("{spec}: {what}"));
    let tree: FatTree = spec.parse().map_err(|error| wrong(format!("{error}")))?;
    let whole = tree.topology(Hosts::Adapters);
    let nodes = whole.nodes();
    let is_host =
        |port: PortRef| nodes[port.node.index()].kind != wire::attribute::NodeType::Switch;
    let mut removed = BTreeSet::new();
    let mut leaves = Vec::<PortRef>::new();
    // From behind: the first host is the subnet manager's.
    for &(a, b, _) in whole.links().iter().rev() {
        let (host, leaf) = if is_host(a) { (a, b) } else { (b, a) };
        let known = leaves.iter().any(|known| known.node == leaf.node);
        if is_host(host) && !known && leaves.len() < VFS.len() {
            removed.insert(host.node.index());
            leaves.push(leaf);
        }
    }
    if leaves.len() < VFS.len() {
        return Err(wrong("too few leaves".to_owned()));
    }
    let mut topology = Topology::new();
    let kept: Vec<Option<NodeId>> = nodes
        .iter()
        .enumerate()
        .map(|(index, node)| (!removed.contains(&index)).then(|| topology.add(node.clone())))
        .collect();
    for &(a, b, rate) in whole.links() {
        if let (Some(from), Some(to)) = (kept[a.node.index()], kept[b.node.index()]) {
            topology.link((from, a.port), (to, b.port), rate);
        }
    }
    let text = topology
        .to_netlist()
        .map_err(|error| wrong(error.to_string()))?;
    fs::write(file, text).map_err(BenchError::system("write a topology"))?;
    let names = leaves.iter().map(|leaf| &nodes[leaf.node.index()]);
    Ok(names.map(|node| node.description.to_string()).collect())
}
