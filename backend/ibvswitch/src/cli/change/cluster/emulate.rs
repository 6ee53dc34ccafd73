//! `ibvswitch cluster emulate`

use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::{Cloud, cloud};
use crate::cli::change::{ChangeArgs, File, have_daemon_read};
use crate::cli::upgrade;
use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::Client;
use config::cluster::request::{ClusterRequest, Needs};

/// Time limit of a change with many hosts, in seconds.
const CHANGE_TIMEOUT: f64 = 600.0;
/// Time limit for VMs to become Active.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(600);
/// Time between two questions, and resolution of the figures: the control socket has no event for a port that becomes Active.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `cluster emulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
A daemon of its own, with hosts that are none, gets requests for clusters of 1 to 8 VMs, all at the
same time, and carries them out in changes of --batch requests. No guests start; all else is real.")]
pub(in crate::cli) struct EmulateArgs {
    /// Number of hosts.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=4000))]
    hosts: u16,
    /// Number of VMs that are requested.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=8000))]
    vms: u16,
    /// Hosts at each leaf switch.
    #[arg(long, value_name = "NUMBER", default_value_t = 36, value_parser = clap::value_parser!(u16).range(1..=200))]
    per_leaf: u16,
    /// Requests in one change; all of them by default.
    #[arg(long, value_name = "NUMBER")]
    batch: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Measured {
    hosts: u16,
    switches: usize,
    requests: usize,
    refused: usize,
    vms: usize,
    changes: usize,
    /// Seconds from the burst until a VM's port was Active.
    active_median_s: f64,
    active_p99_s: f64,
    active_longest_s: f64,
    /// Seconds of placement, for all requests.
    placement_s: f64,
    /// Seconds of changes: reading the configuration, taking the daemon's place, the first sweep.
    changes_s: f64,
    /// Subnet management packets of the manager, all changes together.
    smps: u64,
    /// Highest resident memory of the daemon, in bytes.
    memory: u64,
}

/// A daemon, and its directory, that end with this.
struct Emulated {
    daemon: Child,
    dir: PathBuf,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub(super) fn run(args: &EmulateArgs) -> Result<(), CliError> {
    let dir = std::env::temp_dir().join(format!("ibvswitch-emulate-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let file = dir.join("cloud.toml");
    let (text, switches) = hosts(args);
    fs::write(&file, text)?;
    let mut emulated = Emulated {
        daemon: start(&dir, &file)?,
        dir,
    };
    let measured = burst(args, switches, &mut emulated, &file)?;
    if args.json {
        return print_json(&measured);
    }
    let Measured {
        hosts,
        switches,
        requests,
        refused,
        vms,
        changes,
        active_median_s,
        active_p99_s,
        active_longest_s,
        placement_s,
        changes_s,
        smps,
        memory,
    } = measured;
    print(format!(
        "{hosts} hosts at {switches} switches; {requests} requests for {vms} VMs in {changes} changes, {refused} refused\n\
         time to Active: median {active_median_s:.2} s, 99 % {active_p99_s:.2} s, longest {active_longest_s:.2} s\n\
         placement {placement_s:.2} s, changes {changes_s:.2} s, {smps} packets of the subnet manager, {} MiB of memory\n",
        memory >> 20
    ))
}

/// The configuration of two levels of switches with hosts, and the number of switches.
fn hosts(args: &EmulateArgs) -> (String, usize) {
    let leaves = args.hosts.div_ceil(args.per_leaf);
    let spines = if leaves > 1 {
        leaves.div_ceil(2).min(18)
    } else {
        0
    };
    // Writing to a string does not fail.
    let mut text = "[fabric]\nmtu = 4096\n".to_owned();
    for leaf in 0..leaves {
        let _ = writeln!(text, "[[switch]]\nname = \"leaf{leaf}\"");
    }
    for spine in 0..spines {
        let _ = writeln!(text, "[[switch]]\nname = \"spine{spine}\"");
        for leaf in 0..leaves {
            let _ = writeln!(
                text,
                "[[link]]\nfrom = \"leaf{leaf}\"\nto = \"spine{spine}\""
            );
        }
    }
    for host in 0..args.hosts {
        let leaf = host / args.per_leaf;
        let _ = writeln!(
            text,
            "[[hypervisor]]\nname = \"host{host}\"\nswitch = \"leaf{leaf}\"\nprocessors = 8"
        );
    }
    (text, usize::from(leaves + spines))
}

fn start(dir: &Path, file: &Path) -> Result<Child, CliError> {
    let mut daemon = Command::new(std::env::current_exe()?)
        .arg("--runtime-dir")
        .arg(dir)
        .arg("--config")
        .arg(file)
        .arg("run")
        .env("RUST_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = daemon.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line == "ready\n" {
        return Ok(daemon);
    }
    let _ = daemon.kill();
    let _ = daemon.wait();
    Err(CliError::Failed(
        "the emulated daemon does not start; its messages are above".to_owned(),
    ))
}

/// Clusters of 1 to 8 VMs, with 2 processors each.
fn requests(vms: u16) -> Vec<ClusterRequest> {
    let mut left = u64::from(vms);
    let mut all = Vec::new();
    while left > 0 {
        let vms = (all.len() as u64 * 5 % 8 + 1).min(left);
        left -= vms;
        all.push(ClusterRequest::Create {
            name: format!("tenant{}", all.len()),
            vms,
            needs: Needs {
                processors: Some(2),
                ..Needs::default()
            },
            exclusive_switches: false,
            set: Vec::new(),
        });
    }
    all
}

fn burst(
    args: &EmulateArgs,
    switches: usize,
    emulated: &mut Emulated,
    file: &Path,
) -> Result<Measured, CliError> {
    let requests = requests(args.vms);
    let mut measured = Measured {
        hosts: args.hosts,
        switches,
        requests: requests.len(),
        ..Measured::default()
    };
    let change = ChangeArgs {
        dry_run: false,
        within: CHANGE_TIMEOUT,
        let_fail: Vec::new(),
        json: false,
    };
    let mut times: Vec<f64> = Vec::new();
    let began = Instant::now();
    for batch in requests.chunks(args.batch.unwrap_or(requests.len()).max(1)) {
        let change_began = Instant::now();
        let source = SourceArgs {
            config: Some(file.to_owned()),
            runtime_dir: Some(emulated.dir.clone()),
        };
        let file = File::of(source)?;
        let (mut cloud, _): (Cloud, _) = cloud(&file.source.load()?, &file.text)?;
        let placing = Instant::now();
        let mut new = Vec::new();
        for request in batch {
            match cloud.apply(request) {
                Ok(shown) => new.extend(shown.added),
                Err(_) => measured.refused += 1,
            }
        }
        measured.placement_s += placing.elapsed().as_secs_f64();
        let text = cloud.text();
        let after = file.source.parse("the emulated hosts", &text)?;
        have_daemon_read(&file, &after, &text, &change)?;
        let socket = after.control_socket();
        let waiting = Instant::now();
        let smps = loop {
            let status = upgrade::status(&mut Client::connect(&socket)?)?;
            let is_active = |vf: &&crate::control::VfStatus| vf.state == "Active";
            let active = status.vfs.iter().filter(is_active).count();
            if active == status.vfs.len() {
                break status.fabric.smps;
            }
            if waiting.elapsed() > ACTIVE_TIMEOUT {
                let left = status.vfs.len() - active;
                let what = format!("{left} VMs are not Active after 10 minutes");
                return Err(CliError::Failed(what));
            }
            std::thread::sleep(ASK_INTERVAL);
        };
        measured.changes_s += change_began.elapsed().as_secs_f64();
        measured.smps += smps;
        measured.changes += 1;
        measured.vms += new.len();
        times.extend(new.iter().map(|_| began.elapsed().as_secs_f64()));
    }
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).or(times.last());
    measured.active_median_s = at(50).copied().unwrap_or_default();
    measured.active_p99_s = at(99).copied().unwrap_or_default();
    measured.active_longest_s = times.last().copied().unwrap_or_default();
    measured.memory = peak_memory(emulated.daemon.id());
    Ok(measured)
}

/// The highest resident memory of a process, in bytes.
fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = { status.lines() }.find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|number| number.trim().parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}
