//! Routing engines in the subnet manager: what switches hold and what guests are told, read back by
//! packets, held against the cables.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fabric::{Fabric, NodeId, PortRef, Topology};
use ibvswitch_subnet_manager::routing::{
    Dfsssp, DimensionOrder, Dragonfly as DragonflyRouting, FatTree as FatTreeRouting, Lash, Nue,
    TorusTwoQos, VSwitchFatTree,
};
use ibvswitch_subnet_manager::{Config, MinHop, RoutingEngine, UpDown};
use topologies::{Dragonfly, FatTree, Hosts, Irregular, Torus};
use wire::attribute::{LinearBlock, NodeType, PortInfo, SlToVl, SwitchInfo};
use wire::mad::{AttributeId, Method};
use wire::sa::{PathRecord, SlToVlRecord};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Lid, Sl};

use crate::guests::Bed;
use crate::harness::Managed;

/// Ports of adapters, by their number.
fn adapters(fabric: &Fabric, topology: &Topology) -> Vec<PortRef> {
    let nodes = topology.nodes().iter();
    let adapters = nodes.filter(|node| node.kind != NodeType::Switch);
    adapters
        .map(|node| fabric.port_by_guid(node.port_guids[0]).unwrap())
        .collect()
}

/// A subnet with the manager at the first adapter.
fn managed(topology: &Topology, engine: Box<dyn RoutingEngine>, config: Config) -> Managed {
    let fabric = Fabric::new(topology).unwrap();
    let first = adapters(&fabric, topology)[0];
    let guid = fabric.node_info(first).unwrap().port_guid;
    Managed::new(fabric, guid, Config::default()).routed_by(engine, config)
}

/// A subnet whose other adapters are guests.
pub fn bed(topology: &Topology, engine: Box<dyn RoutingEngine>) -> Bed {
    bed_with(topology, engine, Config::default())
}

pub fn bed_with(topology: &Topology, engine: Box<dyn RoutingEngine>, config: Config) -> Bed {
    let managed = managed(topology, engine, config);
    let ports = adapters(&managed.link.fabric, topology);
    Bed::of(managed, ports[1..].to_vec())
}

/// Answer of a port's agent.
fn read(fabric: &mut Fabric, port: PortRef, attribute: AttributeId, modifier: u32) -> [u8; DATA] {
    let request = Request {
        destination: Destination::Directed(Route::default()),
        method: Method::GET,
        attribute,
        modifier,
        transaction: 1,
        m_key: 0,
        data: [0; DATA],
    };
    let answer = fabric.local_mad(port, &request.to_bytes()).unwrap();
    *Smp::new_checked(&answer[..]).unwrap().data()
}

/// The tables of all switches and ports, as their agents tell them.
struct Tables {
    linear: HashMap<NodeId, Vec<u8>>,
    /// By the port to leave by and the one to come in by.
    lanes: HashMap<(PortRef, u8), SlToVl>,
    /// Data lanes of each port.
    data_lanes: HashMap<PortRef, u8>,
}

impl Tables {
    fn read(fabric: &mut Fabric) -> Self {
        let mut tables = Self {
            linear: HashMap::new(),
            lanes: HashMap::new(),
            data_lanes: HashMap::new(),
        };
        for node in fabric.nodes().collect::<Vec<_>>() {
            let zero = PortRef { node, port: 0 };
            let is_switch = fabric
                .node_info(zero)
                .is_some_and(|info| info.node_type == NodeType::Switch);
            if is_switch {
                let info = read(fabric, zero, AttributeId::SWITCH_INFO, 0);
                let top = SwitchInfo::parse(&info).unwrap().linear_fdb_top;
                let blocks = (0..=u32::from(top / LinearBlock::LIDS))
                    .flat_map(|block| read(fabric, zero, AttributeId::LINEAR_FORWARDING, block));
                tables.linear.insert(node, blocks.collect());
            }
            let ports = fabric
                .node_info(PortRef { node, port: 1 })
                .unwrap()
                .num_ports;
            for port in 1..=ports {
                let out = PortRef { node, port };
                let modifier = u32::from(port);
                let info = read(fabric, out, AttributeId::PORT_INFO, modifier);
                let lanes = PortInfo::lanes(PortInfo::parse(&info).unwrap().operational_vls);
                tables.data_lanes.insert(out, lanes);
                let ins = if is_switch { 0..=ports } else { 0..=0 };
                for from in ins.filter(|&from| from != port) {
                    let modifier = if is_switch {
                        u32::from(from) << 8 | u32::from(port)
                    } else {
                        0
                    };
                    let table = read(fabric, out, AttributeId::SL_TO_VL, modifier);
                    tables.lanes.insert((out, from), SlToVl::parse(&table));
                }
            }
        }
        tables
    }

