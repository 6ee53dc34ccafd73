//! Traps of agents, and the manager's response.

use std::time::Duration;

use fabric::{Owner, SmpAccess};
use ibvswitch_subnet_manager::Config;
use wire::attribute::{CapabilityMask, LinkStateChange, LocalChange, NodeType, PortInfo, Trap};
use wire::mad::{AttributeId, Method};
use wire::sa::PortInfoRecord;
use wire::smp::{Destination, Request};
use wire::{Guid, MadPacket};

use crate::guests::Bed;
use crate::harness::Managed;

const VSWITCH: Guid = Guid::new(0x0002_c903_0000_0100);

fn quiet() -> Config {
    Config {
        sweep_interval: Duration::ZERO,
        ..Config::default()
    }
}

/// The switch's port 0 sends trap 128.
fn trap(managed: &mut Managed, transaction: u64) {
    let fabric = &mut managed.link.fabric;
    let port = fabric.port_by_guid(VSWITCH).unwrap();
    let info = fabric.port_info(port).unwrap();
    let change = LinkStateChange { switch: info.lid };
    let request = Request {
        destination: Destination::Lid(info.master_sm_lid),
        method: Method::TRAP,
        attribute: AttributeId::NOTICE,
        modifier: 0,
        transaction,
        m_key: 0,
        data: Trap::LinkStateChange(change).from_node(NodeType::Switch, info.lid),
    };
    let packet = MadPacket::smp(info.lid, info.master_sm_lid, request.to_bytes());
    fabric.inject(port, packet);
}

#[test]
fn a_port_that_goes_is_seen_at_once() {
    let (mut managed, layout) = Managed::hypervisors(2, 2, quiet());
    managed.settle();
    let guid = layout.vf_guid(0, 1);
    let vf = managed.link.fabric.port_by_guid(guid).unwrap();
    let lid = managed.link.fabric.port_info(vf).unwrap().lid;
    let others = managed.manager.lids().clone();
    managed.link.fabric.set_cable(vf, false);
    trap(&mut managed, 1);
    managed.run();
    assert_eq!(managed.manager.report().sweeps, 2);
    assert_eq!(managed.manager.report().adapters, 4);
    managed.link.fabric.set_cable(vf, true);
    trap(&mut managed, 2);
    managed.run();
    assert_eq!(managed.manager.report().sweeps, 3);
    managed.all_active_and_reachable();
    assert_eq!(managed.link.fabric.port_info(vf).unwrap().lid, lid);
    assert_eq!(managed.manager.lids(), &others);
}

#[test]
fn traps_without_a_change_cost_a_look_and_no_sweep() {
    let (mut managed, _) = Managed::hypervisors(2, 2, quiet());
    managed.settle();
    managed.run();
    let sent = |managed: &Managed, attribute| {
        let requests = managed.manager.requests();
        let of = requests.filter(|&(method, of, _)| method == Method::GET && of == attribute);
        of.map(|(_, _, count)| count).sum::<u64>()
    };
    let before = sent(&managed, AttributeId::SWITCH_INFO);
    // A thousand of them within a second.
    let end = managed.now + Duration::from_secs(1);
    for number in 0..1000 {
        trap(&mut managed, number);
        managed.manager.poll(managed.now, &mut managed.link);
        managed.now += Duration::from_millis(1);
    }
    assert!(managed.now >= end);
    managed.run();
    assert_eq!(managed.manager.report().sweeps, 1);
    let traps: Vec<_> = managed.manager.traps().collect();
    assert_eq!(traps, [(128, 1000)]);
    let looks = sent(&managed, AttributeId::SWITCH_INFO) - before;
    assert_eq!(looks, 4, "one for each 250 ms, not one for each trap");
}

#[test]
fn a_manager_that_comes_is_seen_by_trap_144() {
    let (mut managed, layout) = Managed::hypervisors(1, 1, quiet());
    managed.settle();
    let fabric = &mut managed.link.fabric;
    let vf = fabric.port_by_guid(layout.vf_guid(0, 0)).unwrap();
    fabric.set_owner(vf, Owner::Consumer, SmpAccess::Fabric);
    let none = CapabilityMask::default();
    fabric.set_capabilities(vf, CapabilityMask::IS_SM, none);
    let info = fabric.port_info(vf).unwrap();
    let change = LocalChange {
        lid: info.lid,
        capability_mask: info.capability_mask,
        ..LocalChange::default()
    };
    let request = Request {
        destination: Destination::Lid(info.master_sm_lid),
        method: Method::TRAP,
        attribute: AttributeId::NOTICE,
        modifier: 0,
        transaction: 1,
        m_key: 0,
        data: Trap::LocalChange(change).from_node(NodeType::ChannelAdapter, info.lid),
    };
    let packet = MadPacket::smp(info.lid, info.master_sm_lid, request.to_bytes());
    fabric.inject(vf, packet);
    managed.run();
    // It was asked, did not answer, and that is all: no sweep, and the subnet works.
    let asked = managed.manager.requests();
    let mut asked = asked.filter(|&(_, attribute, _)| attribute == AttributeId::SM_INFO);
    assert!(asked.next().is_some());
    assert_eq!(managed.manager.report().sweeps, 1);
}

#[test]
fn what_a_port_says_of_itself_is_told_without_a_sweep() {
    let mut bed = Bed::new(1, quiet());
    let sweeps = bed.managed.manager.report().sweeps;
    let one = PortInfoRecord {
        lid: bed.lid(1),
        ..PortInfoRecord::default()
    };
    let told = |bed: &mut Bed| {
        let record = bed.get(0, PortInfoRecord::LID, &one).unwrap();
        PortInfo::parse(&record.port_info).unwrap().capability_mask
    };
    let before = told(&mut bed);
    let (target, none) = (CapabilityMask::DEVICE_MANAGEMENT, CapabilityMask::default());
    let port = bed.ports[1];
    bed.managed.link.fabric.set_capabilities(port, target, none);
    bed.managed.run();
    assert_eq!(told(&mut bed), before.with(target));
    assert_eq!(bed.managed.manager.report().sweeps, sweeps);
}
