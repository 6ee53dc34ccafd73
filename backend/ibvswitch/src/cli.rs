//! The command line.
//!
//! Each command is a module with its arguments and a function that carries it out. Results go to
//! standard output, everything else to standard error. Scripts depend on the
//! exit statuses, which `ibvswitch --help` and `docs/users/commands.md` list.

mod change;
mod completions;
mod configuration;
mod doctor;
mod host;
mod manual;
mod metrics;
mod run;
mod sibling;
mod status;
mod subnet;
mod text;
mod upgrade;
mod vf;
mod vm;

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;

use self::sibling::{bench, demo, lab, simulate, web};
use self::subnet::{capture, counters, external, link, sm, topology};
use crate::control::{self, Client, ClientError, Request, Response};
use crate::daemon::life::assembly::AssemblyError;
use crate::daemon::life::run::RunError;
use crate::daemon::management::ManagementError;
use config::cluster::request::RequestError;
use config::edit::EditError;
use config::{CONTROL_SOCKET, Config, ConfigError, Source};
use report::picture::LayoutError;

const AFTER_HELP: &str = "\
Exit status:
  0  done
  1  the command failed
  2  the command line is wrong
  3  the configuration is wrong
  4  no daemon answers
  5  unknown name

Without --config the built-in configuration is used: two hypervisors behind one switch, with one \
VF each, named vm1 and vm2. `ibvswitch config default` prints it.";

/// Virtual InfiniBand HCAs for QEMU guests.
///
/// Gives each VM a ConnectX virtual function that the stock mlx5 driver binds to, over vfio-user,
/// and connects them by a virtual InfiniBand subnet.
#[derive(Debug, Parser)]
#[command(name = "ibvswitch", version, after_help = AFTER_HELP, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    source: SourceArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Args)]
struct SourceArgs {
    /// Configuration file.
    #[arg(
        long,
        short,
        global = true,
        value_name = "FILE",
        env = "IBVSWITCH_CONFIG",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// Directory of the sockets, in place of the configured one.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "IBVSWITCH_RUNTIME_DIR",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        hide_env_values = true
    )]
    runtime_dir: Option<PathBuf>,
}

impl SourceArgs {
    /// An empty environment variable is as none. An empty value of an option is a mistake.
    fn without_empty(mut self) -> Result<Self, CliError> {
        for (path, option, variable) in [
            (&mut self.config, "--config", "IBVSWITCH_CONFIG"),
            (
                &mut self.runtime_dir,
                "--runtime-dir",
                "IBVSWITCH_RUNTIME_DIR",
            ),
        ] {
            if path
                .as_ref()
                .is_none_or(|path| !path.as_os_str().is_empty())
            {
                continue;
            }
            if env::var_os(variable).is_none_or(|value| !value.is_empty()) {
                let message = format!("{option} is empty; write a path, or leave the option out");
                return Err(usage(&[], message));
            }
            *path = None;
        }
        Ok(self)
    }

    /// The control socket of the daemon. Mistakes in the configuration beside its `runtime_dir` are told and passed
    /// over: whoever edits the file may still ask the daemon.
    fn control_socket(self) -> Result<PathBuf, CliError> {
        let (dir, mistakes) = self.source().locate()?;
        if let Some(mistakes) = mistakes {
            eprintln!("ibvswitch: warning: {mistakes}");
        }
        Ok(dir.join(CONTROL_SOCKET))
    }

    fn source(self) -> Source {
        Source {
            file: self.config,
            runtime_dir: self.runtime_dir,
        }
    }

