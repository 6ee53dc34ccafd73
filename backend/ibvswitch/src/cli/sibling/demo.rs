//! `ibvswitch demo`

use std::ffi::OsString;

use clap::Args;

use super::become_program;
use crate::cli::CliError;

/// The program that boots guests. It lies beside this one where both were built.
const PROGRAM: &str = "ibvswitch-demo";

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
All arguments are those of the program ibvswitch-demo: `ibvswitch demo --help` shows them. It is
built along with the rest by ./scripts/demo in the source tree, which also gets everything else
that is needed."
)]
pub(crate) struct DemoArgs {
    /// Arguments of the demo.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), CliError> {
    become_program(
        PROGRAM,
        &args.args,
        "run ./scripts/demo in the source tree, which builds both and gets what the demo needs",
    )
}
