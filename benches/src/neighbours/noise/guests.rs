//! Two VMs of a lab, and the places of their threads on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::kernel::{self, Figures};
use super::{KERNEL, Policy};
use crate::{BenchError, Result};

/// Memory of a node.
const MEMORY: &str = "640M";
/// Round trips in one node by interrupts, from its HCA to the same. The time limit is for a guest that starves.
const ROUND_TRIPS: &str = "timeout 20 ibv_rc_pingpong -e -n 500 >/dev/null & await-port 18515 $! && \
                           timeout 20 ibv_rc_pingpong -e -n 500 localhost";
const NODES: [&str; 2] = ["n1", "n2"];

/// A lab of two nodes, which ends when it is dropped. The first is measured.
#[derive(Debug)]
pub(super) struct Guests {
    program: PathBuf,
    name: String,
    /// This program, where the nodes have it.
    kernel: PathBuf,
    qemus: [i32; 2],
}

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Noise(what.into())
}

impl Guests {
    /// Boots them, with a copy of this program in their directory.
    pub(super) fn boot(program: &Path, folder: &Path) -> Result<Self> {
        let lab = program.with_file_name("ibvswitch-lab");
        if !lab.is_file() {
            let lab = lab.display();
            return Err(failed(format!(
                "there is no {lab}; build it: cargo build --release -p ibvswitch -p ibvswitch-lab"
            )));
        }
        let kernel = folder.join("ibvswitch-bench");
        fs::copy(program, &kernel).map_err(BenchError::system("copy this program for guests"))?;
        let mut guests = Self {
            program: lab,
            name: format!("noise-{}", std::process::id()),
            kernel,
            qemus: [0; 2],
        };
        let mut up = Command::new(&guests.program);
        up.args([
            "up",
            "--name",
            &guests.name,
            "--nodes",
            "2",
            "--memory",
            MEMORY,
        ]);
        let up = up.current_dir(folder).stdout(Stdio::null()).status();
        let up = up.map_err(BenchError::system("start a lab"))?;
        if !up.success() {
            return Err(failed("the lab has not started, and said why"));
        }
        for (qemu, node) in guests.qemus.iter_mut().zip(NODES) {
            let found = qemu_of(&guests.name, node);
            *qemu = found.ok_or_else(|| failed(format!("no QEMU of {node} is found in /proc")))?;
        }
        Ok(guests)
    }

    fn exec(&self, node: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["exec", "--name", &self.name, node, "--"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn kernel(&self, node: &str, what: &str) -> Command {
        let mut command = self.exec(node);
        command.arg(&self.kernel).args([KERNEL, what]);
        command
    }

    /// Returns the time of a round trip in the first node by its HCA, in microseconds; `None` where that failed.
    pub(super) fn round_trip(&self) -> Result<Option<f64>> {
        let output = self.exec(NODES[0]).arg(ROUND_TRIPS).output();
        let output = output.map_err(BenchError::system("have a guest use its HCA"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text
            .lines()
            .find_map(|line| line.strip_suffix(" usec/iter"));
        let time = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        Ok(time.filter(|_| output.status.success()))
    }

    /// Runs the kernels in the first node.
    pub(super) fn measure(&self) -> Result<Figures> {
        let output = self.kernel(NODES[0], "measure").output();
        let output = output.map_err(BenchError::system("run the kernels in a guest"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        kernel::parse(&text)
            .ok_or_else(|| failed(format!("the kernels in the guest said {text:?}")))
    }

    /// Has the second node work, until the result is dropped.
    pub(super) fn burn(&self) -> Result<Burning> {
        let mut command = self.kernel(NODES[1], "burn");
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.map_err(BenchError::system("have a guest work"))?;
        Ok(Burning(child))
    }

    /// Puts all threads of both on these processors, those of the first by this policy and those of the second by
    /// that one.
    pub(super) fn place(&self, processors: &[usize], policies: [Policy; 2]) -> Result<()> {
        for (qemu, policy) in self.qemus.into_iter().zip(policies) {
            for (thread, is_processor) in threads(qemu)? {
                let mut set = CpuSet::new();
                for &processor in processors {
                    set.set(processor)
                        .map_err(BenchError::system("name a processor"))?;
                }
                sched_setaffinity(Pid::from_raw(thread), &set)
                    .map_err(BenchError::system("pin a thread of QEMU"))?;
                policy.set(thread, is_processor)?;
            }
        }
        Ok(())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        // Where it never started there is nothing to end.
        let mut down = Command::new(&self.program);
        let _ = down.args(["down", "--name", &self.name]).output();
    }
}

/// A node that works. Ctrl-C ends a command of a lab in its node, too.
#[derive(Debug)]
pub(super) struct Burning(Child);

impl Drop for Burning {
    fn drop(&mut self) {
        use nix::sys::signal::{Signal, kill};
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let _ = self.0.wait();
    }
}

/// The QEMU of a lab's node: its command line names the node and a socket in the lab's folder.
fn qemu_of(lab: &str, node: &str) -> Option<i32> {
    let folder = format!("/{lab}/{node}/");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(&folder) && line.contains("virtio-serial-pci")
    })
}

/// Threads of a QEMU, and whether each is a processor of its VM.
fn threads(qemu: i32) -> Result<Vec<(i32, bool)>> {
    let folder = format!("/proc/{qemu}/task");
    let entries = fs::read_dir(&folder).map_err(BenchError::system("read the threads of QEMU"))?;
    let thread = |entry: fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((
            entry.file_name().to_str()?.parse().ok()?,
            name.starts_with("CPU "),
        ))
    };
    Ok(entries.flatten().filter_map(thread).collect())
}
