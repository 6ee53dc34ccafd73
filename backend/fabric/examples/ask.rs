//! Two hosts at a switch, as `ibnetdiscover` prints them. One of them asks the switch what it is.

use ibvswitch_fabric::{Fabric, Output, Owner, SmpAccess, Topology};
use wire::attribute::{NodeInfo, NodeType};
use wire::mad::{AttributeId, Method};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Guid, Lid, MadPacket};

const SUBNET: &str = r#"
switchguid=0x10(10)
Switch  2 "S-0000000000000010"  # "sw1" base port 0 lid 0 lmc 0
[1]     "H-0000000000000020"[1](21)  # "a" lid 0 4xEDR
[2]     "H-0000000000000030"[1](31)  # "b" lid 0 4xEDR

caguid=0x20
Ca      1 "H-0000000000000020"  # "a"
[1](21) "S-0000000000000010"[1]  # lid 0 lmc 0 "sw1" lid 0 4xEDR

caguid=0x30
Ca      1 "H-0000000000000030"  # "b"
[1](31) "S-0000000000000010"[2]  # lid 0 lmc 0 "sw1" lid 0 4xEDR
"#;

fn main() {
    let topology = Topology::from_netlist(SUBNET).expect("is a subnet");
    let mut fabric = Fabric::new(&topology).expect("is a fabric");
    let port = fabric.port_by_guid(Guid::new(0x21)).expect("is there");
    fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);

    let request = Request {
        destination: Destination::Directed(Route::new(&[1]).expect("one hop")),
        method: Method::GET,
        attribute: AttributeId::NODE_INFO,
        modifier: 0,
        transaction: 1,
        m_key: 0,
        data: [0; DATA],
    };
    fabric.inject(
        port,
        MadPacket::smp(Lid::PERMISSIVE, request.dlid(), request.to_bytes()),
    );
    fabric.run();
    let answer = std::iter::from_fn(|| fabric.poll_output()).find_map(|output| match output {
        Output::Deliver { packet, .. } => Some(packet),
        _ => None,
    });
    let answer = answer.expect("switches answer");
    let smp = Smp::new_checked(&answer.mad[..]).expect("it has the size of a MAD");
    let info = NodeInfo::parse(smp.data()).expect("is one");
    println!("{smp}: {info:?}");
    assert_eq!(
        (info.node_type, info.node_guid),
        (NodeType::Switch, Guid::new(0x10))
    );
}

#[test]
fn runs() {
    main();
}
