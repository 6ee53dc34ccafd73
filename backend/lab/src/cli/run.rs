//! `ibvswitch lab run`

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use clap::Args;

use crate::{
    error::{Doing, Result},
    everywhere::{self, Task},
    interrupt::Interrupt,
    outcome::{self, End, FAILED, Outcome},
    quantity,
    share::Share,
};

use super::shape::ShapeArgs;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command is run as it is written; a single word is a line for the shell, as in
  ibvswitch lab run -- 'echo I am $LAB_NODE of $LAB_NODES'
It finds LAB_NODE (n1, n2, ...), LAB_NODES (all of them), LAB_PEER (the next one) and LAB_RANK (from 0). Nodes
reach each other by these names. `lab-barrier NAME` returns when all nodes have come to it. The directory that
this is started in is there in the nodes, to be read.

Exit status: the highest of the commands' own; 124 where one was killed at the time limit, 125 where a node or
the lab itself failed, 128 + signal where a signal has ended it.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// How long the commands may take.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = quantity::time)]
    timeout: Duration,
    /// End all commands when the first fails.
    #[arg(long)]
    fail_fast: bool,
    /// Write what became of the commands to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what became of the commands to this file, as JUnit's XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The command.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Does it; the exit status.
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
    let means = args.shape.means()?;
    let interrupt = signals.insert(Interrupt::by_signals()?);
    let name = format!("run-{}", process::id());
    let (_dir, lab) = args.shape.lab(means, &name, false, interrupt)?;
    let share = args.shape.share()?;
    let shared = share.as_ref().map(Share::path);
    Ok(everywhere::run(&lab, &task(args, shared)))
}

fn task(args: &RunArgs, directory: Option<&Path>) -> Task {
    Task {
        command: args.command.clone(),
        limit: args.timeout,
        fail_fast: args.fail_fast,
        directory: directory.map(|it| it.display().to_string()),
    }
}

fn write_results(args: &RunArgs, outcomes: &[Outcome]) -> Result<()> {
    let command = task(args, None).line();
    if let Some(path) = &args.json {
        fs::write(path, outcome::json(&command, outcomes)).at("write", path)?;
    }
    if let Some(path) = &args.junit {
        fs::write(path, outcome::junit(&command, outcomes)).at("write", path)?;
    }
    Ok(())
}
