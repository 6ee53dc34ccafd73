//! The subnet administration: how many PathRecords a second, and how long each takes.
//!
//! Askers attach to the daemon's subnet as a program of the host does, by the client protocol of
//! ibsim, and each asks for one path after the other, the next when the answer has come: the
//! experiment of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets*. Who answers is the
//! embedded manager or an unmodified OpenSM, attached to a daemon with the same nodes over the same
//! kind of socket.
//!
//! What the sockets allow at all is measured along with it: the same askers, and at the other end a
//! thread that sends back what it gets. So is what OpenSM answers where ibsim is in the daemon's place.

mod asker;
mod in_process;

use std::time::{Duration, Instant};

use config::{Config, Directories};
use ibvswitch::daemon::life::abort::Abort;
use ibvswitch::daemon::life::assembly::Assembly;
use ibvswitch::daemon::life::sockets::{ControlSocket, Lock, Sockets};
use simulator::opensm::{Ibsim, LIMIT, netlist};
use tempfile::TempDir;
use testing::Configuration;
use topologies::{FatTree, Hosts};
use wire::Guid;
use wire::attribute::NodeType;

use crate::management::opensm;
use crate::{BenchError, Context, Effort, Measurement, Reference, Result};
use asker::{Program, Seen, ask};

/// Askers at the same time, as in the paper.
const ASKERS: [usize; 3] = [1, 121, 961];
/// The nodes: hypervisors, and VFs of each.
const HYPERVISORS: usize = 16;
const FUNCTIONS: usize = 4;
/// As many adapters for ibsim.
const TREE: &str = "XGFT(2;8,8;8,1)";
/// Where the askers are.
const NODE: &str = "vm0-0";

fn wrong(what: impl Into<String>) -> BenchError {
    BenchError::Subnet(what.into())
}

/// A daemon in this process.
struct Daemon {
    config: Config,
    socket: String,
    _assembly: Assembly,
    _control: ControlSocket,
    _lock: Lock,
    _dir: TempDir,
}

impl Daemon {
    fn start(manager: &str) -> Result<Self> {
        let dir =
            tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
        let socket = format!("bench-{manager}-{}", std::process::id());
        let mut text = Configuration::new()
            .set("log", "error")
            .set("sm.manager", manager)
            .set("external.socket", socket.as_str());
        for hypervisor in 0..HYPERVISORS {
            text = text.hypervisor(&format!("hv{hypervisor}"), []);
            for vf in 0..FUNCTIONS {
                text = text.vf(&format!("vm{hypervisor}-{vf}"));
            }
        }
        let dirs = Directories {
            chosen: Some(dir.path()),
            fallback: dir.path(),
        };
        let config = Config::parse("the bench's", &text.to_string(), dirs)?;
        let Sockets { control, vfs, lock } = Sockets::create(&config, None)?;
        let abort = Abort::new().map_err(BenchError::system("create an event descriptor"))?;
        Ok(Self {
            _assembly: Assembly::start(&config, vfs, None, None, &abort)?,
            config,
            socket,
            _control: control,
            _lock: lock,
            _dir: dir,
        })
    }

    fn guids(&self) -> Vec<Guid> {
        self.config.vfs().map(|(_, vf)| vf.model.guid).collect()
    }
}

/// Has the askers ask whoever answers to `program`.
fn measure(program: &Program, guids: &[Guid], time: Duration) -> Result<[Seen; 3]> {
    // Warm caches, and on the other side threads that are there.
    ask(program, guids, 16, time / 8)?;
    let mut all = Vec::new();
    for askers in ASKERS {
        all.push(ask(program, guids, askers, time)?);
    }
    let wrong = |_| wrong("a measurement is missing");
    <[Seen; 3]>::try_from(all).map_err(wrong)
}

