//! `ibvswitch lab run`

use std::{fs::File, io::Write, path::PathBuf, process, time::Duration};

use clap::Args;

use crate::cli::quantity;
use crate::error::{Doing, Result};
use crate::interrupt::Interrupt;
use crate::nodes::Node;
use crate::nodes::cluster;
use crate::nodes::everywhere::{self, Task};
use crate::nodes::outcome::{self, End, FAILED, MISTAKE, Outcome};
use crate::nodes::plan::{Plan, Scripts};

use super::shape::ShapeArgs;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command is run as it is written; a single word is a line for the shell, as in \
`ibvswitch lab run -- 'echo I am $LAB_NODE of $LAB_NODES'`. It has the variables LAB_NODE (n1, n2, ...), \
LAB_NODES (all of them), LAB_PEER (the next one) and LAB_RANK (from 0), and none of your shell's. Nodes \
reach each other by these names, also by ssh. `lab-barrier NAME` returns when all nodes have called it. Nodes can read \
the current directory of this machine.

FILE is a script for all nodes; a folder with a script for each, n1.sh and so on, or all.sh; or \
lab.toml, which also describes the nodes.

Exit status: the highest of the commands' own; 124 if one was killed at the time limit, 125 if a \
node or the lab itself failed, 128 + signal if a signal has ended it.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Time limit of the commands; 10m by default.
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    timeout: Option<Duration>,
    /// End all commands when the first fails.
    #[arg(long)]
    fail_fast: bool,
    /// Write the commands' results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the commands' results to this file, as JUnit's XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// A script, a folder of scripts, or lab.toml.
    #[arg(value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// The command.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl RunArgs {
    /// Names a mistake in the arguments that clap does not see.
    fn mistake(&self) -> Option<String> {
        match &self.file {
            None if self.command.is_empty() => Some(
                "name a FILE, or write a command behind `--`: ibvswitch lab run -- COMMAND".into(),
            ),
            Some(file) if !file.exists() => {
                let file = file.display();
                Some(format!(
                    "there is no file `{file}`; a command goes behind `--`: ibvswitch lab run -- {file}"
                ))
            }
            _ => None,
        }
    }

    /// The command or file, as a user would type it.
    fn line(&self) -> String {
        match &self.file {
            Some(file) => file.display().to_string(),
            None => everywhere::line(&self.command),
        }
    }
}

/// Runs it, and returns the exit status.
pub(super) fn run(args: &RunArgs) -> i32 {
    if let Some(mistake) = args.mistake() {
        eprintln!("ibvswitch lab: {mistake}");
        return MISTAKE;
    }
    // Before anything is fetched or booted: results are not lost for a wrong path.
    let reports = match Reports::create(args) {
        Ok(reports) => reports,
        Err(error) => {
            eprintln!("ibvswitch lab: {error}");
            return FAILED;
        }
    };
    let mut signals = None;
    let outcomes = outcomes(args, &mut signals);
    // A command that a signal has killed on its way says nothing.
    if let Some(signal) = signals.and_then(|it| it.signal()) {
        eprintln!("ibvswitch lab: ended by {signal}");
        return 128 + signal as i32;
    }
    let outcomes = outcomes.unwrap_or_else(|error| {
        eprintln!("ibvswitch lab: {error}");
        vec![Outcome {
            node: "lab".into(),
            end: End::Lost {
                why: error.to_string(),
            },
            seconds: 0.0,
            output: String::new(),
            kernel_log: None,
        }]
    });
    match reports.write(&args.line(), &outcomes) {
        Ok(()) => outcome::worst(&outcomes),
        Err(error) => {
            eprintln!("ibvswitch lab: {error}");
            FAILED
        }
    }
}

fn outcomes(args: &RunArgs, signals: &mut Option<Interrupt>) -> Result<Vec<Outcome>> {
    const LIMIT: Duration = Duration::from_secs(10 * 60);
    let (plan, scripts) = match &args.file {
        Some(file) => Plan::read(file)?,
        None => (Plan::default(), Scripts::all(args.line())),
    };
    let shape = args.shape.clone().with(&plan)?;
    if let Some(names) = shape.names() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        scripts.check(&names)?;
    }
    let means = shape.means()?;
    let interrupt = signals.insert(Interrupt::by_signals()?);
    let name = format!("run-{}", process::id());
    let (_dir, lab) = shape.lab(means, &name, false, interrupt)?;
    let names: Vec<&str> = lab.nodes().iter().map(Node::name).collect();
    let scripts = match &args.file {
        None if shape.is_cluster() => Scripts::first(lab.head(), cluster::submits(&args.line())),
        _ => scripts,
    };
    scripts.check(&names)?;
    let directory = shape.directory()?;
    let task = Task {
        scripts,
        happenings: plan.at,
        control: shape.control(),
        limit: args.timeout.or(plan.timeout).unwrap_or(LIMIT),
        fail_fast: args.fail_fast || plan.fail_fast,
        directory: directory.map(|it| it.display().to_string()),
    };
    Ok(everywhere::run(&lab, &task))
}

/// The files for the results.
struct Reports {
    json: Option<(PathBuf, File)>,
    junit: Option<(PathBuf, File)>,
}

impl Reports {
    fn create(args: &RunArgs) -> Result<Self> {
        let create = |path: &Option<PathBuf>| {
            let create =
                |path: &PathBuf| Ok((path.clone(), File::create(path).at("create", path)?));
            path.as_ref().map(create).transpose()
        };
        Ok(Self {
            json: create(&args.json)?,
            junit: create(&args.junit)?,
        })
    }

    fn write(self, command: &str, outcomes: &[Outcome]) -> Result<()> {
        for (report, text) in [
            (self.json, outcome::json(command, outcomes)),
            (self.junit, outcome::junit(command, outcomes)),
        ] {
            if let Some((path, mut file)) = report {
                file.write_all(text.as_bytes()).at("write", &path)?;
            }
        }
        Ok(())
    }
}
