//! `ibvswitch simulate routing`

use std::fmt::Write;

use crate::quality::Traffic;
use crate::routing::{Demand, Outcome, Row, Study, Walk, by_another, engines};
use clap::Args;
use clap::builder::PossibleValuesParser;
use comfy_table::CellAlignment;

use super::number::{at_least, whole};
use super::progress::Bar;
use super::table::table;
use super::topology::TopologyArgs;
use super::{CliError, Common, Report, TRAFFIC, named};
use crate::plot::{Bars, Figure, Panel};

/// Every engine.
const ALL: &str = "all";

/// Arguments of `simulate routing`.
#[derive(Debug, Args)]
#[command(after_help = "\
Generators:
  XGFT(n;m1,..,mn;w1,..,wn)   fat-tree: children and parents per level, from the roots down
  PGFT(n;m..;w..;p..)         the same with p cables to each parent
  RLFT(ports,hosts)           fat-tree of switches with this number of ports, for at least this many hosts
  k-ary-n-tree(k,n)  m-port-n-tree(m,n)
  torus(8x4x4,1)  mesh(4x4,2)  torus(16x8,1,4)   hosts per switch, cables broken
  dragonfly(9,4,2,2)  dragonfly(9,4,2,2,3)       groups, switches of one, cables of these to others, hosts, broken
  irregular(switches,degree,hosts)

Examples:
  ibvswitch simulate routing --topology \"XGFT(3;18,18,36;18,18,1)\"
  ibnetdiscover | ibvswitch simulate routing - --engine dfsssp,lash --json
  ibvswitch simulate routing --topology \"XGFT(3;36,18,18;18,18,1)\" --engine ftree --broken 1
  ibvswitch simulate routing --topology \"RLFT(36,2891)\" --vfs 16 --engine vswitch-ftree
  ibvswitch simulate routing --topology \"torus(4x4x4,2)\" --compare-opensm")]
pub(super) struct RoutingArgs {
    #[command(flatten)]
    topology: TopologyArgs,
    /// Engines, or all.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = ALL,
        value_parser = PossibleValuesParser::new(engines().into_iter().chain([ALL]))
    )]
    engine: Vec<String>,
    /// A hypervisor with this many virtual functions in place of each adapter; its vSwitch shares the
    /// hypervisor's LID.
    #[arg(long, value_name = "NUMBER", value_parser = whole(1..=253u8))]
    vfs: Option<u8>,
    /// Number of hypervisors; there are no other adapters.
    #[arg(long, value_name = "NUMBER", requires = "vfs", value_parser = at_least(1usize))]
    hypervisors: Option<usize>,
    /// Break this percentage of the cables between switches, drawn by the seed from those without which the switches
    /// still reach each other.
    #[arg(long, value_name = "PERCENT", value_parser = whole(1..=99u8))]
    broken: Option<u8>,
    /// Also compute the bandwidth that all adapters get with this traffic.
    #[arg(long, value_parser = named(TRAFFIC))]
    traffic: Option<Traffic>,
    /// Draws of random traffic.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1000,
        requires = "traffic",
        value_parser = at_least(1usize)
    )]
    draws: usize,
    /// Also let OpenSM route the same topology in ibsim, and walk its tables. Needs the programs opensm and
    /// ibsim, and minutes for thousands of nodes.
    #[arg(long, conflicts_with = "vfs")]
    compare_opensm: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &RoutingArgs) -> Result<(), CliError> {
    let name = args.topology.name();
    let mut loaded = args.topology.load(args.common.seed)?;
    if let Some(percent) = args.broken {
        loaded
            .break_cables(percent, args.common.seed)
            .map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
    }
    let chosen = |name: &&str| {
        args.engine
            .iter()
            .any(|chosen| chosen == ALL || chosen == name)
    };
    let engines: Vec<&'static str> = engines().into_iter().filter(chosen).collect();
    let bar = Bar::new();
    let outcome = Study {
        topology: &loaded.topology,
        name,
        engines: &engines,
        hypervisors: args.vfs.map(|functions| (args.hypervisors, functions)),
        traffic: args.traffic.map(|traffic| Demand {
            traffic,
            draws: args.draws,
            seed: args.common.seed,
        }),
        compare_opensm: args.compare_opensm,
    }
    .run(&|step| bar.show(step));
    drop(bar);
    let mut outcome = outcome.map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
    outcome.remarks = loaded.remarks;
    args.common.output.show(&outcome)?;
    let failing = outcome.engines.iter().find(|row| row.walk.failing > 0);
    match failing {
        None => Ok(()),
        Some(row) => Err(CliError::Failed(format!(
            "{name}: of {}'s paths {} do not arrive, first {}",
            row.name(),
            row.walk.failing,
            row.walk.faults.first().map_or("", String::as_str)
        ))),
    }
}

