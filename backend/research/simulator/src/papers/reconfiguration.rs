//! Tables about fat-trees of up to 20 736 nodes: packets, and times.

use std::time::Instant;

use rand::RngExt;
use subnet_manager::routing::reconfiguration::{Exchange, FatTreeMinimum, Update, iterative};
use subnet_manager::routing::{FatTree, MinHop};
use subnet_manager::{Endpoint, ForwardingTable, Graph, RoutingEngine};

use super::{Effort, PapersError, tree};
use crate::comparison::{Column, Comparison, Row, Value};
use crate::progress::{Progress, Step};
use crate::random::generator;
use crate::routing::engine;

/// The fat-trees of 36-port switches of the papers: nodes, switches, LIDs, blocks of a table, packets
/// of a full reconfiguration, and of a swap at least and at most.
const PACKETS: [(&str, [f64; 7]); 4] = [
    (
        "XGFT(2;18,18;18,1)",
        [324.0, 36.0, 360.0, 6.0, 216.0, 1.0, 72.0],
    ),
    (
        "XGFT(2;36,18;18,1)",
        [648.0, 54.0, 702.0, 11.0, 594.0, 1.0, 108.0],
    ),
    (
        "XGFT(3;18,18,18;18,18,1)",
        [5832.0, 972.0, 6804.0, 107.0, 104_004.0, 1.0, 1944.0],
    ),
    (
        "XGFT(3;36,18,18;18,18,1)",
        [11664.0, 1620.0, 13284.0, 208.0, 336_960.0, 1.0, 3240.0],
    ),
];

/// Engines, and seconds that OpenSM took with them for these trees, on ibsim with eight processors.
const TIMES: [(&str, [f64; 4]); 4] = [
    ("ftree", [0.012, 0.04, 16.5, 67.0]),
    ("minhop", [0.017, 0.06, 18.81, 71.0]),
    ("dfsssp", [0.142, 0.63, 123.0, 625.0]),
    ("lash", [0.012, 0.045, 3859.0, 39_145.0]),
];

/// Trees, nodes, switches, and milliseconds to mark the switches of a migration.
const MARKING: [(&str, usize, usize, Option<f64>); 4] = [
    ("XGFT(2;18,18;18,1)", 324, 36, None),
    ("XGFT(3;18,18,18;18,18,1)", 5832, 972, Some(3.0)),
    ("XGFT(3;36,18,18;18,18,1)", 11664, 1620, Some(3.4)),
    ("XGFT(4;12,12,12,12;12,12,12,1)", 20736, 6912, Some(79.0)),
];

/// Random swaps, of which the one with the most packets counts.
const SWAPS: usize = 2000;

const SOURCE: &str = "\"Efficient Routing and Reconfiguration in Virtualized HPC Environments with \
                      vSwitch-enabled Lossless Networks\"";

fn swap(a: Endpoint, b: Endpoint) -> Exchange {
    Exchange::Swap {
        lid: a.lid,
        other: b.lid,
    }
}

fn sent(updates: &[Update]) -> usize {
    updates.iter().map(Update::packets).sum()
}

fn adapters(graph: &Graph) -> Vec<Endpoint> {
    let endpoints = graph.endpoints.iter().copied();
    endpoints.filter(|endpoint| endpoint.port != 0).collect()
}

/// The table of packets.
pub(super) fn packets(effort: Effort, progress: Progress<'_>) -> Result<Comparison, PapersError> {
    let trees = PACKETS
        .iter()
        .filter(|(_, row)| row[0] <= effort.nodes as f64);
    let of = trees.clone().count();
    let mut rows = Vec::new();
    for (done, (text, published)) in trees.enumerate() {
        progress(Step {
            what: text,
            done,
            of,
        });
        let graph = tree(text)?;
        let hosts = adapters(&graph);
        let switches = graph.switches.len();
        let blocks = ForwardingTable::new(graph.top()).blocks().count();
        let tables = MinHop.route(&graph)?.tables;
        let mut random = generator(effort.lids.seed, done as u64);
        let mut draw = || hosts[random.random_range(0..hosts.len())];
        let most = (0..SWAPS).map(|_| sent(&iterative(&tables, swap(draw(), draw()))));
        let most = most.max().unwrap_or(0);
        let minimum = FatTreeMinimum::new(&graph)?;
        let neighbours = swap(hosts[0], hosts[1]);
        let least = minimum.plan(&tables, neighbours, hosts[0].switch, hosts[1].switch);
        let measured = [
            hosts.len(),
            switches,
            graph.endpoints.len(),
            blocks,
            switches * blocks,
            sent(&least),
            most,
        ];
        rows.push(Row {
            name: (*text).to_owned(),
            values: measured
                .iter()
                .zip(published)
                .map(|(&ours, &theirs)| Value::new(ours as f64, theirs))
                .collect(),
        });
    }
    Ok(Comparison {
        name: "packets",
        title: format!("Packets of a reconfiguration, table of {SOURCE}"),
        of: "tree",
        columns: vec![
            Column::new("nodes", "nodes"),
            Column::new("switches", "switches"),
            Column::new("LIDs", "LIDs"),
            Column::new("blocks of a table", "blocks"),
            Column::new("full", "packets"),
            Column::new("swap, least", "packets"),
            Column::new("swap, most", "packets"),
        ],
        rows,
        remarks: vec![format!(
            "Counted in tables of min-hop: the least for neighbours at a leaf, the most of {SWAPS} \
             random swaps by the iterative method. `ibvswitch bench migration` sends them."
        )],
    })
}

