//! `ibvswitch simulate flood`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;

use super::number::{at_least, whole};
use super::progress::Bar;
use super::table::table;
use super::{CliError, Output, Report, name_of, named};
use crate::managed::flood::{MAX_LOADERS, Model, Outcome, Round, Setting};
use crate::plot::{Figure, Line, Panel};

/// Arguments of `simulate flood`.
#[derive(Debug, Args)]
#[command(after_help = "\
One instance measures; each loader adds instances in every round but the first. An instance sends its next query some time after it has
the answer to the last.

Examples:
  ibvswitch simulate flood --plot flood.svg
  ibvswitch simulate flood --loaders 1,3 --rounds 5 --seconds 1 --model vswitch")]
pub(super) struct FloodArgs {
    /// Hosts that load, each number in an experiment of its own.
    #[arg(
        long,
        value_name = "NUMBER,…",
        value_delimiter = ',',
        default_value = "1,2,3,4,5",
        value_parser = whole(1..=MAX_LOADERS)
    )]
    loaders: Vec<u8>,
    /// Address models, or both.
    #[arg(long, value_delimiter = ',', value_parser = named(&Model::NAMES))]
    model: Vec<Model>,
    /// Instances that each loader adds in a round.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = whole(1..=512u16))]
    step: u16,
    /// Rounds.
    #[arg(long, value_name = "NUMBER", default_value_t = 25, value_parser = whole(1..=1000u16))]
    rounds: u16,
    /// Length of a round, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20_000, value_parser = at_least(1u64))]
    length: u64,
    /// Time between an answer and the next query of an instance, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 2050, value_parser = at_least(0u64))]
    pause: u64,
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

/// The results.
#[derive(Debug, Serialize)]
struct Flood {
    step: u16,
    length_ms: u64,
    pause_us: u64,
    outcomes: Vec<Outcome>,
}

pub(super) fn run(args: &FloodArgs) -> Result<(), CliError> {
    let models = match args.model.as_slice() {
        [] => Model::NAMES.map(|(_, model)| model).to_vec(),
        chosen => chosen.to_vec(),
    };
    let mut outcomes = Vec::new();
    let bar = Bar::new();
    for model in models {
        for &loaders in &args.loaders {
            let setting = Setting {
                model,
                loaders,
                step: args.step,
                rounds: args.rounds,
                length: Duration::from_millis(args.length),
                pause: Duration::from_micros(args.pause),
            };
            let outcome = setting.run(&|step| bar.show(step));
            outcomes.push(outcome.map_err(|error| CliError::Failed(error.to_string()))?);
        }
    }
    drop(bar);
    let output = Output {
        json: args.json,
        csv: args.csv,
        plot: args.plot.clone(),
    };
    output.show(&Flood {
        step: args.step,
        length_ms: args.length,
        pause_us: args.pause,
        outcomes,
    })
}

impl Report for Flood {
    fn text(&self) -> String {
        let heading = [
            "MODEL",
            "LOADERS",
            "INSTANCES",
            "QUERIES/S",
            "DEVIATION",
            "ALONE/S",
            "MEDIAN US",
            "MEAN US",
            "LOADED/S",
            "MEDIAN US",
            "MEAN US",
            "FAILED",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for outcome in &self.outcomes {
            let (Some(first), Some(last)) = (outcome.rounds.first(), outcome.rounds.last()) else {
                continue;
            };
            let failed: u64 = outcome.rounds.iter().map(|round| round.failed).sum();
            let mut row = vec![
                name_of(&Model::NAMES, &outcome.model).to_owned(),
                outcome.loaders.to_string(),
                last.instances.to_string(),
                format!("{:.0}", outcome.rate),
                format!("{:.0}", outcome.deviation),
            ];
            for responses in [first.measuring, last.measuring] {
                let values = [responses.rate, responses.median_us, responses.mean_us];
                row.extend(values.map(|value| format!("{value:.0}")));
            }
            row.push(failed.to_string());
            rows.push(row);
        }
        format!(
            "Path queries to the subnet administration: each loader adds {} instances in a round of {} ms; {} us \
             between an answer and the next query\n\n{}",
            self.step,
            self.length_ms,
            self.pause_us,
            table(&rows, CellAlignment::Right)
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let heading = [
            "model",
            "loaders",
            "round",
            "instances",
            "rate",
            "median_us",
            "mean_us",
            "deviation_us",
            "measuring_rate",
            "measuring_median_us",
            "measuring_mean_us",
            "measuring_deviation_us",
            "failed",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for outcome in &self.outcomes {
            for (number, round) in (1..).zip(&outcome.rounds) {
                let number: usize = number;
                let mut row = vec![
                    name_of(&Model::NAMES, &outcome.model).to_owned(),
                    outcome.loaders.to_string(),
                    number.to_string(),
                    round.instances.to_string(),
                ];
                for of in [round.all, round.measuring] {
                    let values = [of.rate, of.median_us, of.mean_us, of.deviation_us];
                    row.extend(values.map(|value| value.to_string()));
                }
                row.push(round.failed.to_string());
                rows.push(row);
            }
        }
        rows
    }

    fn figure(&self) -> Figure {
        let of = |model: Model| self.outcomes.iter().filter(move |it| it.model == model);
        let lines = |model: Model, value: fn(&Round) -> f64| {
            let line = |outcome: &Outcome| {
                let rounds = outcome.rounds.iter();
                let points = rounds.map(|round| (round.instances as f64, value(round)));
                Line::joined(format!("{} loaders", outcome.loaders), points.collect())
            };
            of(model).map(line).collect()
        };
        let there = Model::NAMES
            .iter()
            .filter(|(_, model)| of(*model).next().is_some());
        let panels = there.flat_map(|&(name, model)| {
            let rate = lines(model, |round| round.all.rate);
            let median = lines(model, |round| round.measuring.median_us);
            [
                Panel::lines(name, "instances", "queries/s of all", rate),
                Panel::lines(name, "instances", "median response of one, us", median).logarithmic(),
            ]
        });
        Figure {
            title: "Path queries to the subnet administration".to_owned(),
            panels: panels.collect(),
        }
    }
}
