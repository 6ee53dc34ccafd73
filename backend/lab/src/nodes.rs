//! The nodes of a lab: guests with an HCA and an Ethernet card each, on the subnet of a daemon of their own.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    accel::Accel,
    daemon::Daemon,
    error::{Doing, Error, Result},
    guest::{Config, Guest},
    hca::{DEVICE, MLX5},
    image::{Image, Kernel},
    interrupt::Interrupt,
    progress,
    qemu::Qemu,
    share::Share,
};

/// The most nodes of a lab.
pub const MOST: usize = 64;

/// What nodes are started with, fetched and built where it is missing.
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
}

/// What a lab is like.
#[derive(Debug, Clone)]
pub struct Shape {
    /// How many nodes it has, [`MOST`] at most.
    pub nodes: usize,
    /// Memory of a node in MiB.
    pub memory: u32,
    /// Processors of a node.
    pub processors: u32,
    /// The folder of the host that nodes have.
    pub share: Option<Share>,
    /// How long nodes may take until they are ready.
    pub boot_limit: Duration,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its guest.
    pub guest: Arc<Guest>,
    /// Lines of its kernel's log when it was ready.
    logged: usize,
}

/// A running lab. Its nodes end when it is dropped, and then its daemon.
#[derive(Debug)]
pub struct Lab {
    nodes: Vec<Node>,
    interrupt: Interrupt,
    _daemon: Daemon,
}

/// The name of a node; the first is 0.
fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

/// The Ethernet address of a node.
fn address(node: usize) -> String {
    format!("10.18.0.{}", node + 1)
}

/// Node to hypervisor: one switch between them, and in each a VF and an Ethernet port.
fn configuration(nodes: usize) -> String {
    (0..nodes).map(name).fold(String::new(), |text, node| {
        text + &format!(
            "[[hypervisor]]\nname = \"h-{node}\"\n[[hypervisor.vf]]\nname = \"{node}\"\n\
             [[hypervisor.port]]\nname = \"{node}-net\"\nkind = \"vhost-user-net\"\n\n"
        )
    })
}

/// The file /etc/hosts of all nodes.
fn hosts(nodes: usize) -> String {
    (0..nodes).fold("127.0.0.1 localhost\n".to_owned(), |mut text, node| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {}", address(node), name(node));
        text
    })
}

impl Lab {
    /// Boots the nodes, and waits until they have their ports. Sockets and logs go to `dir`.
    pub fn start(means: &Means, shape: &Shape, dir: &Path, interrupt: &Interrupt) -> Result<Self> {
        progress::step(format_args!(
            "nodes: {}, kernel {}, QEMU {}, accelerator {}",
            shape.nodes, means.image.release, means.qemu.version, means.accel
        ));
        let folder = dir.join("daemon");
        fs::create_dir_all(&folder).at("create", &folder)?;
        let file = folder.join("config.toml");
        fs::write(&file, configuration(shape.nodes)).at("write", &file)?;
        let mut lab = Self {
            nodes: Vec::new(),
            interrupt: interrupt.clone(),
            _daemon: Daemon::start(Some(&file), &folder)?,
        };
        let deadline = Instant::now() + shape.boot_limit;
        for node in 0..shape.nodes {
            let config = config(means, shape, &lab._daemon, node)?;
            let guest = Guest::start(&means.qemu, config, &dir.join(name(node)))?;
            let guest = Arc::new(guest);
            interrupt.watch(&guest)?;
            lab.nodes.push(Node { guest, logged: 0 });
        }
        for node in &mut lab.nodes {
            node.settle(shape, deadline)?;
        }
        Ok(lab)
    }

    /// Whether a signal has ended it.
    pub fn interrupted(&self) -> bool {
        self.interrupt.signal().is_some()
    }

    /// Its nodes, n1 first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.interrupt.kill_guests();
    }
}

fn config(means: &Means, shape: &Shape, daemon: &Daemon, node: usize) -> Result<Config> {
    let name = name(node);
    let mut config = Config::new(&name, &means.image, means.accel);
    config.memory = shape.memory;
    config.processors = shape.processors;
    config.devices.push(daemon.device(&name, None)?);
    config.modules = MLX5.map(str::to_owned).to_vec();
    let address = format!("address={}/24", address(node));
    config.kernel_arguments.push(address);
    config.qemu_arguments = daemon.card(&format!("{name}-net"))?;
    // A kernel that panics ends, rather than boot and panic until the time limit.
    config.qemu_arguments.push("-no-reboot".into());
    if let Some(share) = &shape.share {
        config.qemu_arguments.extend(share.arguments());
    }
    Ok(config)
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        self.guest.name()
    }

    /// Waits until the node has booted, and gives it what all nodes have: names of the others, the folder
    /// of the host, a port that is Active.
    fn settle(&mut self, shape: &Shape, deadline: Instant) -> Result<()> {
        let limit = shape.boot_limit;
        self.guest.booted_by(deadline).map_err(|error| {
            if Instant::now() < deadline {
                return error;
            }
            let why = format!("has not booted within {limit:?}; --boot-timeout gives it more time");
            self.guest.failed(why)
        })?;
        let left = || deadline.saturating_duration_since(Instant::now());
        let hosts = format!("printf '{}' >/etc/hosts", hosts(shape.nodes));
        self.guest.sh(&hosts, left())?;
        if let Some(share) = &shape.share {
            let mounted = self.guest.run(&share.mount(), left())?;
            match mounted.status {
                0 => {}
                9 => progress::step(format_args!(
                    "{}: its kernel has no 9p; {} is not there",
                    self.name(),
                    share.path().display()
                )),
                _ => {
                    let why = format!("cannot mount {}: {}", share.path().display(), mounted.text);
                    return Err(self.guest.failed(why));
                }
            }
        }
        self.await_ports(left())?;
        let logged = self.guest.sh("dmesg | wc -l", left())?;
        self.logged = logged.trim().parse().unwrap_or(0);
        progress::step(format_args!("{}: ready", self.name()));
        Ok(())
    }

    /// Waits until the HCA's port is Active, and the Ethernet card has joined its network.
    fn await_ports(&self, limit: Duration) -> Result<()> {
        let command = format!(
            "until grep -q ACTIVE /sys/class/infiniband/{DEVICE}/ports/1/state 2>/dev/null && \
             grep -q 1 /sys/class/net/eth0/carrier 2>/dev/null; do usleep 50000; done"
        );
        self.guest.sh(&command, limit).map(drop).map_err(|error| match error {
            Error::TimeLimit { .. } => self.guest.failed(
                "the port of its HCA did not become Active in time: see whether the kernel has mlx5_ib; \
                 --boot-timeout gives it more time"
                    .into(),
            ),
            other => other,
        })
    }

    /// What the node's kernel has said since it was ready: the last lines of it. Of a node that does not
    /// answer: the end of its console.
    pub fn kernel_log(&self) -> String {
        let tail = format!("dmesg | tail -n +{} | tail -n 30", self.logged + 1);
        match self.guest.sh(&tail, Duration::from_secs(20)) {
            Ok(text) => text,
            Err(Error::Guest { console, .. }) => console,
            Err(error) => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        assert_eq!(
            hosts(2),
            "127.0.0.1 localhost\n10.18.0.1 n1\n10.18.0.2 n2\n"
        );
        let text = configuration(3);
        assert_eq!(text.matches("[[hypervisor]]").count(), 3);
        assert!(text.contains("name = \"n3-net\""), "{text}");
    }
}
