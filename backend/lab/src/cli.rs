//! The command line of `ibvswitch lab`.

mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{outcome::FAILED, progress};

/// QEMU guests with an InfiniBand HCA each, on a subnet of their own, for your programs.
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
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let Cli { command } = Cli::parse();
    progress::start();
    let status = match command {
        Command::Run(args) => run::run(&args),
    };
    // What is no status of a process is a failure.
    ExitCode::from(u8::try_from(status).unwrap_or(FAILED as u8))
}
