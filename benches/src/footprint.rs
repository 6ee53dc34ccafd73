//! Memory of a daemon whose VFs are idle.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::lab::configuration;
use crate::{BenchError, Context, Measurement, Peer, Result};

/// The argument that makes the program of the benches a daemon.
pub const SERVE: &str = "serve";
const READY: &str = "ready";

/// Serves the configuration in the runtime directory `dir` in place of a
/// program: what [`run`] starts in a process of its own.
///
/// # Errors
/// [`BenchError::Run`].
pub fn serve(dir: &OsStr) -> Result<()> {
    let config = configuration(None, "trap", Path::new(dir))?;
    ibvswitch::run::run(&config, || {
        let mut out = io::stdout();
        writeln!(out, "{READY}")?;
        out.flush()
    })?;
    Ok(())
}

#[derive(Debug)]
struct Process(Child);

impl Process {
    fn start(dir: &Path, program: &Path) -> Result<Self> {
        let start = |error| BenchError::System {
            what: "start a daemon in another process",
            source: error,
        };
        let child = Command::new(program)
            .arg(SERVE)
            .arg(dir)
            .env_remove("RUST_LOG")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let mut process = Self(child);
        let mut line = String::new();
        if let Some(out) = process.0.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(start)?;
        }
        if line.trim_end() == READY {
            Ok(process)
        } else {
            Err(BenchError::Daemon(line))
        }
    }

    /// Resident memory that is not shared with guests, in MiB.
    fn resident(&self) -> Result<f64> {
        let read = BenchError::system("read a daemon's memory use");
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).map_err(read)?;
        let kib = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key))?;
            value.split_whitespace().next()?.parse::<f64>().ok()
        };
        match (kib("VmRSS:"), kib("RssShmem:")) {
            (Some(all), Some(shared)) => Ok((all - shared) / 1024.0),
            _ => Err(BenchError::Daemon(status)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures it: drivers have initialized both VFs and do nothing.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
    let process = Process::start(dir.path(), &context.program)?;
    let config = configuration(None, "trap", dir.path())?;
    let sockets = config.vfs().map(|(_, vf)| Peer::open(&vf.socket, 4096));
    let _peers = sockets.collect::<Result<Vec<_>>>()?;
    Ok(vec![Measurement {
        name: "daemon_rss_mib",
        value: process.resident()?,
        unit: "MiB",
        reference: None,
    }])
}
