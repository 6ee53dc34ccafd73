//! `ibvswitch simulate lids`

use std::time::Duration;

use crate::lids::{Effort, OptimumLids, Scheme, Setting, Survey, optima, survey};
use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;

use super::number::at_least;
use super::progress::Bar;
use super::table::table;
use super::{CliError, Common, Report, named};
use crate::plot::{Bars, Figure, Panel};

const SCHEMES: &[(&str, Scheme)] = &[
    ("shortest-widest", Scheme::ShortestWidest),
    ("path-selection", Scheme::PathSelection),
    ("single-lid", Scheme::SingleLid),
    ("renaming", Scheme::DestinationRenaming),
];

/// Arguments of `simulate lids`.
#[derive(Debug, Args)]
#[command(after_help = "\
The networks are random and irregular, as in \"LID Assignment in InfiniBand Networks\". Numbers are
totals over all machines, each machine's rounded up to a power of two as the LMC requires.

Examples:
  ibvswitch simulate lids --machines 128 --switches 16,32,64
  ibvswitch simulate lids --machines 64 --switches 32 --scheme path-selection --optimum")]
pub(super) struct LidsArgs {
    /// Machines of a network.
    #[arg(long, value_name = "NUMBER", default_value_t = 128, value_parser = at_least(1usize))]
    machines: usize,
    /// Switches of a network; several numbers for several sizes.
    #[arg(
        long,
        value_name = "NUMBER,…",
        value_delimiter = ',',
        default_value = "16",
        value_parser = at_least(1usize)
    )]
    switches: Vec<usize>,
    /// Cables of a switch to others, on average.
    #[arg(long, value_name = "NUMBER", default_value_t = Setting::DEGREE, value_parser = at_least(1usize))]
    degree: usize,
    /// Methods to compute paths; all by default.
    #[arg(long, value_delimiter = ',', value_parser = named(SCHEMES))]
    scheme: Vec<Scheme>,
    /// Random networks of each size; results are their mean.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = at_least(1usize))]
    networks: usize,
    /// Also find the minimum, by integer programs.
    #[arg(long)]
    optimum: bool,
    /// Time limit for each integer program. If one takes longer, its network counts as not solved.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        requires = "optimum",
        value_parser = at_least(1u64)
    )]
    limit: u64,
    #[command(flatten)]
    common: Common,
}

/// The results.
#[derive(Debug, Serialize)]
struct Lids {
    networks: usize,
    surveys: Vec<Survey>,
    /// By size and scheme, if requested.
    optima: Vec<Optima>,
}

#[derive(Debug, Serialize)]
struct Optima {
    scheme: Scheme,
    sizes: Vec<OptimumLids>,
}

pub(super) fn run(args: &LidsArgs) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    let setting = |&switches: &usize| Setting {
        machines: args.machines,
        switches,
        degree: args.degree,
    };
    let settings: Vec<Setting> = args.switches.iter().map(setting).collect();
    let effort = Effort {
        instances: args.networks,
        seed: args.common.seed,
        limit: Duration::from_secs(args.limit),
    };
    let schemes = match args.scheme.as_slice() {
        [] => Scheme::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    let mut lids = Lids {
        networks: args.networks,
        surveys: Vec::new(),
        optima: Vec::new(),
    };
    let bar = Bar::new();
    for scheme in schemes {
        let found = survey(&settings, scheme, effort, &|step| bar.show(step));
        lids.surveys.extend(found.map_err(|error| failed(&error))?);
        if args.optimum {
            let sizes = optima(&settings, scheme, effort, &|step| bar.show(step));
            lids.optima.push(Optima {
                scheme,
                sizes: sizes.map_err(|error| failed(&error))?,
            });
        }
    }
    drop(bar);
    args.common.output.show(&lids)
}

