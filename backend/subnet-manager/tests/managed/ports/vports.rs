//! Virtual ports of adapters: found, enabled, brought up, followed.

use std::time::Duration;

use fabric::{
    Fabric, GlobalAddress, NodeSpec, PortRef, Topology, VPort, VPortOwner, VPortSpec, VPorts,
};
use ibvswitch_subnet_manager::{Config, MinHop, SubnetManager, Transport, VirtualPorts};
use wire::attribute::{
    GuidInfo, NodeDescription, NodeInfo, VPortInfo, VPortStates, VirtualizationInfo,
};
use wire::mad::{AttributeId, Method, Status};
use wire::sa::{self, GuidInfoRecord, NodeRecord, PathRecord};
use wire::smp::{DATA, Smp};
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState, Sl};

use crate::guests::{self, Bed};
use crate::harness::{Link, Managed};
use crate::liars;
use crate::subnets::global_route;

/// Virtual ports by their index, at each adapter.
const SHARED: u16 = 1;
const OWN: u16 = 2;
const SPARE: u16 = 3;
const MANAGER: Guid = Guid::new(0x77);

fn guid(adapter: u64, vport: u16) -> Guid {
    Guid::new(0x0002_c903_0000_0000 + (adapter << 8) + u64::from(vport))
}

/// A switch with the manager's host and two adapters, which have three virtual ports each: one that shares the LID, one
/// that requires one, one that is not enabled.
fn fabric() -> Fabric {
    let mut topology = Topology::new();
    let manager = topology.add(NodeSpec::channel_adapter(MANAGER, MANAGER, "manager"));
    let switch = topology.add(NodeSpec::switch(Guid::new(0x78), 3, "switch"));
    topology.link((manager, 1), (switch, 1), Default::default());
    for adapter in 1..=2 {
        let vport = |index| VPortSpec {
            guid: if index == SPARE {
                Guid::NONE
            } else {
                guid(adapter, index)
            },
            node_guid: guid(adapter, index + 0x10),
            description: NodeDescription::new("VF"),
            lid_required: index != SHARED,
        };
        let vports = (SHARED..=SPARE).map(vport).collect();
        let node = topology.add(NodeSpec::virtualized(
            guid(adapter, 0),
            vports,
            "hypervisor",
        ));
        topology.link((node, 1), (switch, adapter as u8 + 1), Default::default());
    }
    Fabric::new(&topology).unwrap()
}

fn managed(config: Config) -> (Managed, [PortRef; 2]) {
    let managed = Managed::new(fabric(), MANAGER, config);
    let port = |adapter| managed.link.fabric.port_by_guid(guid(adapter, 0)).unwrap();
    let ports = [port(1), port(2)];
    (managed, ports)
}

/// Only traps and requests make this manager sweep.
fn quiet() -> Config {
    Config {
        sweep_interval: Duration::ZERO,
        ..Config::default()
    }
}

fn state(managed: &Managed, port: PortRef, index: u16) -> PortState {
    vport_at(&managed.link.fabric, port, index).state()
}

fn vport_at(fabric: &Fabric, port: PortRef, index: u16) -> &VPort {
    VPorts::at(fabric, port).unwrap().port(index).unwrap()
}

fn set_owned(fabric: &mut Fabric, port: PortRef, index: u16, guid: Guid, lid: bool) -> bool {
    VPortOwner::new(fabric, port).set(index, guid, lid)
}

