//! The subnet administration: how many PathRecords a second, and how long each takes.
//!
//! Askers attach to the daemon's subnet as a program of the host does, by the client protocol of
//! ibsim, and each asks for one path after the other, the next when the answer has come: the
//! experiment of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets*. Who answers is the
//! embedded manager or an unmodified OpenSM, attached to a daemon with the same nodes over the same
//! kind of socket.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::{Fabric, FatTree, Hosts, Output, Owner, PortRef, SmpAccess};
use ibvswitch::assembly::Assembly;
use ibvswitch::config::{Config, Directories};
use ibvswitch::external::protocol::{
    CONTROL_SIZE, Connect, Control, DATAGRAM_SIZE, Datagram, Kind,
};
use ibvswitch::external::{client_name, control_name, service_name};
use ibvswitch::run::Abort;
use ibvswitch::sockets::{ControlSocket, Lock, Sockets};
use subnet::{MinHop, SubnetManager, Transport};
use tempfile::TempDir;
use wire::attribute::{CapabilityMask, NodeType, PortInfo};
use wire::mad::Mad;
use wire::sa::{self, PathRecord, Record};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Qpn, Sl};

use crate::{BenchError, Context, Effort, Measurement, Reference, Result};

/// Askers at the same time, as in the paper.
const ASKERS: [usize; 3] = [1, 121, 961];
/// The nodes: hypervisors, and VFs of each.
const HYPERVISORS: usize = 16;
const FUNCTIONS: usize = 4;
/// Where libumad2sim may be.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/umad2sim/libumad2sim.so",
];
/// Asked again after this long without an answer.
const PATIENCE: Duration = Duration::from_secs(2);

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
        let mut text = format!(
            "log = \"error\"\n[sm]\nmanager = \"{manager}\"\n[external]\nsocket = \"{socket}\"\n"
        );
        for hypervisor in 0..HYPERVISORS {
            text += &format!("[[hypervisor]]\nname = \"hv{hypervisor}\"\n");
            for vf in 0..FUNCTIONS {
                text += &format!("[[hypervisor.vf]]\nname = \"vm{hypervisor}-{vf}\"\n");
            }
        }
        let dirs = Directories {
            chosen: Some(dir.path()),
            fallback: dir.path(),
        };
        let config = Config::parse("the bench's", &text, dirs)?;
        let Sockets { control, vfs, lock } = Sockets::create(&config)?;
        let abort = Abort::new().map_err(BenchError::system("create an event descriptor"))?;
        Ok(Self {
            _assembly: Assembly::start(&config, vfs, &abort)?,
            config,
            socket,
            _control: control,
            _lock: lock,
            _dir: dir,
        })
    }

    fn guids(&self) -> Vec<Guid> {
        self.config.vfs().map(|(_, vf)| vf.guid).collect()
    }
}

/// A program that is attached to a node.
struct Program {
    data: UnixDatagram,
    port: PortInfo,
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

impl Program {
    fn attach(daemon: &Daemon, node: &str) -> Result<Self> {
        let failed = || BenchError::system("attach to the daemon's subnet");
        let pid = std::process::id();
        let base = &daemon.socket;
        let bound = |name: String| UnixDatagram::bind_addr(&address(&name)?);
        let data = bound(client_name(base, pid)).map_err(failed())?;
        let control = bound(format!("{base}:bench{pid}\0")).map_err(failed())?;
        let server = address(&control_name(base)).map_err(failed())?;
        control.connect_addr(&server).map_err(failed())?;
        let ask = |client, kind, data: &[u8]| -> Result<Control> {
            let question = Control::question(client, kind, data);
            control.send(&question.emit()).map_err(failed())?;
            let mut bytes = [0; CONTROL_SIZE];
            let length = control.recv(&mut bytes).map_err(failed())?;
            let answer = Control::parse(&bytes[..length]).filter(|answer| answer.kind == kind);
            answer.ok_or_else(|| wrong(format!("the daemon refuses {kind:?}")))
        };
        let connect = Connect {
            id: pid,
            responder: false,
            node: node.to_owned(),
        };
        let connected = Connect::parse(&ask(0, Kind::Connect, &connect.emit())?.data);
        let id = u16::try_from(connected.id).map_err(|_| wrong("a client without a number"))?;
        let server = address(&service_name(base, id)).map_err(failed())?;
        data.connect_addr(&server).map_err(failed())?;
        data.set_read_timeout(Some(PATIENCE)).map_err(failed())?;
        let info = ask(connected.id, Kind::GetPortInfo, &1u32.to_ne_bytes())?;
        let port = PortInfo::parse(&info.data).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { data, port })
    }

