//! Subnets to draw.

use control::{Link, LinkEnd, Node, NodeKind, SubnetName, Topology};

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
        cluster: None,
        subnet: None,
        adapter_ports: Vec::new(),
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
        clusters: Vec::new(),
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

/// A subnet in the making: nodes get LIDs in their order.
struct Drawing(Topology);

impl Drawing {
    fn new() -> Self {
        Self(Topology {
            nodes: Vec::new(),
            links: Vec::new(),
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        })
    }

    fn node(&mut self, name: &str, kind: NodeKind, hypervisor: Option<&str>) -> &mut Node {
        let lid = 1 + self.0.nodes.len() as u32;
        self.0.nodes.push(node(name, kind, hypervisor, Some(lid)));
        self.0.nodes.last_mut().expect("was added")
    }

    fn link(&mut self, from: (&str, u8), to: (&str, u8)) {
        self.0.links.push(link(from, to));
    }

    /// A hypervisor at a port of a switch, with one VF.
    fn hypervisor(&mut self, at: (&str, u8), name: &str, vf: &str) {
        self.node(name, NodeKind::Vswitch, Some(name));
        self.node(vf, NodeKind::Vf, Some(name));
        self.link(at, (name, 1));
        self.link((name, 2), (vf, 1));
    }

    fn manager(&mut self, at: (&str, u8), name: &str) {
        self.node(name, NodeKind::Manager, None);
        self.link(at, (name, 1));
    }
}

/// The built-in configuration, before a subnet manager has been there.
pub fn built_in() -> Topology {
    let mut drawing = Drawing::new();
    drawing.node("sw1", NodeKind::Switch, None);
    drawing.hypervisor(("sw1", 1), "hv1", "vm1");
    drawing.hypervisor(("sw1", 2), "hv2", "vm2");
    drawing.manager(("sw1", 3), "subnet manager");
    for node in &mut drawing.0.nodes {
        node.lid = None;
        node.reason = "no subnet manager has been here".to_owned();
        node.state = node.state.as_ref().map(|_| "Initialize".to_owned());
    }
    for link in &mut drawing.0.links {
        link.state = "Initialize".to_owned();
    }
    drawing.0
}

/// Two subnets with a router between them.
pub fn two_subnets() -> Topology {
    let mut drawing = Drawing::new();
    for (at, subnet) in ["red", "blue"].iter().enumerate() {
        let first = drawing.0.nodes.len();
        let switch = format!("sw-{subnet}");
        drawing.node(&switch, NodeKind::Switch, None);
        let vf = format!("a-vm-with-a-rather-long-name-{at}");
        drawing.hypervisor((&switch, 1), &format!("hv-{subnet}"), &vf);
        drawing.manager((&switch, 2), &format!("subnet manager {subnet}"));
        for node in &mut drawing.0.nodes[first..] {
            node.subnet = Some((*subnet).to_owned());
        }
        drawing.0.subnets.push(SubnetName {
            name: (*subnet).to_owned(),
            prefix: format!("fec0:0000:0000:000{at}"),
        });
    }
    let router = drawing.node("r1", NodeKind::Router, None);
    router.lid = None;
    router.reason = "LID 2 in red; LID 3 in blue".to_owned();
    drawing.link(("sw-red", 3), ("r1", 1));
    drawing.link(("sw-blue", 3), ("r1", 2));
    drawing.0
}

/// A torus of so many by so many switches, with a hypervisor at each.
pub fn torus(side: u8) -> Topology {
    let mut drawing = Drawing::new();
    let places = || (0..side).flat_map(|x| (0..side).map(move |y| (x, y)));
    let name = |x: u8, y: u8| format!("t{x}{y}");
    for (x, y) in places() {
        drawing.node(&name(x, y), NodeKind::Switch, None);
    }
    for (x, y) in places() {
        for (to, port) in [(((x + 1) % side, y), 1), ((x, (y + 1) % side), 3)] {
            let to = name(to.0, to.1);
            drawing.link((&name(x, y), port), (&to, port + 1));
        }
    }
    for (x, y) in places() {
        let (hypervisor, vf) = (format!("hv{x}{y}"), format!("vm{x}{y}"));
        drawing.hypervisor((&name(x, y), 5), &hypervisor, &vf);
    }
    drawing.manager((&name(0, 0), 6), "subnet manager");
    drawing.0
}
