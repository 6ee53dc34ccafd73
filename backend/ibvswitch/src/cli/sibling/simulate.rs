//! `ibvswitch simulate`

use std::ffi::OsString;

use clap::Args;

use super::become_program;
use crate::cli::CliError;

/// The program that simulates. It lies beside this one where both were built.
const PROGRAM: &str = "ibvswitch-simulate";

/// Arguments of `simulate`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
All arguments are those of the program ibvswitch-simulate: `ibvswitch simulate --help` shows them. In
the source tree, `cargo build --release -p ibvswitch -p ibvswitch-simulator` builds both."
)]
pub(crate) struct SimulateArgs {
    /// Arguments of the simulation.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    become_program(
        PROGRAM,
        &args.args,
        "in the source tree, build both with: cargo build --release -p ibvswitch -p ibvswitch-simulator",
    )
}