    fn send(&self, mad: [u8; wire::mad::SIZE]) -> Result<()> {
        let datagram = Datagram {
            dlid: self.port.master_sm_lid.value(),
            slid: 0,
            dqp: Qpn::QP1.into(),
            sqp: Qpn::QP1.into(),
            mad,
        };
        self.data
            .send(&datagram.emit())
            .map(drop)
            .map_err(BenchError::system("send a query"))
    }
}

/// What askers saw.
#[derive(Debug, Clone, Copy)]
struct Seen {
    rate: f64,
    mean: Duration,
    p99: Duration,
}

/// Has `askers` ask for paths from the program's port for `time`.
fn ask(program: &Program, from: Guid, to: &[Guid], askers: usize, time: Duration) -> Result<Seen> {
    let gid = |guid| Gid::new(program.port.gid_prefix, guid);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let mut count = 0u32;
    let mut query = |asker: usize| {
        count = count.wrapping_add(1);
        let template = PathRecord {
            sgid: gid(from),
            dgid: gid(to[count as usize % to.len()]),
            numb_path: 1,
            ..PathRecord::default()
        };
        // The upper half is the daemon's; the asker comes back in the lower one.
        let transaction = ((u64::from(count) % 0x40_0000) << 10) | asker as u64;
        (transaction, sa::get(transaction, mask, &template))
    };
    let mut asked = Vec::new();
    let mut times = Vec::new();
    let began = Instant::now();
    for asker in 0..askers {
        let (transaction, mad) = query(asker);
        program.send(mad)?;
        asked.push((transaction, mad, Instant::now()));
    }
    let mut bytes = [0; DATAGRAM_SIZE];
    while began.elapsed() < time || times.is_empty() {
        match program.data.recv(&mut bytes) {
            Ok(DATAGRAM_SIZE) => {}
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(BenchError::Timeout("the answer to a path query"));
            }
            Err(error) => return Err(BenchError::system("receive an answer")(error)),
        }
        let answer = Datagram::parse(&bytes);
        let (transaction, responds, ok) = match Mad::new_checked(&answer.mad[..]) {
            Ok(mad) => (
                mad.transaction() & 0xffff_ffff,
                mad.method().is_response(),
                mad.status().is_ok(),
            ),
            Err(_) => continue,
        };
        let asker = transaction as usize & 0x3ff;
        let Some(entry) = asked.get_mut(asker).filter(|entry| entry.0 == transaction) else {
            continue;
        };
        if !responds {
            // Nobody answered in time: the same question again.
            program.send(entry.1)?;
            continue;
        }
        let record = PathRecord::read(&answer.mad[sa::DATA]);
        let path = record.ok().filter(|path| ok && path.dlid != Lid::NONE);
        if path.is_none() {
            return Err(wrong("a path query was refused"));
        }
        times.push(entry.2.elapsed());
        let (transaction, mad) = query(asker);
        program.send(mad)?;
        *entry = (transaction, mad, Instant::now());
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    // What is still on its way must not answer the next ones' questions.
    let rest = Duration::from_millis(100);
    let patience = |wait| {
        let set = program.data.set_read_timeout(Some(wait));
        set.map_err(BenchError::system("set a time limit"))
    };
    patience(rest)?;
    while program.data.recv(&mut bytes).is_ok() {}
    patience(PATIENCE)?;
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
    let p99 = times.get(times.len() * 99 / 100).copied();
    Ok(Seen {
        rate,
        mean,
        p99: p99.ok_or(BenchError::Timeout("any answer"))?,
    })
}

fn measure(daemon: &Daemon, time: Duration) -> Result<[Seen; 3]> {
    let program = Program::attach(daemon, "vm0-0")?;
    let guids = daemon.guids();
    let from = *guids.first().ok_or_else(|| wrong("no VF"))?;
    // Warm caches, and on the other side threads that are there.
    ask(&program, from, &guids, 16, time / 8)?;
    let mut all = Vec::new();
    for askers in ASKERS {
        all.push(ask(&program, from, &guids, askers, time)?);
    }
    let wrong = |_| wrong("a measurement is missing");
    <[Seen; 3]>::try_from(all).map_err(wrong)
}

/// OpenSM on the host; killed when dropped.
struct Opensm {
    child: Child,
    _dir: TempDir,
}

