//! `ibvswitch simulate`: experiments with large subnets, in this process and without the daemon.
//!
//! An experiment is a value of the crate `simulate`; here it is shown, as text, JSON or CSV.

mod capacity;
mod comparison;
mod csv;
mod lids;
mod migration;
mod papers;
mod progress;
mod routing;
mod topology;

use std::fs;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde::Serialize;
use simulate::quality::Traffic;

use super::number::at_least;
use super::{CliError, print, print_json};
use crate::plot::Figure;

/// What to simulate.
#[derive(Debug, Subcommand)]
pub(super) enum SimulateCommand {
    /// Route a topology with each engine: times, and what walking the tables shows.
    Routing(routing::RoutingArgs),
    /// Let VMs move over fat-trees: switches that change, and the bandwidth that is left.
    Migration(migration::MigrationArgs),
    /// Assign LIDs to the paths of random networks by several methods.
    Lids(lids::LidsArgs),
    /// How many hypervisors and VMs the LIDs of a subnet are enough for.
    Capacity(capacity::CapacityArgs),
    /// Make every published table and figure again, published beside measured.
    Papers(papers::PapersArgs),
}

pub(super) fn run(command: SimulateCommand) -> Result<(), CliError> {
    match command {
        SimulateCommand::Routing(args) => routing::run(&args),
        SimulateCommand::Migration(args) => migration::run(&args),
        SimulateCommand::Lids(args) => lids::run(&args),
        SimulateCommand::Capacity(args) => capacity::run(&args),
        SimulateCommand::Papers(args) => papers::run(&args),
    }
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

/// What all experiments take.
#[derive(Debug, Args)]
struct Common {
    /// Decides everything that is random: the same number, the same result.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = at_least(0u64))]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// How a result is shown.
#[derive(Debug, Args)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Draw it, too, into FILE.svg or FILE.png.
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
            (_, true) => print(&csv::lines(&report.rows())),
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