#[test]
fn they_come_up_with_their_addresses() {
    let keys = vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED];
    let partitions = [(guid(1, OWN), keys.clone()), (guid(2, OWN), keys.clone())];
    let config = Config {
        partitions: partitions.into(),
        enforce_partitions: true,
        ..Config::default()
    };
    let (mut managed, ports) = managed(config);
    managed.settle();
    let report = managed.manager.report();
    assert_eq!(report.errors, Vec::<String>::new());
    assert_eq!((report.adapters, report.virtual_ports), (3, (4, 4)));
    managed.all_active_and_reachable();
    let fabric = &managed.link.fabric;
    for port in ports {
        assert!(VPorts::at(fabric, port).unwrap().is_enabled());
        for index in [SHARED, OWN] {
            assert_eq!(state(&managed, port, index), PortState::Active);
        }
        assert_eq!(state(&managed, port, SPARE), PortState::Down);
        assert_eq!(vport_at(fabric, port, SHARED).lid(), Lid::NONE);
        assert_eq!(vport_at(fabric, port, OWN).pkeys()[..2], keys);
        assert_eq!(fabric.pkeys(port).unwrap()[0], PKey::DEFAULT_FULL);
    }
    // Their LIDs lead to them from everywhere, in their partition, which the switch lets through.
    for (from, to) in [(ports[0], ports[1]), (ports[1], ports[0])] {
        let lid = vport_at(fabric, to, OWN).lid();
        let route = fabric.resolve(from, lid, Sl::default(), Some(PKey::new(0x8001)));
        assert_eq!(route.unwrap().port, to);
        assert_eq!(
            managed.manager.lids()[&vport_at(fabric, to, OWN).guid()],
            lid
        );
    }
    // Another sweep has nothing to write.
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
}

#[test]
fn paths_lead_to_them_by_guid() {
    let (managed, ports) = managed(Config::default());
    let mut bed = Bed::of(managed, ports.to_vec());
    let own = vport_at(&bed.managed.link.fabric, ports[1], OWN).lid();
    let base = bed.lid(1);
    let gid = |adapter, index| Gid::new(Gid::DEFAULT_PREFIX, guid(adapter, index));
    let ends = PathRecord::SGID | PathRecord::DGID;
    for (index, dlid, hop_limit) in [(SHARED, base, 1), (OWN, own, 0), (0, base, 0)] {
        let wanted = PathRecord {
            sgid: gid(1, 0),
            dgid: gid(2, index),
            ..PathRecord::default()
        };
        let path = bed.get(0, ends, &wanted).unwrap();
        assert_eq!((path.dlid, path.slid), (dlid, bed.lid(0)), "{index}");
        assert_eq!(path.hop_limit, hop_limit, "{index}");
    }
    // By the LID alone.
    let wanted = PathRecord {
        slid: bed.lid(0),
        dlid: own,
        ..PathRecord::default()
    };
    let path = bed
        .get(0, PathRecord::SLID | PathRecord::DLID, &wanted)
        .unwrap();
    assert_eq!(path.dgid, gid(2, OWN));
    // It is a node of its own in the records, since others can name it by its LID.
    let record = NodeRecord {
        lid: own,
        ..NodeRecord::default()
    };
    let node = bed.get(0, 1, &record).unwrap();
    let info = NodeInfo::parse(&node.node_info[..]).unwrap();
    let guids = (info.node_guid, info.port_guid);
    assert_eq!(guids, (guid(2, OWN + 0x10), guid(2, OWN)));
    let description = NodeDescription::from_bytes(node.node_description);
    assert_eq!(description.text(), Some("VF"));
    // One that is not there is nobody's.
    let wanted = PathRecord {
        sgid: gid(1, 0),
        dgid: gid(2, SPARE),
        ..PathRecord::default()
    };
    assert_eq!(bed.get(0, ends, &wanted), Err(Status::SA_INVALID_GID));
}

const ALIASES: [Guid; 2] = [Guid::new(0xa1), Guid::new(0xa2)];

