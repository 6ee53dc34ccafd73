//! `ibvswitch lab up`: a lab that a process in the background holds.

use std::{
    env, fs,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use clap::Args;
use nix::{
    sys::signal::Signal,
    unistd::{dup2_stderr, dup2_stdout, setsid},
};

use super::{shape::ShapeArgs, status};
use crate::error::{Doing, Result};
use crate::interrupt::Interrupt;
use crate::nodes::outcome::{FAILED, MISTAKE};
use crate::nodes::plan::Plan;
use crate::nodes::{Node, command_socket};

/// Line that the background process prints when nodes are ready.
const READY: &str = "ready";

/// The file in a lab's folder with the names of its nodes.
pub(super) const NODES: &str = "nodes";

/// Arguments of `up`.
#[derive(Debug, Args)]
#[command(after_help = "\
`ibvswitch lab exec n1 -- COMMAND` runs a command in a node, `ibvswitch lab shell n1` connects to \
its console, and `ibvswitch lab down` ends the lab.")]
pub(super) struct UpArgs {
    /// The lab's name.
    #[arg(long, value_name = "NAME", default_value = "lab", value_parser = name)]
    name: String,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Description of the nodes: lab.toml, or a folder with one. Its scripts are only for `ibvswitch lab run`.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl UpArgs {
    fn shape(&self) -> Result<ShapeArgs> {
        let shape = self.shape.clone();
        match &self.file {
            Some(file) => shape.with(&Plan::read(file)?.0),
            None => Ok(shape),
        }
    }
}

/// A name that is no path.
fn name(text: &str) -> std::result::Result<String, String> {
    let right = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    if text.is_empty() || text.len() > 30 || !text.chars().all(right) || text.starts_with("run-") {
        return Err("write 1 to 30 letters, digits, '-' and '_', without `run-` in front".into());
    }
    Ok(text.into())
}

/// Starts the process in the background, and waits until the nodes are ready.
pub(super) fn up(args: &UpArgs) -> i32 {
    if let Some(file) = args.file.as_ref().filter(|it| !it.exists()) {
        eprintln!(
            "ibvswitch lab: there is no file `{}`; `lab up` runs no command: start the lab, then \
             `ibvswitch lab exec NODE -- COMMAND`",
            file.display()
        );
        return MISTAKE;
    }
    status(started(args))
}

fn started(args: &UpArgs) -> Result<i32> {
    // Done here, where a signal ends it, and said where it is read.
    args.shape()?.means()?;
    let program = env::current_exe().doing("find this program")?;
    let (reader, writer) = io::pipe().doing("make a pipe")?;
    let mut command = Command::new(program);
    command
        .arg("hold")
        .args(env::args_os().skip(2))
        .stdin(Stdio::piped())
        .stdout(writer);
    let mut holder = command.spawn().doing("start this program again")?;
    // It has the pipe's other end, which nobody else is to have.
    drop(command);
    let mut said = String::new();
    BufReader::new(reader)
        .read_line(&mut said)
        .doing("hear of the lab")?;
    if said.trim_end() != READY {
        let status = holder.wait().doing("wait for the lab")?;
        return Ok(status.code().unwrap_or(FAILED));
    }
    let mut told = holder.stdin.take();
    let told = told.as_mut().map(|it| it.write_all(b"\n"));
    told.transpose().doing("tell the lab to stay")?;
    println!("{}", args.name);
    Ok(0)
}

/// Holds the lab until a signal comes.
pub(super) fn hold(args: &UpArgs) -> i32 {
    status(held(args))
}

fn held(args: &UpArgs) -> Result<i32> {
    // Its own session, so that the terminal's signals and end are none to it. Who has one already keeps it.
    let _ = setsid();
    let shape = args.shape()?;
    let means = shape.means()?;
    let interrupt = Interrupt::by_signals()?;
    end_with_starter(interrupt.clone());
    let (dir, lab) = shape.lab(means, &args.name, true, &interrupt)?;
    let names: Vec<&str> = lab.nodes().iter().map(Node::name).collect();
    let socket = dir.path().join(command_socket::SOCKET);
    let listener = UnixListener::bind(&socket).at("listen on", &socket)?;
    let file = dir.path().join(NODES);
    fs::write(&file, names.join(" ")).at("write", &file)?;
    let log = dir.path().join("lab.log");
    let log = File::create(&log).at("create", &log)?;
    dup2_stderr(&log).doing("write to the log")?;
    // A reader that is gone has ended the lab.
    let _ = writeln!(io::stdout(), "{READY}");
    dup2_stdout(&log).doing("write to the log")?;
    thread::scope(|scope| {
        scope.spawn(|| command_socket::serve(&lab, shape.control(), &listener));
        interrupt.wait();
        // The listener looks up.
        let _ = UnixStream::connect(&socket);
    });
    Ok(0)
}

/// Has the lab end with `up`, however that ends, unless it has said that the lab is to stay.
fn end_with_starter(interrupt: Interrupt) {
    thread::spawn(move || {
        if io::stdin().read_exact(&mut [0]).is_err() {
            interrupt.end(Signal::SIGHUP);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(name("my-lab_2").as_deref(), Ok("my-lab_2"));
        for wrong in ["", ".", "a/b", "run-5", "lock file", &"x".repeat(31)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
