//! OpenSM on the same subnet here and in the simulator ibsim, with the same file.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::{FatTree, Hosts};
use ibvswitch::assembly::Assembly;
use ibvswitch::config::{Config, Directories};
use ibvswitch::external::library;
use ibvswitch::run::Abort;
use ibvswitch::sockets::Sockets;

use crate::{BenchError, Result};

/// Names of sockets, of which each bench has its own.
const SOCKET: &str = "ibvswitch-bench";
/// OpenSM's place in either: the first host.
const HOST: &str = "host 1";

/// From the start of OpenSM to its word that the subnet is up.
#[derive(Debug, Clone)]
pub struct Compared {
    /// Over ibsim.
    pub ibsim: Vec<Duration>,
    /// Over a daemon of ours.
    pub daemon: Vec<Duration>,
}

impl Compared {
    /// The fastest over ibsim, in milliseconds: the least disturbed.
    #[must_use]
    pub fn ibsim_ms(&self) -> f64 {
        fastest(&self.ibsim)
    }

    /// The fastest over a daemon.
    #[must_use]
    pub fn daemon_ms(&self) -> f64 {
        fastest(&self.daemon)
    }
}

fn fastest(times: &[Duration]) -> f64 {
    times
        .iter()
        .min()
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// A process that ends when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command, what: &'static str) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map(Self).map_err(BenchError::system(what))
    }

    /// Waits for a line of its output.
    fn line(&mut self, wanted: &str) -> Result<()> {
        let Some(out) = self.0.stdout.take() else {
            return Err(BenchError::Subnet("no output".to_owned()));
        };
        let mut out = BufReader::new(out);
        let mut line = String::new();
        let mut last = String::new();
        while out
            .read_line(&mut line)
            .map_err(BenchError::system("read what a program says"))?
            > 0
        {
            if line.contains(wanted) {
                // What else it says must not stop it.
                std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
                return Ok(());
            }
            last = std::mem::take(&mut line);
        }
        Err(BenchError::Subnet(format!(
            "a program ended without `{wanted}`; it said {last:?}"
        )))
    }
}

/// Has OpenSM manage `tree` over either, one after the other, `rounds` times.
///
/// # Errors
/// [`BenchError`] when a program is missing (scripts/setup installs them) or the subnet stays down.
pub fn compare(tree: &FatTree, rounds: usize) -> Result<Compared> {
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let file = dir.path().join("tree.net");
    let text = tree
        .topology(Hosts::Adapters)
        .to_netlist()
        .map_err(|error| BenchError::Subnet(error.to_string()))?;
    // To ibsim, a port's GUID follows its node's; so it does here where the file is silent.
    let text: String = text
        .lines()
        .map(|line| match line.split_once("](") {
            Some((port, rest)) if !port.contains('"') => match rest.split_once(')') {
                Some((_, rest)) => format!("{port}]{rest}\n"),
                None => format!("{line}\n"),
            },
            _ => format!("{line}\n"),
        })
        .collect();
    std::fs::write(&file, text).map_err(BenchError::system("write a file of nodes"))?;
    let mut compared = Compared {
        ibsim: Vec::new(),
        daemon: Vec::new(),
    };
    for _ in 0..rounds {
        compared.ibsim.push(over_ibsim(&file, dir.path())?);
        compared.daemon.push(over_daemon(&file, dir.path())?);
    }
    Ok(compared)
}

fn over_ibsim(file: &Path, dir: &Path) -> Result<Duration> {
    let socket = format!("{SOCKET}-ibsim-{}", std::process::id());
    let mut command = Command::new("ibsim");
    command
        .env("IBSIM_SOCKNAME", &socket)
        .args(["-s", "-n", "-N", "8192", "-S", "2048", "-P", "100000"])
        .args(["-L", "49152"])
        .arg(file);
    let mut ibsim = Running::start(&mut command, "start ibsim (scripts/setup installs it)")?;
    ibsim.line("Network simulator ready")?;
    opensm(&socket, dir)
}

fn over_daemon(file: &Path, dir: &Path) -> Result<Duration> {
    let socket = format!("{SOCKET}-{}", std::process::id());
    let run = tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
    let text = format!(
        "log = \"warn\"\n[fabric]\ntopology = {:?}\n[sm]\nmanager = \"external\"\n\
         [external]\nsocket = \"{socket}\"\n",
        file.display().to_string()
    );
    let dirs = Directories {
        chosen: Some(run.path()),
        fallback: run.path(),
    };
    let config = Config::parse("the bench's", &text, dirs)?;
    let Sockets { control, vfs, lock } = Sockets::create(&config)?;
    let abort = Abort::new().map_err(BenchError::system("create an event descriptor"))?;
    let assembly = Assembly::start(&config, vfs, &abort)?;
    let time = opensm(&socket, dir)?;
    drop((assembly, control, lock));
    Ok(time)
}

fn opensm(socket: &str, dir: &Path) -> Result<Duration> {
    let library: PathBuf = library().ok_or_else(|| {
        BenchError::Subnet("libumad2sim is missing (scripts/setup installs it)".to_owned())
    })?;
    // Nothing is remembered from the run before.
    let cache = tempfile::tempdir_in(dir).map_err(BenchError::system("create a directory"))?;
    let mut command = Command::new("opensm");
    command
        .env("LD_PRELOAD", library)
        .env("IBSIM_SOCKNAME", socket)
        .env("SIM_HOST", HOST)
        .env("OSM_CACHE_DIR", cache.path())
        .env("OSM_TMP_DIR", cache.path())
        .current_dir(cache.path())
        .args(["-o", "-d2", "-f", "-", "-F", "none.conf"])
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut opensm = Running::start(&mut command, "start opensm (scripts/setup installs it)")?;
    opensm.line("SUBNET UP")?;
    let time = began.elapsed();
    // It ends by itself, and tidies up.
    opensm
        .0
        .wait()
        .map_err(BenchError::system("wait for opensm"))?;
    Ok(time)
}