/// Has the askers ask OpenSM over ibsim, in a fat-tree of as many adapters as the daemon has VFs.
fn over_ibsim(time: Duration) -> Result<[Seen; 3]> {
    let tree: FatTree = TREE.parse().map_err(|error| wrong(format!("{error}")))?;
    let topology = tree.topology(Hosts::Adapters);
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let file = dir.path().join("tree.net");
    std::fs::write(&file, netlist::write(&topology))
        .map_err(BenchError::system("write a file of nodes"))?;
    let nodes = topology.nodes().iter();
    let adapters = nodes.filter(|node| node.kind == NodeType::ChannelAdapter);
    // To ibsim, a port's GUID follows its node's.
    let (names, ports): (Vec<String>, Vec<Guid>) = adapters
        .map(|node| (netlist::name(node), Guid::new(node.guid.value() + 1)))
        .unzip();
    let [asker, .., manager] = &names[..] else {
        return Err(wrong("a fat-tree without hosts"));
    };
    let ibsim = Ibsim::start(&topology, &file, Instant::now() + LIMIT)?;
    let opensm = opensm::start(ibsim.socket(), manager, dir.path(), &[])?;
    let seen = measure(&Program::attach(ibsim.socket(), asker)?, &ports, time)?;
    drop(opensm);
    Ok(seen)
}

/// Names of results by number of askers: rate, mean time, 99th percentile.
const NAMES: [[&str; 3]; 3] = [
    ["sa_rate_1", "sa_mean_1_us", "sa_p99_1_us"],
    ["sa_rate_121", "sa_mean_121_us", "sa_p99_121_us"],
    ["sa_rate_961", "sa_mean_961_us", "sa_p99_961_us"],
];

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let smoke = context.effort == Effort::SMOKE;
    let time = Duration::from_millis(if smoke { 50 } else { 3000 });
    let daemon = Daemon::start("embedded")?;
    let guids = daemon.guids();
    let ours = measure(&Program::attach(&daemon.socket, NODE)?, &guids, time)?;
    drop(daemon);
    let daemon = Daemon::start("external")?;
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let opensm = opensm::start(&daemon.socket, "", dir.path(), &[])?;
    let theirs = measure(&Program::attach(&daemon.socket, NODE)?, &guids, time)?;
    drop((opensm, daemon));
    let simulated = over_ibsim(time)?;
    let (program, server) = Program::echo()?;
    let echoed = measure(&program, &guids, time)?;
    drop((program, server));
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut results = Vec::new();
    for (names, (ours, theirs)) in NAMES.iter().zip(ours.iter().zip(&theirs)) {
        let values = [
            (ours.rate, theirs.rate, "1/s", "OpenSM, 1/s"),
            (micros(ours.mean), micros(theirs.mean), "us", "OpenSM, us"),
            (micros(ours.p99), micros(theirs.p99), "us", "OpenSM, us"),
        ];
        for (&name, (value, reference, unit, other)) in names.iter().zip(values) {
            results.push(Measurement {
                name,
                value,
                unit,
                reference: Some(Reference {
                    name: other,
                    value: reference,
                }),
            });
        }
    }
    let best = |seen: &[Seen; 3]| seen.iter().map(|seen| seen.rate).fold(0.0, f64::max);
    results.push(Measurement {
        name: "sa_rate_over_opensm",
        value: best(&ours) / best(&theirs),
        unit: "x",
        reference: None,
    });
    results.push(Measurement {
        name: "sa_rate_over_opensm_on_ibsim",
        value: best(&ours) / best(&simulated),
        unit: "x",
        reference: Some(Reference {
            name: "OpenSM on ibsim, 1/s",
            value: best(&simulated),
        }),
    });
    let tree = if smoke {
        "XGFT(2;4,2;2,1)"
    } else {
        "XGFT(2;36,18;18,1)"
    };
    results.push(Measurement {
        name: "sa_rate_in_process",
        value: in_process::rate(tree, time)?,
        unit: "1/s",
        reference: None,
    });
    results.push(Measurement {
        name: "sa_rate_echo",
        value: best(&echoed),
        unit: "1/s",
        reference: None,
    });
    Ok(results)
}
