//! VMs of a lab, and the places of their threads on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::kernel::{self, Figures};
use super::{KERNEL, Policy};
use crate::{BenchError, Result};

/// Memory of a node, and with Open MPI.
const MEMORY: [&str; 2] = ["640M", "1280M"];
/// Debian packages of a node with MPI.
const PACKAGES: &str = "openmpi-bin,python3-mpi4py";
const ROUNDS: &str = include_str!("rounds.py");
/// Round trips in one node by interrupts, from its HCA to the same. The time limit is for a guest that starves.
const ROUND_TRIPS: &str = "timeout 20 ibv_rc_pingpong -e -n 500 >/dev/null & await-port 18515 $! && \
                           timeout 20 ibv_rc_pingpong -e -n 500 localhost";

/// A lab, which ends when it is dropped. The first node is measured, the last one works in the background, and one between
/// computes with the first.
#[derive(Debug)]
pub(super) struct Guests {
    program: PathBuf,
    name: String,
    /// This program, where the nodes have it.
    kernel: PathBuf,
    /// The process of each node.
    qemus: Vec<i32>,
}

/// Processes of MPI that do rounds when they are told to. They end with their command.
#[derive(Debug)]
pub(super) struct Rounds {
    _command: Running,
    /// Rounds that have been asked for.
    number: usize,
}

fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Noise(what.into())
}

impl Guests {
    /// Boots so many nodes that compute, and one more, with a copy of this program in their directory.
    pub(super) fn boot(program: &Path, folder: &Path, computing: usize) -> Result<Self> {
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
            qemus: Vec::new(),
        };
        let count = (computing + 1).to_string();
        let mut up = Command::new(&guests.program);
        up.args(["up", "--name", &guests.name, "--nodes", &count]);
        if computing == 1 {
            up.args(["--memory", MEMORY[0]]);
        } else {
            up.args(["--memory", MEMORY[1], "--packages", PACKAGES]);
            fs::write(folder.join("rounds.py"), ROUNDS)
                .map_err(BenchError::system("write a program for guests"))?;
        }
        let up = up.current_dir(folder).stdout(Stdio::null()).status();
        let up = up.map_err(BenchError::system("start a lab"))?;
        if !up.success() {
            return Err(failed("the lab has not started, and said why"));
        }
        for node in (0..=computing).map(name) {
            let found = qemu_of(&guests.name, &node);
            let found = found.ok_or_else(|| failed(format!("no QEMU of {node} is found in /proc")));
            guests.qemus.push(found?);
        }
        Ok(guests)
    }

    fn exec(&self, node: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["exec", "--name", &self.name, &name(node), "--"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn kernel(&self, node: usize, what: &str) -> Command {
        let mut command = self.exec(node);
        command.arg(&self.kernel).args([KERNEL, what]);
        command
    }

    /// Returns the time of a round trip in the first node by its HCA, in microseconds; `None` where that failed.
    pub(super) fn round_trip(&self) -> Result<Option<f64>> {
        let output = self.exec(0).arg(ROUND_TRIPS).output();
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
        let output = self.kernel(0, "measure").output();
        let output = output.map_err(BenchError::system("run the kernels in a guest"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        kernel::parse(&text)
            .ok_or_else(|| failed(format!("the kernels in the guest said {text:?}")))
    }

    /// Has the last node work, until the result is dropped.
    pub(super) fn burn(&self) -> Result<Running> {
        Running::start(&mut self.kernel(self.qemus.len() - 1, "burn"))
    }

    /// Starts a process of MPI in each node that computes, and has them do the first rounds.
    pub(super) fn compute(&self) -> Result<Rounds> {
        let folder = self.kernel.parent().unwrap_or(Path::new("/"));
        let line = format!(
            "ssh n2 mkfifo /root/go && mkfifo /root/go /root/time && exec mpirun --mca pml ucx -H n1,n2 python3 {}",
            folder.join("rounds.py").display()
        );
        let mut rounds = Rounds {
            _command: Running::start(self.exec(0).arg(line))?,
            number: 0,
        };
        match self.round(&mut rounds)? {
            Some(_) => Ok(rounds),
            None => Err(failed("the processes of Open MPI do not start in 60 s")),
        }
    }

    /// Returns the time of a round, in microseconds; `None` where it failed.
    pub(super) fn round(&self, rounds: &mut Rounds) -> Result<Option<f64>> {
        rounds.number += 1;
        let number = rounds.number;
        let go = format!(
            "until [ -p /root/go ]; do usleep 100000; done; timeout 60 sh -c 'echo {number} >/root/go'"
        );
        let begun = Running::start(self.exec(1).arg(go))?;
        let line = format!(
            "until [ -p /root/time ]; do usleep 100000; done; timeout 60 sh -c 'echo {number} >/root/go; \
             while read -r it time </root/time; do [ $it != {number} ] || {{ echo $time; break; }}; done'"
        );
        let output = self.exec(0).arg(line).output();
        let output = output.map_err(BenchError::system("have guests compute"))?;
        drop(begun);
        Ok(String::from_utf8_lossy(&output.stdout).trim().parse().ok())
    }

    /// Puts the threads of all on processors: each of the first nodes on the one of these that has its number, the last on the
    /// first, or all of them on all. The last has its own policy, the second one.
    pub(super) fn place(
        &self,
        own: Option<&[usize]>,
        all: &[usize],
        [computing, background]: [Policy; 2],
    ) -> Result<()> {
        let last = self.qemus.len() - 1;
        for (node, &qemu) in self.qemus.iter().enumerate() {
            let policy = if node == last { background } else { computing };
            let processors = match own {
                Some(own) => &own[node % last..=node % last],
                None => all,
            };
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

/// A command in a node. Ctrl-C ends it in its node, too.
#[derive(Debug)]
pub(super) struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdout(Stdio::null()).spawn();
        child
            .map(Self)
            .map_err(BenchError::system("have a guest work"))
    }
}

impl Drop for Running {
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
