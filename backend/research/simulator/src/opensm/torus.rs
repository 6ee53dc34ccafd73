//! OpenSM's configuration of `torus-2QoS`, which tells it of the sizes of a torus and of the cables at one switch.

use std::fmt::Write;

use subnet_manager::Graph;

/// The configuration for a torus of up to three dimensions, cabled as the generator does; `None` where no switch has whole
/// rings in all of them.
pub(super) fn config(graph: &Graph) -> Option<String> {
    let ports = graph.switches.iter().flat_map(|vertex| &vertex.trunks);
    let dimensions = ports.map(|trunk| trunk.port).max()?.div_ceil(2);
    let next = |at: usize, port: u8| {
        let mut trunks = graph.switches[at].trunks.iter();
        trunks
            .find(|trunk| trunk.port == port)
            .map(|trunk| trunk.to)
    };
    let ring = |start: usize, dimension: u8| {
        let mut at = start;
        for links in 1..=graph.switches.len() {
            at = next(at, 2 * dimension + 1)?;
            if at == start {
                return Some(links);
            }
        }
        None
    };
    let sizes = |at: usize| -> Option<Vec<usize>> {
        (0..dimensions)
            .map(|dimension| ring(at, dimension))
            .collect()
    };
    let mut seeds = (0..graph.switches.len()).filter_map(|at| Some((at, sizes(at)?)));
    let (seed, mut sizes): (usize, Vec<usize>) = seeds.next().filter(|_| dimensions <= 3)?;
    sizes.resize(3, 1);
    let mut text = format!("torus {} {} {}\n", sizes[0], sizes[1], sizes[2]);
    let guid = |at: usize| graph.switches[at].guid;
    for (dimension, axis) in (0..dimensions).zip(["x", "y", "z"]) {
        for (sign, port) in [("p", 2 * dimension + 1), ("m", 2 * dimension + 2)] {
            let to = guid(next(seed, port)?);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{axis}{sign}_link {:#} {to:#}", guid(seed));
        }
    }
    Some(text)
}