    fn load(self) -> Result<Config, CliError> {
        Ok(self.source().load()?)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the VFs of the configuration until SIGTERM or SIGINT.
    Run(run::RunArgs),
    /// Keep the VMs of a daemon that dies.
    #[command(hide = true)]
    Keeper(run::KeeperArgs),
    /// Show, add, remove or move VFs, or print how to attach one to a VM.
    #[command(subcommand)]
    Vf(vf::VfCommand),
    /// Add or remove ports of VMs with an Ethernet card.
    #[command(subcommand)]
    Port(change::PortCommand),
    /// Add or remove hypervisors.
    #[command(subcommand)]
    Hypervisor(change::HypervisorCommand),
    /// Create, resize, show and prove virtual clusters.
    #[command(subcommand)]
    Cluster(change::cluster::ClusterCommand),
    /// Move a running VM to another hypervisor.
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Replace the running daemon by the installed program; VMs do not notice.
    Upgrade(upgrade::UpgradeArgs),
    /// Show the state of the running daemon and of its VFs.
    Status(status::StatusArgs),
    /// Show the nodes and links of the subnet: as text, as a picture, or as data.
    Topology(topology::TopologyArgs),
    /// Show a link, take it down and up, or make it lose or delay packets.
    #[command(subcommand)]
    Link(link::LinkCommand),
    /// Show the embedded subnet manager, or make it sweep or read its partitions again.
    #[command(subcommand)]
    Sm(sm::SmCommand),
    /// Put programs of the host on the subnet: opensm and infiniband-diags.
    #[command(subcommand)]
    External(external::ExternalCommand),
    /// Show counters of ports: traffic, errors, management packets.
    Counters(counters::CountersArgs),
    /// Print all counters and states in the text format of Prometheus.
    Metrics(metrics::MetricsArgs),
    /// Show a running daemon in a browser.
    Web(web::WebArgs),
    /// Write the packets at ports of VFs to a file, or to tshark or Wireshark.
    Capture(capture::CaptureArgs),
    /// Check what this host lacks, and print remedies.
    Doctor(doctor::DoctorArgs),
    /// Check whether VFs of this host's adapters can be passed through.
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Check a configuration, or print the built-in one.
    #[command(subcommand)]
    Config(configuration::ConfigCommand),
    /// Experiments with large subnets: routing, migration, LIDs.
    Simulate(simulate::SimulateArgs),
    /// Run your programs in VMs on a subnet of their own.
    Lab(lab::LabArgs),
    /// Boot two VMs on a subnet of their own and measure between them.
    Demo(demo::DemoArgs),
    /// Measure the device without VMs.
    Bench(bench::BenchArgs),
    /// Print a shell's completion script for these commands.
    Completions(completions::CompletionsArgs),
    /// Write the manual's pages of these commands.
    Man(manual::ManArgs),
}

/// Exit status of the program, besides 0 for success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    /// The operation failed.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration is wrong.
    Configuration = 3,
    /// No daemon answers.
    NoDaemon = 4,
    /// Unknown name.
    Unknown = 5,
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the subnet cannot be set up: {0}")]
    Subnet(#[from] ManagementError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("there is no VF `{name}`; {}", known_vfs(.name, .known))]
    UnknownVf { name: String, known: Vec<String> },
    #[error("unexpected answer of the daemon; use an `ibvswitch` of the daemon's version")]
    UnexpectedResponse,
    #[error(transparent)]
    Picture(#[from] LayoutError),
    #[error("{0}")]
    Usage(clap::Error),
    #[error("{0}")]
    External(String),
    #[error("{0}")]
    Sibling(String),
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Cluster(#[from] RequestError),
    #[error("writing the result failed: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::Subnet(_)
            | Self::Run(RunError::Subnet(_) | RunError::Assembly(AssemblyError::Subnet(_))) => {
                Exit::Configuration
            }
            Self::Usage(_) => Exit::Usage,
            Self::Client(ClientError::NotRunning { .. }) => Exit::NoDaemon,
            Self::UnknownVf { .. }
            | Self::Edit(EditError::Unknown { .. })
            | Self::Cluster(RequestError::Edit(EditError::Unknown { .. }))
            | Self::Client(ClientError::Refused {
                kind: control::ErrorKind::Unknown,
                ..
            }) => Exit::Unknown,
            Self::Client(_)
            | Self::Run(_)
            | Self::UnexpectedResponse
            | Self::Picture(_)
            | Self::External(_)
            | Self::Sibling(_)
            | Self::Failed(_)
            | Self::Edit(_)
            | Self::Cluster(_)
            | Self::Output(_) => Exit::Failure,
        }
    }
}

fn known_vfs(name: &str, known: &[String]) -> String {
    match known {
        [] => "the configuration has none; add a table [[hypervisor.vf]]".to_owned(),
        known => vswitch::near(name, known, "`ibvswitch status` shows all"),
    }
}

/// Reads and runs the command line.
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let matches = with_negative_numbers(Cli::command());
    let matches = matches.try_get_matches().unwrap_or_else(|error| {
        // Its usage line would show options that are environment variables, as if they were needed.
        let bare = without_variables(with_negative_numbers(Cli::command()));
        let bare = bare.try_get_matches().err().filter(clap::Error::use_stderr);
        bare.filter(|_| error.use_stderr()).unwrap_or(error).exit()
    });
    let Cli { source, command } =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = source
        .without_empty()
        .and_then(|source| carry_out(source, command));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough, as in `ibvswitch status | head -1`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // With standard error gone there is nobody left to tell.
            let _ = match &error {
                CliError::Usage(error) => error.print(),
                error => writeln!(io::stderr(), "ibvswitch: {error}"),
            };
            ExitCode::from(error.exit() as u8)
        }
    }
}

