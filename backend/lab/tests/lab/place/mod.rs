//! Where a test has its labs.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use testing::wait_until;

/// A folder to work in, and one for the labs.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        // Sockets are in it, so the path has to be short.
        let dir = tempfile::Builder::new().prefix("lab-").tempdir().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    pub fn labs(&self) -> PathBuf {
        self.dir.path().join("labs")
    }

    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub fn lab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibvswitch-lab"));
        command
            .args(arguments)
            .current_dir(self.work())
            .env("IBVSWITCH_LAB_DIR", self.labs());
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.lab(arguments).output().unwrap()
    }

    /// Returns the output of a command that has to succeed.
    pub fn prints(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let told = told(&output);
        assert!(output.status.success(), "{arguments:?}: {told}");
        printed(&output)
    }

    /// Returns the message of a command that has to fail in the lab itself.
    pub fn fails(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(125), "{}", printed(&output));
        told(&output)
    }

    /// Folders of labs, whether they run or not.
    pub fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.labs()).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.is_dir()).collect()
    }

    /// Command lines of processes that have anything to do with the labs here.
    pub fn processes(&self) -> Vec<String> {
        let labs = self.labs().display().to_string();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|it| fs::read(it.path().join("cmdline")).ok());
        let lines = lines.map(|it| String::from_utf8_lossy(&it).replace('\0', " "));
        lines.filter(|it| it.contains(&labs)).collect()
    }

    /// The process of which the command line has this.
    pub fn process(&self, text: &str) -> Pid {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let labs = self.labs().display().to_string();
        let found = all.filter(|it| {
            let line = fs::read(it.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains(&labs) && line.contains(text)
        });
        let mut pids = found.filter_map(|it| it.file_name().to_str()?.parse().ok());
        Pid::from_raw(pids.next().expect("it runs"))
    }

    /// Waits until no process is left.
    pub fn await_nobody(&self) {
        wait_until("no process", || self.processes().is_empty());
    }
}

/// Ends the processes that a failed test leaves running.
impl Drop for Place {
    fn drop(&mut self) {
        for path in self.left() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // It fails where none of this name runs.
            let _ = self.lab(&["down", "--name", &name]).output();
        }
    }
}

pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn signal(lab: &Child, signal: Signal) {
    kill(Pid::from_raw(lab.id().cast_signed()), signal).unwrap();
}
