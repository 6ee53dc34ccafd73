//! `ibvswitch topology`

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use clap::Args;
use wire::Lid;

use super::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{Link, Node, NodeKind, Request, Response, Topology};

/// Arguments of `topology`.
#[derive(Debug, Args)]
pub(super) struct TopologyArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: &TopologyArgs) -> Result<(), CliError> {
    let Response::Topology(topology) = ask(source, &Request::Topology {})? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        print_json(&topology)
    } else {
        print(&text(&topology))
    }
}

/// A tree from each node that no link leads to, in the order of the nodes.
fn text(topology: &Topology) -> String {
    let mut tree = Tree {
        nodes: topology
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect(),
        links: HashMap::new(),
        drawn: HashSet::new(),
        text: String::new(),
    };
    for link in &topology.links {
        tree.links
            .entry(link.from.node.as_str())
            .or_default()
            .push(link);
    }
    let led_to: HashSet<&str> = topology
        .links
        .iter()
        .map(|link| link.to.node.as_str())
        .collect();
    let roots = topology
        .nodes
        .iter()
        .filter(|node| !led_to.contains(node.name.as_str()));
    for root in roots {
        tree.draw(root, "", 0);
    }
    // Whatever only a ring of links leads to.
    for node in &topology.nodes {
        if !tree.drawn.contains(node.name.as_str()) {
            tree.draw(node, "", 0);
        }
    }
    tree.text
}

struct Tree<'a> {
    nodes: HashMap<&'a str, &'a Node>,
    links: HashMap<&'a str, Vec<&'a Link>>,
    drawn: HashSet<&'a str>,
    text: String,
}

impl<'a> Tree<'a> {
    fn draw(&mut self, node: &'a Node, by: &str, depth: usize) {
        let lid = node
            .lid
            .map_or_else(|| "none".to_owned(), |lid| format!("{:#}", Lid::from(lid)));
        let kind = match node.kind {
            NodeKind::Switch => "switch ",
            NodeKind::Vswitch => "vSwitch ",
            // Its name says it.
            NodeKind::Manager => "",
            NodeKind::Vf => "VF ",
        };
        let indent = depth * 2;
        // Writing to a string does not fail.
        let _ = writeln!(
            self.text,
            "{:indent$}{by}{kind}{}  LID {lid}  GUID {}",
            "", node.name, node.guid
        );
        if !self.drawn.insert(&node.name) {
            return;
        }
        for link in self.links.remove(node.name.as_str()).unwrap_or_default() {
            let by = format!("port {} -- port {}  ", link.from.port, link.to.port);
            if let Some(&next) = self.nodes.get(link.to.node.as_str()) {
                self.draw(next, &by, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LinkEnd;

    fn node(name: &str, kind: NodeKind, lid: Option<u16>) -> Node {
        Node {
            name: name.to_owned(),
            kind,
            guid: "0002:c903:0000:0001".to_owned(),
            lid,
        }
    }

    fn link(from: (&str, u8), to: (&str, u8)) -> Link {
        let end = |(node, port): (&str, u8)| LinkEnd {
            node: node.to_owned(),
            port,
        };
        Link {
            from: end(from),
            to: end(to),
        }
    }

    #[test]
    fn a_tree() {
        let topology = Topology {
            nodes: vec![
                node("sw1", NodeKind::Switch, Some(2)),
                node("hv1", NodeKind::Vswitch, None),
                node("vm1", NodeKind::Vf, Some(0x10)),
            ],
            links: vec![link(("sw1", 1), ("hv1", 1)), link(("hv1", 3), ("vm1", 1))],
        };
        assert_eq!(
            text(&topology),
            "switch sw1  LID 2 (0x0002)  GUID 0002:c903:0000:0001\n\
             \x20 port 1 -- port 1  vSwitch hv1  LID none  GUID 0002:c903:0000:0001\n\
             \x20   port 3 -- port 1  VF vm1  LID 16 (0x0010)  GUID 0002:c903:0000:0001\n"
        );
    }

    #[test]
    fn a_ring_ends() {
        let topology = Topology {
            nodes: vec![
                node("a", NodeKind::Switch, None),
                node("b", NodeKind::Switch, None),
            ],
            links: vec![link(("a", 1), ("b", 1)), link(("b", 2), ("a", 2))],
        };
        assert_eq!(text(&topology).lines().count(), 3);
    }
}
