//! A topology as ibsim reads it.

use std::fmt::Write;

use fabric::Topology;
use wire::attribute::NodeType;

fn name(topology: &Topology, node: usize) -> String {
    let node = &topology.nodes()[node];
    let kind = match node.kind {
        NodeType::Switch => 'S',
        _ => 'H',
    };
    format!("{kind}{:x}", node.guid.value())
}

/// The name of the first adapter.
pub(super) fn host(topology: &Topology) -> Option<String> {
    let is_adapter = |kind| kind == NodeType::ChannelAdapter;
    let nodes = topology.nodes();
    let host = nodes.iter().position(|node| is_adapter(node.kind))?;
    Some(name(topology, host))
}

/// The nodes, named by their GUIDs, and their cables.
pub(super) fn write(topology: &Topology) -> String {
    let nodes = topology.nodes();
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
        let _ = writeln!(text, "{heading} {ports} \"{}\"", name(topology, at));
        for (port, far) in &cables[at] {
            let to = name(topology, far.node.index());
            let _ = writeln!(text, "[{port}] \"{to}\"[{}]", far.port);
        }
        text.push('\n');
    }
    text
}
