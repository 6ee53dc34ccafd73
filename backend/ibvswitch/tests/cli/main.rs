//! The program as a user runs it: output, messages and exit status.

#[path = "../daemon/mod.rs"]
mod daemon;

mod attachment;
mod cluster;
mod configuration;
mod control;
mod doctor;
mod life;
mod migration;
mod migrations;
mod mistakes;
mod sm;
mod subnet;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const CONFIGURATION: i32 = 3;
const NO_DAEMON: i32 = 4;
const UNKNOWN: i32 = 5;

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibvswitch"));
    // What the tester's own environment says is not to matter.
    for variable in [
        "IBVSWITCH_CONFIG",
        "IBVSWITCH_RUNTIME_DIR",
        "RUST_LOG",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(variable);
    }
    command.arg("--runtime-dir").arg(dir).stdin(Stdio::null());
    command
}

struct Outcome {
    status: i32,
    out: String,
    err: String,
}

fn run(dir: &Path, args: &[&str]) -> Outcome {
    outcome(&command(dir).args(args).output().expect("is started"))
}

fn outcome(output: &Output) -> Outcome {
    Outcome {
        status: output.status.code().expect("is not killed"),
        out: String::from_utf8(output.stdout.clone()).expect("is text"),
        err: String::from_utf8(output.stderr.clone()).expect("is text"),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("is readable").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A daemon that is ready; killed if a test fails before it stops.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(dir: &Path, args: &[&str]) -> Self {
        Self::spawn(command(dir).arg("run").args(args))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("is started");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("is piped");
        BufReader::new(out).read_line(&mut line).expect("is text");
        let mut daemon = Self { child };
        if line != "ready\n" {
            let mut err = String::new();
            let _ = daemon
                .child
                .stderr
                .as_mut()
                .expect("is piped")
                .read_to_string(&mut err);
            panic!("not ready: {line:?}, {err}");
        }
        daemon
    }

    fn stop(mut self, signal: Signal) -> Outcome {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("is running");
        let status = self.child.wait().expect("ends");
        let mut err = String::new();
        self.child
            .stderr
            .take()
            .expect("is piped")
            .read_to_string(&mut err)
            .expect("is text");
        Outcome {
            status: status.code().expect("is not killed"),
            out: String::new(),
            err,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn without_a_daemon() {
    let dir = scratch();
    for args in [&["status"][..], &["topology"], &["vf", "show"]] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, NO_DAEMON, "{args:?}");
        assert_eq!(outcome.out, "");
        assert!(
            outcome.err.contains("start one with `ibvswitch run`"),
            "{}",
            outcome.err
        );
    }
}

#[test]
fn every_command_has_help() {
    let dir = scratch();
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["vf", "--help"],
        &["vf", "show", "--help"],
        &["vf", "qemu-args", "--help"],
        &["vf", "libvirt-xml", "--help"],
        &["status", "--help"],
        &["topology", "--help"],
        &["counters", "--help"],
        &["metrics", "--help"],
        &["capture", "--help"],
        &["config", "--help"],
        &["config", "check", "--help"],
        &["config", "default", "--help"],
    ] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, SUCCESS, "{args:?}");
        assert!(
            outcome.out.contains("Usage: ibvswitch"),
            "{args:?}: {}",
            outcome.out
        );
    }
    assert!(
        run(dir.path(), &["--version"])
            .out
            .starts_with("ibvswitch 0.")
    );
}

#[test]
fn wrong_command_lines() {
    let dir = scratch();
    for args in [
        &[][..],
        &["walk"],
        &["vf"],
        &["status", "--yaml"],
        &["vf", "qemu-args"],
    ] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, USAGE, "{args:?}");
        assert!(outcome.err.contains("Usage: "), "{args:?}: {}", outcome.err);
    }
}

#[test]
fn a_program_that_was_not_built_says_how_to_get_it() {
    let dir = scratch();
    // A copy of the program, so that nothing lies beside it.
    let copy = dir.path().join("ibvswitch");
    std::fs::copy(env!("CARGO_BIN_EXE_ibvswitch"), &copy).expect("is copied");
    for (command, remedy) in [
        ("demo", "run ./scripts/demo in the source tree"),
        (
            "simulate",
            "in the source tree, build both with: cargo build --release",
        ),
    ] {
        let output = Command::new(&copy).arg(command).output();
        let outcome = outcome(&output.expect("is started"));
        assert_eq!(outcome.status, FAILURE);
        assert!(outcome.err.contains(remedy), "{}", outcome.err);
    }
}

#[test]
fn programs_beside_this_one_get_their_arguments() {
    for command in ["demo", "bench", "simulate"] {
        let dir = scratch();
        let copy = dir.path().join("ibvswitch");
        std::fs::copy(env!("CARGO_BIN_EXE_ibvswitch"), &copy).expect("is copied");
        let other = dir.path().join(format!("ibvswitch-{command}"));
        std::fs::write(&other, "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 9\n").expect("is written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&other, mode).expect("is ours");
        let output = Command::new(&copy)
            .args([command, "--json", "a b", "--help"])
            .output()
            .expect("is started");
        let outcome = outcome(&output);
        assert_eq!(
            (outcome.out.as_str(), outcome.status),
            ("--json|a b|--help|", 9),
            "{command}"
        );
    }
}

/// Reading the first line and going away is no failure.
#[test]
fn a_reader_that_goes_away() {
    let dir = scratch();
    let mut child = command(dir.path())
        .args(["config", "default"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("is started");
    drop(child.stdout.take());
    let mut err = String::new();
    child
        .stderr
        .take()
        .expect("is piped")
        .read_to_string(&mut err)
        .expect("is text");
    assert!(child.wait().expect("ends").success());
    assert_eq!(err, "");
}
