//! Noise in a VM: what a VM in the background takes from it, with processors of its own or not, and by each scheduling
//! class. After *Towards Virtual InfiniBand Clusters with Network and Performance Isolation*, 4.2.
//!
//! VMs boot once; their threads then move from place to place.

mod guests;
pub mod kernel;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use simulator::plot::{Bars, Figure, Panel};

use self::guests::Guests;
use self::kernel::Figures;
use crate::report::{Measurement, Reference, Report};
use crate::{BenchError, Pinned, Processors, Result};

/// The argument that makes the program of the benches measure noise.
pub const NOISE: &str = "noise";
/// The argument that makes it a kernel.
pub const KERNEL: &str = "noise-kernel";

/// Measures the noise in a VM, by fixed work (FWQ) and fixed time (FTQ), beside a VM that works in the background.
///
/// Boots two VMs of a lab; the figures are of this machine, beside what else runs on it. Percent: FWQ, by how much a sample is
/// longer than the fastest; FTQ, by how much less is done than in the best interval. Short is 20 µs, long 1 ms. Then the
/// mean of a long sample, and the time of a round trip by the HCA, from the VM to itself. With --mpi two VMs compute beside the
/// one in the background, by Open MPI over their HCAs, and the last column is the time of a round: work of each, and a sum over
/// both. Pinned, each of the two has a processor, and the third VM that of the first.
#[derive(Debug, Parser)]
#[command(name = "ibvswitch bench noise", version, max_term_width = 100)]
pub struct NoiseArgs {
    /// Write the results to FILE as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results into FILE, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Measure a collective operation of MPI, too, in a third VM; fetches Debian's Open MPI.
    #[arg(long)]
    pub mpi: bool,
}

/// Scheduling class of a QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// That of any program.
    Other,
    /// While others leave processors idle.
    Idle,
    /// Before all others, for processors of the VM.
    RealTime,
}