impl Opensm {
    fn start(daemon: &Daemon) -> Result<Self> {
        let library = LIBRARIES.iter().find(|library| Path::new(library).exists());
        let library = library.ok_or_else(|| {
            wrong("libumad2sim.so is not there (Debian: libumad2sim0), nor OpenSM compared with")
        })?;
        let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(OsString::from(":/usr/sbin"));
        let mut child = Command::new("opensm")
            .args(["-d2", "-f", "-", "-F"])
            .arg(dir.path().join("none.conf"))
            .current_dir(dir.path())
            .env("PATH", path)
            .env("LD_PRELOAD", library)
            .env("IBSIM_SOCKNAME", &daemon.socket)
            .env("OSM_CACHE_DIR", dir.path())
            .env("OSM_TMP_DIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BenchError::system("start opensm (Debian: opensm)"))?;
        let out = child.stdout.take();
        let opensm = Self { child, _dir: dir };
        let mut lines = BufReader::new(out.ok_or_else(|| wrong("opensm has no output"))?);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            if line.contains("SUBNET UP") {
                // Whether somebody listens or not, the pipe must not fill up.
                std::thread::spawn(move || io::copy(&mut lines, &mut io::sink()));
                return Ok(opensm);
            }
            line.clear();
        }
        Err(wrong("opensm ended before its subnet was up"))
    }
}

impl Drop for Opensm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The subnet of the manager in this process, with a port of an asker.
struct Link {
    fabric: Fabric,
    manager: PortRef,
    asker: PortRef,
    inbox: VecDeque<MadPacket>,
    answered: u64,
}

impl Transport for Link {
    fn send(&mut self, packet: MadPacket) {
        self.fabric.inject(self.manager, packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        if let Some(packet) = self.inbox.pop_front() {
            return Some(packet);
        }
        self.fabric.run();
        while let Some(output) = self.fabric.poll_output() {
            match output {
                Output::Deliver { port, packet } if port == self.manager => {
                    self.inbox.push_back(*packet);
                }
                Output::Deliver { port, packet } if port == self.asker => {
                    let good = packet.header().method().is_response();
                    self.answered += u64::from(good && packet.header().status().is_ok());
                }
                _ => {}
            }
        }
        self.inbox.pop_front()
    }
}

/// Queries a second without sockets and processes: packets through a fat-tree's switches to the
/// manager, and answers back, all by one thread.
fn in_process(tree: &str, time: Duration) -> Result<f64> {
    let tree: FatTree = tree
        .parse()
        .map_err(|error| wrong(format!("{tree}: {error}")))?;
    let topology = tree.topology(Hosts::Adapters);
    let adapters = topology.nodes().iter();
    let adapters = adapters.filter(|node| node.kind == NodeType::ChannelAdapter);
    let guids: Vec<Guid> = adapters
        .filter_map(|node| node.port_guids.first().copied())
        .collect();
    let fabric = Fabric::new(&topology).map_err(|error| wrong(error.to_string()))?;
    let ports: Vec<PortRef> = guids
        .iter()
        .filter_map(|&guid| fabric.port_by_guid(guid))
        .collect();
    let (Some(&manager), Some(&asker)) = (ports.first(), ports.last()) else {
        return Err(wrong("a fat-tree without hosts"));
    };
    let mut link = Link {
        fabric,
        manager,
        asker,
        inbox: VecDeque::new(),
        answered: 0,
    };
    for port in [manager, asker] {
        link.fabric
            .set_owner(port, Owner::Consumer, SmpAccess::Fabric);
    }
    link.fabric
        .set_capabilities(manager, CapabilityMask::IS_SM, CapabilityMask::default());
    let mut sm = SubnetManager::new(subnet::Config::default(), Box::new(MinHop))
        .map_err(|error| wrong(error.to_string()))?;
    sm.poll(Duration::ZERO, &mut link);
    let port = link.fabric.port_info(asker).unwrap_or_default();
    let from = Gid::new(port.gid_prefix, guids[guids.len() - 1]);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let (began, mut asked) = (Instant::now(), 0u64);
    while began.elapsed() < time {
        for _ in 0..256 {
            let template = PathRecord {
                sgid: from,
                dgid: Gid::new(port.gid_prefix, guids[asked as usize % guids.len()]),
                numb_path: 1,
                ..PathRecord::default()
            };
            asked += 1;
            let mad = sa::get(asked, mask, &template);
            let to = port.master_sm_lid;
            let query = MadPacket::gmp(port.lid, to, Sl::default(), PKey::DEFAULT_FULL, mad);
            link.fabric.inject(asker, query);
        }
        sm.poll(Duration::ZERO, &mut link);
    }
    if link.answered != asked {
        return Err(wrong(format!(
            "{} of {asked} queries were answered",
            link.answered
        )));
    }
    Ok(asked as f64 / began.elapsed().as_secs_f64())
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
    let ours = measure(&Daemon::start("embedded")?, time)?;
    let daemon = Daemon::start("external")?;
    let opensm = Opensm::start(&daemon)?;
    let theirs = measure(&daemon, time)?;
    drop(opensm);
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
    let tree = if smoke {
        "XGFT(2;4,2;2,1)"
    } else {
        "XGFT(2;36,18;18,1)"
    };
    results.push(Measurement {
        name: "sa_rate_in_process",
        value: in_process(tree, time)?,
        unit: "1/s",
        reference: None,
    });
    Ok(results)
}
