//! `ibvswitch bench`

use std::ffi::OsString;

use clap::Args;

use super::become_program;
use crate::cli::CliError;

/// The program that measures. It lies beside this one where both were built.
const PROGRAM: &str = "ibvswitch-bench";

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
All arguments are those of the program ibvswitch-bench: `ibvswitch bench --help` shows them. In the
source tree, `cargo build --release -p ibvswitch -p ibvswitch-benches` builds both."
)]
pub(crate) struct BenchArgs {
    /// Arguments of the benches.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    become_program(
        PROGRAM,
        &args.args,
        "build both in the source tree: cargo build --release -p ibvswitch -p ibvswitch-benches",
    )
}
