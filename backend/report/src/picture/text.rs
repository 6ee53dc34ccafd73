//! A subnet as a tree of text.

use std::collections::{HashMap, HashSet};

use super::{kind, lid, pkeys, title};
use crate::table;
use control::{AdapterPort, Elsewhere, Link, Node, NodeKind, Topology};
use wire::ExtendedLid;

const COLUMNS: usize = 7;

/// A tree from each node that no link leads to, in the order of the nodes: one line per node, with
/// its port towards the node above it, LID, state, GUID, P_Keys, and why it has that LID. A node
/// that several links lead to is described once.
#[must_use]
pub fn text(topology: &Topology) -> String {
    let mut tree = Tree {
        nodes: topology
            .nodes
            .iter()
            .map(|node| (node.guid.as_str(), node))
            .collect(),
        links: HashMap::new(),
        drawn: HashSet::new(),
        rows: vec![
            [
                "NODE",
                "LID",
                "STATE",
                "PORT GUID",
                "P_KEYS",
                "VM",
                "WHY THIS LID",
            ]
            .map(str::to_owned),
        ],
    };
    for link in &topology.links {
        tree.links
            .entry(link.from.guid.as_str())
            .or_default()
            .push(link);
    }
    let led_to: HashSet<&str> = topology
        .links
        .iter()
        .map(|link| link.to.guid.as_str())
        .collect();
    let roots = topology
        .nodes
        .iter()
        .filter(|node| !led_to.contains(node.guid.as_str()));
    for root in roots {
        tree.draw(root);
    }
    // Whatever only a ring of links leads to.
    for node in &topology.nodes {
        if !tree.drawn.contains(node.guid.as_str()) {
            tree.draw(node);
        }
    }
    let mut text = table(&tree.rows);
    for Elsewhere {
        name,
        hypervisor,
        device,
    } in &topology.elsewhere
    {
        text += &format!(
            "Not of this subnet: {name} on {hypervisor}, passed through to the node {device} of another one\n"
        );
    }
    text
}

struct Tree<'a> {
    nodes: HashMap<&'a str, &'a Node>,
    links: HashMap<&'a str, Vec<&'a Link>>,
    drawn: HashSet<&'a str>,
    rows: Vec<[String; COLUMNS]>,
}

/// A node yet to be drawn: its link, the strokes before it, and whether it is the last there.
struct Branch<'a> {
    node: &'a Node,
    link: Option<&'a Link>,
    strokes: String,
    last: bool,
}

impl<'a> Tree<'a> {
    /// Draws a node and what is below it. Not recursive: a chain may be as long as a subnet.
    fn draw(&mut self, root: &'a Node) {
        let mut waiting = vec![Branch {
            node: root,
            link: None,
            strokes: String::new(),
            last: true,
        }];
        while let Some(branch) = waiting.pop() {
            let below = self.line(&branch);
            let links = self
                .links
                .remove(branch.node.guid.as_str())
                .unwrap_or_default();
            let children: Vec<_> = links
                .into_iter()
                .filter_map(|link| Some((link, *self.nodes.get(link.to.guid.as_str())?)))
                .collect();
            let count = children.len();
            for (at, (link, node)) in children.into_iter().enumerate().rev() {
                waiting.push(Branch {
                    node,
                    link: Some(link),
                    strokes: below.clone(),
                    last: at + 1 == count,
                });
            }
        }
    }

    /// Adds a node's row; returns the strokes before what is below it.
    fn line(&mut self, branch: &Branch<'a>) -> String {
        let Branch {
            node,
            link,
            strokes,
            last,
        } = branch;
        let name = match kind(node) {
            "" => title(node),
            kind => format!("{kind} {}", title(node)),
        };
        let (name, below) = match link {
            None => (name, String::new()),
            Some(link) => {
                let (corner, pipe) = if *last {
                    ("└─", "   ")
                } else {
                    ("├─", "│  ")
                };
                let broken = match link.state.as_str() {
                    "Active" => String::new(),
                    state => format!(" (link {state})"),
                };
                let ports = format!("{} {} {name}", link.from.port, corner_of(link.to.port));
                (
                    format!("{strokes}{corner}{ports}{broken}"),
                    format!("{strokes}{pipe}"),
                )
            }
        };
        let port = link.and_then(|link| {
            let mut ports = node.adapter_ports.iter();
            ports.find(|port| port.port == link.to.port)
        });
        if !self.drawn.insert(&node.guid) {
            let mut row = [const { String::new() }; COLUMNS];
            row[0] = name;
            row[1] = "above".to_owned();
            if let Some(port) = port {
                row[1] = port_lid(port);
                row[2].clone_from(&port.state);
                row[3].clone_from(&port.guid);
                row[6] = "another port of an adapter above".to_owned();
            }
            self.rows.push(row);
            return below;
        }
        if let Some(port) = port {
            // P_Keys and the reason are those of the first port with a cable.
            self.rows.push([
                name,
                port_lid(port),
                port.state.clone(),
                port.guid.clone(),
                match pkeys(node, 4) {
                    none if none.is_empty() => "-".to_owned(),
                    some => some,
                },
                "-".to_owned(),
                node.reason.clone(),
            ]);
            return below;
        }
        self.rows.push([
            name,
            match (lid(node), node.kind) {
                (Some(lid), _) => format!("{lid:#}"),
                (None, NodeKind::Router) => "-".to_owned(),
                (None, _) => "none".to_owned(),
            },
            node.state.clone().unwrap_or_else(|| "-".to_owned()),
            node.port_guid.clone(),
            match pkeys(node, 4) {
                none if none.is_empty() => "-".to_owned(),
                some => some,
            },
            match node.connected {
                Some(true) => "connected",
                Some(false) => "none",
                None => "-",
            }
            .to_owned(),
            match &node.subnet {
                Some(subnet) => format!("in {subnet}: {}", node.reason),
                None => node.reason.clone(),
            },
        ]);
        below
    }
}