impl Lids {
    /// The optimum of a size and scheme, and the networks that were solved.
    fn optimum(&self, survey: &Survey) -> Option<&OptimumLids> {
        let mut optima = self.optima.iter();
        let of = optima.find(|optima| optima.scheme == survey.scheme)?;
        of.sizes.iter().find(|size| size.setting == survey.setting)
    }
}

impl Report for Lids {
    fn text(&self) -> String {
        let mut heading = vec!["MACHINES/SWITCHES".to_owned(), "PATHS".to_owned()];
        heading.push("LARGEST LOAD".to_owned());
        let methods = self.surveys.first().map_or(&[][..], |survey| &survey.lids);
        heading.extend(methods.iter().map(|method| method.heuristic.to_owned()));
        if !self.optima.is_empty() {
            heading.extend(["OPTIMUM", "color/L there", "SOLVED"].map(str::to_owned));
        }
        let mut rows = vec![heading];
        for survey in &self.surveys {
            let mut row = vec![
                survey.setting.name(),
                survey.scheme.name().to_owned(),
                format!("{:.2}", survey.load),
            ];
            row.extend(
                survey
                    .lids
                    .iter()
                    .map(|method| format!("{:.1}", method.mean)),
            );
            if let Some(optimum) = self.optimum(survey) {
                let of = |value: Option<f64>| {
                    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
                };
                row.push(of(optimum.selected.map(|selected| selected.optimum)));
                row.push(of(optimum.selected.map(|selected| selected.color_largest)));
                row.push(format!("{} of {}", optimum.solved, self.networks));
            }
            rows.push(row);
        }
        format!(
            "LIDs of all machines, the mean of {} random networks\n\n{}",
            self.networks,
            table(&rows, CellAlignment::Right)
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let heading = [
            "machines",
            "switches",
            "degree",
            "paths",
            "largest_load",
            "method",
            "mean",
            "least",
            "most",
            "networks",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for survey in &self.surveys {
            let mut add = |method: &str, numbers: [Option<f64>; 3], networks: usize| {
                let number =
                    |number: Option<f64>| number.map_or_else(String::new, |n| n.to_string());
                let [mean, least, most] = numbers.map(number);
                rows.push(vec![
                    survey.setting.machines.to_string(),
                    survey.setting.switches.to_string(),
                    survey.setting.degree.to_string(),
                    survey.scheme.name().to_owned(),
                    survey.load.to_string(),
                    method.to_owned(),
                    mean,
                    least,
                    most,
                    networks.to_string(),
                ]);
            };
            for method in &survey.lids {
                let numbers = [method.mean, method.least, method.most].map(Some);
                add(method.heuristic, numbers, self.networks);
            }
            if let Some(optimum) = self.optimum(survey) {
                let mean = optimum.selected.map(|selected| selected.optimum);
                add("optimum", [mean, None, None], optimum.solved);
            }
        }
        rows
    }

    fn figure(&self) -> Figure {
        let mut panels = Vec::new();
        let mut schemes: Vec<Scheme> = Vec::new();
        for survey in &self.surveys {
            if schemes.contains(&survey.scheme) {
                continue;
            }
            schemes.push(survey.scheme);
            let same = || {
                self.surveys
                    .iter()
                    .filter(|other| other.scheme == survey.scheme)
            };
            let mut series: Vec<Bars> = survey
                .lids
                .iter()
                .enumerate()
                .map(|(at, method)| {
                    let means = same().map(|survey| Some(survey.lids[at].mean));
                    Bars::new(method.heuristic, means.collect())
                })
                .collect();
            if !self.optima.is_empty() {
                let optima = same().map(|survey| Some(self.optimum(survey)?.selected?.optimum));
                series.push(Bars::new("optimum", optima.collect()));
            }
            panels.push(Panel::bars(
                survey.scheme.name(),
                "machines/switches",
                "LIDs",
                same().map(|survey| survey.setting.name()).collect(),
                series,
            ));
        }
        Figure {
            title: "LIDs of all machines".to_owned(),
            panels,
        }
    }
}
