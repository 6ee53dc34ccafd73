//! A topology as ibsim reads it.

use std::fmt::Write;

use fabric::{NodeSpec, Topology};
use wire::attribute::NodeType;

/// Returns the name of a node in the file.
#[must_use]
pub fn name(node: &NodeSpec) -> String {
    let kind = match node.kind {
        NodeType::Switch => 'S',
        _ => 'H',
    };
    format!("{kind}{:x}", node.guid.value())
}

/// The name of the first adapter.
#[must_use]
pub fn host(topology: &Topology) -> Option<String> {
    let is_adapter = |kind| kind == NodeType::ChannelAdapter;
    let mut nodes = topology.nodes().iter();
    nodes.find(|node| is_adapter(node.kind)).map(name)
}

/// The nodes, named by their GUIDs, and their cables.
#[must_use]
pub fn write(topology: &Topology) -> String {
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
        let _ = writeln!(text, "{heading} {ports} \"{}\"", name(node));
        for (port, far) in &cables[at] {
            let to = name(&nodes[far.node.index()]);
            let _ = writeln!(text, "[{port}] \"{to}\"[{}]", far.port);
        }
        text.push('\n');
    }
    text
}
