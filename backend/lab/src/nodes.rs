//! The nodes of a lab: guests with an HCA and an Ethernet card each, on the subnet of a daemon of their own.

pub mod cluster;
pub mod command_socket;
pub mod control;
pub mod daemon;
pub mod everywhere;
pub mod host;
mod later;
pub mod moves;
pub mod outcome;
pub mod plan;
pub mod rundir;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::error::{Doing, Error, Result, near};
use crate::guest::accel::Accel;
use crate::guest::hca::{DEVICE, MLX5};
use crate::guest::qemu::Qemu;
use crate::guest::root::{self, Root};
use crate::guest::share::{Share, quoted};
use crate::guest::ssh::Keys;
use crate::guest::{Config, Guest};
use crate::image::linux::Build;
use crate::image::userland::Userland;
use crate::image::{Image, Kernel};
use crate::interrupt::Interrupt;
use crate::nodes::cluster::{Cluster, Queue};
use crate::nodes::daemon::Daemon;
use crate::nodes::host::HostPlan;
use crate::nodes::later::Later;
use crate::nodes::moves::{Mobile, Mover, Moves};
use crate::nodes::plan::Happening;
use crate::progress;

/// The folder in a node's part of the lab's folder by which files are copied.
pub const EXCHANGE: &str = "exchange";

/// The folder of a node, by its number from 0: its name may be long, or that of something else there.
pub fn node_folder(node: usize) -> String {
    format!("n{}", node + 1)
}

/// The most nodes of a lab.
pub const MAX_NODES: usize = 64;

/// Files that nodes are started with, fetched and built if missing.
#[derive(Debug)]
pub struct Means {
    qemu: Qemu,
    image: Image,
    accel: Accel,
}

impl Means {
    /// Gets all of it.
    pub fn get(kernel: Kernel, packages: &[String]) -> Result<Self> {
        let qemu = Qemu::find()?;
        let image = Image::with_packages(kernel, packages)?;
        let accel = Accel::choose(&qemu, &image)?;
        Ok(Self { qemu, image, accel })
    }

    /// The same with a kernel that the user has built. Its files are written to `dir`.
    pub fn with(mut self, build: &Build, dir: &Path) -> Result<Self> {
        self.image = build.image(&self.image, dir)?;
        Ok(self)
    }
}

/// Description of a lab.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Number of nodes, [`MAX_NODES`] at most. Without it: two, or all VFs of the configuration.
    pub nodes: Option<usize>,
    /// The configuration of its daemon, of which each VF is a node. Without it: one that is made.
    pub subnet: Option<PathBuf>,
    /// Names of the nodes of one that is made; without them n1, n2 and so on.
    pub names: Vec<String>,
    /// Changes of the subnet; their names are looked up before nodes boot.
    pub happenings: Vec<Happening>,
    /// Whether nodes are ready before their ports are Active.
    pub any_state: bool,
    /// Memory of a node in MiB.
    pub memory: u32,
    /// Processors of a node; where neither this nor the configuration says it: one.
    pub processors: Option<u32>,
    /// The cluster that nodes are in. Of a configuration only its VFs are nodes.
    pub cluster: Option<Cluster>,
    /// Whether each node has processors of this machine to itself.
    pub pin: bool,
    /// Names of nodes that run only while others leave processors idle.
    pub background: Vec<String>,
    /// The folder of the host that nodes have.
    pub share: Option<Share>,
    /// The root file system of commands; without it the nodes' own.
    pub root: Option<Root>,
    /// Whether files can be copied to nodes and from them.
    pub exchange: bool,
    /// Whether nodes can move to other hypervisors while they run. Such nodes have no folder of the host.
    pub migratable: bool,
    /// Time limit until nodes are ready.
    pub boot_limit: Duration,
}

impl Shape {
    /// Names of nodes, where no configuration has them.
    pub fn names(&self) -> Vec<String> {
        match (self.nodes, &self.names[..]) {
            (Some(nodes), _) => (0..nodes).map(node_folder).collect(),
            (None, []) => (0..2).map(node_folder).collect(),
            (None, names) => names.to_vec(),
        }
    }
}

