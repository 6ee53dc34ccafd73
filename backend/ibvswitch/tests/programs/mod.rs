//! Programs of the host on a daemon's subnet.

// Each test program uses its part of this.
#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, pipe};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::wait_until;

use crate::daemon::Daemon;

/// Number of lines of a program that a failing test shows.
const SHOWN: usize = 100;

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

    /// Runs a program that must succeed, and returns its output. `arguments` may begin with those of `external run`.
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

    /// Runs a program that must fail, and returns its error text.
    #[track_caller]
    pub fn fail(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}\n{text}");
        text
    }

    /// `ibping -S` at a node, once it serves.
    ///
    /// Not before: a request that comes to libumad2sim before its program has said what it serves
    /// ends the program by a segmentation fault.
    pub fn ping_server(&self, host: &str) -> Program {
        // What it says of itself would stay in its buffer.
        let server = ["stdbuf", "-oL", "ibping", "-S", "-d"];
        let program = Program::start(self.command(&["--host", host, "--responder"]).args(server));
        program.says("starting to serve");
        program
    }

    /// Returns the beginning of the names of the daemon's sockets.
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

/// A running program; killed when dropped, which shows what it said where a test fails.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Receiver<String>,
    /// The last lines that were waited through.
    seen: RefCell<VecDeque<String>>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let (out, both) = pipe().expect("a pipe");
        let child = command
            .stdout(both.try_clone().expect("a second end"))
            .stderr(both)
            .spawn()
            .expect("runs");
        // The command would keep the pipe open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Whether somebody listens or not, the pipe must not fill up.
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines,
            seen: RefCell::default(),
        }
    }

    /// Waits for a line with this text.
    #[track_caller]
    pub fn says(&self, wanted: &str) {
        loop {
            let line = self.lines.recv();
            let line = line.unwrap_or_else(|_| panic!("ended without `{wanted}`"));
            let found = line.contains(wanted);
            self.note(line);
            if found {
                return;
            }
        }
    }

    fn note(&self, line: String) {
        let mut seen = self.seen.borrow_mut();
        if seen.len() == SHOWN {
            seen.pop_front();
        }
        seen.push_back(line);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).expect("is running");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let status = self.child.wait();
        if std::thread::panicking() {
            self.lines.iter().for_each(|line| self.note(line));
            let seen = self.seen.take();
            println!("a program that ended with {status:?} said last:");
            seen.iter().for_each(|line| println!("  {line}"));
        }
    }
}

/// OpenSM on the host; killed when dropped.
#[derive(Debug)]
pub struct Opensm {
    program: Program,
    dir: tempfile::TempDir,
}

impl Opensm {
    /// Starts it with arguments of its own, at a node by `host`.
    pub fn start(daemon: &Daemon, host: Option<&str>, arguments: &[&str]) -> Self {
        Self::start_with(daemon, host, arguments, "")
    }

    /// Starts it with options of its own, as its configuration file has them.
    pub fn with_options(daemon: &Daemon, options: &str) -> Self {
        Self::start_with(daemon, None, &[], options)
    }

    /// Starts it with both.
    pub fn start_with(daemon: &Daemon, host: Option<&str>, arguments: &[&str], more: &str) -> Self {
        let programs = Programs::new(daemon);
        let host: Vec<&str> = host.into_iter().flat_map(|host| ["--host", host]).collect();
        let options = programs.dir.path().join("opensm.conf");
        // A standby asks every 10 s whether the master is alive, unless it is told otherwise.
        let text = format!("sminfo_polling_timeout 250\n{more}");
        std::fs::write(&options, text).expect("is written");
        let mut command = programs.command(&host);
        command
            // All it would write elsewhere stays here; each message of its log at once.
            .env("OSM_CACHE_DIR", programs.dir.path())
            .env("OSM_TMP_DIR", programs.dir.path())
            .args(["opensm", "-d2", "-f", "-", "-F"])
            .arg(options)
            .args(arguments);
        Self {
            program: Program::start(&mut command),
            dir: programs.dir,
        }
    }

    /// Waits until its log has a line with this text.
    #[track_caller]
    pub fn says(&self, text: &str) {
        self.program.says(text);
    }

    /// Waits until it says that the subnet is up.
    #[track_caller]
    pub fn subnet_up(&self) {
        self.program.says("SUBNET UP");
    }

    /// The text of a file that it has written, once it ends with a line of this text.
    pub fn written(&self, name: &str, end: &str) -> String {
        let path = self.dir.path().join(name);
        let read = || std::fs::read_to_string(&path).unwrap_or_default();
        wait_until(name, || read().trim_end().ends_with(end));
        read()
    }

    /// Has it look at the whole subnet once more.
    pub fn sweep(&self) {
        self.program.signal(Signal::SIGHUP);
    }

    /// Stops OpenSM while `work` runs, and returns the result of `work`.
    pub fn paused<T>(&self, work: impl FnOnce() -> T) -> T {
        self.program.signal(Signal::SIGSTOP);
        let result = work();
        self.program.signal(Signal::SIGCONT);
        result
    }
}