/// A row of the table: whose tables, after how long, and what walking them shows.
fn cells(name: &str, seconds: f64, walk: &Walk) -> [String; 11] {
    [
        name.to_owned(),
        time(seconds),
        walk.arriving.to_string(),
        walk.failing.to_string(),
        walk.detours.to_string(),
        format!("{:.2}", walk.mean_hops),
        walk.lanes
            .map_or_else(|| "-".to_owned(), |lanes| lanes.to_string()),
        match (&walk.deadlock, walk.lanes) {
            (_, None) => "-",
            (None, _) => "free",
            (Some(_), _) => "possible",
        }
        .to_owned(),
        format!("{}..{}", walk.least_load, walk.largest_load),
        format!("{:.1} ± {:.1}", walk.mean_load, walk.load_deviation),
        walk.bandwidth
            .map_or_else(String::new, |bandwidth| format!("{:.3}", bandwidth.mean)),
    ]
}

fn time(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// The walks of engines and of OpenSM's, by names.
fn walks(outcome: &Outcome) -> impl Iterator<Item = (String, &Walk)> {
    outcome.engines.iter().flat_map(|row| {
        let theirs = row.opensm.as_ref();
        let theirs = theirs.map(|opensm| (format!("OpenSM {}", opensm.used), &opensm.walk));
        [(row.name(), &row.walk)].into_iter().chain(theirs)
    })
}

impl Report for Outcome {
    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} switches, {} LIDs at adapters, {} LIDs, {} cables between switches\n",
            self.topology, self.switches, self.adapters, self.lids, self.cables
        );
        for remark in &self.remarks {
            text += remark;
            text.push('\n');
        }
        text.push('\n');
        let heading = [
            "ENGINE",
            "TIME",
            "PATHS",
            "FAILING",
            "DETOURS",
            "LINKS",
            "LANES",
            "DEADLOCK",
            "PATHS PER LINK",
            "MEAN",
            "BANDWIDTH",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        if walks(self).all(|(_, walk)| walk.bandwidth.is_none()) {
            rows[0][10].clear();
        }
        for row in &self.engines {
            rows.push(cells(&row.name(), row.seconds, &row.walk).to_vec());
            if let Some(opensm) = &row.opensm {
                let name = format!("  OpenSM's {}", opensm.used);
                rows.push(cells(&name, opensm.seconds, &opensm.walk).to_vec());
            }
        }
        text += &table(&rows, CellAlignment::Left);
        text += "\nPaths by links between switches:\n";
        let longest = self.engines.iter().map(|row| row.walk.hops.len()).max();
        // Writing to a string does not fail.
        let names = self.engines.iter().map(|row| row.name().len());
        let width = names.max().unwrap_or(0).max(13) + 2;
        let _ = write!(text, "{:width$}", "");
        for hops in 0..longest.unwrap_or(0) {
            let _ = write!(text, "{hops:>10}");
        }
        text.push('\n');
        for row in &self.engines {
            let _ = write!(text, "{:width$}", row.name());
            for paths in &row.walk.hops {
                let _ = write!(text, "{paths:>10}");
            }
            text.push('\n');
        }
        for row in &self.engines {
            if let Some(why) = &row.fallback {
                let engine = row.engine;
                let _ = write!(
                    text,
                    "\n{engine} cannot route this topology; minhop did: {why}\n"
                );
            }
            if let Some(deadlock) = &row.walk.deadlock {
                let _ = write!(text, "\n{}: {deadlock}\n", row.name());
            }
        }
        text
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let heading = [
            "topology",
            "engine",
            "by",
            "fallback",
            "seconds",
            "paths",
            "failing",
            "detours",
            "mean_links",
            "lanes",
            "deadlock",
            "least_load",
            "mean_load",
            "largest_load",
            "load_deviation",
            "bandwidth",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        let mut add = |row: &Row, name: String, by: &str, seconds: f64, walk: &Walk| {
            let number = |number: Option<f64>| number.map_or_else(String::new, |n| n.to_string());
            rows.push(vec![
                self.topology.clone(),
                name,
                by.to_owned(),
                row.fallback.clone().unwrap_or_default(),
                seconds.to_string(),
                walk.arriving.to_string(),
                walk.failing.to_string(),
                walk.detours.to_string(),
                walk.mean_hops.to_string(),
                number(walk.lanes.map(f64::from)),
                walk.deadlock.clone().unwrap_or_default(),
                walk.least_load.to_string(),
                walk.mean_load.to_string(),
                walk.largest_load.to_string(),
                walk.load_deviation.to_string(),
                number(walk.bandwidth.map(|bandwidth| bandwidth.mean)),
            ]);
        };
        for row in &self.engines {
            add(row, row.name(), "ibvswitch", row.seconds, &row.walk);
            if let Some(opensm) = &row.opensm {
                let name = by_another(row.engine, Some(&opensm.used));
                add(row, name, "opensm", opensm.seconds, &opensm.walk);
            }
        }
        rows
    }

    fn figure(&self) -> Figure {
        let names = || walks(self).map(|(name, _)| name).collect();
        let bars = |name: &str, value: &dyn Fn(&Walk) -> f64| {
            Bars::new(
                name,
                walks(self).map(|(_, walk)| Some(value(walk))).collect(),
            )
        };
        let loads = vec![
            bars("fewest", &|walk| walk.least_load as f64),
            bars("mean", &|walk| walk.mean_load),
            bars("most", &|walk| walk.largest_load as f64),
        ];
        let longest = walks(self).map(|(_, walk)| walk.hops.len()).max();
        let lengths = (0..longest.unwrap_or(0)).map(|hops| hops.to_string());
        let hops = walks(self).map(|(name, walk)| {
            let paths = walk.hops.iter().map(|&paths| Some(paths as f64));
            Bars::new(name, paths.collect())
        });
        let engines = self.engines.iter().map(Row::name);
        let times = |name: &str, of: fn(&Row) -> Option<f64>| {
            Bars::new(name, self.engines.iter().map(of).collect())
        };
        let mut seconds = vec![times("one thread", |row| Some(row.seconds))];
        if self.engines.iter().any(|row| row.opensm.is_some()) {
            let theirs = |row: &Row| row.opensm.as_ref().map(|opensm| opensm.seconds);
            seconds.push(times("OpenSM", theirs));
        }
        let mut panels = vec![
            Panel::bars("Load balance", "engine", "paths per link", names(), loads),
            Panel::bars(
                "Length of paths",
                "links between switches",
                "paths",
                lengths.collect(),
                hops.collect(),
            ),
            Panel::bars(
                "From graph to tables",
                "engine",
                "seconds",
                engines.collect(),
                seconds,
            )
            .logarithmic(),
        ];
        if walks(self).any(|(_, walk)| walk.bandwidth.is_some()) {
            let bandwidth = |(_, walk): (_, &Walk)| walk.bandwidth.map(|found| found.mean);
            let bandwidth = walks(self).map(bandwidth).collect();
            panels.push(Panel::bars(
                "Effective bandwidth",
                "engine",
                "part of the bandwidth",
                names(),
                vec![Bars::new("mean of all pairs", bandwidth)],
            ));
        }
        Figure {
            title: self.topology.clone(),
            panels,
        }
    }
}
