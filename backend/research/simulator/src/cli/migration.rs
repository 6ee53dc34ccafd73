//! `ibvswitch simulate migration`

use crate::migration::{self, DRAWS, FUNCTIONS, Method, Outcome, Pattern, Start, Study};
use crate::quality::Traffic;
use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;
use topologies::FatTree;

use super::number::{at_least, whole};
use super::progress::Bar;
use super::table::table;
use super::{CliError, Common, Report, TRAFFIC, name_of, named};
use crate::plot::{Bars, Figure, Line, Panel};

const STARTS: &[(&str, Start)] = &[("uniform", Start::Uniform), ("random", Start::Random)];

const PATTERNS: &[(&str, Pattern)] = &[
    ("random", Pattern::Random),
    ("consolidate", Pattern::Consolidate),
    ("grouping", Pattern::Grouping),
    ("to-uniform", Pattern::ToUniform),
];

const METHODS: &[(&str, Method)] = &[("ftreeminrc", Method::Minimal), ("itrc", Method::Iterative)];

/// Arguments of `simulate migration`.
#[derive(Debug, Args)]
#[command(after_help = "\
VMs on the hypervisors of a fat-tree migrate one after the other, by FTreeMinRC, which changes as
few switches as possible, or by ItRC, which changes all switches whose tables differ. After every
tenth of the moves the effective bandwidth is compared with that of a fresh vswitch-ftree routing.
Without --start, --pattern
and --population these are the 21 simulations of \"Efficient Routing and Reconfiguration in Virtualized
HPC Environments with vSwitch-enabled Lossless Networks\", section 7.

Patterns:
  random       as many moves as twice the hypervisors, of any VM to any hypervisor with room
  consolidate  from the last hypervisors to room on the first, until as few as can hold all VMs
  grouping     two random halves gather from the first and from the middle hypervisor on; VMs in
place stay, VMs in the way go to their half, or to the first room
  to-uniform   from the fullest hypervisor to the emptiest, until their numbers differ by one at most

Examples:
  ibvswitch simulate migration --topology \"XGFT(2;8,4;4,1)\" --plot figure8.svg
  ibvswitch simulate migration -t \"XGFT(3;8,4,4;4,4,1)\" --start random --pattern to-uniform --csv")]
pub(super) struct MigrationArgs {
    /// A fat-tree, XGFT(n;m1,..,mn;w1,..,wn) or PGFT(n;m..;w..;p..).
    #[arg(long, short, value_name = "FAT-TREE", default_value = migration::TREES[0])]
    topology: String,
    /// Initial places of VMs.
    #[arg(long, value_delimiter = ',', value_parser = named(STARTS))]
    start: Vec<Start>,
    /// Pattern of the moves.
    #[arg(long, value_delimiter = ',', value_parser = named(PATTERNS))]
    pattern: Vec<Pattern>,
    /// Method that chooses the switches to change.
    #[arg(long, default_value = "ftreeminrc", value_parser = named(METHODS))]
    method: Method,
    /// VMs, in percent of the virtual functions.
    #[arg(
        long,
        value_name = "PERCENT,…",
        value_delimiter = ',',
        default_value = "25,50,75",
        value_parser = whole(1..=99u8)
    )]
    population: Vec<u8>,
    /// Virtual functions of a hypervisor.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = FUNCTIONS,
        value_parser = whole(1..=253u8)
    )]
    vfs: u8,
    /// Traffic between VMs when the bandwidth is computed.
    #[arg(long, default_value = "bisection", value_parser = named(TRAFFIC))]
    traffic: Traffic,
    /// Draws of random traffic.
    #[arg(long, value_name = "NUMBER", default_value_t = DRAWS, value_parser = at_least(1usize))]
    draws: usize,
    #[command(flatten)]
    common: Common,
}

/// The results.
#[derive(Debug, Serialize)]
pub(super) struct Simulations<'a> {
    pub(super) simulations: &'a [Outcome],
}

pub(super) fn run(args: &MigrationArgs) -> Result<(), CliError> {
    let text = &args.topology;
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("{text}: {error}"));
    let tree: FatTree = text.parse().map_err(|error| failed(&error))?;
    let mut studies = Vec::new();
    for &population in &args.population {
        let all = migration::studies(&tree, args.draws, args.common.seed);
        // Start and pattern of the paper, each once.
        let kinds = all
            .iter()
            .take_while(|study| study.population == all[0].population);
        let wanted = kinds.filter(|study| {
            (args.start.is_empty() || args.start.contains(&study.start))
                && (args.pattern.is_empty() || args.pattern.contains(&study.pattern))
        });
        studies.extend(wanted.map(|study| Study {
            functions: args.vfs,
            population,
            method: args.method,
            traffic: args.traffic,
            ..study.clone()
        }));
    }
    if studies.is_empty() {
        return Err(failed(
            &"uniform to uniform moves nobody; choose another start or pattern",
        ));
    }
    let bar = Bar::new();
    let outcomes = migration::run(&studies, &|step| bar.show(step));
    drop(bar);
    let simulations = &outcomes.map_err(|error| failed(&error))?;
    args.common.output.show(&Simulations { simulations })
}

/// Such as `random, to-uniform`.
fn kind(outcome: &Outcome) -> String {
    let start = name_of(STARTS, &outcome.study.start);
    format!("{start}, {}", name_of(PATTERNS, &outcome.study.pattern))
}

/// The method's name in the paper.
fn title_of(method: Method) -> &'static str {
    match method {
        Method::Minimal => "FTreeMinRC",
        Method::Iterative => "ItRC",
    }
}