/// Asks for an alias GUID at this entry of the table of a LID, as a virtual port of the first adapter does, or the port itself.
fn register(
    bed: &mut Bed,
    index: u16,
    lid: Lid,
    (entry, alias): (usize, Guid),
) -> Result<[Guid; 8], Status> {
    let mut guids = [Guid::NONE; 8];
    guids[entry] = alias;
    let record = GuidInfoRecord {
        lid,
        block: 0,
        guid_info: GuidInfo::from_entries(guids).to_bytes(),
    };
    let mad = sa::with_record(Method::SET, 7, 3 | 1 << (4 + entry), &record);
    let info = bed.info(0);
    let mut packet = MadPacket::gmp(
        info.lid,
        info.master_sm_lid,
        Sl::default(),
        PKey::DEFAULT_FULL,
        mad,
    );
    let dgid = Gid::new(info.gid_prefix, MANAGER);
    let hop_limit = 1;
    let to = GlobalAddress { dgid, hop_limit };
    packet.grh = Some(global_route(Gid::new(info.gid_prefix, guid(1, index)), to));
    bed.managed.link.fabric.inject(bed.ports[0], packet);
    let answers = bed.pass(0);
    let answer = guests::record::<GuidInfoRecord>(&answers[0].mad)?;
    bed.managed.settle();
    Ok(GuidInfo::parse(&answer.guid_info).unwrap().entries())
}

/// Each virtual port has a table of GUIDs of its own, and nobody writes another's.
#[test]
fn they_have_alias_guids() {
    let [shared, own] = ALIASES;
    let key = PKey::new(0x8001);
    let config = Config {
        partitions: [(own, vec![key])].into(),
        ..quiet()
    };
    let (managed, ports) = managed(config);
    let mut bed = Bed::of(managed, ports.to_vec());
    let table = |bed: &Bed, port: usize, index: u16| {
        let vport = vport_at(&bed.managed.link.fabric, ports[port], index);
        vport.guids()[..4].to_vec()
    };
    let (base, lid) = (
        bed.lid(0),
        vport_at(&bed.managed.link.fabric, ports[0], OWN).lid(),
    );
    let entries = register(&mut bed, SHARED, base, (1, shared)).unwrap();
    assert_eq!(entries[..2], [guid(1, SHARED), shared]);
    register(&mut bed, OWN, lid, (2, own)).unwrap();
    let none = Guid::NONE;
    assert_eq!(
        table(&bed, 0, SHARED),
        [guid(1, SHARED), shared, none, none]
    );
    assert_eq!(table(&bed, 0, OWN), [guid(1, OWN), none, own, none]);
    let physical = bed.managed.link.fabric.guids(ports[0]).unwrap();
    assert_eq!(physical[..2], [guid(1, 0), none], "not the port's");
    // An alias is a member of its partitions by the keys of its virtual port.
    let keys = |bed: &Bed, port: usize, index| {
        vport_at(&bed.managed.link.fabric, ports[port], index).pkeys()[..2].to_vec()
    };
    assert_eq!(keys(&bed, 0, OWN), [PKey::DEFAULT_FULL, key]);
    assert_eq!(keys(&bed, 0, SHARED), [PKey::DEFAULT_FULL, PKey::INVALID]);
    // Both are found by a global route, at the LID of their virtual port.
    let path = |bed: &mut Bed, to: Guid| {
        let wanted = PathRecord {
            sgid: Gid::new(Gid::DEFAULT_PREFIX, guid(2, 0)),
            dgid: Gid::new(Gid::DEFAULT_PREFIX, to),
            ..PathRecord::default()
        };
        let path = bed.get(1, PathRecord::SGID | PathRecord::DGID, &wanted)?;
        Ok((path.dlid, path.hop_limit))
    };
    assert_eq!(path(&mut bed, shared), Ok((base, 1)));
    assert_eq!(path(&mut bed, guid(1, OWN)), Ok((lid, 0)));
    // The alias is in a partition that the asker's port is not in.
    assert_eq!(path(&mut bed, own), Err(Status::SA_NO_RECORDS));
    let of_lid = GuidInfoRecord {
        lid,
        ..GuidInfoRecord::default()
    };
    let read = bed.get(1, 1, &of_lid).unwrap();
    assert_eq!(GuidInfo::parse(&read.guid_info).unwrap().guid2, own);
    // Others' tables.
    let other = (3, Guid::new(0xa3));
    for (index, lid) in [(OWN, base), (SHARED, lid), (0, lid)] {
        let refused = register(&mut bed, index, lid, other);
        assert_eq!(refused, Err(Status::SA_DENIED), "{index} {lid}");
    }
    // The alias of another is not to be had, and a VM that moves takes its own along.
    let taken = register(&mut bed, OWN, lid, (1, shared)).unwrap();
    assert_eq!(taken[1], none);
    let fabric = &mut bed.managed.link.fabric;
    assert!(set_owned(fabric, ports[0], OWN, none, true));
    assert!(set_owned(fabric, ports[1], SPARE, guid(1, OWN), true));
    bed.managed.run();
    assert_eq!(table(&bed, 0, OWN), [none; 4]);
    assert_eq!(table(&bed, 1, SPARE), [guid(1, OWN), none, own, none]);
    assert_eq!(keys(&bed, 1, SPARE), [PKey::DEFAULT_FULL, key]);
    // And back, to a virtual port that has been sent the same before.
    let fabric = &mut bed.managed.link.fabric;
    assert!(set_owned(fabric, ports[1], SPARE, none, true));
    assert!(set_owned(fabric, ports[0], OWN, guid(1, OWN), true));
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    assert_eq!(table(&bed, 0, OWN), [guid(1, OWN), none, own, none]);
    assert_eq!(bed.managed.manager.report().errors, Vec::<String>::new());
}

