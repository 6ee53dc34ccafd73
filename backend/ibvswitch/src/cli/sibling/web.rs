//! `ibvswitch web`

use std::ffi::OsString;

use clap::Args;

use super::become_program;
use crate::cli::{CliError, SourceArgs};

/// The program that serves the page. It lies beside this one where both were built.
const PROGRAM: &str = "ibvswitch-web";
const REMEDY: &str =
    "build both in the source tree, cargo build --release, and install both in one directory";

/// Arguments of `web`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
All arguments are those of the program ibvswitch-web: `ibvswitch web --help` shows them. In the source
tree, `cargo build --release` builds both."
)]
pub(crate) struct WebArgs {
    /// Arguments of the page's server.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

pub(crate) fn run(source: SourceArgs, args: &WebArgs) -> Result<(), CliError> {
    serve(source, args.args.iter().cloned())
}

/// Becomes the server, which asks the daemon that is meant.
pub(crate) fn serve(
    source: SourceArgs,
    args: impl IntoIterator<Item = OsString>,
) -> Result<(), CliError> {
    let mut all = Vec::new();
    for (option, path) in [
        ("--config", source.config),
        ("--runtime-dir", source.runtime_dir),
    ] {
        if let Some(path) = path {
            all.extend([option.into(), path.into_os_string()]);
        }
    }
    all.extend(args);
    become_program(PROGRAM, &all, REMEDY)
}
