//! What a lab is made of, on the command line.

use std::{
    env,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Args;

use crate::{
    error::{Doing, Error, Result},
    image::Kernel,
    interrupt::Interrupt,
    linux::Build,
    nodes::{Lab, MOST, Means, Shape},
    quantity,
    rundir::{self, RunDir},
    share::Share,
};

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

/// What `run` and `up` have both.
#[derive(Debug, Args)]
pub(super) struct ShapeArgs {
    /// How many nodes: 2, or as many as the configuration has VFs.
    #[arg(long, short, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(1..=MOST as u64))]
    nodes: Option<u64>,
    /// Debian packages to put into the nodes, with commas between.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    packages: Vec<String>,
    /// The nodes' kernel: Debian's 6.1, 6.12 or 7.2, or the file of one that you have built (bzImage).
    #[arg(long, value_name = "VERSION|FILE", default_value = "6.12")]
    kernel: Source,
    /// Where `make modules_install INSTALL_MOD_PATH=DIR` has put the modules of a kernel that you have built.
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// The subnet: a configuration of ibvswitch, of which each VF is a node of its name.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not wait until ports are Active: for subnets of which a node is the subnet manager.
    #[arg(long)]
    any_state: bool,
    /// Memory of a node.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = quantity::memory)]
    memory: u32,
    /// Processors of a node.
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// How long the nodes may take to boot.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = quantity::time)]
    boot_timeout: Duration,
    /// Let the nodes write to the directory that this is started in.
    #[arg(long)]
    writable: bool,
    /// Keep that directory out of the nodes.
    #[arg(long, conflicts_with = "writable")]
    no_share: bool,
}

impl ShapeArgs {
    /// Fetches and builds what nodes take. While that is done a signal ends this program, and apt, as it does
    /// any program.
    pub(super) fn means(&self) -> Result<Means> {
        self.share()?;
        if let (Source::Debian(kernel), Some(_)) = (&self.kernel, &self.modules) {
            return Err(Error::Host(format!(
                "--modules goes with the file of a kernel; {kernel} is Debian's and has its own"
            )));
        }
        let kernel = match self.kernel {
            Source::Debian(kernel) => kernel,
            Source::Built(_) => Kernel::default(),
        };
        Means::get(kernel, &self.packages)
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
        let means = match &self.kernel {
            Source::Debian(_) => means,
            Source::Built(kernel) => {
                let (kernel, modules) = (kernel.clone(), self.modules.clone());
                means.with(&Build { kernel, modules }, dir.path())?
            }
        };
        let shape = Shape {
            nodes: self.nodes.and_then(|it| usize::try_from(it).ok()),
            subnet: self.config.clone(),
            any_state: self.any_state,
            memory: self.memory,
            processors: self.cpus,
            boot_limit: self.boot_timeout,
            share: self.share()?,
            exchange,
        };
        let lab = Lab::start(&means, &shape, dir.path(), interrupt)?;
        Ok((dir, lab))
    }

    /// The directory that nodes have of the host.
    pub(super) fn share(&self) -> Result<Option<Share>> {
        if self.no_share {
            return Ok(None);
        }
        let directory = env::current_dir().doing("find the working directory")?;
        Share::new(&directory, self.writable).map(Some)
    }
}