    /// The channels of a path, each the port it leaves by and the lane, and where it ends.
    fn walk(
        &self,
        fabric: &Fabric,
        from: PortRef,
        to: Lid,
        sl: Sl,
    ) -> (Vec<(PortRef, u8)>, PortRef) {
        let mut channels = Vec::new();
        let (mut out, mut entered) = (from, 0);
        loop {
            let lane = self.lanes[&(out, entered)].lane(sl).value();
            assert!(lane < self.data_lanes[&out], "{out} has no lane {lane}");
            channels.push((out, lane));
            let peer = fabric.peer(out).unwrap();
            let Some(table) = self.linear.get(&peer.node) else {
                return (channels, peer);
            };
            match table.get(usize::from(to.value())) {
                Some(0) => return (channels, PortRef { port: 0, ..peer }),
                Some(&port) if port != LinearBlock::DROP => {
                    (out, entered) = (PortRef { port, ..peer }, peer.port);
                }
                _ => panic!("{} drops {to}", peer.node.index()),
            }
            assert!(channels.len() < 64, "round in a circle to {to}");
        }
    }
}

/// Channels, and those that wait for them.
#[derive(Default)]
struct Dependencies(BTreeMap<(PortRef, u8), BTreeSet<(PortRef, u8)>>);

impl Dependencies {
    fn add(&mut self, path: &[(PortRef, u8)]) {
        for pair in path.windows(2) {
            self.0.entry(pair[0]).or_default().insert(pair[1]);
        }
    }

    /// Takes away what waits for nothing until nothing is left, or a circle.
    fn have_circle(mut self) -> bool {
        loop {
            let waiting: BTreeSet<_> = self.0.keys().copied().collect();
            let before = self.0.len();
            self.0.retain(|_, after| {
                after.retain(|channel| waiting.contains(channel));
                !after.is_empty()
            });
            if self.0.len() == before {
                return before > 0;
            }
        }
    }
}

/// All paths between guests as they are told, answers on the level of the question: whether they
/// arrive, and whether they could wait for each other where that is promised. Returns the levels that are in use.
pub fn checked(bed: &mut Bed, what: &str, free_of_deadlock: bool) -> BTreeSet<u8> {
    let tables = Tables::read(&mut bed.managed.link.fabric);
    let mut told = Vec::new();
    for from in 0..bed.ports.len() {
        let template = PathRecord {
            sgid: bed.gid(from),
            ..PathRecord::default()
        };
        told.extend(bed.table(from, PathRecord::SGID, &template, 1000));
    }
    let fabric = &bed.managed.link.fabric;
    let end = |lid: Lid| {
        let ports = bed.ports.iter().chain([&bed.managed.link.station.port]);
        ports
            .copied()
            .find(|&port| fabric.port_info(port).unwrap().lid == lid)
    };
    let (mut own, mut one) = (Dependencies::default(), Dependencies::default());
    let mut levels = BTreeSet::new();
    let mut pairs = 0;
    for path in told {
        // Paths to switches are management's.
        let (Some(from), Some(to)) = (end(path.slid), end(path.dlid)) else {
            continue;
        };
        if from == to {
            continue;
        }
        pairs += 1;
        levels.insert(path.sl.value());
        for (from, lid, to) in [(from, path.dlid, to), (to, path.slid, from)] {
            let (channels, reached) = tables.walk(fabric, from, lid, path.sl);
            assert_eq!(reached, to, "{what}");
            own.add(&channels);
            one.add(&tables.walk(fabric, from, lid, Sl::default()).0);
        }
    }
    assert_eq!(
        pairs,
        bed.ports.len() * bed.ports.len(),
        "{what}: told of all"
    );
    assert!(!free_of_deadlock || !own.have_circle(), "{what}");
    // The lanes of its ports keep paths apart on one level, too.
    let by_ports = bed.managed.manager.routed_by() == Some("dragonfly");
    if levels.len() > 1 && !by_ports {
        assert!(one.have_circle(), "{what} needs its lanes");
    }
    levels
}

pub fn torus(shape: &[u32]) -> Topology {
    Torus::new(shape, 1).unwrap().topology(Hosts::Adapters)
}

pub fn irregular(seed: u64) -> Topology {
    let network = Irregular::new(12, 4, 24, seed).unwrap();
    network.topology(Hosts::Hypervisors { functions: 1 })
}

pub fn tree() -> Topology {
    let tree: FatTree = "XGFT(2;4,4;4,1)".parse().unwrap();
    tree.topology(Hosts::Hypervisors { functions: 1 })
}

