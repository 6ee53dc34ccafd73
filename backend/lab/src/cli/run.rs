//! `ibvswitch lab run`

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use clap::Args;

use crate::{
    error::{Doing, Result},
    everywhere::{self, Task},
    image::Kernel,
    interrupt::Interrupt,
    nodes::{Lab, MOST, Means, Shape},
    outcome::{self, End, FAILED, Outcome},
    quantity,
    rundir::{self, RunDir},
    share::Share,
};

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
    /// How many nodes.
    #[arg(long, short, value_name = "NUMBER", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=MOST as u64))]
    nodes: u64,
    /// Debian packages to put into the nodes, with commas between.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    packages: Vec<String>,
    /// Debian's kernel of the nodes: 6.1, 6.12 or 7.2.
    #[arg(long, value_name = "VERSION", default_value_t)]
    kernel: Kernel,
    /// Memory of a node.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = quantity::memory)]
    memory: u32,
    /// Processors of a node.
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// How long the commands may take.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = quantity::time)]
    timeout: Duration,
    /// How long the nodes may take to boot.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = quantity::time)]
    boot_timeout: Duration,
    /// Let the nodes write to the directory that this is started in.
    #[arg(long)]
    writable: bool,
    /// Keep that directory out of the nodes.
    #[arg(long, conflicts_with = "writable")]
    no_share: bool,
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
    let directory = env::current_dir().doing("find the working directory")?;
    let share = if args.no_share {
        None
    } else {
        Some(Share::new(&directory, args.writable)?)
    };
    let means = Means::get(args.kernel, &args.packages)?;
    // While things are fetched, a signal ends this and apt as it does any program.
    let interrupt = signals.insert(Interrupt::by_signals()?);
    let dir = RunDir::create(&rundir::base(), &format!("run-{}", process::id()))?;
    let shape = Shape {
        nodes: usize::try_from(args.nodes).unwrap_or(MOST),
        memory: args.memory,
        processors: args.cpus,
        boot_limit: args.boot_timeout,
        share,
    };
    let lab = Lab::start(&means, &shape, dir.path(), interrupt)?;
    let shared = shape.share.as_ref().map(Share::path);
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
