//! `ibvswitch external`

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::{Args, Subcommand};

use super::{CliError, SourceArgs, print};
use crate::config::Config;
use crate::external::{DIRECTORIES, LIBRARY, library};

/// Subcommands of `external`.
#[derive(Debug, Subcommand)]
pub(super) enum ExternalCommand {
    /// Run a program on the subnet: opensm, ibnetdiscover, smpquery and the like.
    Run(RunArgs),
    /// Print the environment that puts programs on the subnet, for a shell's `eval`.
    Env(HostArgs),
}

/// Arguments of `external run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Where a program attaches.
#[derive(Debug, Args)]
pub(super) struct HostArgs {
    /// Node to attach to, by name or GUID; without it the subnet manager's host.
    #[arg(long, value_name = "NODE")]
    host: Option<String>,
    /// Take requests of vendors' classes, as `ibping -S` does.
    #[arg(long)]
    responder: bool,
}

pub(super) fn run(source: SourceArgs, command: ExternalCommand) -> Result<(), CliError> {
    let config = source.load()?;
    match command {
        ExternalCommand::Run(args) => {
            let environment = environment(&config, &args.host)?;
            let Some((program, arguments)) = args.program.split_first() else {
                return Err(CliError::External("no program is named".to_owned()));
            };
            let error = Command::new(program)
                .args(arguments)
                .envs(environment)
                .exec();
            Err(CliError::External(format!(
                "{} cannot be run: {error}",
                Path::new(program).display()
            )))
        }
        ExternalCommand::Env(host) => {
            let lines: String = environment(&config, &host)?
                .into_iter()
                .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
                .collect();
            print(&lines)
        }
    }
}

/// The variables that libumad2sim, and the loader, look at.
fn environment(
    config: &Config,
    host: &HostArgs,
) -> Result<Vec<(&'static str, OsString)>, CliError> {
    let socket = config.external.socket.as_ref().ok_or_else(|| {
        CliError::External(
            "`external.socket = \"\"`: programs of the host are not served; remove the key, or \
             write a name"
                .to_owned(),
        )
    })?;
    let library = library().ok_or_else(|| {
        CliError::External(format!(
            "{LIBRARY} is not in {}; install it (Debian: libumad2sim0)",
            DIRECTORIES.join(", ")
        ))
    })?;
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut variables = vec![("LD_PRELOAD", preload), ("IBSIM_SOCKNAME", socket.into())];
    if let Some(host) = &host.host {
        variables.push(("SIM_HOST", host.into()));
    }
    if host.responder {
        variables.push(("SIM_SET_ISSM", "1".into()));
    }
    Ok(variables)
}

/// As a shell reads it back. What a path or name of ours cannot hold is not in it.
fn quoted(value: &OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}