#[test]
fn a_trap_tells_of_a_change_and_a_vm_that_moves_keeps_its_lid() {
    let (mut managed, ports) = managed(quiet());
    managed.settle();
    managed.run();
    let vm = guid(1, OWN);
    let lid = managed.manager.lids()[&vm];
    let fabric = &mut managed.link.fabric;
    assert!(set_owned(fabric, ports[0], OWN, Guid::NONE, true));
    assert!(set_owned(fabric, ports[1], SPARE, vm, true));
    managed.run();
    assert_eq!(managed.manager.traps().collect::<Vec<_>>(), [(1146, 2)]);
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert_eq!(state(&managed, ports[0], OWN), PortState::Down);
    assert_eq!(state(&managed, ports[1], SPARE), PortState::Active);
    let fabric = &managed.link.fabric;
    assert_eq!(vport_at(fabric, ports[1], SPARE).lid(), lid);
    let route = fabric
        .resolve(managed.link.station.port, lid, Sl::default(), None)
        .unwrap();
    assert_eq!(route.port, ports[1]);
}

/// The trap got lost: the bit of change is seen by the next light sweep.
#[test]
fn a_light_sweep_sees_the_bit_of_change() {
    let (mut managed, ports) = managed(Config::default());
    managed.settle();
    let sweeps = managed.manager.report().sweeps;
    managed.pass_interval();
    assert_eq!(managed.manager.report().sweeps, sweeps, "nothing changed");
    set_owned(&mut managed.link.fabric, ports[0], SPARE, guid(1, 9), true);
    managed.link.fabric.run();
    let trap = managed.link.fabric.poll_output();
    assert!(trap.is_some(), "it gets lost");
    managed.pass_interval();
    managed.settle();
    assert_eq!(state(&managed, ports[0], SPARE), PortState::Active);
}

