//! `ibvswitch external`

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};

use crate::cli::{CliError, SourceArgs, print};
use crate::control::{Client, Request, Response};
use crate::daemon::external::{self, DIRECTORIES, LIBRARY, NOT_SERVED};

/// Subcommands of `external`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExternalCommand {
    /// Run a program on the subnet: opensm, ibnetdiscover, smpquery and the like.
    Run(RunArgs),
    /// Print the environment that puts programs on the subnet, for a shell's `eval`.
    Env(HostArgs),
}

/// Arguments of `external run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Where a program attaches.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Node to attach to, by name or GUID; without it the subnet manager's host. `CLUSTER/VM`: a VM, as a program of it in the network
    /// of its cluster, where VMs may manage that.
    #[arg(long, value_name = "NODE")]
    host: Option<String>,
    /// Take requests of vendors' classes, as `ibping -S` does.
    #[arg(long)]
    responder: bool,
}

pub(crate) fn run(source: SourceArgs, command: ExternalCommand) -> Result<(), CliError> {
    match command {
        ExternalCommand::Run(args) => {
            let control = source.control_socket()?;
            let library = library()?;
            let asked = Request::External {
                host: args.host.host.clone(),
            };
            // Without somebody who answers, and at a node that is not there, the library would wait for
            // ever or end the program.
            let answer = Client::connect(&control)?.ask(&asked)?;
            let Response::External { socket, .. } = answer else {
                return Err(CliError::UnexpectedResponse);
            };
            let environment = environment(library, socket, &args.host);
            let Some((program, arguments)) = args.program.split_first() else {
                return Err(CliError::External("no program is named".to_owned()));
            };
            let error = Command::new(program)
                .args(arguments)
                .envs(environment)
                .exec();
            Err(CliError::External(format!(
                "{} cannot be run: {error}; name a program that is installed (Debian: opensm, \
                 infiniband-diags), or write its path",
                Path::new(program).display()
            )))
        }
        ExternalCommand::Env(host) => {
            let socket = source.load()?.external.socket;
            let socket = socket.ok_or_else(|| CliError::External(NOT_SERVED.to_owned()))?;
            let lines: String = environment(library()?, socket, &host)
                .into_iter()
                .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
                .collect();
            print(&lines)
        }
    }
}

/// Returns the path of the library that is preloaded.
fn library() -> Result<PathBuf, CliError> {
    external::library().ok_or_else(|| {
        CliError::External(format!(
            "{LIBRARY} is not in {}; install it (Debian: libumad2sim0)",
            DIRECTORIES.join(", ")
        ))
    })
}

/// The variables that libumad2sim, and the loader, look at.
fn environment(library: PathBuf, socket: String, host: &HostArgs) -> Vec<(&'static str, OsString)> {
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
    variables
}

/// As a shell reads it back. Characters that cannot be in our paths and names are not handled.
fn quoted(value: &OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}
