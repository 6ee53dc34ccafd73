//! `ibvswitch run`

use std::env;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{self, Command};

use clap::Args;
use keeper::{Keeper, supervisor};

use super::{CliError, SourceArgs};
use crate::daemon::life::limits::raise_open_files;
use crate::daemon::life::logging;
use crate::daemon::life::run::{self, Inherit, RunError};

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the line `ready` on standard output, and notifies systemd, once VMs can be started. Start
VMs after that: QEMU does not wait for its socket.

On SIGTERM or SIGINT the sockets are removed and the exit status is 0. VMs that are still running
lose their HCA then and need a restart to get it back.

With --keeper, a daemon that is killed or fails is started again, and VMs keep their HCA: they see
a device that fails and recovers, and lose its connections.

SIGUSR2 has the effect of `ibvswitch upgrade`.")]
pub(super) struct RunArgs {
    /// Start a second process that keeps the VMs if the daemon dies, and starts the daemon again.
    #[arg(long)]
    keeper: bool,
    /// The keeper is at the standard input.
    #[arg(long, hide = true, conflicts_with = "keeper")]
    kept: bool,
    /// Replace the previous program, which has left its state at this descriptor.
    #[arg(long, hide = true)]
    inherit: Option<i32>,
    /// Stop before it would serve.
    #[arg(long, hide = true, requires = "inherit")]
    trial: bool,
}

pub(super) fn run(source: SourceArgs, args: &RunArgs) -> Result<(), CliError> {
    if args.keeper {
        return supervise(&source);
    }
    // Where it is tried, the keeper is another's.
    let keeper = if args.kept && !args.trial {
        Some(Keeper::from_stdin().map_err(system("reach the keeper"))?)
    } else {
        None
    };
    let config = source.load()?;
    let inherit = args.inherit.map(|handover| Inherit {
        handover,
        trial: args.trial,
    });
    run::run(&config, keeper, inherit, || {
        let mut out = io::stdout().lock();
        writeln!(out, "ready").and_then(|()| out.flush())
    })?;
    Ok(())
}

/// Starts the keeper and the daemon, and ends as the daemon does.
fn supervise(source: &SourceArgs) -> Result<(), CliError> {
    start_log()?;
    // By its path, so that a daemon that is started again is a version that was installed meanwhile.
    let program = env::current_exe().map_err(system("find this program's own path"))?;
    let mut keeper = Command::new(&program);
    keeper.arg("keeper");
    let mut daemon = Command::new(&program);
    for (option, path) in [
        ("--config", &source.config),
        ("--runtime-dir", &source.runtime_dir),
    ] {
        if let Some(path) = path {
            daemon.arg(option).arg(path);
        }
    }
    daemon.args(["run", "--kept"]);
    let status = supervisor::supervise(keeper, daemon);
    let status = status.map_err(system("start the keeper and the daemon"))?;
    process::exit(status.code().unwrap_or(1));
}

/// Arguments of `keeper`, which `run --keeper` starts.
#[derive(Debug, Args)]
pub(super) struct KeeperArgs {}

pub(super) fn keep(_args: &KeeperArgs) -> Result<(), CliError> {
    start_log()?;
    if let Err(error) = raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let supervisor = io::stdin().as_fd().try_clone_to_owned();
    let kept = supervisor.and_then(keeper::run);
    Ok(kept.map_err(system("keep the VMs"))?)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

fn start_log() -> Result<(), CliError> {
    logging::start("info").map_err(|what| RunError::Log(what).into())
}
