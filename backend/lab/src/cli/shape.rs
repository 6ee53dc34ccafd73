//! Description of a lab on the command line.

use std::{
    env,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Args;

use crate::cli::quantity;
use crate::error::{Doing, Error, Result, near};
use crate::guest::root::Root;
use crate::guest::share::Share;
use crate::image::Kernel;
use crate::image::linux::Build;
use crate::interrupt::Interrupt;
use crate::nodes::cluster::{self, Cluster};
use crate::nodes::plan::{Happening, Plan};
use crate::nodes::rundir::{self, RunDir};
use crate::nodes::{Lab, MAX_NODES, Means, Shape, daemon};

/// A kernel of Debian's, or the file of another one.
#[derive(Debug, Clone)]
enum Source {
    Debian(Kernel),
    Built(PathBuf),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.parse() {
            Ok(kernel) => Ok(Self::Debian(kernel)),
            Err(_) if text.contains('/') || Path::new(text).is_file() => {
                Ok(Self::Built(text.into()))
            }
            Err(error) => Err(format!("{error}, and there is no such file")),
        }
    }
}

/// Arguments that `run` and `up` have in common.
#[derive(Debug, Clone, Args)]
pub(super) struct ShapeArgs {
    /// Number of nodes; by default 2, or the number of VFs in the configuration.
    #[arg(long, short, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(1..=MAX_NODES as u64))]
    nodes: Option<u64>,
    /// Debian packages to put into the nodes, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    packages: Vec<String>,
    /// The nodes' kernel: Debian's 5.10, 6.1, 6.12 (the default) or 7.2, or the file of one that you have built (bzImage).
    #[arg(long, value_name = "VERSION|FILE")]
    kernel: Option<Source>,
    /// The directory DIR of `make modules_install INSTALL_MOD_PATH=DIR`, for a kernel that you have built.
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// The subnet: a configuration of ibvswitch; each VF in it is a node of the same name.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not wait until ports are Active: for subnets in which a node is the subnet manager.
    #[arg(long)]
    any_state: bool,
    /// Memory of a node; 1G by default.
    #[arg(long, value_name = "SIZE", value_parser = quantity::memory)]
    memory: Option<u32>,
    /// Processors of a node; 1 by default.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: Option<u32>,
    /// Nodes are a cluster of this name, with SLURM; of --config only its VFs are nodes.
    #[arg(long, value_name = "NAME", value_parser = cluster_name, conflicts_with_all = ["root", "migratable"])]
    cluster: Option<String>,
    /// Nodes that are off until `ibvswitch lab boot NAME` has them join the cluster's queue, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    later: Vec<String>,
    /// Give each processor of a node one of this machine to itself.
    #[arg(long, conflicts_with = "config")]
    pin: bool,
    /// Nodes that run only while others leave processors idle, separated by commas.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "config"
    )]
    background: Vec<String>,
    /// Time limit for nodes to boot; 5m by default.
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    boot_timeout: Option<Duration>,
    /// Run commands in this root file system: a folder, or / for this machine's. Nodes' changes stay in their
    /// memory.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Let nodes change the subnet: `ibvswitch link down ...` in a node, and other commands.
    #[arg(long)]
    control: bool,
    /// Let nodes write to the current directory.
    #[arg(long)]
    writable: bool,
    /// Do not give nodes the current directory.
    #[arg(long, conflicts_with = "writable")]
    no_share: bool,
    /// Make nodes that can move to other hypervisors while they run; they have no directory of this machine.
    #[arg(long, conflicts_with_all = ["writable", "root"])]
    migratable: bool,
    /// Names of nodes, which a file says.
    #[arg(skip)]
    names: Vec<String>,
    /// Folder of the file that describes the nodes.
    #[arg(skip)]
    folder: Option<PathBuf>,
    /// Changes of the subnet, which a file says.
    #[arg(skip)]
    happenings: Vec<Happening>,
}

