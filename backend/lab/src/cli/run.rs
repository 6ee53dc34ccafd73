//! `ibvswitch lab run`

use std::{fs, path::PathBuf, process, time::Duration};

use clap::Args;

use crate::{
    error::{Doing, Result},
    everywhere::{self, Task},
    interrupt::Interrupt,
    nodes::Node,
    outcome::{self, End, FAILED, Outcome},
    plan::{Plan, Scripts},
    quantity,
};

use super::shape::ShapeArgs;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command is run as it is written; a single word is a line for the shell, as in
  ibvswitch lab run -- 'echo I am $LAB_NODE of $LAB_NODES'
Its variables: LAB_NODE (n1, n2, ...), LAB_NODES (all of them), LAB_PEER (the next one) and
LAB_RANK (from 0). Nodes reach each other by these names, also by ssh. `lab-barrier NAME` returns
when all nodes have called it. Nodes can read the current directory of this machine.

FILE is a script for all nodes; a folder with a script for each, n1.sh and so on, or all.sh; or
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
    #[arg(
        value_name = "FILE",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    file: Option<PathBuf>,
    /// The command.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl RunArgs {
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
    let mut signals = None;
    let outcomes = outcomes(args, &mut signals);
    // What a signal has killed on its way says nothing.
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
    match write_results(args, &outcomes) {
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

fn write_results(args: &RunArgs, outcomes: &[Outcome]) -> Result<()> {
    let command = args.line();
    if let Some(path) = &args.json {
        fs::write(path, outcome::json(&command, outcomes)).at("write", path)?;
    }
    if let Some(path) = &args.junit {
        fs::write(path, outcome::junit(&command, outcomes)).at("write", path)?;
    }
    Ok(())
}
