//! Programs of the host on a daemon's subnet.

// Each test program uses its part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::daemon::Daemon;

/// Runs programs, in a directory of their own.
#[derive(Debug)]
pub struct Programs<'a> {
    daemon: &'a Daemon,
    dir: tempfile::TempDir,
}

impl<'a> Programs<'a> {
    pub fn new(daemon: &'a Daemon) -> Self {
        Self {
            daemon,
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.daemon.command();
        command
            .env_remove("LD_PRELOAD")
            .current_dir(self.dir.path())
            .args(["external", "run"])
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// What a program prints; it must succeed. `arguments` may begin with those of `external run`.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}\n{text}\n{errors}");
        text
    }

    /// The same on the sockets of this name, whoever has them.
    #[track_caller]
    pub fn run_on(&self, socket: &str, arguments: &[&str]) -> String {
        let mut command = self.daemon.command();
        let output = command.args(["external", "env"]).output().expect("runs");
        let environment = String::from_utf8(output.stdout).expect("is text");
        let script = format!("{environment}export IBSIM_SOCKNAME='{socket}'\nexec \"$@\"");
        let output = Command::new("sh")
            .current_dir(self.dir.path())
            .args(["-c", &script, "sh"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?} {output:?}");
        text
    }

    /// What a program says that must fail.
    #[track_caller]
    pub fn fail(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}\n{text}");
        text
    }

    /// A program that goes on.
    pub fn start(&self, arguments: &[&str]) -> Program {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("runs");
        let lines = lines(child.stderr.take().expect("its errors"));
        Program { child, lines }
    }

    /// What the names of the daemon's sockets begin with.
    pub fn socket_name(&self) -> String {
        let mut command = self.daemon.command();
        let output = command.args(["external", "env"]).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("is text");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("export IBSIM_SOCKNAME='"));
        let name = line.expect("a name").strip_suffix('\'').expect("its end");
        name.to_owned()
    }
}

fn lines(out: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            // Whether somebody listens or not, the pipe must not fill up.
            let _ = sender.send(line);
        }
    });
    lines
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    /// Waits until it is attached; one with `--host` must have given a GUID, or it says nothing.
    pub fn attached(&self) {
        self.line("attached as client");
    }

    fn line(&self, wanted: &str) {
        let mut seen = String::new();
        loop {
            match self.lines.recv() {
                Ok(line) if line.contains(wanted) => return,
                Ok(line) => {
                    seen.push_str(&line);
                    seen.push('\n');
                }
                Err(_) => panic!("ended without `{wanted}`:\n{seen}"),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// OpenSM on the host; killed when dropped.
#[derive(Debug)]
pub struct Opensm {
    program: Program,
    _dir: tempfile::TempDir,
}

impl Opensm {
    /// Starts it with arguments of its own, at a node by `host`.
    pub fn start(daemon: &Daemon, host: Option<&str>, arguments: &[&str]) -> Self {
        let programs = Programs::new(daemon);
        let host: Vec<&str> = host.into_iter().flat_map(|host| ["--host", host]).collect();
        let options = programs.dir.path().join("opensm.conf");
        // A standby asks every 10 s whether the master is alive, unless it is told otherwise.
        std::fs::write(&options, "sminfo_polling_timeout 250\n").expect("is written");
        let mut command = programs.command(&host);
        command
            // All it would write elsewhere stays here; each message of its log at once.
            .env("OSM_CACHE_DIR", programs.dir.path())
            .env("OSM_TMP_DIR", programs.dir.path())
            .args(["opensm", "-d2", "-f", "-", "-F"])
            .arg(options)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("runs");
        let lines = lines(child.stdout.take().expect("its output"));
        Self {
            program: Program { child, lines },
            _dir: programs.dir,
        }
    }

    /// Waits until its log has a line with this text.
    pub fn says(&self, text: &str) {
        self.program.line(text);
    }

    /// Waits until it says that the subnet is up.
    pub fn subnet_up(&self) {
        self.program.line("SUBNET UP");
    }
}
