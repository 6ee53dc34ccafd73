//! The `ibvswitch` program under test.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::bound::bound;
use crate::debian::apt::run;
use crate::error::{Doing, Error, Result, tail};

/// Time limit until its sockets listen.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for it to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A running `ibvswitch run`. Dropping it kills it and waits for it.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    runtime_dir: PathBuf,
    config: Option<PathBuf>,
    child: Child,
    /// The daemon in front, to which guests connect if their data path is passed through.
    front: Option<Box<Front>>,
}

/// A daemon before another: its VFs are passed through to VFs of the same names.
#[derive(Debug)]
struct Front {
    daemon: Daemon,
    vfs: Vec<String>,
}

/// The program: `$IBVSWITCH_BIN`, or the one built beside this one.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = env::var_os("IBVSWITCH_BIN") {
        return Ok(program.into());
    }
    let own = env::current_exe().doing("find this program")?;
    // A test lies in deps/, one below the programs.
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("ibvswitch"));
    found.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        Error::Host(format!(
            "no program ibvswitch near {}; build it (cargo build --release -p ibvswitch) and name \
             it in IBVSWITCH_BIN, or use scripts/demo and scripts/test, which do both",
            own.display()
        ))
    })
}

impl Daemon {
    /// Starts it with a configuration file, or with its built-in configuration, and waits until
    /// guests can be started. Sockets and log go to `runtime_dir`.
    pub fn start(config: Option<&Path>, runtime_dir: &Path) -> Result<Self> {
        Self::start_with(&["run"], config, runtime_dir)
    }

    /// The same, with a keeper.
    pub fn start_kept(config: Option<&Path>, runtime_dir: &Path) -> Result<Self> {
        Self::start_with(&["run", "--keeper"], config, runtime_dir)
    }

    fn start_with(arguments: &[&str], config: Option<&Path>, runtime_dir: &Path) -> Result<Self> {
        let program = program()?;
        let log_path = runtime_dir.join("ibvswitch.log");
        let log = File::options().create(true).append(true).open(&log_path);
        let mut command = command(&program, runtime_dir, config);
        command.args(arguments);
        let mut child = bound(&command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.at("create", &log_path)?)
            .spawn()
            .at("start", &program)?;
        let stdout = child.stdout.take();
        let daemon = Self {
            program,
            runtime_dir: runtime_dir.to_owned(),
            config: config.map(Path::to_owned),
            child,
            front: None,
        };
        let ready = stdout.is_some_and(is_ready);
        if !ready {
            let log = daemon.log();
            return Err(Error::Host(format!(
                "ibvswitch did not get ready\n{}",
                tail(&log, 20)
            )));
        }
        Ok(daemon)
    }

    /// Names of its VFs that have an InfiniBand port.
    pub fn vfs(&self) -> Result<Vec<String>> {
        let status = self.status()?;
        let vfs = status["vfs"].as_array().into_iter().flatten();
        let named = vfs
            .filter(|vf| vf["ethernet"].is_null())
            .filter_map(|vf| Some(vf["name"].as_str()?.to_owned()));
        Ok(named.collect())
    }

    /// The configuration of a daemon with VFs of these names, which are passed through to VFs of this one, with
    /// this isolation, and with all the rights that they have there.
    pub fn passed<S: AsRef<str>>(&self, vfs: &[S], isolation: &str) -> String {
        let vfs = vfs.iter().map(AsRef::as_ref).map(|name| {
            let socket = self.runtime_dir.join(format!("{name}.sock"));
            let device = socket.display();
            format!(
                "[[hypervisor.vf]]\nname = \"{name}\"\ndevice = \"unix:{device}\"\n\
                 isolation = \"{isolation}\"\nsmp = \"fabric\"\n"
            )
        });
        let vfs: String = vfs.collect();
        format!("[[hypervisor]]\nname = \"hw\"\n{vfs}")
    }

    /// Has guests come by `daemon`, which has VFs of these names that are passed through to those of this one.
    pub fn behind(mut self, daemon: Self, vfs: Vec<String>) -> Self {
        self.front = Some(Box::new(Front { daemon, vfs }));
        self
    }

    /// The value of QEMU's `-device` for the VF `name`, on the PCI bus `bus` if one is named.
    pub fn device(&self, name: &str, bus: Option<&str>) -> Result<String> {
        if let Some(front) = &self.front
            && front.vfs.iter().any(|vf| vf == name)
        {
            return front.daemon.device(name, bus);
        }
        let mut command = self.command();
        command.args(["vf", "qemu-args", name, "--device-only", "--json"]);
        if let Some(bus) = bus {
            command.args(["--bus", bus]);
        }
        let text = run(&mut command)?;
        let words: Vec<String> = serde_json::from_str(&text).unwrap_or_default();
        match <[String; 2]>::try_from(words) {
            Ok([option, device]) if option == "-device" => Ok(device),
            _ => Err(Error::Output {
                what: "-device argument".into(),
                text,
            }),
        }
    }

