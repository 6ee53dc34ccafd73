//! Commands for labs that run: `exec`, `boot`, `migrate`, `shell`, `list`, `down`. `cp` is a file of its own.

use std::{
    env, fs,
    fs::File,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use clap::Args;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{status, up::NODES};
use crate::cli::quantity;
use crate::error::{Doing, Error, Result, near};
use crate::guest::console;
use crate::nodes;
use crate::nodes::command_socket::{self, Request};
use crate::nodes::everywhere;
use crate::nodes::outcome::TIME_LIMIT;
use crate::nodes::rundir::{self, Running};

/// Choice of a lab.
#[derive(Debug, Args)]
pub(super) struct LabArgs {
    /// Name of the lab, if several run.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is the command's; 124 if it was killed at the time limit, 125 if it could not be \
run. Both of its output streams go to standard output; it has no input. Ctrl-C kills it.")]
pub(super) struct ExecArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// Time limit of the command; none by default.
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    timeout: Option<Duration>,
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
    /// The command: its words as they are, or a single one as a line for the shell.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Arguments of `shell`.
#[derive(Debug, Args)]
#[command(after_help = "\
If the input is not a terminal, the node's shell runs it as a script, as with `exec`.")]
pub(super) struct ShellArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The lab must have been started with --migratable. Without a configuration of your own, n1 is at \
h-n1, n2 at h-n2 and so on, and each of these hypervisors has room for one more node.")]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
    /// The destination hypervisor.
    #[arg(long, value_name = "HYPERVISOR")]
    to: String,
}

/// Arguments of `boot`.
#[derive(Debug, Args)]
pub(super) struct BootArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// The node, one of --later.
    #[arg(value_name = "NODE")]
    node: String,
}

impl LabArgs {
    /// The lab of this name, or the only one that was left running.
    pub(super) fn find(&self) -> Result<Running> {
        let mut all = rundir::running(&rundir::base())?;
        all.retain(|it| it.path.join(NODES).exists());
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        let wanted = self.name.as_deref().unwrap_or_default();
        let names = near(wanted, &names);
        let found = match &self.name {
            Some(name) => all.iter().position(|it| it.name == *name),
            None if all.len() == 1 => Some(0),
            None => None,
        };
        match found {
            Some(at) => Ok(all.swap_remove(at)),
            None if all.is_empty() => Err(Error::Host(
                "no lab has been left running; `ibvswitch lab up` starts one".into(),
            )),
            None => Err(Error::Host(match &self.name {
                Some(name) => format!("there is no lab {name}; {names}"),
                None => format!("name one of several labs with --name; {names}"),
            })),
        }
    }
}

pub(super) fn exec(args: &ExecArgs) -> i32 {
    status(executed(args))
}

fn executed(args: &ExecArgs) -> Result<i32> {
    let lab = args.lab.find()?;
    let line = everywhere::line(&args.command);
    let status = ask_within(&lab, &args.node, line, args.timeout, print)?;
    if let (TIME_LIMIT, Some(limit)) = (status, args.timeout) {
        eprintln!("ibvswitch lab: killed at the time limit, or ended as if it was ({limit:?})");
    }
    Ok(status)
}

fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    // With nobody to read, the command still runs to its end.
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Has a node run a line of its shell, in the directory that this is started in.
pub(super) fn ask(lab: &Running, node: &str, line: String, show: impl FnMut(&[u8])) -> Result<i32> {
    ask_within(lab, node, line, None, show)
}

fn ask_within(
    lab: &Running,
    node: &str,
    line: String,
    limit: Option<Duration>,
    show: impl FnMut(&[u8]),
) -> Result<i32> {
    let directory = env::current_dir().doing("find the working directory")?;
    let request = Request::Run(command_socket::Command {
        node: node.into(),
        line,
        directory: directory.display().to_string(),
        limit,
    });
    command_socket::ask(&lab.path.join(command_socket::SOCKET), &request, show)
}

pub(super) fn migrate(args: &MigrateArgs) -> i32 {
    let (node, to) = (args.node.clone(), args.to.clone());
    asked(&args.lab, &Request::Move { node, to })
}

pub(super) fn boot(args: &BootArgs) -> i32 {
    let node = args.node.clone();
    asked(&args.lab, &Request::Boot { node })
}

fn asked(lab: &LabArgs, request: &Request) -> i32 {
    status(lab.find().and_then(|lab| {
        command_socket::ask(&lab.path.join(command_socket::SOCKET), request, print)
    }))
}

pub(super) fn shell(args: &ShellArgs) -> i32 {
    status(shown(args))
}

fn shown(args: &ShellArgs) -> Result<i32> {
    let lab = args.lab.find()?;
    if !io::stdin().is_terminal() {
        let script = io::read_to_string(io::stdin()).doing("read from standard input")?;
        return ask(&lab, &args.node, script, print);
    }
    // The node cannot know the size of this terminal. The lab is asked first: it says which nodes there are.
    let mut stty = Command::new("stty");
    stty.arg("size")
        .stdin(Stdio::inherit())
        .stderr(Stdio::null());
    let size = stty.output().map(|it| it.stdout).unwrap_or_default();
    let size = String::from_utf8_lossy(&size);
    let line = match size.trim().split_once(' ') {
        Some((rows, columns)) => format!("stty -F /dev/ttyS0 rows {rows} cols {columns}"),
        None => "true".into(),
    };
    ask(&lab, &args.node, line, |_| ())?;
    let folder = folder(&lab, &args.node)?;
    let file = folder.join("shell.lock");
    let lock = File::create(&file).at("create", &file)?;
    lock.try_lock().map_err(|_| {
        let node = &args.node;
        Error::Host(format!(
            "another terminal has {node}'s console; leave it there with Ctrl-]"
        ))
    })?;
    console::attach(&folder.join("console")).map(|()| 0)
}

/// Names of a lab's nodes, with spaces between.
fn nodes(lab: &Running) -> String {
    fs::read_to_string(lab.path.join(NODES)).unwrap_or_default()
}

/// The folder of a node.
pub(super) fn folder(lab: &Running, node: &str) -> Result<PathBuf> {
    let all = nodes(lab);
    let all: Vec<&str> = all.split(' ').collect();
    let at = all.iter().position(|&name| name == node);
    at.map(|at| lab.path.join(nodes::node_folder(at)))
        .ok_or_else(|| Error::Host(format!("there is no node {node}; {}", near(node, &all))))
}

pub(super) fn list() -> i32 {
    status(listed())
}

fn listed() -> Result<i32> {
    for lab in rundir::running(&rundir::base())? {
        let nodes = match nodes(&lab) {
            nodes if nodes.is_empty() => "boots, or runs a command".into(),
            nodes => nodes,
        };
        println!("{}: {nodes} (process {})", lab.name, lab.process);
    }
    Ok(0)
}

pub(super) fn down(args: &LabArgs) -> i32 {
    status(args.find().and_then(|lab| {
        kill(Pid::from_raw(lab.process), Signal::SIGTERM).doing("end the lab's process")?;
        lab.await_end().map(|()| 0)
    }))
}
