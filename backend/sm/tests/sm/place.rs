//! A subnet without a manager, and programs on it.

use std::io::{BufRead, BufReader, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::{Configuration, wait_until};

const LIBRARY: &str = "umad2sim/libumad2sim.so";
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

/// Two switches with two cables between them, and two adapters at each.
pub const NETWORK: &str = r#"
Switch 8 "left"
[1] "a"[1]
[2] "b"[1]
[3] "right"[3]
[4] "right"[4]

Switch 8 "right"
[1] "c"[1]
[2] "d"[1]
[3] "left"[3]
[4] "left"[4]

Hca 1 "a"
[1] "left"[1]

Hca 1 "b"
[1] "left"[2]

Hca 1 "c"
[1] "right"[1]

Hca 1 "d"
[1] "right"[2]
"#;

/// A subnet without a manager.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub socket: String,
    _side: Program,
}

fn socket() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("sm-test-{}-{count}", std::process::id())
}

impl Place {
    /// A subnet of Debian's ibsim.
    pub fn ibsim() -> Self {
        Self::ibsim_of(NETWORK)
    }

    /// The same with these nodes.
    pub fn ibsim_of(network: &str) -> Self {
        let (dir, socket) = (tempfile::tempdir().expect("a directory"), socket());
        let file = dir.path().join("net");
        std::fs::write(&file, network).expect("is written");
        let mut command = Command::new("ibsim");
        command.env("IBSIM_SOCKNAME", &socket);
        let side = Program::start(command.args(["-s", "-n"]).arg(file));
        let name = format!("@{socket}:ctl");
        let sockets = || std::fs::read_to_string("/proc/net/unix").expect("is readable");
        wait_until("ibsim", || sockets().contains(&name));
        Self {
            dir,
            socket,
            _side: side,
        }
    }

    /// A subnet of the daemon.
    pub fn daemon() -> Self {
        let nodes = Configuration::new();
        Self::of_daemon(
            nodes
                .hypervisor("hv1", ["a", "b"])
                .hypervisor("hv2", ["c", "d"]),
        )
    }

    /// A subnet of the daemon with virtual ports; `b` has a LID of its own.
    pub fn virtualized() -> Self {
        let nodes = Configuration::new().set("fabric.model", "virtualized");
        let nodes = nodes
            .hypervisor("hv1", ["a"])
            .vf("b")
            .key("address", "dedicated");
        Self::of_daemon(nodes.hypervisor("hv2", ["d"]))
    }

    fn of_daemon(nodes: Configuration) -> Self {
        let (dir, socket) = (tempfile::tempdir().expect("a directory"), socket());
        let file = dir.path().join("ibvswitch.toml");
        let config = nodes
            .set("sm.manager", "external")
            .set("external.socket", socket.as_str());
        std::fs::write(&file, config.to_string()).expect("is written");
        let mut command = Command::new(beside("ibvswitch"));
        let command = command.arg("run").arg("--config").arg(file);
        let side = Program::start(command.arg("--runtime-dir").arg(dir.path()));
        side.says("ready");
        Self {
            dir,
            socket,
            _side: side,
        }
    }

    /// Output of a command of the daemon, which has to succeed.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(beside("ibvswitch"));
        command.arg("--runtime-dir").arg(self.dir.path());
        text(command.args(arguments))
    }

    /// The manager with these arguments.
    pub fn manager(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(beside("ibvswitch-sm"));
        command
            .env_remove("RUST_LOG")
            .env("IBSIM_SOCKNAME", &self.socket)
            .current_dir(self.dir.path())
            .args(arguments);
        command
    }

    /// The manager at a MAD device, which libumad2sim has in the kernel's place.
    pub fn manager_at_device(&self) -> Command {
        let mut command = self.manager(&["--ibsim="]);
        command.env("LD_PRELOAD", library());
        command
    }

    /// A program of others with these arguments.
    pub fn other(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(arguments[0]);
        command
            .env("LD_PRELOAD", library())
            .env("IBSIM_SOCKNAME", &self.socket)
            .env("OSM_CACHE_DIR", self.dir.path())
            .env("OSM_TMP_DIR", self.dir.path())
            .current_dir(self.dir.path())
            .args(&arguments[1..]);
        command
    }

    /// Output of a program of others, which has to succeed.
    #[track_caller]
    pub fn output(&self, arguments: &[&str]) -> String {
        text(&mut self.other(arguments))
    }
}

fn library() -> PathBuf {
    let mut libraries = LIBRARIES
        .iter()
        .map(|folder| Path::new(folder).join(LIBRARY));
    let library = libraries.find(|path| path.exists());
    library.expect("libumad2sim0 is installed")
}

/// Errors of a program, which has to end with this status.
#[track_caller]
pub fn refused(command: &mut Command, status: i32) -> String {
    let output = command.stdin(Stdio::null()).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{command:?} {errors}");
    errors
}

/// Output of a program, which has to succeed.
#[track_caller]
pub fn text(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (errors, status) = (String::from_utf8_lossy(&output.stderr), output.status);
    assert!(status.success(), "{command:?} {status}\n{text}\n{errors}");
    text
}

/// A program that is built with this one.
pub fn beside(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ibvswitch-sm")).with_file_name(name);
    let built = path.is_file();
    assert!(
        built,
        "there is no {}; `cargo build` builds it",
        path.display()
    );
    path
}

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let (out, both) = pipe().expect("a pipe");
        let child = command
            .stdin(Stdio::null())
            .stdout(both.try_clone().expect("a second end"))
            .stderr(both)
            .spawn()
            .expect("runs");
        // The command would keep the pipe open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                println!("{line}");
                // Whether somebody listens or not, the pipe must not fill up.
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Waits for a line with this text.
    #[track_caller]
    pub fn says(&self, wanted: &str) -> String {
        let found = self.lines.iter().find(|line| line.contains(wanted));
        found.unwrap_or_else(|| panic!("ended without `{wanted}`"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).expect("is running");
    }

    /// Ends it as a service is ended; it has to succeed.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.child.wait().expect("ends").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended is as good as killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