/// Six of twelve switches, or one.
pub(super) fn example() -> Result<Comparison, PapersError> {
    let graph = tree("XGFT(3;2,2,2;2,2,1)")?;
    let tables = FatTree.route(&graph)?.tables;
    // The second leaf's two.
    let (a, b) = (graph.endpoints[2], graph.endpoints[3]);
    let every = iterative(&tables, swap(a, b)).len();
    let minimum = FatTreeMinimum::new(&graph)?.plan(&tables, swap(a, b), a.switch, b.switch);
    Ok(Comparison {
        name: "example",
        title: format!("Figure 3 of {SOURCE}: a migration within a leaf of a tree of 12 switches"),
        of: "tree",
        columns: vec![
            Column::new("ItRC", "switches"),
            Column::new("FTreeMinRC", "switches"),
        ],
        rows: vec![Row {
            name: "XGFT(3;2,2,2;2,2,1)".to_owned(),
            values: vec![
                Value::new(every as f64, 6.0),
                Value::new(minimum.len() as f64, 1.0),
            ],
        }],
        remarks: Vec::new(),
    })
}

/// Times to compute forwarding tables.
pub(super) fn routing_times(
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Comparison, PapersError> {
    let trees = PACKETS
        .iter()
        .filter(|(_, row)| row[0] <= effort.nodes as f64);
    let trees: Vec<&str> = trees.map(|(text, _)| *text).collect();
    let of = trees.len() * TIMES.len();
    let mut rows = Vec::new();
    for (number, text) in trees.iter().enumerate() {
        let graph = tree(text)?;
        let mut values = Vec::new();
        for (name, published) in TIMES {
            progress(Step {
                what: &format!("{name}, {text}"),
                done: number * TIMES.len() + values.len(),
                of,
            });
            let engine = engine(name).unwrap_or_else(|| Box::new(MinHop));
            let start = Instant::now();
            engine.route(&graph)?;
            values.push(Value::new(start.elapsed().as_secs_f64(), published[number]));
        }
        rows.push(Row {
            name: (*text).to_owned(),
            values,
        });
    }
    Ok(Comparison {
        name: "routing-times",
        title: format!("Path computation, figure of {SOURCE}"),
        of: "tree",
        columns: TIMES.map(|(name, _)| Column::new(name, "s")).to_vec(),
        rows,
        remarks: vec![
            "Published: OpenSM on ibsim on eight processors of a Xeon. Ours: one thread of this \
             machine, once. Both from the graph to the tables; `simulate routing --compare-opensm` \
             has OpenSM on this machine."
                .to_owned(),
            "16.5 s and 18.81 s for 5832 nodes are read off a figure that does not say clearly \
             which engine they belong to."
                .to_owned(),
        ],
    })
}

/// Times to mark the switches of a migration from the first leaf to the last.
pub(super) fn marking_times(
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Comparison, PapersError> {
    const ROUNDS: u32 = 20;
    let trees = MARKING.iter().filter(|row| row.1 <= effort.nodes);
    let of = trees.clone().count();
    let mut rows = Vec::new();
    for (done, &(what, nodes, switches, published)) in trees.enumerate() {
        progress(Step { what, done, of });
        let graph = tree(what)?;
        let minimum = FatTreeMinimum::new(&graph)?;
        let hosts = adapters(&graph);
        let (from, to) = (hosts[0].switch, hosts[hosts.len() - 1].switch);
        let mut marked = 0;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            marked = std::hint::black_box(minimum.marked(from, to)).len();
        }
        let each = start.elapsed().as_secs_f64() * 1e3 / f64::from(ROUNDS);
        rows.push(Row {
            name: format!("{switches} switches, {nodes} nodes"),
            values: vec![
                Value {
                    measured: Some(each),
                    published,
                },
                Value::measured(marked as f64),
            ],
        });
    }
    Ok(Comparison {
        name: "marking-times",
        title: format!("FTreeMinRC, marking from edge to edge, of {SOURCE}"),
        of: "tree",
        columns: vec![
            Column::new("marking", "ms"),
            Column::new("marked", "switches"),
        ],
        rows,
        remarks: vec![format!(
            "The mean of {ROUNDS}, with the switches' tuples known, as a subnet manager keeps them."
        )],
    })
}
