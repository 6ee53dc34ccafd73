//! Files of OpenSM's forms, read by this project's readers.

use std::sync::Arc;

use fabric::Listing;
use ibvswitch_subnet_manager::routing::{HopMatrix, TableDump};
use ibvswitch_subnet_manager::{Config, Dump, NodeNames, SubnetManager};
use wire::Lid;
use wire::sa::McMemberRecord;

use crate::guests::Bed;
use crate::harness::{Lost, Managed};

fn written(manager: &SubnetManager, dump: Dump) -> String {
    let mut text = Vec::new();
    dump.write(manager, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn readers_take_them() {
    let mut bed = Bed::new(3, Config::default());
    for port in [0, 5] {
        let join = bed.broadcast(port);
        let components = McMemberRecord::MGID
            | McMemberRecord::PORT_GID
            | McMemberRecord::PKEY
            | McMemberRecord::JOIN_STATE;
        bed.set(port, components, &join).unwrap();
    }
    bed.pass(0);
    let manager = &bed.managed.manager;
    let fabric = &bed.managed.link.fabric;
    let listing = written(manager, Dump::Subnet);
    let read = Listing::read(listing.as_bytes()).unwrap().topology;
    assert_eq!(read.nodes().len(), fabric.nodes().count());
    // A line for each end of a cable.
    assert_eq!(2 * read.links().len(), listing.lines().count());
    assert_eq!(listing.matches("{ CA-SM ").count(), 2);

    let owners = TableDump::parse(&written(manager, Dump::Tables))
        .unwrap()
        .owners();
    for &port in &bed.ports {
        let guid = fabric.node_info(port).unwrap().port_guid;
        assert_eq!(owners[&guid], fabric.port_info(port).unwrap().lid);
    }
    HopMatrix::parse(&written(manager, Dump::Hops)).unwrap();
    let routes = written(manager, Dump::Routes);
    assert!(
        routes.contains(" : 03   : yes\n") && !routes.contains("No "),
        "{routes}"
    );

    // The ports of the tree at each switch, as it forwards.
    let groups = written(manager, Dump::Multicast);
    let lid = format!("0x{:04X} :", Lid::MULTICAST_FIRST.value());
    let ports: usize = { groups.lines().filter(|line| line.starts_with(&lid)) }
        .map(|line| line[lid.len()..].split_whitespace().count())
        .sum();
    // Two members at two switches, which a third one joins.
    assert_eq!(ports, 6, "{groups}");
}

/// Errors and files have the names of a file for nodes.
#[test]
fn nodes_have_their_names() {
    let (managed, layout) = Managed::hypervisors(2, 1, Config::default());
    let port = managed
        .link
        .fabric
        .port_by_guid(layout.vf_guid(1, 0))
        .unwrap();
    let node = managed.link.fabric.node_info(port).unwrap().node_guid;
    let names = format!("{node:#} \"Node 7\" # the last\n");
    let config = Config {
        names: Arc::new(NodeNames::parse(&names).unwrap()),
        ..Config::default()
    };
    let (mut managed, _) = Managed::hypervisors(2, 1, config);
    managed.settle();
    let listing = written(&managed.manager, Dump::Subnet);
    assert_eq!(listing.matches("{Node 7}").count(), 2, "{listing}");
    // The node falls silent once it has told who it is.
    managed.manager.request_sweep();
    let mut told = Vec::new();
    for lost in 0..60 {
        managed.link.lose_request = Some((lost, Lost::Answer));
        managed.settle();
        managed.has_lost();
        told.extend(managed.manager.report().errors.iter().cloned());
        managed.manager.request_sweep();
    }
    let named = told
        .iter()
        .filter(|error| error.contains("(Node 7): no answer"));
    assert!(named.count() > 0, "{told:#?}");
    let behind = told.iter().filter(|error| error.contains(" (behind port "));
    assert!(behind.count() > 0, "{told:#?}");
}
