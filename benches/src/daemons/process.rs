//! A daemon in a process of its own: this program, started once more.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use config::{Config, Source};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{BenchError, Result};
use testing::Configuration;

/// The argument that makes the program of the benches a daemon.
pub const SERVE: &str = "serve";
const READY: &str = "ready";
const CONFIGURATION: &str = "bench.toml";

/// The configuration in the runtime directory `dir`.
fn source(dir: &Path) -> Source {
    Source {
        file: Some(dir.join(CONFIGURATION)),
        runtime_dir: Some(PathBuf::from(dir)),
    }
}

/// Serves the configuration in the runtime directory `dir` in place of a
/// program: what [`Process::start`] starts in a process of its own.
///
/// # Errors
/// [`BenchError::Run`].
pub fn serve(dir: &OsStr) -> Result<()> {
    // Not longer than whoever measures it.
    set_pdeathsig(Signal::SIGKILL).map_err(BenchError::system("end with the parent process"))?;
    let config = source(Path::new(dir)).load()?;
    ibvswitch::daemon::life::run::run(&config, None, None, || {
        let mut out = io::stdout();
        writeln!(out, "{READY}")?;
        out.flush()
    })?;
    Ok(())
}

/// A daemon's process, ended when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a daemon with the runtime directory `dir` and the configuration
    /// `text`, and waits until it is ready.
    ///
    /// # Errors
    /// [`BenchError::Daemon`] when it says something else.
    pub fn start(dir: &Path, text: &Configuration, program: &Path) -> Result<(Self, Config)> {
        let start = |error| BenchError::System {
            what: "start a daemon in another process",
            source: error,
        };
        fs::write(dir.join(CONFIGURATION), text.to_string()).map_err(start)?;
        let config = source(dir).load()?;
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
            Ok((process, config))
        } else {
            Err(BenchError::Daemon(line))
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends it, whatever it is doing.
    pub fn kill(&self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
    }

    /// Resident memory that is not shared with guests, in MiB.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn resident(&self) -> Result<f64> {
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
