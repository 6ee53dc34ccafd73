//! Growth of the routing engines' time and memory with the subnet, as a figure.

use simulator::plot::{Figure, Line, Panel};
use topologies::FatTree;

use super::{ENGINES, TREES};
use crate::Report;

/// Time and memory of every engine over nodes times switches; `None` where nothing of that was
/// measured.
#[must_use]
pub fn figure(report: &Report) -> Option<Figure> {
    let value = |name: &str| {
        let found = report.results.iter().find(|result| result.name == name);
        found.map(|result| result.value)
    };
    let sizes = TREES.map(|(_, tree)| {
        let tree: Result<FatTree, _> = tree.parse();
        tree.map_or(0.0, |tree| (tree.hosts() * tree.switches()) as f64 / 1e6)
    });
    let lines = |names: &dyn Fn(&super::Names) -> [&'static str; TREES.len()]| -> Vec<Line> {
        let line = |(_, names_of): &(super::Engine, super::Names)| {
            let points = sizes.into_iter().zip(names(names_of));
            let points = points.filter_map(|(size, name)| Some((size, value(name)?)));
            Line::joined(names_of.engine, points.collect())
        };
        ENGINES.iter().map(line).collect()
    };
    let (times, memory) = (lines(&|names| names.seconds), lines(&|names| names.memory));
    times.iter().any(|line| !line.points.is_empty()).then(|| {
        let x = "nodes × switches, millions";
        Figure {
            title: "Routing fat-trees of 36-port switches".to_owned(),
            panels: vec![
                Panel::lines("Time, one thread", x, "seconds", times),
                Panel::lines("Memory of the process, at most", x, "MiB", memory),
            ],
        }
    })
}
