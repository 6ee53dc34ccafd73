//! `ibvswitch demo`

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use super::CliError;

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
pub(super) struct DemoArgs {
    /// Arguments of the demo.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(super) fn run(args: &DemoArgs) -> Result<(), CliError> {
    let own = env::current_exe().map_err(|error| {
        CliError::Demo(format!(
            "this program's own path is unknown: {error}; run {PROGRAM} itself"
        ))
    })?;
    let program = own.with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(CliError::Demo(format!(
            "there is no {PROGRAM} beside {}; run ./scripts/demo in the source tree, which builds \
             both and gets what the demo needs",
            own.display()
        )));
    }
    // Returns only if it fails: the demo takes this process's place.
    let error = Command::new(&program).args(&args.args).exec();
    Err(CliError::Demo(format!(
        "{} cannot be started: {error}",
        program.display()
    )))
}
