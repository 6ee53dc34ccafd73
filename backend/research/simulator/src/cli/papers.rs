//! `ibvswitch simulate papers`

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Step;
use crate::migration::Outcome;
use crate::papers::{Effort, Experiment, Findings};
use clap::Args;

use super::migration::Simulations;
use super::number::at_least;
use super::progress::Bar;
use super::{CliError, Report, comparison, draw, named, print, print_csv, print_json};
use crate::plot::Figure;

const EXPERIMENTS: &[(&str, Experiment)] = &[
    ("packets", Experiment::Packets),
    ("routing", Experiment::Routing),
    ("marking", Experiment::Marking),
    ("migration", Experiment::Migration),
    ("lids-heuristics", Experiment::LidsHeuristics),
    ("lids-optima", Experiment::LidsOptima),
    ("lids-broken", Experiment::LidsBroken),
    ("queries", Experiment::Queries),
    ("thesis", Experiment::Thesis),
];

/// Arguments of `simulate papers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Experiments:
  packets          packets of a reconfiguration; the example of 6 switches of 12, or 1
  routing          times to compute forwarding tables
  marking          times of FTreeMinRC
  migration        figure 8: switches that migrations change, bandwidth that they leave
  lids-heuristics  tables I, II and VI of LID assignment
  lids-optima      tables III to V
  lids-broken      figures 10 and 11
  queries          rates of path queries under load; queries with a cache
  thesis           printed tables on overhead, which are not repeated

Examples:
  ibvswitch simulate papers --quick
  ibvswitch simulate papers migration --plots figures
  ibvswitch simulate papers --csv > papers.csv")]
pub(super) struct PapersArgs {
    /// Experiments; all by default.
    #[arg(value_parser = named(EXPERIMENTS))]
    experiments: Vec<Experiment>,
    /// Only the small ones, with fewer repetitions.
    #[arg(long)]
    quick: bool,
    /// Draws of a bisection bandwidth.
    #[arg(long, value_name = "NUMBER", value_parser = at_least(1usize))]
    draws: Option<usize>,
    /// Random networks of a size.
    #[arg(long, value_name = "NUMBER", value_parser = at_least(1usize))]
    networks: Option<usize>,
    /// Time for each integer program.
    #[arg(long, value_name = "SECONDS", value_parser = at_least(1u64))]
    limit: Option<u64>,
    /// Seed of all random numbers: the same seed gives the same result.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = at_least(0u64))]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Also draw every table and figure, into DIR, as SVG and PNG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl PapersArgs {
    fn effort(&self) -> Effort {
        let mut effort = if self.quick {
            Effort::quick(self.seed)
        } else {
            Effort::full(self.seed)
        };
        effort.draws = self.draws.unwrap_or(effort.draws);
        effort.lids.instances = self.networks.unwrap_or(effort.lids.instances);
        effort.lids.limit = self.limit.map_or(effort.lids.limit, Duration::from_secs);
        effort
    }
}

pub(super) fn run(args: &PapersArgs) -> Result<(), CliError> {
    let experiments = match args.experiments.as_slice() {
        [] => Experiment::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    if let Some(dir) = &args.plots {
        fs::create_dir_all(dir).map_err(|error| {
            CliError::Failed(format!("{} cannot be created: {error}", dir.display()))
        })?;
    }
    let mut all = Findings::default();
    let mut first = true;
    for experiment in experiments {
        let name = experiment.name();
        let bar = Bar::new();
        let findings = experiment.run(args.effort(), &|step| {
            bar.show(Step {
                what: &format!("{name}: {}", step.what),
                ..step
            });
        });
        drop(bar);
        let findings = findings.map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
        if let Some(dir) = &args.plots {
            plots(&findings, dir)?;
        }
        match (args.json, args.csv) {
            (true, _) => {
                all.comparisons.extend(findings.comparisons);
                all.simulations.extend(findings.simulations);
            }
            (_, true) => {
                let mut rows = Vec::new();
                if first {
                    rows.push(comparison::heading());
                }
                rows.extend(findings.comparisons.iter().flat_map(comparison::rows));
                print_csv(&rows)?;
            }
            _ => {
                let texts: Vec<String> =
                    findings.comparisons.iter().map(comparison::text).collect();
                let between = if first { "" } else { "\n\n" };
                print(&format!("{between}{}", texts.join("\n\n")))?;
            }
        }
        first = false;
    }
    if args.json { print_json(&all) } else { Ok(()) }
}

/// Draws what was found: tables by their names, and figure 8 of every tree.
fn plots(findings: &Findings, dir: &Path) -> Result<(), CliError> {
    let both = |figure: &Figure, name: &str| {
        draw(figure, &dir.join(format!("{name}.svg")))?;
        draw(figure, &dir.join(format!("{name}.png")))
    };
    for found in &findings.comparisons {
        both(&comparison::figure(found), found.name)?;
    }
    let trees = findings
        .simulations
        .chunk_by(|a: &Outcome, b: &Outcome| a.study.tree == b.study.tree);
    for simulations in trees {
        let hosts = simulations
            .first()
            .map_or(0, |outcome| outcome.study.tree.hosts());
        let figure = Simulations { simulations }.figure();
        both(&figure, &format!("figure-8-{hosts}-nodes"))?;
    }
    Ok(())
}
