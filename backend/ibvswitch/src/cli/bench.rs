//! `ibvswitch bench`

use std::ffi::OsString;

use clap::Args;

use super::{CliError, sibling};

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
pub(super) struct BenchArgs {
    /// Arguments of the benches.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(super) fn run(args: &BenchArgs) -> Result<(), CliError> {
    sibling::become_program(
        PROGRAM,
        &args.args,
        "build both in the source tree: cargo build --release -p ibvswitch -p ibvswitch-benches",
    )
}
