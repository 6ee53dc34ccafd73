//! `ibvswitch vm`

mod migrate;
mod settle;

use clap::Subcommand;

use super::{CliError, SourceArgs};

/// Commands on VMs, whose QEMUs they speak to.
#[derive(Debug, Subcommand)]
pub(super) enum VmCommand {
    /// Move a running VM to a QEMU at another hypervisor's VF; its guest does not notice.
    Migrate(migrate::MigrateArgs),
    /// Continue a VM that was left paused when its `vm migrate` was killed.
    Settle(settle::SettleArgs),
}

pub(super) fn run(source: SourceArgs, command: VmCommand) -> Result<(), CliError> {
    match command {
        VmCommand::Migrate(args) => migrate::run(source, args),
        VmCommand::Settle(args) => settle::run(source, &args),
    }
}
