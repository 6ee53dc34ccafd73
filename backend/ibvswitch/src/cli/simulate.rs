//! `ibvswitch simulate`: experiments with large subnets, in this process and without the daemon.
//!
//! An experiment is a value of the crate `simulate`; here it is shown, as text, JSON or CSV.

mod csv;
mod progress;
mod routing;
mod topology;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliError, print, print_json};

/// What to simulate.
#[derive(Debug, Subcommand)]
pub(super) enum SimulateCommand {
    /// Route a topology with each engine: times, and what walking the tables shows.
    Routing(routing::RoutingArgs),
}

pub(super) fn run(command: SimulateCommand) -> Result<(), CliError> {
    match command {
        SimulateCommand::Routing(args) => routing::run(&args),
    }
}

/// What all experiments take.
#[derive(Debug, Args)]
struct Common {
    /// Decides everything that is random: the same number, the same result.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// A result, to be shown in several ways.
trait Report: Serialize {
    /// For people.
    fn text(&self) -> String;

    /// For spreadsheets: rows of cells, the names of the columns first.
    fn rows(&self) -> Vec<Vec<String>>;
}

impl Common {
    /// Shows a result as asked.
    fn show(&self, report: &impl Report) -> Result<(), CliError> {
        match (self.json, self.csv) {
            (true, _) => print_json(report),
            (_, true) => print(&csv::lines(&report.rows())),
            _ => print(&report.text()),
        }
    }
}