pub fn engines() -> Vec<Box<dyn RoutingEngine>> {
    vec![
        Box::new(MinHop),
        Box::new(UpDown::default()),
        Box::new(FatTreeRouting),
        Box::new(VSwitchFatTree),
        Box::new(Dfsssp { lanes: 15 }),
        Box::new(Lash { lanes: 15 }),
        Box::new(Nue { lanes: 15 }),
        Box::new(DimensionOrder),
        Box::new(TorusTwoQos::new(15)),
        Box::new(DragonflyRouting { lanes: 15 }),
    ]
}

pub fn dragonfly() -> Topology {
    Dragonfly::new(5, 4, 1, 1)
        .unwrap()
        .topology(Hosts::Adapters)
}

/// Tables that depend on the ports of switches: what the ports hold keeps paths from waiting for each other, and the subnet
/// administration tells the same.
#[test]
fn lanes_by_ports() {
    for (topology, engine, lanes, levels) in [
        (torus(&[5, 4]), "torus-2QoS", 8, 0..4),
        (torus(&[6]), "torus-2QoS", 8, 0..2),
        (dragonfly(), "dragonfly", 2, 0..1),
    ] {
        let mut all = engines().into_iter();
        let own = all.find(|each| each.name() == engine).unwrap();
        let mut bed = bed(&topology, own);
        assert_eq!(bed.managed.manager.routed_by(), Some(engine));
        assert_eq!(bed.managed.manager.report().errors, Vec::<String>::new());
        assert_eq!(checked(&mut bed, engine, true), levels.clone().collect());
        assert_eq!(bed.managed.manager.lanes(), lanes);

        let tables = Tables::read(&mut bed.managed.link.fabric);
        let records = bed.table(0, 0, &SlToVlRecord::default(), 1000);
        let mut told = 0;
        for node in topology.nodes() {
            let port = bed.managed.link.fabric.port_by_guid(node.guid);
            let Some(zero) = port.filter(|_| node.kind == NodeType::Switch) else {
                continue;
            };
            let lid = bed.managed.link.fabric.port_info(zero).unwrap().lid;
            for record in records.iter().filter(|record| record.lid == lid) {
                let out = PortRef {
                    port: record.output_port,
                    ..zero
                };
                let held = tables.lanes[&(out, record.input_port)].to_bytes();
                let linked = |port| {
                    bed.managed
                        .link
                        .fabric
                        .peer(PortRef { port, ..zero })
                        .is_some()
                };
                if linked(record.output_port)
                    && (record.input_port == 0 || linked(record.input_port))
                {
                    assert_eq!(record.table, held[..8], "{out} from {}", record.input_port);
                    told += 1;
                }
            }
        }
        assert!(told > 50, "{told}");
        let differ: BTreeSet<[u8; 8]> = records.iter().map(|record| record.table).collect();
        assert!(differ.len() > 1);

        // The class of service is whoever's who asks.
        let template = PathRecord {
            slid: bed.lid(1),
            dlid: bed.lid(4),
            ..PathRecord::default()
        };
        let ends = PathRecord::SLID | PathRecord::DLID;
        let own = bed.get(0, ends, &template).unwrap().sl.value();
        if engine == "torus-2QoS" {
            for (level, is_there) in [
                (own, true),
                (own | 8, true),
                (own ^ 1, false),
                (own ^ 9, false),
            ] {
                let wanted = PathRecord {
                    sl: Sl::new(level),
                    ..template
                };
                let found = bed
                    .get(0, ends | PathRecord::SL, &wanted)
                    .map(|path| path.sl.value());
                assert_eq!(found.ok(), is_there.then_some(level));
            }
        }

        bed.managed.manager.request_sweep();
        bed.managed.settle();
        assert_eq!(bed.managed.manager.report().sets, 0, "{engine}");
        let config = Config {
            sl_to_vl: Some(SlToVl::modulo(8)),
            ..Config::default()
        };
        let mut all = engines().into_iter();
        let own = all.find(|each| each.name() == engine).unwrap();
        let mut refused = managed(&topology, own, config);
        refused.settle();
        refused.all_active_and_reachable();
        let errors = &refused.manager.report().errors;
        assert!(
            errors[0].contains("leave qos_sl2vl out; minhop does it instead"),
            "{errors:?}"
        );
    }
}