#[test]
fn a_manager_that_is_told_to_leave_them_alone_does() {
    let with = |virtual_ports| Config {
        virtual_ports,
        ..Config::default()
    };
    let (mut managed, ports) = managed(with(VirtualPorts::Ignored));
    managed.settle();
    managed.all_active_and_reachable();
    assert_eq!(state(&managed, ports[0], OWN), PortState::Down);
    let is_ordinary = |(_, attribute, _): (_, AttributeId, _)| attribute.0 < 0xff00;
    assert!(managed.manager.requests().all(is_ordinary));
    // Others after it bring them up, take them down, and leave them as they are.
    for (virtual_ports, expected) in [
        (VirtualPorts::Enabled, PortState::Active),
        (VirtualPorts::Ignored, PortState::Active),
        (VirtualPorts::Disabled, PortState::Down),
    ] {
        managed.manager = SubnetManager::new(with(virtual_ports), Box::new(MinHop)).unwrap();
        managed.settle();
        assert_eq!(
            state(&managed, ports[0], OWN),
            expected,
            "{virtual_ports:?}"
        );
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    }
}

/// The next one finds each as it is, and gives it no other LID.
#[test]
fn a_manager_killed_at_any_packet_keeps_them() {
    let up = || {
        let (mut managed, _) = managed(Config::default());
        managed.settle();
        managed
    };
    let kept = |managed: &Managed| {
        for (adapter, lid) in [(1, 4), (2, 5)] {
            let port = managed.link.fabric.port_by_guid(guid(adapter, 0)).unwrap();
            for index in [SHARED, OWN] {
                assert_eq!(state(managed, port, index), PortState::Active);
            }
            let own = vport_at(&managed.link.fabric, port, OWN).lid();
            assert_eq!(own, Lid::new(lid + 1));
        }
    };
    kept(&up());
    assert!(liars::killed(2, up, kept) > 20);
    // In the first sweep of all.
    let new = || managed(Config::default()).0;
    assert!(liars::killed(4, new, |_| {}) > 50);
}

/// Agents that lie: `lie` changes the data and the status of each answer about virtual ports, or holds it back.
struct Liar<'a, F> {
    link: &'a mut Link,
    lie: F,
    answers: usize,
}

impl<F> Transport for Liar<'_, F>
where
    F: FnMut(AttributeId, u32, &mut [u8; DATA]) -> Option<Status>,
{
    fn send(&mut self, packet: MadPacket) {
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        loop {
            let mut packet = self.link.receive()?;
            self.answers += 1;
            let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) else {
                return Some(packet);
            };
            let (attribute, modifier) = (smp.mad().attribute(), smp.mad().modifier());
            if attribute.0 < 0xffb0 || !smp.mad().method().is_response() {
                return Some(packet);
            }
            let mut data = *smp.data();
            let Some(status) = (self.lie)(attribute, modifier, &mut data) else {
                continue;
            };
            *smp.data_mut() = data;
            smp.mad_mut().set_status(status);
            return Some(packet);
        }
    }
}

/// Sweeps with such agents: the errors, and the number of answers.
fn lied(
    lie: impl FnMut(AttributeId, u32, &mut [u8; DATA]) -> Option<Status>,
) -> (Vec<String>, usize, (usize, usize)) {
    let config = Config {
        timeout: Duration::from_millis(1),
        retries: 1,
        ..quiet()
    };
    let (mut managed, _) = managed(config);
    let mut liar = Liar {
        link: &mut managed.link,
        lie,
        answers: 0,
    };
    for _ in 0..1000 {
        let next = managed.manager.poll(managed.now, &mut liar);
        if managed.manager.is_up() {
            break;
        }
        managed.now = next.unwrap();
    }
    let answers = liar.answers;
    assert!(managed.manager.is_up());
    // Whatever they say, the ports themselves are managed.
    managed.all_active_and_reachable();
    let report = managed.manager.report();
    (report.errors.clone(), answers, report.virtual_ports)
}

fn virtualization(data: &mut [u8; DATA], change: impl Fn(&mut VirtualizationInfo)) {
    let mut info = VirtualizationInfo::parse(data).unwrap();
    change(&mut info);
    *data = info.to_bytes();
}