/// Where a node is in the subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The VF's name, and the node's.
    name: String,
    /// The port for its Ethernet card.
    ethernet: Option<String>,
    /// Its number from 1.
    number: usize,
}

impl Place {
    /// The address of its Ethernet card.
    fn address(&self) -> String {
        format!("10.18.0.{}", self.number)
    }

    /// The address of its IP over InfiniBand.
    fn infiniband_address(&self) -> String {
        format!("10.19.0.{}", self.number)
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its guest.
    pub guest: Arc<Guest>,
    place: Place,
    /// Folders of the host that it has.
    shares: Vec<Share>,
    /// Lines of its kernel's log when it was ready.
    logged: AtomicUsize,
    /// Held by who uses the channel of commands that is kept for the lab itself.
    pub errands: Arc<Mutex<()>>,
}

/// A running lab. Its nodes end when it is dropped, and then its daemon.
#[derive(Debug)]
pub struct Lab {
    nodes: Vec<Node>,
    interrupt: Interrupt,
    /// Moves nodes, if they can move.
    mover: Option<Mover>,
    daemon: Arc<Daemon>,
    /// Whether commands have a root file system of the host's.
    rooted: bool,
    /// Nodes that are off.
    later: Later,
    /// Settings that they get when they boot.
    shape: Shape,
    common: Common,
    queue: Option<Queue>,
}

/// Node to hypervisor: one switch between them, and in each a VF and an Ethernet port, and as many that are free where
/// nodes can move.
fn configuration(shape: &Shape) -> String {
    let spare = if shape.migratable {
        "spare_vfs = 1\nspare_ports = 1\n"
    } else {
        ""
    };
    let mut start = "[engine]\ndoorbells = \"auto\"\n\n".to_owned();
    let cluster = shape.cluster.as_ref().map_or_else(String::new, |it| {
        start += &format!("[[cluster]]\nname = \"{}\"\n\n", it.name);
        format!("cluster = \"{}\"\n", it.name)
    });
    let processors = match shape.processors {
        Some(count) => format!("processors = {count}\n"),
        None if shape.pin => "processors = 1\n".into(),
        None => String::new(),
    };
    shape.names().iter().fold(start, |text, node| {
        let needs = match (shape.background.contains(node), shape.pin) {
            (true, _) => format!("{processors}background = true\n"),
            (false, true) => processors.clone(),
            (false, false) => String::new(),
        };
        text + &format!(
            "[[hypervisor]]\nname = \"h-{node}\"\n{spare}[[hypervisor.vf]]\nname = \"{node}\"\n{needs}{cluster}\
             [[hypervisor.port]]\nname = \"{node}-net\"\nkind = \"vhost-user-net\"\n{cluster}\n"
        )
    })
}

/// The nodes that a daemon has VFs for, from its status: all but spare ones. Each has the first port
/// of its hypervisor that no other has. With a cluster only its VFs are nodes.
fn places(status: &Value, most: Option<usize>, cluster: Option<&str>) -> Result<Vec<Place>> {
    let all: Vec<&Value> = status["vfs"].as_array().into_iter().flatten().collect();
    let (vfs, mut ports): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|it| it["ethernet"].is_null());
    let nodes = vfs.iter().filter(|it| !it["holds"].is_null());
    let nodes = nodes.filter(|it| cluster.is_none_or(|name| it["cluster"] == name));
    let count = nodes.clone().count();
    if count == 0 || most.unwrap_or(count) > count || most.unwrap_or(count) > MAX_NODES {
        return Err(Error::Host(format!(
            "the configuration has {count} VFs{}, which are the nodes; there have to be as many as --nodes says, and \
             1 to {MAX_NODES}",
            cluster.map_or_else(String::new, |name| format!(" in the cluster {name}"))
        )));
    }
    let mut number = 0;
    let place = |vf: &&Value| {
        let port = ports
            .iter()
            .position(|port| port["hypervisor"] == vf["hypervisor"]);
        let port = port.map(|at| ports.remove(at));
        number += 1;
        Place {
            name: vf["name"].as_str().unwrap_or_default().into(),
            ethernet: port.and_then(|port| Some(port["name"].as_str()?.to_owned())),
            number,
        }
    };
    Ok(nodes.take(most.unwrap_or(MAX_NODES)).map(place).collect())
}

