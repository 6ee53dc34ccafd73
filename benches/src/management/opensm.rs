//! OpenSM on the same subnet here and in the simulator ibsim, with the same file.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use config::{Config, Directories};
use ibvswitch::daemon::life::abort::Abort;
use ibvswitch::daemon::life::assembly::Assembly;
use ibvswitch::daemon::life::sockets::Sockets;
use simulator::opensm::{Ibsim, LIMIT, Program, command, library};
use testing::Configuration;
use topologies::{FatTree, Hosts};

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

/// Has OpenSM manage `tree` over either, one after the other, `rounds` times.
///
/// # Errors
/// [`BenchError`] when a program is missing (scripts/setup installs them) or the subnet stays down.
pub fn compare(tree: &FatTree, rounds: usize) -> Result<Compared> {
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let file = dir.path().join("tree.net");
    let topology = tree.topology(Hosts::Adapters);
    let text = topology
        .to_netlist()
        .map_err(|error| BenchError::Subnet(error.to_string()))?;
    // To ibsim, a port's GUID follows its node's; so it does here where the file is silent.
    let text = String::from_utf8_lossy(&text);
    let mut parts = text.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push(']');
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    std::fs::write(&file, text).map_err(BenchError::system("write a file of nodes"))?;
    let mut compared = Compared {
        ibsim: Vec::new(),
        daemon: Vec::new(),
    };
    for _ in 0..rounds {
        let ibsim = Ibsim::start(&topology, &file, Instant::now() + LIMIT)?;
        compared.ibsim.push(opensm(ibsim.socket(), dir.path())?);
        drop(ibsim);
        compared.daemon.push(over_daemon(&file, dir.path())?);
    }
    Ok(compared)
}

fn over_daemon(file: &Path, dir: &Path) -> Result<Duration> {
    let socket = format!("{SOCKET}-{}", std::process::id());
    let run = tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
    let text = Configuration::new()
        .set("log", "warn")
        .set("fabric.topology", file.display().to_string())
        .set("sm.manager", "external")
        .set("external.socket", socket.as_str());
    let dirs = Directories {
        chosen: Some(run.path()),
        fallback: run.path(),
    };
    let config = Config::parse("the bench's", &text.to_string(), dirs)?;
    let Sockets { control, vfs, lock } = Sockets::create(&config, None)?;
    let abort = Abort::new().map_err(BenchError::system("create an event descriptor"))?;
    let assembly = Assembly::start(&config, vfs, None, None, &abort)?;
    let time = opensm(&socket, dir)?;
    drop((assembly, control, lock));
    Ok(time)
}

/// Starts OpenSM at `host` of the subnet at `socket`, with arguments besides those that have it tell
/// here what it does, and waits until it says that the subnet is up.
pub(crate) fn start(socket: &str, host: &str, dir: &Path, arguments: &[&str]) -> Result<Program> {
    let mut command = command(library()?, socket, host, dir);
    command
        .args(["-d2", "-f", "-", "-F", "none.conf"])
        .args(arguments)
        .stderr(Stdio::null());
    let mut opensm = Program::start("opensm", &mut command)?;
    let up = |line: &str| line.contains("SUBNET UP").then_some(());
    opensm.find(Instant::now() + LIMIT, up)?;
    Ok(opensm)
}

fn opensm(socket: &str, dir: &Path) -> Result<Duration> {
    // Nothing is remembered from the run before.
    let cache = tempfile::tempdir_in(dir).map_err(BenchError::system("create a directory"))?;
    let began = Instant::now();
    let mut opensm = start(socket, HOST, cache.path(), &["-o"])?;
    let time = began.elapsed();
    // It ends by itself, and tidies up.
    opensm.wait(Instant::now() + LIMIT)?;
    Ok(time)
}
