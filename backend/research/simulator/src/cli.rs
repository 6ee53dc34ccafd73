//! The command line of `ibvswitch-simulate`, which `ibvswitch simulate` starts.
//!
//! An experiment is a value of this crate; here it is shown, as text, JSON or CSV.

mod capacity;
mod comparison;
mod flood;
mod lids;
mod migration;
#[path = "../../../ibvswitch/src/cli/text/number.rs"]
mod number;
mod papers;
mod placement;
mod progress;
mod routing;
mod scale;
mod table;
mod topology;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;

use crate::plot::Figure;
use crate::quality::Traffic;
use number::at_least;

/// Experiments with large subnets: routing, migration, LIDs.
#[derive(Debug, Parser)]
#[command(
    name = "ibvswitch simulate",
    bin_name = "ibvswitch simulate",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The experiment.
#[derive(Debug, Subcommand)]
enum Command {
    /// Route a topology with each engine: times, paths, lanes, balance, bandwidth.
    Routing(routing::RoutingArgs),
    /// Move VMs in fat-trees: number of switches that change, remaining bandwidth.
    Migration(migration::MigrationArgs),
    /// Assign LIDs to the paths of random networks by several methods.
    Lids(lids::LidsArgs),
    /// Number of hypervisors and VMs for which a subnet has enough LIDs.
    Capacity(capacity::CapacityArgs),
    /// Bring up many subnets that a router joins: time and memory of discovery, routing and migrations.
    Scale(scale::ScaleArgs),
    /// Load the subnet administration with path queries: rates and response times, shared port beside vSwitch.
    Flood(flood::FloodArgs),
    /// Place clusters of VMs by the heuristic and by a 0-1 program: cables between VMs.
    Placement(placement::PlacementArgs),
    /// Repeat published tables and figures: published and measured values.
    Papers(papers::PapersArgs),
}

/// Reasons why an experiment has no result.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("{0}")]
    Failed(String),
    #[error("writing the result failed: {0}")]
    Output(#[from] io::Error),
}

/// The arguments. A negative number is a value, so that its option says which numbers it takes.
fn arguments() -> clap::Command {
    let negative = |argument: clap::Arg| {
        let has_value = argument.get_action().takes_values();
        argument.allow_negative_numbers(has_value)
    };
    Cli::command().mut_subcommands(|command| command.mut_args(negative))
}

/// Reads and runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let matches = arguments().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Command::Routing(args) => routing::run(&args),
        Command::Migration(args) => migration::run(&args),
        Command::Lids(args) => lids::run(&args),
        Command::Capacity(args) => capacity::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Flood(args) => flood::run(&args),
        Command::Placement(args) => placement::run(&args),
        Command::Papers(args) => papers::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as in `ibvswitch simulate capacity | head -1`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(io::stderr(), "ibvswitch: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a result.
fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a result as data.
fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    text.push('\n');
    print(&text)
}

/// Writes rows of cells as comma-separated values.
fn print_csv(rows: &[Vec<String>]) -> Result<(), CliError> {
    let mut out = csv::Writer::from_writer(io::stdout().lock());
    for row in rows {
        out.write_record(row).map_err(io::Error::from)?;
    }
    out.flush()?;
    Ok(())
}

/// Traffic by its name.
const TRAFFIC: &[(&str, Traffic)] = &[
    ("bisection", Traffic::Bisection),
    ("shift", Traffic::Shift),
    ("all-to-all", Traffic::AllToAll),
    ("ring", Traffic::Ring),
];

/// Reads one of these names.
fn named<T: Copy + Send + Sync>(
    names: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name)).try_map(move |text| {
        let found = names.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or("no such name")
    })
}

/// The name of a value.
fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let found = names.iter().find(|(_, known)| known == value);
    found.map_or("", |(name, _)| *name)
}

/// Arguments of all experiments.
#[derive(Debug, Args)]
struct Common {
    /// Seed of all random numbers: the same seed gives the same result.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = at_least(0u64))]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// Output format.
#[derive(Debug, Args)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Also draw a figure, into FILE.svg or FILE.png.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A result, to be shown in several ways.
trait Report: Serialize {
    /// For people.
    fn text(&self) -> String;

    /// For spreadsheets: rows of cells, the names of the columns first.
    fn rows(&self) -> Vec<Vec<String>>;

    /// As a picture.
    fn figure(&self) -> Figure;
}

impl Output {
    /// Shows a result as asked.
    fn show(&self, report: &impl Report) -> Result<(), CliError> {
        if let Some(file) = &self.plot {
            draw(&report.figure(), file)?;
        }
        match (self.json, self.csv) {
            (true, _) => print_json(report),
            (_, true) => print_csv(&report.rows()),
            _ => print(&report.text()),
        }
    }
}

/// Writes a figure into a file, in the form that its name ends with.
fn draw(figure: &Figure, file: &Path) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::Failed(format!("{} cannot be written: {error}", file.display()))
    };
    let bytes = match file.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => figure.svg().map(String::into_bytes),
        Some("png") => figure.png(),
        _ => return Err(failed(&"figures are .svg or .png; name the file so")),
    };
    let bytes = bytes.map_err(|error| failed(&error))?;
    fs::write(file, bytes).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::{Cli, CommandFactory, arguments};

    #[test]
    fn the_command_line_is_consistent() {
        arguments().debug_assert();
    }

    #[test]
    fn every_command_and_option_is_documented() {
        let documentation = include_str!("../../../../docs/users/commands.md");
        for command in Cli::command().get_subcommands() {
            let name = format!("ibvswitch simulate {}", command.get_name());
            let row = documentation
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}")));
            let row = row.unwrap_or_else(|| panic!("{name} is not in docs/users/commands.md"));
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(row.contains(&format!("--{option}")), "{name} --{option}");
            }
        }
    }
}
