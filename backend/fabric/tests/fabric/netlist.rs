//! Topologies as text: what ibsim's own examples say, and that nothing is lost both ways.

use std::collections::BTreeSet;

use ibvswitch_fabric::{LinkRate, Listing, NodeSpec, Topology};
use proptest::prelude::*;
use topologies::{FatTree, Hosts, Hypervisors};
use wire::attribute::NodeType;
use wire::{LinkSpeed, LinkSpeedExt, LinkWidth};

type Nodes = BTreeSet<(u64, u64, Vec<u64>, u8, NodeType, Vec<u8>)>;
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
                spec.system_image_guid.value(),
                ports,
                spec.ports,
                spec.kind,
                spec.description.as_bytes().to_vec(),
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
        again(&topology);
    }
}

/// Writes a topology and reads it again: the same nodes, GUIDs, LIDs, texts, cables and rates.
fn again(topology: &Topology) {
    let text = topology.to_netlist().expect("is a fabric");
    let shown = String::from_utf8_lossy(&text);
    let read = Listing::read(&text).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(content(&read.topology), content(topology), "{shown}");
    assert_eq!(read.topology.to_netlist().expect("is a fabric"), text);
    let specs = topology.nodes().iter().zip(read.topology.nodes());
    for (before, after) in specs {
        let of = |spec: &NodeSpec| (spec.lids.clone(), spec.enhanced_port0, spec.vendor_id);
        assert_eq!(of(before), of(after));
    }
    assert_eq!(read.notices, [""; 0], "{shown}");
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
                extended: LinkSpeedExt::Fdr,
                fdr10: false,
            },
            LinkRate {
                width: LinkWidth::X4,
                speed: LinkSpeed::Ddr,
                extended: LinkSpeedExt::None,
                fdr10: false,
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
            "[1] \"a\"[1]",
            "line 1: a cable without a node; begin one with `Switch`, `Ca` or `Rt`, and leave no empty line behind it",
        ),
        (
            "Switch 8 \"a\"\n\n[1] \"b\"[1]",
            "line 3: a cable without a node; begin one with `Switch`, `Ca` or `Rt`, and leave no empty line behind it",
        ),
        (
            "Switch 8 \"a\"\n[9] \"b\"[1]",
            "line 2: port 9 of a node with 8 ports",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]",
            "line 2: there is no node `b`; add it, or remove the cable",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]\nCa 1 \"b\"",
            "line 2: `b` has no cable at port 1 that leads back here; a cable stands at both its nodes",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[1]",
            "line 3: port 1 has a cable already; remove one",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1] w=99\nCa 1 \"b\"\n[1] \"a\"[1]",
            "line 2: `w=99`: the options are w=1 to 31, s=1 to 7, and e=0 to 15",
        ),
        (
            "Switch 8 \"a\"\n[1] \"b\"[1] w=8\nCa 1 \"b\"\n[1] \"a\"[1]",
            "line 2: the ends have no width or speed in common; write the same at both",
        ),
        (
            "Switch 8 \"a\"\n[1] \"@up\"",
            "line 2: there is no alias `@up`; give a port this name by a line such as `@[1] \"name\"`",
        ),
        (
            "vendid=x",
            "line 1: `x` is no number; write one such as 0x2c9 or 713",
        ),
        (
            "include \"other\"",
            "line 1: other files are not included here; put their nodes in this one",
        ),
        (
            "caguid=5\nCa 1 \"a\"\n\ncaguid=5\nCa 1 \"b\"",
            "line 5: GUID 0000:0000:0000:0005 is used twice, also at line 2; give every node and port a GUID of its own",
        ),
        (
            "Swich 8 \"a\"",
            "there is no node; begin one with a line such as `Switch 36 \"name\"`; line 1: `Swich` is not understood, and the line is left out; nodes are `Switch`, `Ca` and `Rt`, cables begin with `[`, comments with `#`",
        ),
        (
            "Switch 8 \"a\"\nCa 1 \"a\"",
            "line 2: there are two nodes `a`; the other one is at line 1: give each a name of its own",
        ),
        (
            "Switch 8 \"a\"\n[1] \"a\"[1]",
            "line 2: a cable from a port to itself; name another port",
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
        if let Ok(topology) = Topology::from_netlist(&text) {
            again(&topology);
        }
    }
}