#[test]
fn agents_that_lie() {
    use AttributeId as A;
    let ok = Some(Status::OK);
    // They announce virtual ports, and do not answer or know nothing of them.
    for outcome in [
        None,
        Some(Status::UNSUPPORTED_ATTRIBUTE),
        Some(Status::BUSY),
    ] {
        let (errors, answers, _) = lied(|_, _, _| outcome);
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].contains("announces virtual ports; Get(VirtualizationInfo)"));
        assert!(answers < 200, "{answers}");
    }
    // 65535 of them, all up, with one GUID.
    let (errors, answers, found) = lied(|attribute, _, data| {
        match attribute {
            A::VIRTUALIZATION_INFO => virtualization(data, |info| {
                (info.vport_cap, info.vport_index_top) = (u16::MAX, u16::MAX);
            }),
            A::VPORT_STATE => *data = VPortStates([2; VPortStates::ENTRIES]).to_bytes(),
            A::VPORT_INFO => {
                let info = VPortInfo {
                    port_state: PortState::Initialize,
                    port_guid: guid(7, 7),
                    ..VPortInfo::default()
                };
                *data = info.to_bytes();
            }
            _ => {}
        }
        ok
    });
    assert!(
        errors[0].contains("has 65535 virtual ports; the first 1024 are managed"),
        "{errors:?}"
    );
    let twice = |error: &String| error.contains("has the GUID 0002:c903:0000:0707 of virtual port");
    assert!(errors.iter().any(twice), "{errors:?}");
    assert!(answers < 8000, "{answers}");
    assert_eq!(found.0, 1);
    // The GUID of a port.
    let (errors, ..) = lied(|attribute, _, data| {
        if attribute == A::VPORT_INFO {
            let mut info = VPortInfo::parse(data).unwrap();
            info.port_guid = MANAGER;
            *data = info.to_bytes();
        }
        ok
    });
    assert!(
        errors[0].contains("of port 0000:0000:0000:0077, and 1 more"),
        "{errors:?}"
    );
    // No GUID, an index above all, another revision, a refusal to enable it.
    let says = |attribute: AttributeId, change: &dyn Fn(&mut [u8; DATA]), what: &str| {
        let (errors, ..) = lied(|of, _, data| {
            if of == attribute {
                change(data);
            }
            ok
        });
        assert!(
            errors.iter().any(|error| error.contains(what)),
            "{what}: {errors:?}"
        );
    };
    says(A::VPORT_INFO, &|data| data[12..20].fill(0), "has no GUID");
    says(A::VPORT_INFO, &|data| data[0] = 0xf0, "is left out");
    let of_port = |change: fn(&mut VirtualizationInfo)| {
        move |data: &mut [u8; DATA]| virtualization(data, change)
    };
    says(
        A::VIRTUALIZATION_INFO,
        &of_port(|info| info.vport_cap = 1),
        "uses virtual port 2 and has 1",
    );
    says(
        A::VIRTUALIZATION_INFO,
        &of_port(|info| info.virtualization_revision = 3),
        "has revision 3",
    );
    says(
        A::VIRTUALIZATION_INFO,
        &of_port(|info| info.virtualization_enable = false),
        "does not enable virtualization",
    );
    // States that jump: what was to be Armed says that it is Down.
    let (_, answers, found) = lied(|attribute, _, data| {
        if attribute == A::VPORT_INFO && data[0] >> 4 == PortState::Armed.code() {
            data[0] = PortState::Down.code() << 4;
        }
        ok
    });
    assert_eq!(found, (4, 0));
    assert!(answers < 200, "{answers}");
    // Nobody but them is asked.
    let (errors, ..) = lied(|attribute, modifier, _| {
        let wrong = attribute == A::VPORT_INFO && modifier == u32::from(OWN);
        Some(if wrong {
            Status::INVALID_FIELD
        } else {
            Status::OK
        })
    });
    assert!(errors[0].contains("Get(VPortInfo) 0x2"), "{errors:?}");
}
