//! OpenSM on a topology in the simulator ibsim: what it writes into the switches.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use fabric::Topology;
use subnet::{ForwardingTable, Graph, Routing};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

use crate::network::{TooManyLids, graph};

/// How long OpenSM may take for a subnet.
pub const LIMIT: Duration = Duration::from_secs(300);

/// How OpenSM routed a topology.
#[derive(Debug)]
pub struct Routed {
    /// The graph with the LIDs that OpenSM gave.
    pub graph: Graph,
    /// The tables that it wrote into the switches. Its service levels are not known.
    pub routing: Routing,
    /// The engine that it says it used: another one if it could not with the one asked for.
    pub used: String,
}

/// Why there is nothing of OpenSM's.
#[derive(Debug, thiserror::Error)]
pub enum OpenSmError {
    /// A program, or the library between them, is not there.
    #[error("{what} is not there; install the packages opensm, ibsim-utils and libumad2sim0")]
    Missing {
        /// Which.
        what: &'static str,
    },
    /// The system did not let us.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It did not bring the subnet up.
    #[error("OpenSM did not bring the subnet up with {engine}; the end of its log: {end}")]
    Down {
        /// The engine.
        engine: String,
        /// The last lines of the log.
        end: String,
    },
    /// What it wrote is not understood.
    #[error("OpenSM's table of forwarding entries is not understood: {0}")]
    Dump(String),
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
}

fn system(what: &'static str) -> impl Fn(io::Error) -> OpenSmError {
    move |source| OpenSmError::System { what, source }
}

/// Has OpenSM route a topology with one of its engines: `minhop`, `updn`, `ftree`, `dfsssp`, `lash`,
/// `dor`.
///
/// # Errors
/// [`OpenSmError`].
pub fn route(topology: &Topology, engine: &str) -> Result<Routed, OpenSmError> {
    let library = ["x86_64", "aarch64"]
        .map(|machine| format!("/usr/lib/{machine}-linux-gnu/umad2sim/libumad2sim.so"))
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or(OpenSmError::Missing {
            what: "libumad2sim",
        })?;
    let dir = tempfile::tempdir().map_err(system("create a directory"))?;
    let dir = dir.path();
    fs::write(dir.join("net"), netlist(topology)).map_err(system("write a file of nodes"))?;
    let socket = format!("ibvswitch-{}", dir.to_string_lossy().replace('/', "-"));
    let _simulator = Simulator::start(topology, dir, &socket)?;
    let nodes = topology.nodes().iter();
    let mut adapters = nodes.filter(|node| node.kind == NodeType::ChannelAdapter);
    let host = adapters.next().map_or(0, |node| node.guid.value());
    let log = dir.join("opensm.log");
    let deadline = Instant::now() + LIMIT;
    let mut said = String::new();
    // The simulator does not say when it listens: until then OpenSM finds no port, and ends.
    while Instant::now() < deadline && !said.contains("SUBNET UP") {
        let child = Command::new("opensm")
            .args([
                "-F",
                "/dev/null",
                "-R",
                engine,
                "--once",
                "-Q",
                "-D",
                "0x43",
                "-f",
            ])
            .arg(&log)
            .env("LD_PRELOAD", &library)
            .env("PATH", path())
            .env("IBSIM_SOCKNAME", &socket)
            .env("SIM_HOST", format!("H{host:x}"))
            .env("OSM_TMP_DIR", dir)
            .env("OSM_CACHE_DIR", dir)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = Running(child.map_err(missing("opensm"))?);
        while child
            .0
            .try_wait()
            .map_err(system("wait for opensm"))?
            .is_none()
        {
            if Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    }
    if !said.contains("SUBNET UP") {
        let lines: Vec<&str> = said.lines().collect();
        return Err(OpenSmError::Down {
            engine: engine.to_owned(),
            end: lines[lines.len().saturating_sub(3)..].join(" | "),
        });
    }
    let mut used = said.lines().filter_map(|line| {
        let (_, rest) = line.split_once("osm_ucast_mgr_process: ")?;
        Some(rest.split_once(" tables")?.0.to_owned())
    });
    let used = used.next_back().unwrap_or_default();
    let dump = fs::read_to_string(dir.join("opensm-lfts.dump"));
    let dump = dump.map_err(system("read what OpenSM wrote into the switches"))?;
    let (graph, routing) = read(topology, &dump)?;
    Ok(Routed {
        graph,
        routing,
        used,
    })
}

/// The directories of programs, those of daemons too.
fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}

fn missing(what: &'static str) -> impl Fn(io::Error) -> OpenSmError {
    move |source| match source.kind() {
        io::ErrorKind::NotFound => OpenSmError::Missing { what },
        _ => OpenSmError::System {
            what: "start OpenSM and its simulator",
            source,
        },
    }
}

/// A process that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Simulator;