/// The file /etc/hosts of all nodes. A node's name is its Ethernet card; with `-ib` behind it, it is its IP over
/// InfiniBand, by which the connection manager of RDMA finds it. A node without a card has both names for this.
fn hosts(places: &[Place]) -> String {
    let lines = places.iter().map(|place| {
        let (name, infiniband) = (&place.name, place.infiniband_address());
        match place.ethernet {
            Some(_) => format!("{} {name}\n{infiniband} {name}-ib\n", place.address()),
            None => format!("{infiniband} {name} {name}-ib\n"),
        }
    });
    "127.0.0.1 localhost\n".to_owned() + &lines.collect::<String>()
}

/// All names by which ssh reaches nodes.
fn names(places: &[Place]) -> Vec<String> {
    let names = places.iter().flat_map(|place| {
        let name = &place.name;
        let addresses = [place.address(), place.infiniband_address()];
        [name.clone(), format!("{name}-ib")]
            .into_iter()
            .chain(addresses)
    });
    names.chain(["localhost".into()]).collect()
}

/// Settings that all nodes get after they have booted.
#[derive(Debug)]
struct Common {
    /// The file /etc/hosts.
    hosts: String,
    /// The command that installs the keys of ssh.
    keys: String,
}

impl Lab {
    /// Boots the nodes, and waits until they have their ports. Sockets and logs go to `dir`.
    pub fn start(means: &Means, shape: &Shape, dir: &Path, interrupt: &Interrupt) -> Result<Self> {
        let folder = dir.join("daemon");
        fs::create_dir_all(&folder).at("create", &folder)?;
        let made = folder.join("config.toml");
        if shape.subnet.is_none() {
            fs::write(&made, configuration(shape)).at("write", &made)?;
        }
        let daemon = Daemon::start(Some(shape.subnet.as_ref().unwrap_or(&made)), &folder)?;
        let daemon = Arc::new(daemon);
        let cluster = shape.cluster.as_ref().map(|it| it.name.as_str());
        let places = places(&daemon.status()?, shape.nodes, cluster)?;
        plan::check_names(&shape.happenings, &daemon)?;
        let host = HostPlan::of(&daemon)?;
        let all: Vec<&str> = places.iter().map(|it| it.name.as_str()).collect();
        host.admit(&all, shape.memory)?;
        let late = shape.cluster.as_ref().map_or(&[][..], |it| &it.later);
        let is_late = |name: &str| late.iter().any(|late| late == name);
        if let Some(other) = late.iter().find(|it| !all[1..].contains(&it.as_str())) {
            return Err(Error::Host(format!(
                "later: {other} is no node that can boot later; {}",
                near(other, &all[1..])
            )));
        }
        let off = (0..all.len()).filter(|&node| is_late(all[node]));
        let later = Later::new(all.len(), off);
        progress::step(format_args!(
            "nodes: {}, kernel {}, QEMU {}, accelerator {}",
            places.len(),
            means.image.release,
            means.qemu.version,
            means.accel
        ));
        let deadline = Instant::now() + shape.boot_limit;
        let keys = Keys::make(&Userland::Trixie.tools()?, &folder)?;
        let mut lab = Self {
            nodes: Vec::new(),
            interrupt: interrupt.clone(),
            mover: None,
            daemon,
            rooted: shape.root.is_some(),
            later,
            shape: shape.clone(),
            common: Common {
                hosts: hosts(&places),
                keys: keys.install(&names(&places)),
            },
            queue: None,
        };
        let common_folder = dir.join("shared");
        if shape.cluster.is_some() {
            fs::create_dir_all(&common_folder).at("create", &common_folder)?;
        }
        let mut mobiles = Vec::new();
        for place in places {
            let dir = dir.join(node_folder(lab.nodes.len()));
            let mut shares: Vec<Share> = shape.share.iter().cloned().collect();
            let root = shape.root.as_ref().map(Root::share);
            if shape.exchange {
                let folder = dir.join(EXCHANGE);
                fs::create_dir_all(&folder).at("create", &folder)?;
                shares.push(Share::exchange(&folder));
            }
            if shape.cluster.is_some() {
                shares.push(Share::common(&common_folder, cluster::SHARED));
            }
            let all: Vec<&Share> = shares.iter().chain(&root).collect();
            let mut config = common_config(means, shape, &host, &place)?;
            config.halted = !lab.is_on(lab.nodes.len());
            let everywhere = config.clone();
            attach(&mut config, shape, &lab.daemon, &place, &all)?;
            let guest = Guest::start(&means.qemu, config, &dir)?;
            let guest = Arc::new(guest);
            interrupt.watch(&guest)?;
            mobiles.push(Mobile {
                guest: Arc::clone(&guest),
                ethernet: place.ethernet.clone(),
                config: everywhere,
                dir,
            });
            lab.nodes.push(Node {
                guest,
                place,
                shares,
                logged: AtomicUsize::new(0),
                errands: Arc::default(),
            });
        }
        let on = || {
            let all = lab.nodes.iter().enumerate();
            all.filter(|&(number, _)| lab.is_on(number))
                .map(|(_, node)| node)
        };
        for node in on() {
            node.settle(shape, &lab.common, deadline)?;
        }
        if let Some(cluster) = &shape.cluster {
            let left = || deadline.saturating_duration_since(Instant::now());
            let nodes: Vec<&Node> = on().collect();
            lab.queue = Queue::set_up(cluster, shape, &nodes, left)?;
            progress::step(format_args!("cluster {}: its queue is ready", cluster.name));
        }
        lab.mover = shape.migratable.then(|| {
            let (qemu, daemon) = (means.qemu.clone(), Arc::clone(&lab.daemon));
            Mover::start(qemu, daemon, mobiles, interrupt.clone())
        });
        Ok(lab)
    }