/// Reads a listing without errors.
fn listing(text: impl AsRef<[u8]>) -> Listing {
    Listing::read(text.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// As OpenSM 3.3.23 wrote it of a subnet of ibsim.
const SUBNET_LIST: &str = "\
{ SW-SM Ports:12 SystemGUID:0000000000000010 NodeGUID:0000000000000011 PortGUID:0000000000000011 VenID:0002C9 DevID:CB20 Rev:000000A1 {sw 1 {x} } y} LID:0001 PN:02 } { CA Ports:02 SystemGUID:0000000000000020 NodeGUID:0000000000000021 PortGUID:0000000000000023 VenID:000002C9 DevID:10030000 Rev:000000A1 {node1 HCA-1} LID:0003 PN:02 } PHY=4x LOG=ACT SPD=25
{ SW-SM Ports:12 SystemGUID:0000000000000010 NodeGUID:0000000000000011 PortGUID:0000000000000011 VenID:0002C9 DevID:CB20 Rev:000000A1 {sw 1 {x} } y} LID:0001 PN:11 } { SW Ports:04 SystemGUID:0000000000000012 NodeGUID:0000000000000012 PortGUID:0000000000000012 VenID:00000000 DevID:CB200000 Rev:000000A1 {sw2} LID:0002 PN:03 } PHY=1x LOG=ACT SPD=2.5
{ SW Ports:04 SystemGUID:0000000000000012 NodeGUID:0000000000000012 PortGUID:0000000000000012 VenID:000000 DevID:CB20 Rev:000000A1 {sw2} LID:0002 PN:01 } { CA Ports:02 SystemGUID:0000000000000031 NodeGUID:0000000000000031 PortGUID:0000000000000032 VenID:00000000 DevID:10030000 Rev:000000A1 {node2} LID:0004 PN:01 } PHY=4x LOG=ACT SPD=??
{ SW Ports:04 SystemGUID:0000000000000012 NodeGUID:0000000000000012 PortGUID:0000000000000012 VenID:000000 DevID:CB20 Rev:000000A1 {sw2} LID:0002 PN:03 } { SW-SM Ports:12 SystemGUID:0000000000000010 NodeGUID:0000000000000011 PortGUID:0000000000000011 VenID:000002C9 DevID:CB200000 Rev:000000A1 {sw 1 {x} } y} LID:0001 PN:11 } PHY=1x LOG=ACT SPD=2.5
{ CA Ports:02 SystemGUID:0000000000000020 NodeGUID:0000000000000021 PortGUID:0000000000000023 VenID:0002C9 DevID:1003 Rev:000000A1 {node1 HCA-1} LID:0003 PN:02 } { SW-SM Ports:12 SystemGUID:0000000000000010 NodeGUID:0000000000000011 PortGUID:0000000000000011 VenID:000002C9 DevID:CB200000 Rev:000000A1 {sw 1 {x} } y} LID:0001 PN:02 } PHY=4x LOG=ACT SPD=25
{ CA Ports:02 SystemGUID:0000000000000031 NodeGUID:0000000000000031 PortGUID:0000000000000032 VenID:000000 DevID:1003 Rev:000000A1 {node2} LID:0004 PN:01 } { SW Ports:04 SystemGUID:0000000000000012 NodeGUID:0000000000000012 PortGUID:0000000000000012 VenID:00000000 DevID:CB200000 Rev:000000A1 {sw2} LID:0002 PN:01 } PHY=4x LOG=ACT SPD=??
";