fn cluster_name(text: &str) -> std::result::Result<String, String> {
    let right = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    if text.is_empty() || text.len() > 30 || !text.chars().all(right) {
        return Err("write 1 to 30 letters, digits, '-' and '_'".into());
    }
    Ok(text.to_ascii_lowercase())
}

/// Refuses an option that names no file or folder.
fn existing(option: &str, path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Host(format!("{option}: there is no {path}")))
}

impl ShapeArgs {
    /// The same with what a file says, where the command line says nothing.
    pub(super) fn with(mut self, plan: &Plan) -> Result<Self> {
        let range = |name: &str, given: Option<u32>, most: u32| match given {
            Some(number) if !(1..=most).contains(&number) => {
                Err(Error::Host(format!("{name} = {number}: write 1 to {most}")))
            }
            given => Ok(given),
        };
        if self.nodes.is_none() {
            self.nodes = range("nodes", plan.nodes, MAX_NODES as u32)?.map(u64::from);
        }
        if self.nodes.is_none() && self.config.is_none() && plan.config.is_none() {
            self.names = plan.node.iter().map(|it| it.name.clone()).collect();
            range(
                "nodes",
                Some(self.names.len().max(1) as u32),
                MAX_NODES as u32,
            )?;
        }
        self.packages.extend(plan.packages.iter().cloned());
        if self.kernel.is_none() {
            let kernel = plan.kernel.as_ref().map(|it| it.parse());
            self.kernel = kernel.transpose().map_err(Error::Host)?;
            self.modules = self.modules.or(plan.modules.clone());
        }
        self.config = self.config.or(plan.config.clone());
        self.root = self.root.or(plan.root.clone());
        self.any_state |= plan.any_state;
        self.memory = self.memory.or(plan.memory);
        self.cpus = self.cpus.or(range("cpus", plan.cpus, 64)?);
        self.pin |= plan.pin;
        let name = plan.cluster.as_deref().map(cluster_name);
        self.cluster = self.cluster.or(name.transpose().map_err(Error::Host)?);
        let later = plan.node.iter().filter(|it| it.later);
        self.later.extend(later.map(|it| it.name.clone()));
        if self.cluster.is_none() && !self.later.is_empty() {
            let why = "later: there is no queue to join; name the cluster with --cluster";
            return Err(Error::Host(why.into()));
        }
        let background = plan.node.iter().filter(|it| it.background);
        self.background.extend(background.map(|it| it.name.clone()));
        if self.config.is_some() && (self.pin || !self.background.is_empty()) {
            return Err(Error::Host(
                "pin, background: with a configuration write `processors` or `background` at its VFs".into(),
            ));
        }
        let names = self.names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (option, listed) in [("background", &self.background), ("later", &self.later)] {
            let unknown = listed.iter().find(|it| !names.contains(&it.as_str()));
            if let Some(other) = unknown.filter(|_| self.config.is_none()) {
                let near = near(other, &names);
                return Err(Error::Host(format!(
                    "{option}: there is no node {other}; {near}"
                )));
            }
        }
        self.boot_timeout = self.boot_timeout.or(plan.boot_timeout);
        self.control |= plan.control;
        self.migratable |= plan.migratable;
        if self.migratable && (self.root.is_some() || plan.writable) {
            return Err(Error::Host(
                "migratable nodes have no directory of this machine: leave `root` and `writable` out".into(),
            ));
        }
        self.writable |= plan.writable && !self.no_share;
        self.folder = plan.folder.clone();
        self.happenings = plan.at.clone();
        Ok(self)
    }

