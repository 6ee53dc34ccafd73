//! `ibvswitch vm`

mod migrate;
mod settle;

use clap::Subcommand;

use super::{CliError, SourceArgs};

/// Commands on VMs, whose QEMUs they speak to.
#[derive(Debug, Subcommand)]
pub(super) enum VmCommand {
    /// Move a VM that runs to a QEMU at another hypervisor's VF; its guest does not notice.
    Migrate(migrate::MigrateArgs),
    /// Have a VM run again that a `vm migrate` which was killed has left paused, wherever it is.
    Settle(settle::SettleArgs),
}

pub(super) fn run(source: SourceArgs, command: VmCommand) -> Result<(), CliError> {
    match command {
        VmCommand::Migrate(args) => migrate::run(source, args),
        VmCommand::Settle(args) => settle::run(source, &args),
    }
}
