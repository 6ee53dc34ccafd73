//! A subnet as a graph for Graphviz.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{is_switch, kind, lid, pkeys, title};
use crate::control::{Node, NodeKind, Topology};

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
    let mut hypervisors: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in &topology.nodes {
        match &node.hypervisor {
            Some(name) => hypervisors.entry(name).or_default().push(node),
            None => statement(&mut text, "  ", node),
        }
    }
    for (at, (name, nodes)) in hypervisors.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  subgraph cluster_{at} {{\n    label={}\n    style=\"rounded,filled\"\n    fillcolor=gray95",
            quoted(name)
        );
        for node in nodes {
            statement(&mut text, "    ", node);
        }
        text.push_str("  }\n");
    }
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

fn statement(text: &mut String, indent: &str, node: &Node) {
    let mut label = format!("{} {}", kind(node), title(node)).trim().to_owned();
    let lid = lid(node).map_or_else(|| "no LID".to_owned(), |lid| format!("LID {lid:#}"));
    let _ = write!(label, "\n{lid}\n{}", node.port_guid);
    if !is_switch(node) {
        let _ = write!(
            label,
            "\n{} {}",
            node.state.as_deref().unwrap_or_default(),
            pkeys(node, 4)
        );
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
    use crate::picture::examples::{built_in, two_levels};

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
        for topology in [built_in(), two_levels(4, 2, 3), odd] {
            let plain = plain(&dot(&topology));
            let lines = |start: &str| plain.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!(lines("node "), topology.nodes.len(), "{plain}");
            assert_eq!(lines("edge "), topology.links.len(), "{plain}");
        }
    }
}