    /// Boots a node that is off, and gives it what the others have.
    fn bring_up(&self, node: usize) -> Result<()> {
        let node = &self.nodes[node];
        let deadline = Instant::now() + self.shape.boot_limit;
        node.guest.power_on()?;
        node.settle(&self.shape, &self.common, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        self.queue
            .as_ref()
            .map_or(Ok(()), |queue| queue.prepare(node, left))
    }

    /// By which nodes are moved to other hypervisors.
    ///
    /// # Errors
    /// Where they cannot.
    pub fn moves(&self) -> Result<Moves> {
        let moves = self.mover.as_ref().and_then(Mover::moves);
        moves.ok_or_else(|| {
            Error::Host("nodes of this lab cannot move; start it with --migratable".into())
        })
    }

    /// Whether a signal has ended it.
    pub fn interrupted(&self) -> bool {
        self.interrupt.signal().is_some()
    }

    /// Returns the script for a node's shell that runs a line of a user's: with its environment, in a
    /// directory, if that exists, and in the root file system of commands.
    pub fn script(&self, node: usize, directory: Option<&str>, line: &str) -> String {
        let names: Vec<&str> = self.nodes.iter().map(Node::name).collect();
        let peer = names[(node + 1) % names.len()];
        let mut script = format!(
            "export LAB_NODE={} LAB_RANK={node} LAB_PEER={} LAB_NODES={}; ",
            quoted(names[node]),
            quoted(peer),
            quoted(&names.join(" "))
        );
        if let Some(directory) = directory {
            script += &format!("cd {} 2>/dev/null || cd /root; ", quoted(directory));
        }
        script += line;
        if self.rooted {
            return format!("exec /etc/guest/shell {}", quoted(&script));
        }
        script
    }

    /// Its daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Its nodes, n1 first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.interrupt.kill_guests();
        self.mover = None;
    }
}

/// Returns the configuration of a node at each of its hypervisors.
fn common_config(means: &Means, shape: &Shape, host: &HostPlan, place: &Place) -> Result<Config> {
    let mut config = Config::new(&place.name, &means.image, means.accel);
    config.memory = shape.memory;
    let (placement, processors) = host.placement(&place.name);
    config.processors = match (shape.processors, processors) {
        (Some(wanted), Some(planned)) if wanted != planned => {
            return Err(Error::Host(format!(
                "--cpus {wanted}: the configuration gives {} {planned} with `processors`; leave --cpus out",
                place.name
            )));
        }
        (wanted, planned) => wanted.or(planned).unwrap_or(1),
    };
    config.placement = placement;
    config.modules = MLX5.map(str::to_owned).to_vec();
    if place.ethernet.is_some() {
        let address = format!("address={}/24", place.address());
        config.kernel_arguments.push(address);
    }
    // A kernel that panics ends, rather than boot and panic until the time limit.
    config.qemu_arguments.push("-no-reboot".into());
    Ok(config)
}

