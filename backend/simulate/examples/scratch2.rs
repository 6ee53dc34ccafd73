//! x
use fabric::{FatTree, Hosts};
use std::fmt::Write;
use wire::attribute::NodeType;
fn main() {
    let tree: FatTree = std::env::args().nth(1).unwrap().parse().unwrap();
    let topology = tree.topology(Hosts::Adapters);
    let mut out = String::new();
    let name = |n: usize| {
        let node = &topology.nodes()[n];
        format!(
            "{}{:x}",
            if node.kind == NodeType::Switch {
                "S"
            } else {
                "H"
            },
            node.guid.value()
        )
    };
    let mut links = vec![Vec::new(); topology.nodes().len()];
    for &(a, b, _) in topology.links() {
        links[a.node.index()].push((a.port, b));
        links[b.node.index()].push((b.port, a));
    }
    for (n, node) in topology.nodes().iter().enumerate() {
        let sw = node.kind == NodeType::Switch;
        if sw {
            writeln!(
                out,
                "switchguid=0x{0:x}({0:x})\nSwitch {1} \"{2}\"",
                node.guid.value(),
                node.ports,
                name(n)
            )
            .unwrap();
        } else {
            writeln!(
                out,
                "caguid=0x{0:x}\nCa {1} \"{2}\"",
                node.guid.value(),
                node.ports,
                name(n)
            )
            .unwrap();
        }
        for (p, far) in &links[n] {
            if sw || true {
                writeln!(
                    out,
                    "[{p}]{} \"{}\"[{}]",
                    if sw {
                        String::new()
                    } else {
                        format!("({:x})", node.port_guids[0].value())
                    },
                    name(far.node.index()),
                    far.port
                )
                .unwrap();
            }
        }
        writeln!(out).unwrap();
    }
    print!("{out}");
}