impl Simulator {
    fn start(topology: &Topology, dir: &Path, socket: &str) -> Result<Running, OpenSmError> {
        let nodes = topology.nodes().len().to_string();
        let ports = (3 * topology.links().len() + 2 * topology.nodes().len()).to_string();
        let log = fs::File::create(dir.join("ibsim.log")).map_err(system("create a file"))?;
        let child = Command::new("ibsim")
            .args(["-s", "-n", "-N", &nodes, "-S", &nodes, "-P", &ports])
            .args(["-L", "49152", "net"])
            .env("IBSIM_SOCKNAME", socket)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(system("share a file"))?)
            .stderr(log)
            .spawn();
        Ok(Running(child.map_err(missing("ibsim"))?))
    }
}

/// A topology in ibsim's format. Nodes are named by their GUIDs.
fn netlist(topology: &Topology) -> String {
    let nodes = topology.nodes();
    let name = |node: usize| match nodes[node].kind {
        NodeType::Switch => format!("S{:x}", nodes[node].guid.value()),
        _ => format!("H{:x}", nodes[node].guid.value()),
    };
    let mut cables = vec![Vec::new(); nodes.len()];
    for &(a, b, _) in topology.links() {
        cables[a.node.index()].push((a.port, b));
        cables[b.node.index()].push((b.port, a));
    }
    let mut text = String::new();
    for (at, node) in nodes.iter().enumerate() {
        let (guid, ports) = (node.guid.value(), node.ports);
        let heading = match node.kind {
            NodeType::Switch => format!("switchguid=0x{guid:x}({guid:x})\nSwitch"),
            _ => format!("caguid=0x{guid:x}\nCa"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{heading} {ports} \"{}\"", name(at));
        for (port, far) in &cables[at] {
            let to = name(far.node.index());
            let _ = writeln!(text, "[{port}] \"{to}\"[{}]", far.port);
        }
        text.push('\n');
    }
    text
}

/// The forwarding tables of an `opensm-lfts.dump`.
fn read(topology: &Topology, dump: &str) -> Result<(Graph, Routing), OpenSmError> {
    let mut graph = graph(topology)?;
    let switches: HashMap<Guid, usize> = (0..graph.switches.len())
        .map(|at| (graph.switches[at].guid, at))
        .collect();
    let mut lids: HashMap<u64, Lid> = HashMap::new();
    let mut entries = Vec::new();
    let mut switch = 0;
    for line in dump.lines() {
        let wrong = || OpenSmError::Dump(line.to_owned());
        let word_after = |key: &str| {
            let (_, rest) = line.split_once(key)?;
            hex(rest.trim().split([' ', ':']).next()?)
        };
        if line.starts_with("Unicast lids") {
            let guid = Guid::new(word_after(" guid ").ok_or_else(wrong)?);
            switch = *switches.get(&guid).ok_or_else(wrong)?;
        } else if line.starts_with("0x") {
            let mut words = line.split_whitespace();
            let lid = words.next().and_then(hex).ok_or_else(wrong)?;
            let lid = Lid::new(u16::try_from(lid).map_err(|_| wrong())?);
            let guid = word_after("portguid ").ok_or_else(wrong)?;
            lids.insert(guid, lid);
            if let Some(Ok(port)) = words.next().map(str::parse::<u8>) {
                entries.push((switch, lid, port));
            }
        }
    }
    let ports = simulated_ports(topology);
    for endpoint in &mut graph.endpoints {
        let guid = ports.get(usize::from(endpoint.lid.value()).wrapping_sub(1));
        endpoint.lid = guid
            .and_then(|guid| lids.get(guid).copied())
            .ok_or_else(|| OpenSmError::Dump(format!("no LID for {guid:x?}")))?;
    }
    graph.endpoints.sort_by_key(|endpoint| endpoint.lid);
    let mut tables = vec![ForwardingTable::new(graph.top()); graph.switches.len()];
    for (switch, lid, port) in entries {
        tables[switch].set(lid, port);
    }
    Ok((graph, tables.into()))
}

/// The GUIDs that ports with LIDs have in ibsim, in the order of [`graph`]'s LIDs: by our GUIDs. Port
/// n of an adapter has there the node's GUID plus n.
fn simulated_ports(topology: &Topology) -> Vec<u64> {
    let nodes = topology.nodes();
    let mut ports: Vec<(Guid, u64)> = Vec::new();
    for node in nodes.iter().filter(|node| node.kind == NodeType::Switch) {
        ports.push((node.guid, node.guid.value()));
    }
    let ends = topology.links().iter().flat_map(|&(a, b, _)| [a, b]);
    for end in ends {
        let node = &nodes[end.node.index()];
        let own = node.port_guids.get(usize::from(end.port).wrapping_sub(1));
        if let (NodeType::ChannelAdapter, Some(&own)) = (node.kind, own) {
            ports.push((own, node.guid.value() + u64::from(end.port)));
        }
    }
    ports.sort_unstable();
    ports.into_iter().map(|(_, simulated)| simulated).collect()
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}