/// Gives a node its HCA, its card, and folders of the host.
fn attach(
    config: &mut Config,
    shape: &Shape,
    daemon: &Daemon,
    place: &Place,
    shares: &[&Share],
) -> Result<()> {
    let mut arguments = Vec::new();
    if shape.migratable {
        arguments = daemon.migratable(&place.name, false)?;
    } else {
        config.devices.push(daemon.device(&place.name, None)?);
    }
    if let Some(port) = &place.ethernet {
        arguments.extend(daemon.card(port)?);
    }
    arguments.append(&mut config.qemu_arguments);
    arguments.extend(shares.iter().flat_map(|it| it.arguments()));
    config.qemu_arguments = arguments;
    Ok(())
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        self.guest.name()
    }

    /// Waits until the node has booted, and gives it what all nodes have: names of the others, the folder
    /// of the host, a port that is Active.
    fn settle(&self, shape: &Shape, common: &Common, deadline: Instant) -> Result<()> {
        let limit = shape.boot_limit;
        self.guest.booted_by(deadline).map_err(|error| {
            if Instant::now() < deadline {
                return error;
            }
            let why = format!("has not booted within {limit:?}; --boot-timeout gives it more time");
            self.guest.failed(why)
        })?;
        let left = || deadline.saturating_duration_since(Instant::now());
        let hosts = format!("printf %s {} >/etc/hosts", quoted(&common.hosts));
        self.guest.sh(&hosts, left())?;
        self.guest.sh(&common.keys, left())?;
        let mut root = "";
        if shape.root.is_some() {
            // Mounts in /run go with it.
            for share in self.shares.iter().filter(|it| it.is_exchange()) {
                self.guest.sh(&share.mount(""), left())?;
            }
            let mounted = self.guest.run(&Root::mount(), left())?;
            let why = match mounted.status {
                0 => None,
                9 => Some(
                    "its kernel has no 9p or no overlay (CONFIG_OVERLAY_FS), which --root takes"
                        .into(),
                ),
                _ => Some(format!(
                    "cannot mount its root file system: {}",
                    mounted.text
                )),
            };
            if let Some(why) = why {
                return Err(self.guest.failed(why));
            }
            root = root::PLACE;
        }
        let is_there = |it: &&Share| shape.root.is_some() && it.is_exchange();
        for share in self.shares.iter().filter(|it| !is_there(it)) {
            let mounted = self.guest.run(&share.mount(root), left())?;
            match mounted.status {
                0 => {}
                9 => {
                    progress::step(format_args!(
                        "{}: its kernel has no 9p; no folder of this machine is there",
                        self.name()
                    ));
                    break;
                }
                _ => {
                    let why = format!("cannot mount {}: {}", share.path().display(), mounted.text);
                    return Err(self.guest.failed(why));
                }
            }
        }
        let has_ipoib = self
            .guest
            .run(&ipoib(&self.place.infiniband_address()), left())?;
        if !shape.any_state {
            self.await_ports(left())?;
            if has_ipoib.status != 0 || self.guest.run(AWAIT_IPOIB, left())?.status != 0 {
                progress::step(format_args!(
                    "{}: IP over InfiniBand does not work",
                    self.name()
                ));
            }
        }
        let logged = self.guest.sh("dmesg | wc -l", left())?;
        let logged = logged.trim().parse().unwrap_or(0);
        self.logged.store(logged, Ordering::Relaxed);
        progress::step(format_args!("{}: ready", self.name()));
        Ok(())
    }

    /// Waits until the HCA's port is Active, and the Ethernet card has joined its network.
    fn await_ports(&self, limit: Duration) -> Result<()> {
        let mut command = format!(
            "until grep -q ACTIVE /sys/class/infiniband/{DEVICE}/ports/1/state 2>/dev/null; do usleep 50000; done;"
        );
        if self.place.ethernet.is_some() {
            command += " until grep -q 1 /sys/class/net/eth0/carrier; do usleep 50000; done";
        }
        self.guest.sh(&command, limit).map(drop).map_err(|error| match error {
            Error::TimeLimit { .. } => self.guest.failed(
                "the port of its HCA did not become Active in time: see whether the kernel has mlx5_ib; \
                 --boot-timeout gives it more time"
                    .into(),
            ),
            other => other,
        })
    }

    /// Returns the last messages of the node's kernel since it was ready. For a node that does not answer: the
    /// end of its console.
    pub fn kernel_log(&self) -> String {
        let tail = format!(
            "dmesg | tail -n +{} | tail -n 30",
            self.logged.load(Ordering::Relaxed) + 1
        );
        match self.guest.sh(&tail, Duration::from_secs(20)) {
            Ok(text) => text,
            Err(Error::Guest { console, .. }) => console,
            Err(error) => error.to_string(),
        }
    }
}

