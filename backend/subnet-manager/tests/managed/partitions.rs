//! Partitions of a file, by packets into adapters and switches.

use fabric::{NoRoute, PortRef};
use ibvswitch_subnet_manager::routing::Roles;
use ibvswitch_subnet_manager::{Config, Migration, Partitions, Target};
use topologies::Hypervisors;
use wire::{Guid, PKey, PortState, Sl};

use crate::harness::Managed;

const FILE: &str = "
    Default : ALL=full ;
    blue = 0x10, ipoib, defmember=full : vm1, vm2 ;
    red  = 0x20, ipoib : vm3=full, ALL_CAS ;   # the last word counts: all limited
";

fn file(text: &str, hypervisor: impl Fn(u16) -> Guid) -> Partitions {
    Partitions::parse(text, |name| {
        let number: u16 = name.strip_prefix("vm")?.parse().ok()?;
        Some(hypervisor(number - 1))
    })
    .unwrap()
}

fn may(managed: &Managed, from: Guid, to: Guid, pkey: u16) -> Result<(), NoRoute> {
    let fabric = &managed.link.fabric;
    let [from, to] = [from, to].map(|guid| fabric.port_by_guid(guid).unwrap());
    let lid = fabric.port_info(to).unwrap().lid;
    let route = fabric.resolve(from, lid, Sl::default(), Some(PKey::new(pkey)))?;
    assert_eq!(route.port, to);
    Ok(())
}

#[test]
fn a_file_fills_the_tables() {
    let (mut managed, layout) = Managed::hypervisors(3, 1, Config::default());
    let guid = |hypervisor| layout.vf_guid(hypervisor, 0);
    managed
        .manager
        .set_files(Some(file(FILE, guid)), Roles::default(), None);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    let keys = |managed: &Managed, guid| {
        let fabric = &managed.link.fabric;
        let port = fabric.port_by_guid(guid).unwrap();
        let keys = fabric.pkeys(port).unwrap().iter();
        let keys = keys.take_while(|key| **key != PKey::INVALID);
        keys.map(|key| key.value()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&managed, guid(0)), [0xffff, 0x8010, 0x20]);
    assert_eq!(keys(&managed, guid(2)), [0xffff, 0x20]);
    // Another file, at run time.
    let red = file("Default : SELF=full, ALL ; red=0x20 : ALL_CAS=full ;", guid);
    managed.manager.set_files(Some(red), Roles::default(), None);
    managed.settle();
    assert_eq!(keys(&managed, guid(0)), [0x7fff, 0x8020]);
    assert_eq!(keys(&managed, layout.manager_guid()), [0xffff, 0x8020]);
    // A table that the port is given itself goes before the file.
    let own = vec![PKey::new(0x8030)];
    managed.manager.set_partitions(guid(0), own);
    managed.settle();
    assert_eq!(keys(&managed, guid(0)), [0x8030]);
}

#[test]
fn switches_enforce() {
    let config = Config {
        enforce_partitions: true,
        ..Config::default()
    };
    let (mut managed, layout) = Managed::hypervisors(3, 1, config);
    let guid = |hypervisor| layout.vf_guid(hypervisor, 0);
    managed
        .manager
        .set_files(Some(file(FILE, guid)), Roles::default(), None);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    managed.all_active_and_reachable();
    let fabric = &managed.link.fabric;
    let vf = fabric.port_by_guid(guid(0)).unwrap();
    let facing = fabric.peer(vf).unwrap();
    let info = fabric.port_info(facing).unwrap();
    assert!(info.partition_enforcement_inbound && info.partition_enforcement_outbound);
    assert_eq!(info.port_state, PortState::Active);
    let [first, second, third] = [0, 1, 2].map(|at| fabric.pkeys(facing).unwrap()[at].value());
    assert_eq!([first, second, third], [0xffff, 0x8010, 0x20]);
    // The uplink lets everything through.
    let uplink = fabric.port_info(PortRef { port: 1, ..facing }).unwrap();
    assert!(!uplink.partition_enforcement_inbound);
    assert_eq!(may(&managed, guid(0), guid(1), 0x8010), Ok(()));
    assert!(may(&managed, guid(0), guid(2), 0x8010).is_err());
    // Two limited members.
    assert!(may(&managed, guid(0), guid(2), 0x20).is_err());
    // What a second sweep would set is set.
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
    // Fewer keys, and the switch forgets them.
    let none = file("Default : ALL=full ;", guid);
    managed
        .manager
        .set_files(Some(none), Roles::default(), None);
    managed.settle();
    let keys = managed.link.fabric.pkeys(facing).unwrap();
    assert_eq!(keys[..2], [PKey::DEFAULT_FULL, PKey::INVALID]);
}

/// A switch port lets through the partitions of the VM behind it, as soon as it has moved.
#[test]
fn what_switches_enforce_moves_with_a_vm() {
    let layout = Hypervisors::new(3, 2).unwrap();
    let [vm, friend, spare] = [(0, 0), (1, 0), (2, 1)].map(|(hv, vf)| layout.vf_guid(hv, vf));
    let own = vec![PKey::new(0x8010), PKey::DEFAULT_FULL];
    let config = Config {
        enforce_partitions: true,
        spare_functions: [spare].into(),
        partitions: [(vm, own.clone()), (friend, own)].into(),
        ..Config::default()
    };
    let (mut managed, _) = Managed::hypervisors(3, 2, config);
    managed.settle();
    let port = |managed: &Managed, guid| managed.link.fabric.port_by_guid(guid).unwrap();
    let (left, entered) = (port(&managed, vm), port(&managed, spare));
    let facing = |managed: &Managed, at| {
        let fabric = &managed.link.fabric;
        let keys = fabric.pkeys(fabric.peer(at).unwrap()).unwrap();
        [keys[0].value(), keys[1].value()]
    };
    assert_eq!(facing(&managed, left), [0x8010, 0xffff]);
    assert_eq!(facing(&managed, entered), [0xffff, 0]);
    let migration = Migration::new(vm, Target::Function(spare));
    managed.migrate(migration).unwrap();
    assert_eq!(port(&managed, vm), entered);
    assert_eq!(facing(&managed, entered), [0x8010, 0xffff]);
    assert_eq!(facing(&managed, left), [0xffff, 0]);
    assert_eq!(may(&managed, vm, friend, 0x8010), Ok(()));
    assert_eq!(may(&managed, friend, vm, 0x8010), Ok(()));
    assert!(may(&managed, spare, friend, 0x8010).is_err());
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(
        managed.manager.report().sets,
        0,
        "a sweep finds it all done"
    );
}
