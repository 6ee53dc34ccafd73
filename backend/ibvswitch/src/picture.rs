//! The subnet for people to look at: as a tree of text, as a graph for Graphviz, as a drawing.

mod dot;
mod layout;
mod svg;
mod text;

pub use dot::dot;
pub use layout::LayoutError;
pub use svg::{Theme, svg};
pub use text::text;

use wire::ExtendedLid;

use crate::control::{Node, NodeKind};

/// Returns the kind of a node, in one word.
const fn kind(node: &Node) -> &'static str {
    match node.kind {
        NodeKind::Switch => "switch",
        NodeKind::Vswitch => "vSwitch",
        // Its name says it.
        NodeKind::Manager => "",
        NodeKind::Router => "router",
        NodeKind::Host => "host",
        NodeKind::Pf => "PF",
        NodeKind::Vf => "VF",
    }
}

/// A node's name, and the VM whose addresses are at it, where that is another's.
fn title(node: &Node) -> String {
    match &node.holds {
        Some(vm) if *vm != node.name => format!("{}: {vm}", node.name),
        _ => node.name.clone(),
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

/// The first P_Keys of a table, and how many more there are.
fn pkeys(node: &Node, shown: usize) -> String {
    let first: Vec<&str> = node.pkeys.iter().take(shown).map(String::as_str).collect();
    match node.pkeys.len().saturating_sub(shown) {
        0 => first.join(" "),
        more => format!("{} +{more}", first.join(" ")),
    }
}

#[cfg(test)]
pub(crate) mod examples {
    //! Subnets to draw.

    use std::path::Path;

    use fabric::Fabric;
    use vswitch::Plan;

    use crate::control::{Link, LinkEnd, Node, NodeKind, Topology};
    use crate::daemon::engines::engine::SystemClock;
    use crate::daemon::management::vswitch;
    use crate::status::Observer;
    use config::{Config, DEFAULT, Directories};

    /// The built-in configuration, before anybody manages it.
    pub fn built_in() -> Topology {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        let config = Config::parse("f", DEFAULT, dirs).expect("is right");
        let plan = Plan::new(&config.model());
        crate::control::topology(&plan, &Fabric::new(plan.topology()).expect("is a fabric"))
    }

    pub fn node(name: &str, kind: NodeKind, hypervisor: Option<&str>, lid: Option<u32>) -> Node {
        let adapter = matches!(kind, NodeKind::Pf | NodeKind::Vf | NodeKind::Manager);
        Node {
            name: name.to_owned(),
            kind,
            guid: format!("guid of {name}"),
            port_guid: format!("port of {name}"),
            hypervisor: hypervisor.map(str::to_owned),
            ports: 36,
            lid,
            reason: "chosen by the subnet manager".to_owned(),
            state: adapter.then(|| "Active".to_owned()),
            pkeys: if adapter {
                vec!["0xffff".to_owned()]
            } else {
                Vec::new()
            },
            connected: (kind == NodeKind::Vf).then_some(true),
            holds: (kind == NodeKind::Vf).then(|| name.to_owned()),
            subnet: None,
        }
    }

    pub fn link(from: (&str, u8), to: (&str, u8)) -> Link {
        let end = |(node, port): (&str, u8)| LinkEnd {
            node: node.to_owned(),
            guid: format!("guid of {node}"),
            port,
        };
        Link {
            from: end(from),
            to: end(to),
            state: "Active".to_owned(),
            width: "4X".to_owned(),
            speed: "EDR".to_owned(),
        }
    }

    /// Two spines, `leaves` leaf switches, each with `hypervisors` of `vfs` VFs.
    pub fn two_levels(leaves: u8, hypervisors: u8, vfs: u8) -> Topology {
        let mut topology = Topology {
            nodes: Vec::new(),
            links: Vec::new(),
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        };
        let mut lid = 0;
        let mut add = |nodes: &mut Vec<Node>, name: &str, kind, hypervisor: Option<&str>| {
            lid += 1;
            nodes.push(node(name, kind, hypervisor, Some(lid)));
        };
        let Topology { nodes, links, .. } = &mut topology;
        for spine in ["spine1", "spine2"] {
            add(nodes, spine, NodeKind::Switch, None);
        }
        for leaf in 1..=leaves {
            let switch = format!("leaf{leaf}");
            add(nodes, &switch, NodeKind::Switch, None);
            for spine in 1..=2 {
                links.push(link((&format!("spine{spine}"), leaf), (&switch, spine)));
            }
            for hypervisor in 1..=hypervisors {
                let name = format!("hv{leaf}-{hypervisor}");
                add(nodes, &name, NodeKind::Vswitch, Some(&name));
                links.push(link((&switch, 2 + hypervisor), (&name, 1)));
                for vf in 1..=vfs {
                    let vm = format!("vm{leaf}-{hypervisor}-{vf}");
                    add(nodes, &vm, NodeKind::Vf, Some(&name));
                    links.push(link((&name, 1 + vf), (&vm, 1)));
                }
            }
        }
        add(nodes, "subnet manager", NodeKind::Manager, None);
        links.push(link(("leaf1", 36), ("subnet manager", 1)));
        topology
    }

    fn planned(text: &str) -> Topology {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        let config = Config::parse("f", text, dirs).expect("is right");
        let plan = Plan::new(&config.model());
        let clock = std::sync::Arc::new(SystemClock::default());
        let (vswitch, _) = vswitch(
            &config,
            &plan,
            clock,
            &crate::daemon::management::manager_files::Remembered::default(),
        )
        .expect("is right");
        vswitch.poll();
        let observer = Observer::new(config, plan);
        vswitch.inspect(|fabric| observer.topology(fabric, &[]))
    }

    /// Two subnets with a router between them.
    pub fn two_subnets() -> Topology {
        let mut text = String::new();
        for (at, subnet) in ["red", "blue"].iter().enumerate() {
            text += &format!(
                "[[subnet]]\nname = \"{subnet}\"\nprefix = \"fec0:0000:0000:000{at}\"\n\
                 [[switch]]\nname = \"sw-{subnet}\"\nsubnet = \"{subnet}\"\n\
                 [[hypervisor]]\nname = \"hv-{subnet}\"\nswitch = \"sw-{subnet}\"\n\
                 [[hypervisor.vf]]\nname = \"a-vm-with-a-rather-long-name-{at}\"\n"
            );
        }
        text += "[[router]]\nname = \"r1\"\nswitches = [\"sw-red\", \"sw-blue\"]\n";
        planned(&text)
    }

    /// A torus of so many by so many switches, with a hypervisor at each.
    pub fn torus(side: usize) -> Topology {
        let mut text = String::new();
        let places = || (0..side).flat_map(|x| (0..side).map(move |y| (x, y)));
        for (x, y) in places() {
            text += &format!(
                "[[switch]]\nname = \"t{x}{y}\"\n\
                 [[hypervisor]]\nname = \"hv{x}{y}\"\nswitch = \"t{x}{y}\"\n\
                 [[hypervisor.vf]]\nname = \"vm{x}{y}\"\n"
            );
        }
        for (x, y) in places() {
            for (x2, y2) in [((x + 1) % side, y), (x, (y + 1) % side)] {
                text += &format!("[[link]]\nfrom = \"t{x}{y}\"\nto = \"t{x2}{y2}\"\n");
            }
        }
        planned(&text)
    }
}