impl Policy {
    fn set(self, thread: i32, is_processor: bool) -> Result<()> {
        let words = match self {
            Self::RealTime if is_processor => ["--fifo", "--pid", "1"],
            Self::Idle => ["--idle", "--pid", "0"],
            Self::Other | Self::RealTime => ["--other", "--pid", "0"],
        };
        let mut chrt = Command::new("chrt");
        let output = chrt.args(words).arg(thread.to_string()).output();
        let output = output.map_err(BenchError::system("start chrt"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(BenchError::Noise(format!(
            "chrt {}: {}",
            words.join(" "),
            said.trim()
        )))
    }
}

/// Names of a scenario's figures.
type Names = [&'static str; 7];

/// Names of figures by columns, as [`Figures`] has them.
macro_rules! names {
    ($scenario:literal) => {
        [
            concat!("noise_", $scenario, "_fwq_short"),
            concat!("noise_", $scenario, "_fwq_long"),
            concat!("noise_", $scenario, "_ftq_short"),
            concat!("noise_", $scenario, "_ftq_long"),
            concat!("noise_", $scenario, "_fwq_us"),
            concat!("noise_", $scenario, "_round_trip_us"),
            concat!("noise_", $scenario, "_mpi_round_us"),
        ]
    };
}

/// A scenario in guests.
struct Scenario {
    /// As a person reads it.
    title: &'static str,
    names: Names,
    /// Whether both VMs are on one processor, in place of all.
    pinned: bool,
    /// The class of the VM in the background, if it works.
    background: Option<Policy>,
    measured: Policy,
}

const HOST: Names = names!("host");

const SCENARIOS: [Scenario; 7] = [
    Scenario {
        title: "alone",
        names: names!("alone"),
        pinned: false,
        background: None,
        measured: Policy::Other,
    },
    Scenario {
        title: "alone, pinned",
        names: names!("alone_pinned"),
        pinned: true,
        background: None,
        measured: Policy::Other,
    },
    Scenario {
        title: "background",
        names: names!("shared"),
        pinned: false,
        background: Some(Policy::Other),
        measured: Policy::Other,
    },
    Scenario {
        title: "background, pinned",
        names: names!("shared_pinned"),
        pinned: true,
        background: Some(Policy::Other),
        measured: Policy::Other,
    },
    Scenario {
        title: "SCHED_IDLE",
        names: names!("idle"),
        pinned: false,
        background: Some(Policy::Idle),
        measured: Policy::Other,
    },
    Scenario {
        title: "SCHED_IDLE, pinned",
        names: names!("idle_pinned"),
        pinned: true,
        background: Some(Policy::Idle),
        measured: Policy::Other,
    },
    Scenario {
        title: "real time, pinned",
        names: names!("real_time_pinned"),
        pinned: true,
        background: Some(Policy::Other),
        measured: Policy::RealTime,
    },
];

const COLUMNS: [&str; 4] = ["FWQ 20 µs", "FWQ 1 ms", "FTQ 20 µs", "FTQ 1 ms"];

/// Measures all scenarios, and prints a row of each.
///
/// # Errors
/// [`BenchError`].
pub fn run(program: &Path, mpi: bool, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<Report> {
    let chosen = Processors::choose()?;
    let (processor, own) = (chosen.engine, [chosen.engine, chosen.driver]);
    let all = Processors::allowed()?;
    let folder = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let guests = Guests::boot(program, folder.path(), 1 + usize::from(mpi))?;
    let mut rounds = mpi.then(|| guests.compute()).transpose()?;
    let last = if mpi { "MPI" } else { "" };
    print(&row("", &COLUMNS.map(str::to_owned), ["mean", "HCA", last]))?;
    let host = on_host(program, processor)?;
    print(&figures_row("host, pinned", &host, ["-", ""]))?;
    let mut report = Report::default();
    add(&mut report, &HOST, &host, None);
    for scenario in &SCENARIOS {
        let background = scenario.background.unwrap_or(Policy::Other);
        let places = scenario.pinned.then_some(&own[..]);
        guests.place(places, &all, [scenario.measured, background])?;
        let burning = scenario.background.map(|_| guests.burn()).transpose()?;
        let figures = guests.measure();
        let round_trip = guests.round_trip();
        let round = rounds.as_mut().map(|it| guests.round(it)).transpose();
        drop(burning);
        let figures = figures?;
        let times = [Some(round_trip?), round?];
        let texts = times.map(|it| match it {
            None => String::new(),
            Some(None) => "failed".into(),
            Some(Some(time)) => format!("{time:.0} µs"),
        });
        let texts = texts.each_ref().map(String::as_str);
        print(&figures_row(scenario.title, &figures, texts))?;
        add(&mut report, &scenario.names, &figures, Some(&host));
        let names = &scenario.names[figures.len()..];
        for (&name, time) in names.iter().zip(times) {
            report
                .results
                .extend(time.flatten().map(|value| Measurement {
                    name,
                    value,
                    unit: "µs",
                    reference: None,
                }));
        }
    }
    Ok(report)
}

/// Runs the kernels on the host.
fn on_host(program: &Path, processor: usize) -> Result<Figures> {
    let pinned = Pinned::to(processor)?;
    let output = Command::new(program).args([KERNEL, "measure"]).output();
    drop(pinned);
    let output = output.map_err(BenchError::system("run the kernels"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    kernel::parse(&text).ok_or_else(|| BenchError::Noise(format!("the kernels said {text:?}")))
}

fn add(report: &mut Report, names: &Names, figures: &Figures, host: Option<&Figures>) {
    for (column, (&name, &value)) in names.iter().zip(figures).enumerate() {
        let reference = host.map(|host| Reference {
            name: "host",
            value: host[column],
        });
        report.results.push(Measurement {
            name,
            value,
            unit: if column < COLUMNS.len() { "%" } else { "µs" },
            reference,
        });
    }
}

fn row(title: &str, columns: &[String; 4], [mean, hca, mpi]: [&str; 3]) -> String {
    let [a, b, c, d] = columns;
    let line = format!("{title:20} {a:>11} {b:>11} {c:>11} {d:>11} {mean:>10} {hca:>10} {mpi:>11}");
    line.trim_end().to_owned() + "\n"
}

fn figures_row(title: &str, figures: &Figures, [hca, mpi]: [&str; 2]) -> String {
    let [a, b, c, d, mean] = figures;
    let columns = [a, b, c, d].map(|it| format!("{it:.2} %"));
    row(title, &columns, [&format!("{mean:.0} µs"), hca, mpi])
}

/// The noise of all scenarios.
#[must_use]
pub fn figure(report: &Report) -> Figure {
    let value = |name: &str| {
        let found = report.results.iter().find(|it| it.name == name);
        found.map(|it| it.value)
    };
    let rows = || {
        [&HOST]
            .into_iter()
            .chain(SCENARIOS.iter().map(|it| &it.names))
    };
    let titles = ["host, pinned"]
        .into_iter()
        .chain(SCENARIOS.iter().map(|it| it.title));
    let series = COLUMNS.iter().enumerate();
    let series =
        series.map(|(at, name)| Bars::new(*name, rows().map(|it| value(it[at])).collect()));
    let titles: Vec<String> = titles.map(str::to_owned).collect();
    let noise = Panel::bars(
        "FWQ and FTQ",
        "",
        "noise, %",
        titles.clone(),
        series.collect(),
    );
    let mut panels = vec![noise.logarithmic()];
    let rounds: Vec<Option<f64>> = rows().map(|it| value(it[COLUMNS.len() + 2])).collect();
    if rounds.iter().any(Option::is_some) {
        let bars = vec![Bars::new("two VMs", rounds)];
        panels.push(
            Panel::bars("Work and MPI_Allreduce", "", "a round, µs", titles, bars).logarithmic(),
        );
    }
    Figure {
        title: "Noise in a VM beside one in the background".to_owned(),
        panels,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_figure_has_a_name_and_is_drawn() {
        NoiseArgs::command().debug_assert();
        let mut report = Report::default();
        let host = [1.0; 5];
        add(&mut report, &HOST, &host, None);
        let rows = SCENARIOS.iter();
        rows.for_each(|it| add(&mut report, &it.names, &[2.0; 5], Some(&host)));
        let names: BTreeSet<_> = report.results.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), 5 * (SCENARIOS.len() + 1));
        assert!(
            !figure(&report)
                .svg()
                .expect("is drawn")
                .contains("Allreduce")
        );
        report.results.push(Measurement {
            name: SCENARIOS[0].names[6],
            value: 2000.0,
            unit: "µs",
            reference: None,
        });
        let svg = figure(&report).svg().expect("is drawn");
        assert!(svg.contains("Allreduce"), "{svg}");
        assert!(
            svg.contains("real time, pinned") && svg.contains("FTQ 20"),
            "{svg}"
        );
    }
}
