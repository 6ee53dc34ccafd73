//! A subnet manager brings up two hosts at a switch, through the port of one of them.

use std::time::Duration;

use fabric::{Fabric, Station, Topology};
use ibvswitch_subnet_manager::{Config, MinHop, SubnetManager};
use wire::{Guid, PortState};

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
    let mut station = Station::of_manager(&mut fabric, port);
    let mut manager = SubnetManager::new(Config::default(), Box::new(MinHop)).expect("is right");
    let mut now = Duration::ZERO;
    while !manager.is_up() {
        let next = manager.poll(now, &mut station.at(&mut fabric));
        now = next.unwrap_or(now);
    }
    for (guid, lid) in manager.lids() {
        println!("{guid} has LID {lid}");
    }
    let other = fabric.port_by_guid(Guid::new(0x31)).expect("is there");
    let info = fabric.port_info(other).expect("is a port");
    assert_eq!(info.port_state, PortState::Active);
}

#[test]
fn runs() {
    main();
}
