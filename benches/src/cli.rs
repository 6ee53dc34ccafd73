//! The command line of `ibvswitch-bench`, which `ibvswitch bench` starts.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::daemons::process::{self, SERVE};
use crate::management::routing::growth;
use crate::neighbours::Attack;
use crate::neighbours::noise::{self, NoiseArgs};
use crate::{BenchError, Context, Effort, Processors, Report, Result, Run, Suite};

/// Measures the device without guests, against what this machine can do at all.
///
/// A user-space driver moves data between two VFs of a daemon in the same process, with the engine
/// on one processor and the driver on another. Other work on these two disturbs the figures:
/// measure on a machine at rest.
#[derive(Debug, Parser)]
#[command(
    name = "ibvswitch bench",
    version,
    max_term_width = 100,
    after_help = "`ibvswitch bench noise` measures in two VMs, beside all suites: see its --help."
)]
struct Cli {
    /// Suites; all by default.
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Write the results to FILE as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables of PAGE anew from stored runs (files that --json has written), and measure nothing.
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["suites", "json", "plot"])]
    markdown: Option<PathBuf>,
    /// Folder of the stored runs.
    #[arg(long, value_name = "DIR", default_value = "benches/runs")]
    runs: PathBuf,
    /// Draw how the time and the memory of routing engines grow into FILE, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Attacks that `neighbours` measures, in place of all.
    #[arg(long, value_enum, value_name = "ATTACK,…", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// In `neighbours`, give the attacker's VF an engine of its own. Polled, that takes a processor more.
    #[arg(long)]
    apart: bool,
    /// In `passthrough`, the VF to measure in place of a software one, as in a configuration
    /// ("unix:/run/other/vm1.sock"). Twice: from the first to the second, in place of from one to itself.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    /// In `passthrough`, measure a VF that is named by its PCI address without a daemon before it, too, as a VM
    /// has it by plain vfio-pci.
    #[arg(long, requires = "device")]
    plain: bool,
    /// Processors of the driver's and of the engine's thread, in place of the last two.
    #[arg(
        long,
        value_name = "DRIVER,ENGINE",
        value_delimiter = ',',
        num_args = 2
    )]
    cpus: Option<Vec<usize>>,
    /// Only see whether everything works: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

impl Cli {
    fn run(self) -> Result<()> {
        if let Some(page) = self.markdown {
            let text = fs::read_to_string(&page).map_err(BenchError::system("read the page"))?;
            let text = crate::report::markdown::fill(&text, &self.runs)?;
            return fs::write(page, text).map_err(BenchError::system("write the page"));
        }
        let processors = match self.cpus.as_deref() {
            Some(&[driver, engine]) => Processors { driver, engine }.checked()?,
            _ => Processors::choose()?,
        };
        let context = Context {
            processors,
            effort: if self.smoke {
                Effort::SMOKE
            } else {
                Effort::FULL
            },
            attacks: self.attacks,
            apart: self.apart,
            devices: self.device,
            plain: self.plain,
            program: own_program()?,
        };
        let suites = if self.suites.is_empty() {
            Suite::value_variants()
        } else {
            &self.suites
        };
        let mut report = Report::default();
        for &suite in suites {
            suite.run(&context, &mut |result| {
                report.results.push(result);
                print(&format!("{result}\n"))
            })?;
        }
        if let Some(file) = self.plot {
            let figure = growth::figure(&report).ok_or(BenchError::NothingToPlot)?;
            fs::write(file, figure.svg()?)
                .map_err(BenchError::system("write the figure to its file"))?;
        }
        self.json.map_or(Ok(()), |file| write(&report, &file))
    }
}

fn write(report: &Report, file: &Path) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&Run::of(report))
        .map_err(BenchError::system("write the results as JSON"))?;
    text.push('\n');
    fs::write(file, text).map_err(BenchError::system("write the results to their file"))
}

fn noise(args: NoiseArgs) -> Result<()> {
    let program = own_program()?;
    let report = noise::run(&program, args.mpi, &mut |text| print(text))?;
    if let Some(file) = args.plot {
        let svg = noise::figure(&report).svg()?;
        fs::write(file, svg).map_err(BenchError::system("write the figure to its file"))?;
    }
    args.json.map_or(Ok(()), |file| write(&report, &file))
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(BenchError::system("find this program's own path"))
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(BenchError::system("write to standard output"))
}

/// Reads the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = match arguments.as_slice() {
        [serve, dir] if serve == SERVE => process::serve(dir),
        [it, what] if it == noise::KERNEL => match what.to_str() {
            Some("burn") => noise::kernel::burn(),
            _ => print(&noise::kernel::line(&noise::kernel::measure())),
        },
        [it, others @ ..] if it == noise::NOISE => {
            let own = OsString::from("ibvswitch bench noise");
            noise(NoiseArgs::parse_from([own].iter().chain(others)))
        }
        _ => Cli::parse().run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(io::stderr(), "ibvswitch-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