#[test]
fn a_subnet_list_of_opensm() {
    let read = listing(SUBNET_LIST);
    let nodes = read.topology.nodes();
    let of = |spec: &NodeSpec| {
        let ids = (spec.guid.value(), spec.system_image_guid.value());
        let made = (spec.vendor_id, spec.device_id, spec.ports);
        let lids: Vec<u16> = spec.lids.iter().map(|lid| lid.value()).collect();
        (spec.description.to_string(), ids, made, lids)
    };
    assert_eq!(
        nodes.iter().map(of).collect::<Vec<_>>(),
        [
            (
                "sw 1 {x} } y".to_owned(),
                (0x11, 0x10),
                (0x2c9, 0xcb20, 18),
                vec![1]
            ),
            ("sw2".to_owned(), (0x12, 0x12), (0, 0xcb20, 4), vec![2]),
            (
                "node1 HCA-1".to_owned(),
                (0x21, 0x20),
                (0x2c9, 0x1003, 2),
                vec![0, 3]
            ),
            ("node2".to_owned(), (0x31, 0x31), (0, 0x1003, 2), vec![4]),
        ]
    );
    let guids: Vec<u64> = nodes[2]
        .port_guids
        .iter()
        .map(|guid| guid.value())
        .collect();
    assert_eq!(guids, [0x22, 0x23]);
    let cables: Vec<_> = { read.topology.links().iter() }
        .map(|(a, b, rate)| (a.port, b.port, rate.width, rate.extended))
        .collect();
    let none = LinkSpeedExt::None;
    assert_eq!(
        cables,
        [
            (2, 2, LinkWidth::X4, LinkSpeedExt::Edr),
            (17, 3, LinkWidth::X1, none),
            (1, 1, LinkWidth::X4, none),
        ]
    );
    assert_eq!(
        read.notices,
        [
            "line 1 and 3 more: revisions of devices (`Rev:`) are not kept",
            "line 3 and 1 more: `4x???` is no rate that is known; the one at the other end is taken, or else 4X and SDR",
        ]
    );
    again(&read.topology);
    // As `ibdiagnet` writes it.
    let long = { SUBNET_LIST.replace("DevID:CB20 ", "DevID:CB200000 ") }
        .replace("DevID:1003 ", "DevID:10030000 ");
    assert_eq!(listing(long).topology.nodes(), nodes);
    // Lines of one node that are apart are two nodes.
    let lines: Vec<&str> = SUBNET_LIST.lines().collect();
    let apart = [lines[0], lines[2], lines[1]].join("\n");
    let error = Listing::read(apart.as_bytes()).expect_err("is not whole");
    assert!(
        error.to_string().starts_with("line 3: there are two nodes"),
        "{error}"
    );
}

/// A switch and an adapter, with these lines in place of their like.
fn with(line: &str) -> String {
    if line.starts_with('{') {
        return format!(
            "{line}\n{{ CA Ports:01 SystemGUID:0000000000000021 NodeGUID:0000000000000021 PortGUID:0000000000000021 \
             VenID:0002C9 DevID:1003 Rev:000000A1 {{node1}} LID:0005 PN:01 }} {{ SW Ports:04 SystemGUID:0000000000000010 \
             NodeGUID:0000000000000011 PortGUID:0000000000000011 VenID:000002C9 DevID:CB200000 Rev:000000A1 {{sw1}} \
             LID:0001 PN:01 }} PHY=4x LOG=ACT SPD=25"
        );
    }
    let mut lines = [
        "sysimgguid=0x10",
        "switchguid=0x11(11)",
        "Switch\t4 \"S-0000000000000011\"\t\t# \"sw1\" enhanced port 0 lid 1 lmc 0",
        "[1]\t\"H-0000000000000021\"[1](21) \t\t# \"node1\" lid 5 4xEDR",
        "",
        "caguid=0x21",
        "Ca\t1 \"H-0000000000000021\"\t\t# \"node1\"",
        "[1](21) \t\"S-0000000000000011\"[1]\t\t# lid 5 lmc 0 \"sw1\" lid 1 4xEDR",
    ]
    .map(str::to_owned);
    let kind = |line: &str| {
        let kinds = [
            ["sysimgguid"; 3],
            ["switchguid"; 3],
            ["Switch"; 3],
            ["[1]("; 3],
            ["[1]"; 3],
            ["caguid", "hcaguid", "rtguid"],
            ["Ca\t", "Hca\t", "Rt\t"],
        ];
        let is_it = |kind: &[&str; 3]| kind.iter().any(|word| line.starts_with(word));
        kinds.iter().position(is_it)
    };
    match lines
        .iter_mut()
        .find(|other| kind(line).is_some() && kind(other) == kind(line))
    {
        Some(place) => line.clone_into(place),
        None => lines[0] = format!("{line}\n{}", lines[0]),
    }
    lines.join("\n")
}

/// The page lists the forms that a listing can have, and what becomes of each.
#[test]
fn the_page_of_forms_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/users/listings.md");
    let page = std::fs::read_to_string(page).expect("is there");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.len() > 40, "{} rows", rows.len());
    let kept = listing(with(""));
    for row in rows {
        let [form, example, fate] = row[..] else {
            panic!("three columns: {row:?}")
        };
        let example = example
            .trim_matches('`')
            .replace("\\t", "\t")
            .replace("\\x", "\u{e9}");
        let read = Listing::read(with(&example).as_bytes());
        let (word, message) = fate.split_once(": ").unwrap_or((fate, ""));
        let message = message.replace("\\|", "|");
        match (word, read) {
            ("kept", Ok(read)) => {
                assert_eq!(read.notices, [""; 0], "{form}");
                assert_ne!(read.topology, kept.topology, "{form}: nothing comes of it");
            }
            // Read, and as it is without.
            ("same", Ok(read)) => {
                assert_eq!(read.notices, [""; 0], "{form}");
                assert_eq!(read.topology, kept.topology, "{form}");
            }
            ("warning", Ok(read)) => {
                let said = read.notices.iter().any(|notice| notice.contains(&message));
                assert!(said, "{form}: {message}\n{:?}", read.notices);
            }
            ("refused", Err(error)) => {
                assert!(error.to_string().contains(&message), "{form}: {error}");
            }
            (_, read) => panic!("{form}: {read:?}"),
        }
    }
}