fn carry_out(source: SourceArgs, command: Command) -> Result<(), CliError> {
    match command {
        Command::Run(args) => run::run(source, &args),
        Command::Keeper(args) => run::keep(&args),
        Command::Vf(command) => vf::run(source, command),
        Command::Port(command) => change::port(source, command),
        Command::Hypervisor(command) => change::hypervisor(source, command),
        Command::Cluster(command) => change::cluster::run(source, command),
        Command::Vm(command) => vm::run(source, command),
        Command::Upgrade(args) => upgrade::run(source, &args),
        Command::Status(args) => status::run(source, &args),
        Command::Topology(args) => topology::run(source, &args),
        Command::Link(command) => link::run(source, command),
        Command::Counters(args) => counters::run(source, &args),
        Command::Metrics(args) => metrics::run(source, &args),
        Command::Web(args) => web::run(source, &args),
        Command::Capture(args) => capture::run(source, &args),
        Command::Sm(command) => sm::run(source, command),
        Command::External(command) => external::run(source, command),
        Command::Doctor(args) => doctor::run(source, args),
        Command::Host(command) => host::run(source, command),
        Command::Config(command) => configuration::run(source, command),
        Command::Simulate(args) => simulate::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => manual::run(&args),
    }
}

/// Takes `-1` as a value everywhere, so that its error names the range.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            let takes_values = argument.get_action().takes_values() && !argument.is_last_set();
            argument.allow_negative_numbers(takes_values)
        })
        .mut_subcommands(with_negative_numbers)
}

/// The same, by the command line alone.
fn without_variables(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| argument.env(None))
        .mut_subcommands(without_variables)
}

/// A mistake in the arguments of the command at `path` that shows only when they are seen together: told
/// as those are that the parser finds itself.
fn usage(path: &[&str], message: impl std::fmt::Display) -> CliError {
    let mut root = Cli::command();
    root.build();
    let found = path
        .iter()
        .try_fold(&mut root, |command, name| command.find_subcommand_mut(name));
    match found {
        Some(command) => CliError::Usage(command.error(ErrorKind::ValueValidation, message)),
        None => CliError::Failed(message.to_string()),
    }
}

/// Writes a result.
fn print(text: impl AsRef<[u8]>) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref())?;
    out.flush()?;
    Ok(())
}

/// Writes a result as data.
fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    text.push('\n');
    print(&text)
}

/// Asks the daemon that this configuration describes.
fn ask(source: SourceArgs, request: &Request) -> Result<Response, CliError> {
    Ok(Client::connect(&source.control_socket()?)?.ask(request)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn negative_numbers_are_values_out_of_range() {
        for line in [
            "vf qemu-args vm1 --memory -1",
            "link drop hv1:1 -5",
            "vf pin vm1 --engine -1",
        ] {
            let words = ["ibvswitch"].into_iter().chain(line.split(' '));
            let error = with_negative_numbers(Cli::command())
                .try_get_matches_from(words)
                .unwrap_err();
            assert!(
                error.to_string().contains("invalid value '-"),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn every_command_and_option_is_documented() {
        fn check(command: &clap::Command, path: &str) {
            let documentation = include_str!("../../../docs/users/commands.md");
            let row = documentation
                .lines()
                .find(|line| line.starts_with(&format!("| `{path}")));
            if command.has_subcommands() {
                for sub in command.get_subcommands().filter(|it| !it.is_hide_set()) {
                    check(sub, &format!("{path} {}", sub.get_name()));
                }
            } else {
                let row = row.unwrap_or_else(|| panic!("{path} is not in docs/users/commands.md"));
                // Hidden options are between processes of this program.
                let shown = command.get_arguments().filter(|it| !it.is_hide_set());
                for option in shown.filter_map(clap::Arg::get_long) {
                    assert!(row.contains(&format!("--{option}")), "{path} --{option}");
                }
            }
        }
        check(&Cli::command(), "ibvswitch");
    }
}