fn port_lid(port: &AdapterPort) -> String {
    let lid = port.lid.and_then(ExtendedLid::new);
    lid.map_or("none".to_owned(), |lid| format!("{lid:#}"))
}

/// The far port of a link, where it is not the only one a reader would expect.
fn corner_of(port: u8) -> String {
    match port {
        1 => "──".to_owned(),
        port => format!("── {port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::examples::{link, node, two_levels};

    #[test]
    fn a_tree() {
        let mut down = link(("hv1", 4), ("vm2", 1));
        down.state = "Down".to_owned();
        let topology = Topology {
            nodes: vec![
                node("sw1", NodeKind::Switch, None, Some(2)),
                node("hv1", NodeKind::Vswitch, Some("hv1"), None),
                node("vm1", NodeKind::Vf, Some("hv1"), Some(0x10)),
                node("vm2", NodeKind::Vf, Some("hv1"), Some(0x11)),
            ],
            links: vec![
                link(("sw1", 1), ("hv1", 1)),
                link(("hv1", 3), ("vm1", 1)),
                down,
            ],
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        };
        let text = text(&topology);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("switch sw1 "), "{text}");
        assert!(lines[2].starts_with("└─1 ── vSwitch hv1 "), "{text}");
        assert!(lines[3].starts_with("   ├─3 ── VF vm1 "), "{text}");
        assert!(
            lines[4].starts_with("   └─4 ── VF vm2 (link Down) "),
            "{text}"
        );
        assert!(lines[3].contains("16 (0x0010)"), "{text}");
        assert!(
            lines[3].contains("Active  port of vm1  0xffff  connected"),
            "{text}"
        );
    }

    #[test]
    fn each_port_of_an_adapter_has_its_own_line() {
        let port = |port, lid| AdapterPort {
            port,
            guid: format!("guid {port}"),
            lid,
            state: if lid.is_some() { "Active" } else { "Down" }.to_owned(),
            rate: lid.map(|_| "4X EDR".to_owned()),
            cable: lid.map(|_| format!("sw1:{port}")),
        };
        let mut adapter = node("a", NodeKind::Host, None, Some(5));
        adapter.adapter_ports = vec![port(1, None), port(2, Some(5)), port(3, Some(6))];
        let topology = Topology {
            nodes: vec![node("sw1", NodeKind::Switch, None, Some(2)), adapter],
            links: vec![link(("sw1", 1), ("a", 2)), link(("sw1", 4), ("a", 3))],
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        };
        let text = text(&topology);
        let lines: Vec<&str> = text.lines().collect();
        let has = |line: usize, part: &str| assert!(lines[line].contains(part), "{text}");
        has(2, "1 ── 2 host a");
        has(2, "5 (0x0005)  Active  guid 2");
        has(3, "4 ── 3 host a");
        has(3, "6 (0x0006)  Active  guid 3");
    }

    #[test]
    fn a_ring_ends() {
        let topology = Topology {
            nodes: vec![
                node("a", NodeKind::Switch, None, None),
                node("b", NodeKind::Switch, None, None),
            ],
            links: vec![link(("a", 1), ("b", 1)), link(("b", 2), ("a", 2))],
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        };
        assert_eq!(text(&topology).lines().count(), 4);
    }

    #[test]
    fn each_node_is_described_once() {
        let topology = two_levels(4, 2, 3);
        let text = text(&topology);
        for node in &topology.nodes {
            assert_eq!(
                text.matches(&format!("{}  ", node.port_guid)).count(),
                1,
                "{text}"
            );
        }
        assert_eq!(text.matches("above").count(), 4, "{text}");
    }
}