#[test]
fn rates_that_are_not_known_are_said() {
    let text = "\
Switch 4 \"S-0000000000000011\" # \"sw1\" base port 0 lid 1 lmc 0
[1] \"H-0000000000000021\"[1](21) # \"a\" lid 2 4xFDR10
[2] \"H-0000000000000022\"[1](22) # \"b\" lid 3 4xXDR
[3] \"H-0000000000000023\"[1](23) # \"c\" lid 4 1xSDR s=1 w=1 v=4
[4] \"H-0000000000000024\"[1](24) # \"d\" lid 5 4x???

Ca 1 \"H-0000000000000021\" # \"a\"
[1](21) \"S-0000000000000011\"[1] # lid 2 lmc 0 \"sw1\" lid 1 4xFDR10

Ca 1 \"H-0000000000000022\" # \"b\"
[1](22) \"S-0000000000000011\"[2] # lid 3 lmc 0 \"sw1\" lid 1 4xXDR

Ca 1 \"H-0000000000000023\" # \"c\"
[1](23) \"S-0000000000000011\"[3] # lid 4 lmc 0 \"sw1\" lid 1 4xDDR

Ca 1 \"H-0000000000000024\" # \"d\"
[1](24) \"S-0000000000000011\"[4] # lid 5 lmc 0 \"sw1\" lid 1 8xNDR
";
    let read = listing(text);
    let rates = read.topology.links().iter().map(|&(.., rate)| rate);
    let of = |width, speed, extended| LinkRate {
        width,
        speed,
        extended,
        fdr10: false,
    };
    let none = LinkSpeedExt::None;
    assert_eq!(
        rates.collect::<Vec<_>>(),
        [
            LinkRate {
                fdr10: true,
                ..of(LinkWidth::X4, LinkSpeed::Qdr, none)
            },
            of(LinkWidth::X4, LinkSpeed::Qdr, LinkSpeedExt::Xdr),
            of(LinkWidth::X1, LinkSpeed::Sdr, none),
            of(LinkWidth::X4, LinkSpeed::Qdr, LinkSpeedExt::Ndr),
        ]
    );
    assert_eq!(
        read.notices,
        [
            "line 4: VLCap (`v=`) is not kept: every port has eight data lanes",
            "line 4 and 1 more: the ends name different rates; the lower one is taken, 1xSDR",
            "line 5: `4x???` is no rate that is known; the one at the other end is taken, or else 4X and SDR",
        ]
    );
    let guids = read.topology.nodes().iter().map(|node| node.guid.value());
    assert_eq!(guids.collect::<Vec<_>>(), [0x11, 0x21, 0x22, 0x23, 0x24]);
    let lids = read
        .topology
        .nodes()
        .iter()
        .map(|node| node.lids[0].value());
    assert_eq!(lids.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let again = listing(read.topology.to_netlist().expect("is a fabric"));
    assert_eq!(content(&again.topology), content(&read.topology));
}

#[test]
fn texts_are_bytes() {
    let mut text = with("").into_bytes();
    let at = text.windows(5).position(|part| part == b"\"sw1\"");
    let at = at.expect("is there");
    text.splice(at + 1..at + 4, *b"B\xe2timent \"2\"");
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend(&text);
    let read = listing(marked);
    let switch = &read.topology.nodes()[0];
    assert_eq!(switch.description.as_bytes(), b"B\xe2timent \"2\"");
    assert_eq!(switch.description.to_string(), "B\u{e2}timent \"2\"");
    assert!(switch.enhanced_port0);
    again(&read.topology);

    let long = format!(
        "Switch\t4 \"S-0000000000000011\"\t\t# \"{}\" lid 1",
        "x".repeat(80)
    );
    let read = listing(with(&long));
    assert_eq!(read.topology.nodes()[0].description.as_bytes(), [b'x'; 64]);
    assert_eq!(
        read.notices,
        ["line 3: the node's text is cut to the 64 bytes of a NodeDescription"]
    );
}

#[test]
fn routers() {
    let text = "\
vendid=0x2c9
devid=0xd2f4
sysimgguid=0x10
switchguid=0x12(13)
Switch\t4 \"S-0000000000000012\"\t\t# \"sw1/U2\" enhanced port 0 lid 2 lmc 0
[2]\t\"H-0000000000000022\"[1](22) \t\t# \"node2\" lid 6 4xXDR
[4]\t\"R-0000000000000031\"[2](32) \t\t# \"sw1/U2/RT\" lid 9 1xXDR

caguid=0x22
Ca\t1 \"H-0000000000000022\"\t\t# \"node2\"
[1](22) \t\"S-0000000000000012\"[2]\t\t# lid 6 lmc 0 \"sw1/U2\" lid 2 4xXDR

devid=0xc839
sysimgguid=0x10
rtguid=0x31
Rt\t8 \"R-0000000000000031\"\t\t# \"sw1/U2/RT\"
[2](32) \t\"S-0000000000000012\"[4]\t\t# lid 9 lmc 0 \"sw1/U2\" lid 2 1xXDR
";
    let read = listing(text);
    let [switch, _, router] = read.topology.nodes() else {
        panic!("three nodes")
    };
    assert_eq!(
        (switch.kind, router.kind),
        (NodeType::Switch, NodeType::Router)
    );
    assert_eq!(switch.system_image_guid, router.system_image_guid);
    assert_eq!(switch.port_guids[0].value(), 0x13);
    let guids: Vec<u64> = router.port_guids.iter().map(|guid| guid.value()).collect();
    // Port 2 is given, with the usual GUID of port 1.
    assert_eq!(guids[..3], [0x31, 0x32, 0x34]);
    assert_eq!(read.notices, [""; 0]);
    again(&read.topology);
}

/// Modules, aliases and inclusions, as ibsim reads them, and switches that grouping prints twice.
#[test]
fn forms_of_ibsim() {
    let folder = tempfile::tempdir().expect("is made");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("is written");
        path
    };
    let rack =
        "Switch 4 \"sw\"\n[1] \"host\"[1]\n@[2] \"up\" s=3\n\nHca 2 \"host\"\n[1] \"sw\"[1]\n";
    file("rack", rack);
    let whole = file(
        "whole",
        "speed=7\nmodule=\"r1\"\ninclude \"rack\"\nmodule=\"r2\"\ninclude \"rack\"\npdebug=1\n\
         module=\"\"\nSwitch 4 \"top\"\n[1] \"r1@up\"\n[2] \"r2@up\"\n[3] \"r1#host\"[2]\n",
    );
    let error = Listing::open(&whole)
        .expect_err("does not lead back")
        .to_string();
    assert_eq!(
        error,
        "line 11: `r1#host` has no cable at port 2 that leads back here; a cable stands at both its nodes"
    );
    let text = std::fs::read_to_string(&whole).expect("is there");
    let once = text.replace("[3] \"r1#host\"[2]\n", "");
    let whole = file("whole", &once);
    let read = Listing::open(&whole).expect("is read");
    assert_eq!(
        (read.topology.nodes().len(), read.topology.links().len()),
        (5, 4)
    );
    let speeds = read.topology.links().iter().map(|(.., rate)| rate.speed);
    let speeds: Vec<LinkSpeed> = speeds.collect();
    assert_eq!(
        speeds,
        [
            LinkSpeed::Qdr,
            LinkSpeed::Qdr,
            LinkSpeed::Ddr,
            LinkSpeed::Ddr
        ]
    );
    assert_eq!(
        read.included,
        [folder.path().join("rack"), folder.path().join("rack")]
    );

    for (name, text, message) in [
        (
            "loop",
            "include \"loop\"\n",
            "`loop` line 1: more than 9 files, each in the other; include fewer",
        ),
        (
            "out",
            "include \"../x\"\n",
            "line 1: `../x` is not beside this file; put it there, and write its name alone",
        ),
        (
            "bad",
            "include \"worse\"\n",
            "`worse` line 2: no name in quotation marks",
        ),
    ] {
        file("worse", "Switch 4 \"a\"\nSwitch 4\n");
        let error = Listing::open(&file(name, text))
            .expect_err(name)
            .to_string();
        assert_eq!(error, message);
    }
}