#[test]
fn lanes_keep_paths_apart() {
    let layered: [fn() -> Box<dyn RoutingEngine>; 4] = [
        || Box::new(Dfsssp { lanes: 15 }),
        || Box::new(Lash { lanes: 15 }),
        || Box::new(Nue { lanes: 15 }),
        || Box::new(DimensionOrder),
    ];
    for (what, topology) in [
        ("torus", torus(&[5, 4])),
        ("ring", torus(&[6])),
        ("irregular", irregular(3)),
    ] {
        for engine in layered {
            let engine = engine();
            let (name, fits) = (engine.name(), what != "irregular");
            if name == "dor" && !fits {
                continue;
            }
            let what = format!("{what}, {name}");
            let mut bed = bed(&topology, engine);
            assert_eq!(bed.managed.manager.routed_by(), Some(name), "{what}");
            let levels = checked(&mut bed, &what, true);
            println!("{what}: levels {levels:?}");
            assert!(levels.len() > 1, "{what}");
            assert_eq!(bed.managed.manager.lanes(), levels.len() as u8);

            // Each port knows the level by which it reaches the manager.
            let port = bed.ports[bed.ports.len() / 2];
            let manager = bed
                .managed
                .link
                .fabric
                .port_info(bed.managed.link.station.port);
            let template = PathRecord {
                slid: bed.lid(bed.ports.len() / 2),
                dlid: manager.unwrap().lid,
                ..PathRecord::default()
            };
            let ends = PathRecord::SLID | PathRecord::DLID;
            let path = bed.get(0, ends, &template).unwrap();
            let info = bed.managed.link.fabric.port_info(port).unwrap();
            assert_eq!(info.master_sm_sl, path.sl, "{what}");

            // There is no path on another level.
            let other = PathRecord {
                sl: Sl::new(path.sl.value() ^ 1),
                ..template
            };
            assert!(bed.get(0, ends | PathRecord::SL, &other).is_err());
            let records = bed.table(0, 0, &SlToVlRecord::default(), 1000);
            assert!(!records.is_empty());

            bed.managed.manager.request_sweep();
            bed.managed.settle();
            assert_eq!(bed.managed.manager.report().sets, 0, "{what}");
        }
    }
}

/// One packet sets all tables of a switch.
#[test]
fn what_lanes_cost() {
    let topology = torus(&[4]);
    let mut managed = managed(&topology, Box::new(Lash { lanes: 15 }), Config::default());
    managed.settle();
    let counts = |managed: &Managed| -> u64 {
        let nodes = managed.link.fabric.nodes();
        let counts = nodes.map(|node| managed.link.fabric.smp_counts(node).unwrap());
        counts
            .map(|counts| counts.answered_of(Method::SET, AttributeId::SL_TO_VL))
            .sum()
    };
    assert_eq!(counts(&managed), 4 + 4, "switches and adapters");
    // A link that was down may be another port's: its switch is told again.
    let port = managed.link.fabric.port_by_guid(topology.nodes()[0].guid);
    let cable = PortRef {
        port: 1,
        ..port.unwrap()
    };
    managed.link.fabric.set_cable(cable, false);
    managed.manager.request_sweep();
    managed.settle();
    managed.link.fabric.set_cable(cable, true);
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(counts(&managed), 4 + 4 + 2);
}

#[test]
fn too_few_lanes() {
    let refused = |config: Config, topology: &Topology, engine: Box<dyn RoutingEngine>| {
        let mut managed = managed(topology, engine, config);
        managed.settle();
        managed.all_active_and_reachable();
        assert_eq!(managed.manager.routed_by(), Some("minhop"));
        let first = managed.manager.report().errors.clone();
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(
            managed.manager.report().errors,
            first,
            "as long as it is so"
        );
        assert_eq!(first.len(), 1);
        first[0].clone()
    };
    let same = Config {
        sl_to_vl: Some(SlToVl::modulo(1)),
        ..Config::default()
    };
    let one = Config {
        max_lanes: Some(1),
        ..Config::default()
    };
    for config in [one.clone(), same.clone()] {
        let mut bed = bed_with(&torus(&[5]), Box::new(Nue { lanes: 15 }), config);
        assert_eq!(bed.managed.manager.routed_by(), Some("nue"));
        assert_eq!(checked(&mut bed, "a ring on one lane", true).len(), 1);
    }
    let error = refused(one, &torus(&[6]), Box::new(DimensionOrder));
    assert!(
        error.starts_with(
            "dor cannot route this subnet: its paths need 2 data lanes, and the link at port "
        ) && error
            .ends_with(" has 1, qos_max_vls is 1; allow more, or use updn; minhop does it instead"),
        "{error}"
    );
    let error = refused(same, &torus(&[6]), Box::new(Lash { lanes: 15 }));
    assert!(
        error.contains("levels 0 to 1, and qos_sl2vl gives 0 and 1 the same"),
        "{error}"
    );
    let mut beyond = SlToVl::modulo(8);
    beyond.0[1] = wire::Vl::new(9);
    let beyond = Config {
        sl_to_vl: Some(beyond),
        ..Config::default()
    };
    let error = refused(beyond, &torus(&[6]), Box::new(Dfsssp { lanes: 15 }));
    assert!(error.contains("gives lane 9, and links have 8"), "{error}");
    let error = refused(Config::default(), &irregular(1), Box::new(DimensionOrder));
    assert!(
        error.contains("use dfsssp or lash; minhop does it instead"),
        "{error}"
    );
}