/// Returns the script that sets up IP over InfiniBand in a node, if its kernel has that. Its Ethernet card is
/// in the same network, and must not answer ARP for this address: a peer with that answer would look for a
/// connection manager there.
fn ipoib(address: &str) -> String {
    format!(
        "cd /proc/sys/net/ipv4/conf/all; echo 1 >arp_ignore; echo 2 >arp_announce; modprobe ib_ipoib && [ -e /sys/class/net/ib0 ] && ip address add {address}/24 dev ib0 && \
         ip link set ib0 up"
    )
}

/// Waits until it has joined its network, which not every partition has.
const AWAIT_IPOIB: &str = "for i in $(seq 200); do \
    grep -q 1 /sys/class/net/ib0/carrier && exit; usleep 50000; done; exit 1";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_made() {
        let mut shape = Shape {
            nodes: Some(3),
            ..Shape::default()
        };
        let text = configuration(&shape);
        assert_eq!(text.matches("[[hypervisor]]").count(), 3);
        assert!(text.contains("name = \"n3-net\""), "{text}");
        assert!(
            !text.contains("spare") && !text.contains("processors"),
            "{text}"
        );
        (shape.pin, shape.background) = (true, vec!["n3".into()]);
        let text = configuration(&shape);
        assert_eq!(text.matches("processors = 1\n").count(), 3);
        assert_eq!(text.matches("background = true").count(), 1);
        shape.cluster = Some(Cluster {
            name: "mpi".into(),
            later: Vec::new(),
        });
        let text = configuration(&shape);
        assert_eq!(text.matches("cluster = \"mpi\"").count(), 6);
    }

    #[test]
    fn nodes_are_vfs_with_the_ports_of_their_hypervisors() {
        let vf = |name: &str, hypervisor: &str| json!({ "name": name, "hypervisor": hypervisor, "holds": name });
        let mut port = vf("p1", "h2");
        port["ethernet"] = "52:54:00:00:00:01".into();
        let mut spare = vf("s", "h2");
        spare["holds"] = Value::Null;
        let status = json!({ "vfs": [vf("a", "h1"), port, spare, vf("b", "h2"), vf("c", "h2")] });
        let all = places(&status, None, None).unwrap();
        let names: Vec<_> = all
            .iter()
            .map(|it| (it.name.as_str(), it.ethernet.as_deref()))
            .collect();
        assert_eq!(names, [("a", None), ("b", Some("p1")), ("c", None)]);
        let lines = "10.19.0.1 a a-ib\n10.18.0.2 b\n10.19.0.2 b-ib\n";
        assert_eq!(hosts(&all[..2]), format!("127.0.0.1 localhost\n{lines}"));
        assert_eq!(places(&status, Some(1), None).unwrap(), all[..1]);
        let missing = places(&status, None, Some("c1"));
        for wrong in [
            places(&status, Some(4), None),
            places(&json!({}), None, None),
            missing,
        ] {
            let error = wrong.unwrap_err().to_string();
            assert!(error.contains(", which are the nodes"), "{error}");
        }
    }
}
