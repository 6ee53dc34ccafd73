//! `ibvswitch lab`

use std::ffi::OsString;

use clap::Args;

use super::become_program;
use crate::cli::CliError;

/// The program that boots nodes. It lies beside this one where both were built.
const PROGRAM: &str = "ibvswitch-lab";

/// Arguments of `lab`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
All arguments are those of the program ibvswitch-lab: `ibvswitch lab --help` shows them. In the source
tree, `cargo build --release` builds both."
)]
pub(crate) struct LabArgs {
    /// Arguments of the lab.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &LabArgs) -> Result<(), CliError> {
    become_program(
        PROGRAM,
        &args.args,
        "build both in the source tree, cargo build --release, and install both in one directory",
    )
}