/// Start and pattern of the simulations, each once.
fn kinds(simulations: &[Outcome]) -> Vec<String> {
    let mut kinds = Vec::new();
    for kind in simulations.iter().map(kind) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

impl Report for Simulations<'_> {
    fn text(&self) -> String {
        let above = [
            "",
            "",
            "",
            "",
            "BANDWIDTH",
            "",
            "",
            "",
            "FTREEMINRC",
            "",
            "ITRC",
            "",
        ];
        let heading = [
            "START, PATTERN",
            "VMS",
            "%",
            "MOVES",
            "before",
            "after",
            "fresh",
            "gain",
            "switches",
            "most",
            "switches",
            "most",
        ];
        let mut rows = [above, heading]
            .map(|row| row.map(str::to_owned).to_vec())
            .to_vec();
        for outcome in self.simulations {
            let Some((first, last)) = outcome.snapshots.first().zip(outcome.snapshots.last())
            else {
                continue;
            };
            rows.push(vec![
                kind(outcome),
                outcome.machines.to_string(),
                outcome.study.population.to_string(),
                outcome.moves.to_string(),
                format!("{:.3}", first.migrated.mean),
                format!("{:.3}", last.migrated.mean),
                format!("{:.3}", last.fresh.mean),
                format!("{:.1} %", outcome.improvement() * 100.0),
                format!("{:.1}", outcome.minimal.mean),
                outcome.minimal.maximum.to_string(),
                format!("{:.1}", outcome.iterative.mean),
                outcome.iterative.maximum.to_string(),
            ]);
        }
        let title = self
            .simulations
            .first()
            .map_or_else(String::new, |outcome| {
                let study = &outcome.study;
                format!(
                    "{}: {} switches, {} hypervisors of {} VFs; moves by {}; {} bandwidth, {} draws\n\n",
                    study.tree,
                    outcome.switches,
                    study.tree.hosts(),
                    study.functions,
                    title_of(study.method),
                    name_of(TRAFFIC, &study.traffic),
                    study.draws
                )
            });
        title + &table(&rows, CellAlignment::Right)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let heading = [
            "tree",
            "start",
            "pattern",
            "method",
            "population",
            "machines",
            "moves",
            "bandwidth",
            "bandwidth_deviation",
            "fresh",
            "fresh_deviation",
            "switches_mean",
            "switches_most",
            "itrc_mean",
            "itrc_most",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for outcome in self.simulations {
            let study = &outcome.study;
            for snapshot in &outcome.snapshots {
                rows.push(vec![
                    study.tree.to_string(),
                    name_of(STARTS, &study.start).to_owned(),
                    name_of(PATTERNS, &study.pattern).to_owned(),
                    name_of(METHODS, &study.method).to_owned(),
                    study.population.to_string(),
                    outcome.machines.to_string(),
                    snapshot.moves.to_string(),
                    snapshot.migrated.mean.to_string(),
                    snapshot.migrated.deviation.to_string(),
                    snapshot.fresh.mean.to_string(),
                    snapshot.fresh.deviation.to_string(),
                    outcome.minimal.mean.to_string(),
                    outcome.minimal.maximum.to_string(),
                    outcome.iterative.mean.to_string(),
                    outcome.iterative.maximum.to_string(),
                ]);
            }
        }
        rows
    }

    /// In the shape of figure 8 of the paper: switches, and then the bandwidth of every start and
    /// pattern.
    fn figure(&self) -> Figure {
        let kinds = kinds(self.simulations);
        let of = |wanted: &str| -> Vec<&Outcome> {
            let simulations = self.simulations.iter();
            simulations
                .filter(|outcome| kind(outcome) == wanted)
                .collect()
        };
        let mean = |value: fn(&Outcome) -> f64| {
            let mean = |wanted: &String| {
                let same = of(wanted);
                let sum: f64 = same.iter().map(|outcome| value(outcome)).sum();
                Some(sum / same.len().max(1) as f64)
            };
            kinds.iter().map(mean).collect()
        };
        // Short, for there are seven in a row.
        let short = |kind: &String| match kind.split_once(", ") {
            Some((start, pattern)) => format!("{}, {pattern}", &start[..1]),
            None => kind.clone(),
        };
        let mut panels = vec![Panel::bars(
            "Switches that a migration changes",
            "start (u uniform, r random) and pattern",
            "switches",
            kinds.iter().map(short).collect(),
            vec![
                Bars::new("FTreeMinRC", mean(|outcome| outcome.minimal.mean)),
                Bars::new("ItRC", mean(|outcome| outcome.iterative.mean)),
                Bars::new(
                    "FTreeMinRC, most",
                    mean(|outcome| outcome.minimal.maximum as f64),
                ),
                Bars::new(
                    "ItRC, most",
                    mean(|outcome| outcome.iterative.maximum as f64),
                ),
            ],
        )];
        for wanted in &kinds {
            let mut lines = Vec::new();
            for outcome in of(wanted) {
                let percent = |moves: usize| 100.0 * moves as f64 / outcome.moves.max(1) as f64;
                let points = |value: fn(&migration::Snapshot) -> f64| {
                    let snapshots = outcome.snapshots.iter();
                    snapshots.map(|at| (percent(at.moves), value(at))).collect()
                };
                let population = outcome.study.population;
                lines.push(Line::joined(
                    format!("fresh, {population} % VMs"),
                    points(|at| at.fresh.mean),
                ));
                lines.push(Line::joined(
                    format!("{}, {population} % VMs", title_of(outcome.study.method)),
                    points(|at| at.migrated.mean),
                ));
            }
            panels.push(Panel::lines(
                wanted,
                "migrations, %",
                "effective bandwidth",
                lines,
            ));
        }
        let tree = self
            .simulations
            .first()
            .map(|outcome| outcome.study.tree.to_string());
        Figure {
            title: tree.unwrap_or_default(),
            panels,
        }
    }
}
