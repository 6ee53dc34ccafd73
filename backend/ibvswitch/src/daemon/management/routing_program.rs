//! A program that computes forwarding tables: the subnet on its standard input, the tables on its standard output.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::{Value, json};
use subnet_manager::Graph;
use subnet_manager::routing::{DUMP_MAX, TableDump, TableSource};

/// Version of the description of a subnet.
const VERSION: u32 = 1;
/// The most bytes of its standard error that are kept.
const ERROR_MAX: u64 = 4096;

/// The program with its arguments, and its time limit.
#[derive(Debug)]
pub(super) struct RoutingProgram {
    pub(super) command: Vec<String>,
    pub(super) limit: Duration,
}

impl TableSource for RoutingProgram {
    fn engine(&self) -> &'static str {
        "external"
    }

    fn tables(&self, graph: &Graph) -> Result<Arc<TableDump>, String> {
        let text = self.run(&describe(graph).to_string());
        let text = text.map_err(|why| format!("{} {why}", self.name()))?;
        let dump = TableDump::parse(&text).map_err(|mistakes| {
            let first = mistakes
                .first()
                .map(|mistake| (Some(mistake.line), &mistake.what));
            let (line, what) = first.unwrap_or((None, &text));
            format!("{}: {what}", self.place(line))
        });
        Ok(Arc::new(dump?))
    }

    fn place(&self, line: Option<usize>) -> String {
        match line {
            Some(line) => format!("{}, line {line} of its output", self.name()),
            None => format!("{}, its output", self.name()),
        }
    }
}

/// Ends a program that is no longer waited for.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RoutingProgram {
    fn name(&self) -> &str {
        self.command.first().map_or("", String::as_str)
    }

    /// The program's output, once it has ended well.
    fn run(&self, input: &str) -> Result<String, String> {
        let deadline = Instant::now() + self.limit;
        let late = || {
            format!(
                "has not ended after {} s and was killed; make it faster, or raise sm.routing_timeout",
                self.limit.as_secs()
            )
        };
        let child = Command::new(self.name())
            .args(self.command.iter().skip(1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.map_err(|error| {
            format!("cannot be started ({error}); check sm.routing_program, and the folders that the sandbox admits")
        })?;
        let mut running = Running(child);
        let child = &mut running.0;
        if let Some(mut pipe) = child.stdin.take() {
            let input = input.to_owned();
            // A program need not read everything.
            thread::spawn(move || pipe.write_all(input.as_bytes()));
        }
        let errors = child.stderr.take().map(|pipe| gather(pipe, ERROR_MAX));
        let output = child
            .stdout
            .take()
            .map(|pipe| gather(pipe, DUMP_MAX as u64));
        let left = deadline.saturating_duration_since(Instant::now());
        let output = output.and_then(|output| output.recv_timeout(left).ok());
        let output = output.ok_or_else(late)?;
        if output.len() >= DUMP_MAX {
            return Err(format!(
                "has written {DUMP_MAX} bytes or more; write one table for each switch"
            ));
        }
        let status = ended(child, deadline).ok_or_else(late)?;
        if !status.success() {
            let left = deadline.saturating_duration_since(Instant::now());
            let errors = errors.and_then(|errors| errors.recv_timeout(left).ok());
            let errors = errors.unwrap_or_default();
            let errors = String::from_utf8_lossy(&errors);
            let last = errors.trim_end().lines().next_back().unwrap_or("nothing");
            return Err(format!(
                "ended with {status}; its last error: {}",
                last.escape_debug()
            ));
        }
        let is_text = |_| "has written what is no UTF-8; write text".to_owned();
        String::from_utf8(output).map_err(is_text)
    }
}

/// Reads a pipe to its end, and tells the first bytes.
fn gather(pipe: impl Read + Send + 'static, max: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Of a pipe that breaks the beginning counts.
        let _ = pipe.take(max).read_to_end(&mut bytes);
        // Nobody waits for output that is late.
        let _ = sender.send(bytes);
    });
    receiver
}

/// The way in which a program has ended by then, if it has.
fn ended(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let pid = Pid::from_raw(child.id().try_into().ok()?);
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
        // Nobody waits for a program that is late.
        let _ = sender.send(());
    });
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).ok()?;
    child.wait().ok()
}

/// The subnet in version 1 of `docs/users/routing-programs.md`.
fn describe(graph: &Graph) -> Value {
    let guid = |switch: usize| format!("{:#}", graph.switches[switch].guid);
    let switches = graph.switches.iter().map(|switch| {
        let links = switch.trunks.iter().map(
            |trunk| json!({"port": trunk.port, "to": guid(trunk.to), "to_port": trunk.to_port}),
        );
        json!({
            "guid": format!("{:#}", switch.guid),
            "ports": switch.ports,
            "links": links.collect::<Vec<_>>(),
        })
    });
    let lids = graph.endpoints.iter().map(|endpoint| {
        json!({
            "lid": endpoint.lid.value(),
            "guid": format!("{:#}", endpoint.guid),
            "switch": guid(endpoint.switch),
            "port": endpoint.port,
        })
    });
    json!({
        "version": VERSION,
        "switches": switches.collect::<Vec<_>>(),
        "lids": lids.collect::<Vec<_>>(),
    })
}
