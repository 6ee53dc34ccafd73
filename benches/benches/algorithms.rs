//! Algorithms of subnet management, each by itself and on small subnets: what `cargo bench` watches
//! for changes. `ibvswitch bench routing` has the large ones.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lid_assignment::paths::{Legality, ShortestWidest, UpDown};
use lid_assignment::{Heuristic, Path};
use simulator::lids::irregular;
use simulator::quality::{Traffic, effective_bandwidth};
use simulator::routing::{engine, engines};
use simulator::{generator, graph};
use subnet_manager::routing::reconfiguration::{Exchange, FatTreeMinimum, iterative, skyline};
use subnet_manager::routing::{VSwitchFatTree, Verdict};
use subnet_manager::{Endpoint, Graph, RoutingEngine};
use topologies::{FatTree, Hosts};
use wire::Lid;

/// 648 nodes and 54 switches.
const TREE: &str = "XGFT(2;36,18;18,1)";

fn tree() -> Graph {
    let tree: FatTree = TREE.parse().expect("is a tree");
    graph(&tree.topology(Hosts::Adapters)).expect("has LIDs enough")
}

fn routing(criterion: &mut Criterion) {
    let graph = tree();
    let mut group = criterion.benchmark_group("route 648 nodes");
    group.sample_size(20);
    let others = ["dor", "torus-2QoS", "dragonfly"];
    for name in engines().into_iter().filter(|name| !others.contains(name)) {
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            // A new one each time: some keep to what they have answered before.
            bencher.iter(|| engine(name).expect("is known").route(&graph));
        });
    }
    group.finish();
    let routing = VSwitchFatTree.route(&graph).expect("is a tree");
    criterion.bench_function("walk the tables of 648 nodes", |bencher| {
        bencher.iter(|| Verdict::new(&graph, black_box(&routing)));
    });
}

fn reconfiguration(criterion: &mut Criterion) {
    let graph = tree();
    let tables = VSwitchFatTree.route(&graph).expect("is a tree").tables;
    let hosts: Vec<&Endpoint> = graph.endpoints.iter().filter(|at| at.port != 0).collect();
    let (a, b) = (hosts[0], hosts[hosts.len() - 1]);
    let exchange = Exchange::Swap {
        lid: a.lid,
        other: b.lid,
    };
    let minimum = FatTreeMinimum::new(&graph).expect("is a tree");
    let (from, to) = (a.switch, b.switch);
    criterion.bench_function("plan a migration, FTreeMinRC", |bencher| {
        bencher.iter(|| minimum.plan(&tables, black_box(exchange), from, to));
    });
    criterion.bench_function("plan a migration, ItRC", |bencher| {
        bencher.iter(|| iterative(&tables, black_box(exchange)));
    });
    criterion.bench_function("plan a migration, skyline", |bencher| {
        bencher.iter(|| skyline(&graph, &tables, black_box(exchange), from, to));
    });
}

fn quality(criterion: &mut Criterion) {
    let graph = tree();
    let tables = VSwitchFatTree.route(&graph).expect("is a tree").tables;
    let hosts = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
    let lids: Vec<Lid> = hosts.map(|endpoint| endpoint.lid).collect();
    criterion.bench_function("bisection bandwidth of 648 nodes, 100 draws", |bencher| {
        bencher.iter(|| effective_bandwidth(&graph, &[&tables], &lids, Traffic::Bisection, 100, 1));
    });
}

fn assignment(criterion: &mut Criterion) {
    let network = irregular(128, 32, 8, &mut generator(1, 0)).expect("is possible");
    let root = network.switches().next().expect("has switches");
    let order = UpDown::new(&network, root).expect("is connected");
    let legality = Legality::UpDown(&order);
    criterion.bench_function("shortest-widest paths, 128/32", |bencher| {
        bencher.iter(|| ShortestWidest { legality }.paths(&network));
    });
    let paths = ShortestWidest { legality }
        .paths(&network)
        .expect("is connected");
    let to = network.machines().next().expect("has machines");
    let of = paths.iter().filter(|path| network.destination(path) == to);
    let of: Vec<Path> = of.cloned().collect();
    for heuristic in Heuristic::ALL {
        let name = format!("LIDs of a destination, {}", heuristic.name());
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| heuristic.assign(&network, black_box(&of)));
        });
    }
}

criterion_group!(algorithms, routing, reconfiguration, quality, assignment);
criterion_main!(algorithms);
