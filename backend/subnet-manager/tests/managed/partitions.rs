//! Partitions of a file, by packets into adapters and switches.

use fabric::{NoRoute, PortRef};
use ibvswitch_subnet_manager::{Config, Files, Migration, Partitions, Policy, Target};
use topologies::Hypervisors;
use wire::mad::Status;
use wire::sa::{McMemberRecord, PathRecord};
use wire::{Guid, PKey, PortState, Sl};

use crate::guests::Bed;
use crate::harness::Managed;

const FILE: &str = "
    Default : ALL=full ;
    blue = 0x10, ipoib, defmember=full : vm1, vm2 ;
    red  = 0x20, ipoib : vm3=full, ALL_CAS ;   # the last word counts: all limited
";

fn file(text: &str, hypervisor: impl Fn(u16) -> Guid) -> Files {
    let partitions = Partitions::parse(text, |name| {
        let number: u16 = name.strip_prefix("vm")?.parse().ok()?;
        Some(hypervisor(number - 1))
    });
    Files {
        partitions: Some(partitions.unwrap()),
        ..Files::default()
    }
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
    managed.manager.set_files(file(FILE, guid), None);
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
    managed.manager.set_files(red, None);
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
    managed.manager.set_files(file(FILE, guid), None);
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
    managed.manager.set_files(none, None);
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

/// Paths and groups have the service levels, limits and partitions of a policy file.
#[test]
fn a_policy_decides_by_request() {
    const POLICY: &str = "qos-levels
qos-level\nname: DEFAULT\nsl: 1\nend-qos-level
qos-level\nname: small\nsl: 2\nmtu-limit: 2\nrate-limit: 2\npacket-life: 9\nend-qos-level
qos-level\nname: kept\nsl: 3\npkey: 0x20\nend-qos-level
end-qos-levels
port-groups\nport-group\nname: self\nnode-type: SELF\nend-port-group\nend-port-groups
qos-match-rules
qos-match-rule\nservice-id: 7\nqos-level-name: small\nend-qos-match-rule
qos-match-rule\nqos-class: 9\nqos-level-name: kept\nend-qos-match-rule
qos-match-rule\ndestination: self\nqos-level-name: small\nend-qos-match-rule
end-qos-match-rules
qos-ulps\nipoib, pkey 0x10 : 4\nend-qos-ulps";
    let partitions = "Default : ALL=full ; blue=0x10, sl=5 : ALL=full ; red=0x20, sl=6 : ALL=full\n\
                      mgid=ff12:401b::7, sl=7\n ;";
    let mut files = file(partitions, |_| Guid::NONE);
    files.policy = Some(Policy::parse(POLICY, |_| None).unwrap());
    let config = Config {
        partition_file: files.partitions,
        policy: files.policy,
        ..Config::default()
    };
    let mut bed = Bed::new(2, config);
    const ENDS: u64 = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let whole = bed.get(0, ENDS, &bed.path(0, 3)).unwrap();
    assert_eq!((whole.sl.value(), whole.pkey), (1, PKey::DEFAULT_FULL));
    let wanted = PathRecord {
        service_id: 7,
        qos_class: 9,
        pkey: PKey::new(0x8010),
        sl: Sl::new(1),
        ..bed.path(0, 3)
    };
    let mut ask = |mask: u64| bed.get(0, ENDS | mask, &wanted);
    let small = ask(PathRecord::SERVICE_ID | PathRecord::QOS_CLASS).unwrap();
    let of = |path: PathRecord| (path.sl.value(), path.mtu, path.rate, path.packet_life_time);
    assert_eq!(of(small), (2, 2, 2, 9));
    let kept = ask(PathRecord::QOS_CLASS).unwrap();
    assert_eq!((kept.sl.value(), kept.pkey.value()), (3, 0x8020));
    assert_eq!(of(kept), (3, whole.mtu, whole.rate, whole.packet_life_time));
    assert_eq!(ask(PathRecord::PKEY).unwrap().sl.value(), 4);
    assert_eq!(ask(PathRecord::SL).unwrap().sl.value(), 1);
    // What the level does not admit.
    for mask in [
        PathRecord::QOS_CLASS | PathRecord::PKEY,
        PathRecord::PKEY | PathRecord::SL,
    ] {
        assert_eq!(ask(mask), Err(Status::SA_NO_RECORDS));
    }
    let manager = PathRecord {
        dlid: bed.info(0).master_sm_lid,
        ..wanted
    };
    let mask = PathRecord::SGID | PathRecord::DLID;
    assert_eq!(bed.get(0, mask, &manager).unwrap().sl.value(), 2);
    let level = |bed: &mut Bed, mgid: &str| {
        let mgid = mgid.parse().unwrap();
        let group = McMemberRecord {
            mgid,
            ..McMemberRecord::default()
        };
        bed.get(0, McMemberRecord::MGID, &group).unwrap().sl.value()
    };
    // The rule's, the partition's, the group's own.
    assert_eq!(level(&mut bed, "ff12:401b:8010::ffff:ffff"), 4);
    assert_eq!(level(&mut bed, "ff12:401b:8020::ffff:ffff"), 6);
    assert_eq!(level(&mut bed, "ff12:401b:8020::7"), 7);
    // Without the policy, and with nobody in the groups, all is as the partitions say.
    let manager = &mut bed.managed.manager;
    manager.set_files(file(partitions, |_| Guid::NONE), None);
    bed.managed.settle();
    assert_eq!(level(&mut bed, "ff12:401b:8010::ffff:ffff"), 5);
    assert_eq!(
        bed.get(0, ENDS | PathRecord::PKEY, &wanted)
            .unwrap()
            .sl
            .value(),
        5
    );
}