    /// Names of its nodes, where no configuration has them.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        self.config
            .is_none()
            .then(|| self.shape(None, None, false).names())
    }

    /// Whether nodes are a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether nodes may have the subnet changed.
    pub(super) fn control(&self) -> bool {
        self.control
    }

    fn kernel(&self) -> Source {
        let default = || Source::Debian(Kernel::default());
        self.kernel.clone().unwrap_or_else(default)
    }

    /// Fetches and builds what nodes take. While that is done a signal ends this program, and apt, as it does
    /// any program.
    pub(super) fn means(&self) -> Result<Means> {
        self.share()?;
        self.root()?;
        let kernel = self.kernel();
        if let Source::Built(file) = &kernel {
            existing("kernel", file)?;
        }
        if let Some(folder) = &self.modules {
            existing("modules", folder)?;
        }
        if let Some(file) = &self.config {
            existing("config", file)?;
            daemon::check(file)?;
        }
        self.happenings.iter().try_for_each(Happening::check)?;
        if let (Source::Debian(kernel), Some(_)) = (&kernel, &self.modules) {
            return Err(Error::Host(format!(
                "--modules goes with the file of a kernel; {kernel} is Debian's and has its own"
            )));
        }
        let kernel = match kernel {
            Source::Debian(kernel) => kernel,
            Source::Built(_) => Kernel::default(),
        };
        let named = |it: &&String| !it.trim().is_empty();
        let mut packages: Vec<String> = self.packages.iter().filter(named).cloned().collect();
        if self.cluster.is_some() {
            packages.extend(cluster::PACKAGES.map(str::to_owned));
        }
        Means::get(kernel, &packages)
    }

    /// Boots a lab of this name, with or without a way to copy files. It is to end before its folder goes, which
    /// is before it here.
    pub(super) fn lab(
        &self,
        means: Means,
        name: &str,
        exchange: bool,
        interrupt: &Interrupt,
    ) -> Result<(RunDir, Lab)> {
        let dir = RunDir::create(&rundir::base(), name)?;
        let means = match self.kernel() {
            Source::Debian(_) => means,
            Source::Built(kernel) => {
                let modules = self.modules.clone();
                means.with(&Build { kernel, modules }, dir.path())?
            }
        };
        let root = self.root()?.inspect(Root::tell);
        let shape = self.shape(self.share()?, root, exchange);
        let lab = Lab::start(&means, &shape, dir.path(), interrupt)?;
        Ok((dir, lab))
    }

    fn shape(&self, share: Option<Share>, root: Option<Root>, exchange: bool) -> Shape {
        const BOOT_LIMIT: Duration = Duration::from_secs(5 * 60);
        Shape {
            nodes: self.nodes.and_then(|it| usize::try_from(it).ok()),
            subnet: self.config.clone(),
            names: self.names.clone(),
            happenings: self.happenings.clone(),
            any_state: self.any_state,
            memory: self.memory.unwrap_or(match self.cluster {
                Some(_) => cluster::MEMORY,
                None => 1024,
            }),
            processors: self.cpus,
            cluster: self.cluster.clone().map(|name| Cluster {
                name,
                later: self.later.clone(),
            }),
            pin: self.pin,
            background: self.background.clone(),
            boot_limit: self.boot_timeout.unwrap_or(BOOT_LIMIT),
            share,
            root,
            exchange: exchange && !self.migratable,
            migratable: self.migratable,
        }
    }

    fn root(&self) -> Result<Option<Root>> {
        self.root.as_deref().map(Root::new).transpose()
    }

    /// The directory that nodes have of the host.
    pub(super) fn share(&self) -> Result<Option<Share>> {
        if self.no_share || self.migratable {
            return Ok(None);
        }
        let directory = env::current_dir().doing("find the working directory")?;
        // Files beside a file are there, wherever this is started.
        let directory = match &self.folder {
            Some(folder) if !folder.starts_with(&directory) => folder.clone(),
            _ => directory,
        };
        Share::new(&directory, self.writable).map(Some)
    }

    /// Where commands begin.
    pub(super) fn directory(&self) -> Result<Option<PathBuf>> {
        let share = self.share()?;
        let begins = |share: Share| self.folder.clone().unwrap_or_else(|| share.path().into());
        Ok(share.map(begins))
    }
}