    /// Arguments for QEMU, from `-device` on, of a VM at the VF `name` that can move while it runs; or, where
    /// it `receives` one, of a QEMU that waits for it.
    pub fn migratable(&self, name: &str, receives: bool) -> Result<Vec<String>> {
        let kind = if receives {
            "--receive"
        } else {
            "--migratable"
        };
        let mut command = self.command();
        command.args(["vf", "qemu-args", name, "--device-only", "--json", kind]);
        let text = run(&mut command)?;
        serde_json::from_str(&text).map_err(|_| Error::Output {
            what: "arguments".into(),
            text,
        })
    }

    /// Arguments for QEMU of an Ethernet card at the port `name`.
    pub fn card(&self, name: &str) -> Result<Vec<String>> {
        let text = self.ask(&["vf", "qemu-args", name, "--device-only", "--json"])?;
        serde_json::from_str(&text).map_err(|_| Error::Output {
            what: "arguments".into(),
            text,
        })
    }

    /// Returns the output of `ibvswitch status --json`.
    pub fn status(&self) -> Result<serde_json::Value> {
        let text = run(self.command().args(["status", "--json"]))?;
        serde_json::from_str(&text).map_err(|_| Error::Output {
            what: "JSON".into(),
            text,
        })
    }

    /// Its control socket.
    pub fn control(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }

    /// Returns the output of a command of `ibvswitch`, which has to succeed.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        run(self.command().args(arguments))
    }

    /// A command of `ibvswitch` on this daemon, to be started.
    pub fn command(&self) -> Command {
        command(&self.program, &self.runtime_dir, self.config.as_deref())
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.runtime_dir.join("ibvswitch.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the daemon that has the sockets, which is not this process where there is a keeper, and
    /// does not wait.
    pub fn kill_served(&self) -> Result<()> {
        let lock = self.runtime_dir.join("ibvswitch.lock");
        let pid = std::fs::read_to_string(&lock).at("read", &lock)?;
        let pid = pid.trim().parse().map_err(|_| Error::Output {
            what: "number of a process".into(),
            text: pid.clone(),
        })?;
        kill(Pid::from_raw(pid), Signal::SIGKILL).doing("send SIGKILL to ibvswitch")
    }

    /// Kills it with SIGKILL and waits until it is gone, and so what is before it.
    pub fn kill(&mut self) {
        if let Some(front) = &mut self.front {
            front.daemon.kill();
        }
        // Neither fails but for a process that is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it as systemd would, with SIGTERM; gives its exit status.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGTERM).doing("send SIGTERM to ibvswitch")?;
        // The wait ends on its own or by the kill below, so the thread does not outlive either.
        let (sender, receiver) = mpsc::channel();
        let child = &mut self.child;
        let status = thread::scope(|scope| {
            scope.spawn(move || {
                let _ = sender.send(child.wait());
            });
            let status = receiver.recv_timeout(END_LIMIT);
            if status.is_err() {
                let _ = kill(pid, Signal::SIGKILL);
            }
            status
        });
        match status {
            Ok(status) => status.doing("wait for ibvswitch"),
            Err(_) => Err(Error::Host(format!(
                "ibvswitch did not end within {END_LIMIT:?} of SIGTERM"
            ))),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Checks a configuration, before anything is fetched or started for it.
///
/// # Errors
/// Its mistakes, as `ibvswitch config check` prints them.
pub fn check(config: &Path) -> Result<()> {
    let mut command = Command::new(program()?);
    command.args(["config", "check", "--config"]).arg(config);
    said(&mut command)
}

/// Runs a command of ibvswitch whose output is of no interest; its error is the message on standard error.
pub(crate) fn said(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .doing("start ibvswitch")?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim_end().trim_start_matches("ibvswitch: ");
    Err(Error::Host(text.to_owned()))
}

fn command(program: &Path, runtime_dir: &Path, config: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    command.arg("--runtime-dir").arg(runtime_dir);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command
}

/// Whether the line `ready` comes out in time. The reading goes on in a thread of its own, so
/// that the daemon never finds its standard output closed.
fn is_ready(stdout: ChildStdout) -> bool {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout)
            .lines()
            .map_while(std::io::Result::ok)
        {
            if line == "ready" {
                let _ = sender.send(());
            }
        }
    });
    receiver.recv_timeout(READY_LIMIT).is_ok()
}
