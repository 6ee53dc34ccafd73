//! Topologies as text: what ibsim's own examples say, and that nothing is lost both ways.

use std::collections::BTreeSet;

use ibvswitch_fabric::{LinkRate, Topology};
use proptest::prelude::*;
use topologies::{FatTree, Hosts, Hypervisors};
use wire::attribute::NodeType;
use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

type Nodes = BTreeSet<(u64, Vec<u64>, u8, String)>;
type Cable = ((u64, u8), (u64, u8), LinkRate);

/// Nodes by GUID, and cables, whatever their order.
fn content(topology: &Topology) -> (Nodes, Vec<Cable>) {
    let nodes = topology.nodes();
    let specs: Vec<_> = nodes.iter().collect();
    let guid = |port: ibvswitch_fabric::PortRef| {
        let fabric = ibvswitch_fabric::Fabric::new(topology).expect("is one");
        let at = ibvswitch_fabric::PortRef { port: 1, ..port };
        fabric.node_info(at).expect("is there").node_guid.value()
    };
    let mut cables: Vec<Cable> = topology
        .links()
        .iter()
        .map(|&(a, b, rate)| {
            let (a, b) = ((guid(a), a.port), (guid(b), b.port));
            (a.min(b), a.max(b), rate)
        })
        .collect();
    cables.sort_by_key(|&(a, b, _)| (a, b));
    let set = specs
        .iter()
        .map(|spec| {
            let ports = spec.port_guids.iter().map(|guid| guid.value()).collect();
            (
                spec.guid.value(),
                ports,
                spec.ports,
                spec.description.to_string(),
            )
        })
        .collect();
    (set, cables)
}

