//! The subnet for people to look at: as a tree of text, as a graph for Graphviz, as a drawing.

mod dot;
#[cfg(test)]
mod examples;
mod layout;
mod svg;
mod text;

pub use dot::dot;
pub use layout::LayoutError;
pub use svg::{Theme, svg};
pub use text::text;

use wire::ExtendedLid;

use control::{Node, NodeKind};

/// Returns the kind of a node, in one word.
fn kind(node: &Node) -> &'static str {
    match node.kind {
        NodeKind::Switch => "switch",
        NodeKind::Vswitch => "vSwitch",
        NodeKind::Manager if node.name.contains("subnet manager") => "",
        NodeKind::Manager => "subnet manager at",
        NodeKind::Router => "router",
        NodeKind::Host => "host",
        NodeKind::Pf => "PF",
        NodeKind::Vf => "VF",
    }
}

/// A node's name, the VM whose addresses are at it, where that is another's, and that VM's cluster.
fn title(node: &Node) -> String {
    let name = match &node.holds {
        Some(vm) if *vm != node.name => format!("{}: {vm}", node.name),
        _ => node.name.clone(),
    };
    match &node.cluster {
        Some(cluster) => format!("{name} ({cluster})"),
        None => name,
    }
}

const fn is_switch(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Switch | NodeKind::Vswitch)
}

fn lid(node: &Node) -> Option<ExtendedLid> {
    node.lid.and_then(ExtendedLid::new)
}

/// The LID in a few letters; nothing for a router, which has one in each subnet.
fn short_lid(node: &Node) -> String {
    if node.kind == NodeKind::Router {
        return String::new();
    }
    lid(node).map_or_else(|| "no LID".to_owned(), |lid| format!("LID {lid}"))
}

/// A line for each port with a cable, of an adapter with several of these.
fn port_lines(node: &Node) -> Vec<String> {
    let cabled = node.adapter_ports.iter();
    let lines = cabled.filter_map(|port| {
        let lid = port
            .lid
            .map_or("no LID".to_owned(), |lid| format!("LID {lid}"));
        let rate = port.rate.as_ref()?;
        Some(format!(
            "port {}: {lid}, {}, {rate}, {}",
            port.port, port.state, port.guid
        ))
    });
    let lines: Vec<String> = lines.collect();
    if lines.len() > 1 { lines } else { Vec::new() }
}

/// The first P_Keys of a table, and how many more there are.
fn pkeys(node: &Node, shown: usize) -> String {
    let first: Vec<&str> = node.pkeys.iter().take(shown).map(String::as_str).collect();
    match node.pkeys.len().saturating_sub(shown) {
        0 => first.join(" "),
        more => format!("{} +{more}", first.join(" ")),
    }
}
