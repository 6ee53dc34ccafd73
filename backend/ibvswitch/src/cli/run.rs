//! `ibvswitch run`

use std::io::{self, Write};

use clap::Args;

use super::{CliError, SourceArgs};
use crate::daemon::run;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the line `ready` on standard output once VMs can be started, and tells systemd so. VMs must
be started after that: QEMU does not wait for its socket.

On SIGTERM or SIGINT the sockets are removed and the exit status is 0. VMs that are still running
lose their HCA then and need a restart to get it back.")]
pub(super) struct RunArgs {}

pub(super) fn run(source: SourceArgs, _args: &RunArgs) -> Result<(), CliError> {
    let config = source.load()?;
    run::run(&config, || {
        let mut out = io::stdout().lock();
        writeln!(out, "ready").and_then(|()| out.flush())
    })?;
    Ok(())
}