#[test]
fn there_and_back() {
    let tree = FatTree::rlft(4, 16)
        .expect("is one")
        .topology(Hosts::Adapters);
    let mixed = Hypervisors::new(3, 2).expect("are few").topology().clone();
    for topology in [tree, mixed] {
        let text = topology.to_netlist().expect("is a fabric");
        let read = Topology::from_netlist(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(content(&read), content(&topology));
        assert_eq!(read.to_netlist().expect("is a fabric"), text);
    }
}

/// The examples that Debian's package ibsim-utils brings, which `scripts/setup` installs.
#[test]
fn examples_of_ibsim() {
    let directory = "/usr/share/doc/ibsim-utils/net-examples";
    let nodes = |name: &str| {
        let path = format!("{directory}/{name}");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}; install what scripts/setup names"));
        let topology =
            Topology::from_netlist(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let of = |kind| topology.nodes().iter().filter(|it| it.kind == kind).count();
        (
            of(NodeType::Switch),
            of(NodeType::ChannelAdapter),
            topology.links().len(),
        )
    };
    // Counted in the files.
    assert_eq!(nodes("net.1"), (1, 2, 2));
    assert_eq!(nodes("net.2sw2path4hca2port"), (2, 2, 6));
    assert_eq!(nodes("net"), (2, 2, 4));
    nodes("net.2sw2path");
    nodes("net.2sw2path4hca");
}

#[test]
fn guids_and_options() {
    let text = "\
vendid=0x2c9
devid=0xcb20
sysimgguid=0x2c90300000000
switchguid=0x2c90300000100(2c903000001ff)
Switch\t8 \"S\"\t\t# \"a switch\" enhanced port 0 lid 3 lmc 0
[1]\t\"H\"[2](2c90300000202) \t\t# \"a host\" lid 4 4xFDR
[2]\t\"T\" [1] w=3 s=7

hcaguids+0x10
caguid=0x2c90300000200
Ca 2 \"H\"  # a host lid 3
[2](2c90300000212) \"S\"[1] # lid 4 lmc 0 \"a switch\" lid 3 4xFDR
# a comment between
Switch 4 \"T\"
[1] \"S\"[2] w=11 s=3
";
    let topology = Topology::from_netlist(text).unwrap_or_else(|error| panic!("{error}"));
    let [switch, host, other] = topology.nodes() else {
        panic!("three nodes")
    };
    assert_eq!(switch.guid.value(), 0x2_c903_0000_0100);
    assert_eq!(switch.port_guids[0].value(), 0x2_c903_0000_01ff);
    assert_eq!((switch.vendor_id, switch.device_id), (0x2c9, 0xcb20));
    assert_eq!(switch.description.to_string(), "a switch");
    assert_eq!(host.description.to_string(), "a host");
    let guids: Vec<u64> = host.port_guids.iter().map(|guid| guid.value()).collect();
    assert_eq!(guids, [0x2_c903_0000_0201, 0x2_c903_0000_0212]);
    // The next after the first switch's.
    assert_eq!(other.guid.value(), 0x2_c903_0000_0101);
    let rates: Vec<LinkRate> = topology.links().iter().map(|&(.., rate)| rate).collect();
    assert_eq!(
        rates,
        [
            LinkRate {
                width: LinkWidth::X4,
                speed: LinkSpeed::Qdr,
                extended: LinkSpeedExt::Fdr
            },
            LinkRate {
                width: LinkWidth::X4,
                speed: LinkSpeed::Ddr,
                extended: LinkSpeedExt::None
            },
        ]
    );
}

#[test]
fn mistakes() {
    for (text, message) in [
        (
            "",
            "there is no node; begin one with a line such as `Switch 36 \"name\"`",
        ),
        (
            "Switch 0 \"a\"",
            "line 1: no number of ports; a node has 1 to 254",
        ),
        (
            "Switch 255 \"a\"",
            "line 1: no number of ports; a node has 1 to 254",
        ),
        ("Switch 8 a", "line 1: no name in quotation marks"),
        (
            "Rt 2 \"r\"",
            "line 1: routers are not supported; remove the node",
        ),
        (
            "[1] \"a\"[1]",
            "line 1: a cable without a node; begin one with `Switch` or `Ca`",
        ),
        (
            "Switch 8 \"a\"\n\n[1] \"b\"[1]",
            "line 3: a cable without a node; begin one with `Switch` or `Ca`",
        ),
        (
            "Switch 8 \"a\"\n[9] \"b\"[1]",
            "line 2: port 9 of a node with 8 ports",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]",
            "line 2: there is no node `b`",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]\nCa 1 \"b\"",
            "line 2: `b` has no cable at port 1 that leads back here; a cable stands at both its nodes",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[1]",
            "line 3: port 1 has a cable already",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1] w=99\nCa 1 \"b\"\n[1] \"a\"[1]",
            "line 2: `w=99`: the options are w=1 to 31, s=1 to 7, and e=0 to 15",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1] w=8\nCa 1 \"b\"\n[1] \"a\"[1]",
            "line 2: the ends have no width or speed in common",
        ),
        (
            "Switch 8 \"a\"\n[1] \"@up\"",
            "line 2: aliases are not supported; name the node",
        ),
        ("vendid=x", "line 1: `x` is no number"),
        (
            "include \"other\"",
            "line 1: `include` is not understood; nodes are `Switch` and `Ca`, cables begin with `[`, comments with `#`",
        ),
        (
            "caguid=5\nCa 1 \"a\"\n\ncaguid=5\nCa 1 \"b\"",
            "GUID 0000:0000:0000:0006 is used twice; give every node and port a GUID of its own",
        ),
    ] {
        let error = Topology::from_netlist(text).expect_err(text).to_string();
        assert_eq!(error, message, "{text}");
    }
}

proptest! {
    /// Whatever the text is, there is an answer.
    #[test]
    fn any_text(text in "(Switch 8 \"a\"\n|\\[1\\]\\(|\"a\"\\[2\\]|Ca|caguid=|#|=|\\PC|\n| |\"|[0-9]){0,60}") {
        let _ = Topology::from_netlist(&text);
    }
}
