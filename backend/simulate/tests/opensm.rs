//! OpenSM's routing engines and ours on the same subnets: OpenSM configures a simulated one, and what
//! it has written into the switches is walked as ours is.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use fabric::{FatTree, Hosts, Topology, Torus};
use ibvswitch_simulate::graph;
use subnet::routing::{
    Dfsssp, DimensionOrder, FatTree as FatTreeRouting, Lash, MinHop, UpDown, Verdict,
};
use subnet::{ForwardingTable, Graph, Routing, RoutingEngine};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// A topology in ibsim's format. Nodes are named by their GUIDs.
fn net(topology: &Topology) -> String {
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
        writeln!(text, "{heading} {ports} \"{}\"", name(at)).unwrap();
        for (port, far) in &cables[at] {
            let to = name(far.node.index());
            writeln!(text, "[{port}] \"{to}\"[{}]", far.port).unwrap();
        }
        text.push('\n');
    }
    text
}

/// A process that ends with the test.
struct Simulator(Child);

impl Drop for Simulator {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What OpenSM writes into the switches with one of its engines, on the graph with its LIDs; and the
/// engine that it says it used.
fn opensm(topology: &Topology, engine: &str, dir: &Path) -> (Graph, Routing, String) {
    let dir = dir.join(engine);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("net"), net(topology)).unwrap();
    let socket = format!(
        "ibvswitch-{}-{engine}",
        dir.to_string_lossy().replace('/', "-")
    );
    let nodes = topology.nodes().len().to_string();
    let ports = (3 * topology.links().len() + 2 * topology.nodes().len()).to_string();
    let log = fs::File::create(dir.join("ibsim.log")).unwrap();
    let simulator = Command::new("ibsim")
        .args(["-s", "-n", "-N", &nodes, "-S", &nodes, "-P", &ports, "net"])
        .env("IBSIM_SOCKNAME", &socket)
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("ibsim is installed (scripts/setup)");
    let _simulator = Simulator(simulator);
    let host = topology
        .nodes()
        .iter()
        .find(|node| node.kind == NodeType::ChannelAdapter)
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let log = dir.join("opensm.log");
    // The simulator does not say when it listens: until then OpenSM finds no port.
    loop {
        let status = Command::new("/usr/sbin/opensm")
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
            .env("LD_PRELOAD", PRELOAD)
            .env("IBSIM_SOCKNAME", &socket)
            .env("SIM_HOST", format!("H{:x}", host.guid.value()))
            .env("OSM_TMP_DIR", &dir)
            .env("OSM_CACHE_DIR", &dir)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("opensm is installed (scripts/setup)");
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.contains("SUBNET UP") {
            assert!(status.success(), "{text}");
            break;
        }
        assert!(Instant::now() < deadline, "{engine}: {text}");
        thread::yield_now();
    }
    let text = fs::read_to_string(&log).unwrap();
    let used = text
        .lines()
        .filter_map(|line| {
            line.split_once("osm_ucast_mgr_process: ")?
                .1
                .split_once(" tables")
        })
        .next_back()
        .map(|(used, _)| used.to_owned())
        .unwrap_or_default();
    let dump = fs::read_to_string(dir.join("opensm-lfts.dump")).unwrap();
    let (graph, routing) = read(topology, &dump);
    (graph, routing, used)
}

/// The forwarding tables of an `opensm-lfts.dump`.
fn read(topology: &Topology, dump: &str) -> (Graph, Routing) {
    let mut graph = graph(topology).unwrap();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let word_after = |line: &str, key: &str| {
        let rest = line.split_once(key).unwrap().1;
        hex(rest.trim().split([' ', ':']).next().unwrap())
    };
    // ibsim gives port 1 of an adapter the GUID after the node's, ours is the node's.
    let mut lids: HashMap<u64, u16> = HashMap::new();
    let mut entries = Vec::new();
    let mut switch = 0;
    for line in dump.lines() {
        if line.starts_with("Unicast lids") {
            let guid = Guid::new(word_after(line, " guid "));
            switch = graph.switches.iter().position(|v| v.guid == guid).unwrap();
        } else if line.starts_with("0x") {
            let mut words = line.split_whitespace();
            let lid = hex(words.next().unwrap()) as u16;
            let guid = word_after(line, "portguid ");
            let is_adapter = line.contains("Channel Adapter");
            lids.insert(if is_adapter { guid - 1 } else { guid }, lid);
            if let Ok(port) = words.next().unwrap().parse::<u8>() {
                entries.push((switch, lid, port));
            }
        }
    }
    // LIDs of ours are by rising GUID.
    let mut guids: Vec<u64> = topology.nodes().iter().map(|n| n.guid.value()).collect();
    guids.sort_unstable();
    for endpoint in &mut graph.endpoints {
        let guid = guids[usize::from(endpoint.lid.value()) - 1];
        endpoint.lid = Lid::new(lids[&guid]);
    }
    graph.endpoints.sort_by_key(|endpoint| endpoint.lid);
    let mut tables = vec![ForwardingTable::new(graph.top()); graph.switches.len()];
    for (switch, lid, port) in entries {
        tables[switch].set(Lid::new(lid), port);
    }
    (graph, tables.into())
}

/// Both engines reach the same over as many links, and ours spreads the paths at least as well. Lanes
/// are not compared: the dump tells nothing of OpenSM's service levels.
fn compare(topology: &Topology, engines: &[(&str, &dyn RoutingEngine)]) {
    let dir = tempfile::tempdir().unwrap();
    for &(name, engine) in engines {
        let (graph, theirs, used) = opensm(topology, name, dir.path());
        assert_eq!(used, name, "OpenSM fell back");
        let theirs = Verdict::new(&graph, &theirs);
        let ours = Verdict::new(&graph, &engine.route(&graph).unwrap());
        println!("{name}\n  OpenSM: {theirs}\n  ours:   {ours}");
        assert!(theirs.is_connected(), "{name}: {:?}", theirs.faults);
        assert!(ours.is_connected(), "{name}: {:?}", ours.faults);
        assert_eq!(ours.hops, theirs.hops, "{name}");
        assert!(ours.loads.maximum <= theirs.loads.maximum, "{name}");
    }
}

#[test]
fn a_fat_tree_of_324_nodes() {
    let tree: FatTree = "XGFT(2;18,18;18,1)".parse().unwrap();
    compare(
        &tree.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("updn", &UpDown::default()),
            ("ftree", &FatTreeRouting),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
        ],
    );
}

#[test]
fn a_fat_tree_of_three_levels() {
    let tree: FatTree = "XGFT(3;8,4,4;4,4,1)".parse().unwrap();
    compare(
        &tree.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("updn", &UpDown::default()),
            ("ftree", &FatTreeRouting),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
        ],
    );
}

#[test]
fn a_torus() {
    let torus = Torus::new(&[4, 4], 2).unwrap();
    compare(
        &torus.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
            ("dor", &DimensionOrder),
        ],
    );
}
