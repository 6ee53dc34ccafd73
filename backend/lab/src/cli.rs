//! The command line of `ibvswitch lab`.

mod away;
mod cp;
pub mod quantity;
mod run;
mod shape;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::nodes::outcome::FAILED;
use crate::progress;

/// Run your programs in VMs, each with an InfiniBand HCA, on a subnet of their own.
#[derive(Debug, Parser)]
#[command(
    name = "ibvswitch lab",
    bin_name = "ibvswitch lab",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot nodes, run a command in all of them at once, and end them.
    Run(run::RunArgs),
    /// Boot nodes and leave them running.
    Up(up::UpArgs),
    /// The process that `up` leaves running.
    #[command(hide = true)]
    Hold(up::UpArgs),
    /// Run a command in a node of a running lab.
    Exec(away::ExecArgs),
    /// Copy files and folders to a node or from it.
    Cp(cp::CpArgs),
    /// Boot a node of a running lab that is off (--later).
    Boot(away::BootArgs),
    /// Move a node to another hypervisor while it runs.
    Migrate(away::MigrateArgs),
    /// Connect this terminal to a node's console.
    Shell(away::ShellArgs),
    /// List the running labs.
    List,
    /// End a lab.
    Down(away::LabArgs),
}

/// Exit status of a result, after its error has been printed.
fn status(done: Result<i32>) -> i32 {
    done.unwrap_or_else(|error| {
        eprintln!("ibvswitch lab: {error}");
        FAILED
    })
}

/// Reads and runs the command line.
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let Cli { command } = Cli::parse();
    progress::start();
    let status = match command {
        Command::Run(args) => run::run(&args),
        Command::Up(args) => up::up(&args),
        Command::Hold(args) => up::hold(&args),
        Command::Exec(args) => away::exec(&args),
        Command::Cp(args) => cp::cp(&args),
        Command::Boot(args) => away::boot(&args),
        Command::Migrate(args) => away::migrate(&args),
        Command::Shell(args) => away::shell(&args),
        Command::List => away::list(),
        Command::Down(args) => away::down(&args),
    };
    // Other numbers than statuses of processes are failures.
    ExitCode::from(u8::try_from(status).unwrap_or(FAILED as u8))
}
