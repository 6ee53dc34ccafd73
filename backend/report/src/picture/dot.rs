//! A subnet as a graph for Graphviz.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{is_switch, kind, lid, pkeys, port_lines, title};
use control::{Node, NodeKind, Topology};

/// The subnet in Graphviz's language: a cluster per hypervisor, an edge per link with the ports at
/// its ends; links that carry no data are dashed.
#[must_use]
pub fn dot(topology: &Topology) -> String {
    let mut text = String::from(
        "graph subnet {\n  \
           graph [rankdir=TB, fontname=\"sans-serif\", ranksep=0.8]\n  \
           node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\", fontsize=11]\n  \
           edge [fontname=\"sans-serif\", fontsize=9, color=gray40]\n",
    );
    for (at, subnet) in topology.subnets.iter().enumerate() {
        let label = quoted(&format!("subnet {}\n{}", subnet.name, subnet.prefix));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  subgraph cluster_subnet_{at} {{\n    label={label}\n    style=dotted"
        );
        nodes(&mut text, topology, Some(&subnet.name));
        text.push_str("  }\n");
    }
    nodes(&mut text, topology, None);
    for link in &topology.links {
        let style = if link.state == "Active" {
            ""
        } else {
            ", style=dashed"
        };
        let _ = writeln!(
            text,
            "  {} -- {} [taillabel=\"{}\", headlabel=\"{}\", tooltip={}{style}]",
            quoted(&link.from.guid),
            quoted(&link.to.guid),
            link.from.port,
            link.to.port,
            quoted(&format!("{} {} {}", link.width, link.speed, link.state)),
        );
    }
    text.push_str("}\n");
    text
}

/// The nodes of a subnet, or those that are of none in particular: hypervisors each in a cluster.
fn nodes(text: &mut String, topology: &Topology, subnet: Option<&str>) {
    let of = |node: &Node| {
        let mut named = topology.subnets.iter().map(|named| named.name.as_str());
        let own = node.subnet.as_deref();
        own.filter(|own| named.any(|named| named == *own)) == subnet
    };
    let mut hypervisors: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in topology.nodes.iter().filter(|node| of(node)) {
        match &node.hypervisor {
            Some(name) => hypervisors.entry(name).or_default().push(node),
            None => statement(text, "  ", node),
        }
    }
    for (name, nodes) in &hypervisors {
        let id = quoted(&format!("cluster_{name}"));
        let label = quoted(name);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  subgraph {id} {{\n    label={label}\n    style=\"rounded,filled\"\n    fillcolor=gray95"
        );
        for node in nodes {
            statement(text, "    ", node);
        }
        text.push_str("  }\n");
    }
}

fn statement(text: &mut String, indent: &str, node: &Node) {
    let mut label = format!("{} {}", kind(node), title(node)).trim().to_owned();
    let lid = match (lid(node), node.kind) {
        (Some(lid), _) => format!("LID {lid:#}"),
        // One in each subnet.
        (None, NodeKind::Router) => node.reason.replace("; ", "\n"),
        (None, _) => "no LID".to_owned(),
    };
    let _ = write!(label, "\n{lid}\n{}", node.port_guid);
    if !is_switch(node) {
        let _ = write!(
            label,
            "\n{} {}",
            node.state.as_deref().unwrap_or_default(),
            pkeys(node, 4)
        );
    }
    for line in port_lines(node) {
        let _ = write!(label, "\n{line}");
    }
    let shape = match node.kind {
        NodeKind::Switch => ", shape=box3d, fillcolor=lightblue, style=filled",
        NodeKind::Vswitch => ", fillcolor=aliceblue",
        NodeKind::Router => ", shape=diamond, fillcolor=lightyellow, style=filled",
        NodeKind::Manager => ", fillcolor=lavender",
        NodeKind::Pf => ", fillcolor=aliceblue",
        NodeKind::Host | NodeKind::Vf => "",
    };
    let _ = writeln!(
        text,
        "{indent}{} [label={}{shape}]",
        quoted(&node.guid),
        quoted(label.trim_end())
    );
}

/// A string of Graphviz's language; line breaks become its own.
fn quoted(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::picture::examples::{built_in, two_levels, two_subnets};

    /// Graphviz's own reading of a graph, as its plain output.
    fn plain(dot: &str) -> String {
        let mut child = Command::new("dot")
            .arg("-Tplain")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("graphviz is installed (scripts/setup)");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(dot.as_bytes()).expect("is read");
        drop(stdin);
        let output = child.wait_with_output().expect("ends");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}\n{dot}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("is text")
    }

    #[test]
    fn graphviz_reads_it() {
        let mut odd = built_in();
        odd.nodes[0].name = "a \"quoted\" \\name\\".to_owned();
        for topology in [built_in(), two_levels(4, 2, 3), two_subnets(), odd] {
            let plain = plain(&dot(&topology));
            let lines = |start: &str| plain.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!(lines("node "), topology.nodes.len(), "{plain}");
            assert_eq!(lines("edge "), topology.links.len(), "{plain}");
        }
    }
}
