//! ibsim and OpenSM as processes.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use fabric::Topology;
use wire::attribute::NodeType;

use super::{OpenSmError, system};

/// A process; it ends when this is dropped.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    began: Instant,
    /// Disconnected when the program's output has come to its end.
    ended: Option<Receiver<()>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts a program, to be listened to.
    ///
    /// # Errors
    /// [`OpenSmError::Missing`] where it is not there, [`OpenSmError::System`].
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self, OpenSmError> {
        let began = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OpenSmError::Missing { what: name },
            _ => system("start OpenSM and its simulator")(source),
        })?;
        Ok(Self {
            name,
            child,
            began,
            ended: None,
        })
    }

    /// Reads its output, line by line, until `look` finds a line. Output after that is read and forgotten, so that
    /// the program does not block. Once only.
    ///
    /// # Errors
    /// [`OpenSmError::Ended`] when the program says no more, [`OpenSmError::TooLong`] when `deadline`
    /// has passed.
    pub fn find<T: Send + 'static>(
        &mut self,
        deadline: Instant,
        mut look: impl FnMut(&str) -> Option<T> + Send + 'static,
    ) -> Result<T, OpenSmError> {
        let (sender, receiver) = mpsc::channel();
        if let Some(out) = self.child.stdout.take() {
            let (alive, ended) = mpsc::channel();
            self.ended = Some(ended);
            thread::spawn(move || {
                let _alive: Sender<()> = alive;
                let mut out = BufReader::new(out);
                let (mut line, mut last) = (Vec::new(), String::new());
                while out.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    let text = String::from_utf8_lossy(&line);
                    if let Some(found) = look(&text) {
                        // Who waited may have given up.
                        let _ = sender.send(Ok(found));
                        let _ = io::copy(&mut out, &mut io::sink());
                        return;
                    }
                    if !text.trim().is_empty() {
                        text.trim().clone_into(&mut last);
                    }
                    line.clear();
                }
                let _ = sender.send(Err(last));
            });
        }
        let ended = |said| OpenSmError::Ended {
            program: self.name,
            said,
        };
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(last)) => Err(ended(last)),
            Err(RecvTimeoutError::Disconnected) => Err(ended(String::new())),
            Err(RecvTimeoutError::Timeout) => Err(self.too_long(deadline)),
        }
    }

    /// Waits for the program to end by itself, which [`Program::find`] has listened to: its output
    /// ends with it.
    ///
    /// # Errors
    /// [`OpenSmError::TooLong`] when `deadline` has passed.
    pub fn wait(&mut self, deadline: Instant) -> Result<(), OpenSmError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = self.ended.as_ref().map(|ended| ended.recv_timeout(left));
        if ended == Some(Err(RecvTimeoutError::Timeout)) {
            return Err(self.too_long(deadline));
        }
        let ended = self.child.wait();
        ended.map_err(system("wait for a program")).map(drop)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn too_long(&self, deadline: Instant) -> OpenSmError {
        OpenSmError::TooLong {
            program: self.name,
            limit: deadline - self.began,
        }
    }
}

/// A subnet in ibsim; it ends when this is dropped.
#[derive(Debug)]
pub struct Ibsim {
    socket: String,
    _program: Program,
}

impl Ibsim {
    /// Has ibsim simulate the subnet in `file`, which has as many nodes and ports as `topology`;
    /// returns when clients can connect.
    ///
    /// # Errors
    /// [`OpenSmError`].
    pub fn start(topology: &Topology, file: &Path, deadline: Instant) -> Result<Self, OpenSmError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = format!("ibvswitch-ibsim-{}-{count}", std::process::id());
        let nodes = topology.nodes();
        let switches = nodes.iter().filter(|node| node.kind == NodeType::Switch);
        // It counts port 0 of every node.
        let ports: usize = nodes.iter().map(|node| usize::from(node.ports) + 1).sum();
        let mut command = Command::new("ibsim");
        command
            .env("IBSIM_SOCKNAME", &socket)
            .args(["-s", "-n", "-N", &nodes.len().to_string()])
            .args(["-S", &switches.count().to_string()])
            .args(["-P", &ports.to_string(), "-L", "49152"])
            .arg(file)
            .stderr(Stdio::null());
        let mut program = Program::start("ibsim", &mut command)?;
        program.find(deadline, |line| {
            line.contains("Network simulator ready").then_some(())
        })?;
        Ok(Self {
            socket,
            _program: program,
        })
    }

    /// The beginning of its sockets' names.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket
    }
}

/// OpenSM at the node `host` of the subnet at `socket`, with ibsim's libumad2sim and without arguments;
/// it leaves its files in `dir`.
#[must_use]
pub fn command(library: &Path, socket: &str, host: &str, dir: &Path) -> Command {
    // Where users' shells do not look.
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(OsString::from(":/usr/sbin"));
    let mut command = Command::new("opensm");
    command
        .env("PATH", path)
        .env("LD_PRELOAD", library)
        .env("IBSIM_SOCKNAME", socket)
        .env("SIM_HOST", host)
        .env("OSM_CACHE_DIR", dir)
        .env("OSM_TMP_DIR", dir)
        .current_dir(dir);
    command
}
