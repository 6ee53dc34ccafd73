//! Several managers in one subnet.

use std::collections::VecDeque;
use std::time::Duration;

use fabric::{Fabric, LinkRate, NodeSpec, Output, Owner, PortRef, SmpAccess, Topology};
use ibvswitch_subnet_manager::{
    Config, Migration, MigrationError, MinHop, SubnetManager, Target, Transport,
};
use wire::attribute::{CapabilityMask, SmInfo, SmState};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{Destination, Request, Route, Smp};
use wire::{Guid, Lid, MadPacket, PortState, Sl};

/// Ten seconds are more than any of the managers below needs to notice anything.
const LONG: Duration = Duration::from_secs(10);

struct Port<'a> {
    fabric: &'a mut Fabric,
    inboxes: &'a mut [(PortRef, VecDeque<MadPacket>)],
    index: usize,
    /// Packets that may still be sent.
    left: &'a mut Option<u32>,
}

impl Transport for Port<'_> {
    fn send(&mut self, packet: MadPacket) {
        if let Some(left) = self.left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => return,
            }
        }
        self.fabric.inject(self.inboxes[self.index].0, packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.fabric.run();
        while let Some(output) = self.fabric.poll_output() {
            if let Output::Deliver { port, packet } = output
                && let Some((_, inbox)) = self.inboxes.iter_mut().find(|(at, _)| *at == port)
            {
                inbox.push_back(*packet);
            }
        }
        self.inboxes[self.index].1.pop_front()
    }
}

struct Several {
    fabric: Fabric,
    inboxes: Vec<(PortRef, VecDeque<MadPacket>)>,
    managers: Vec<Option<SubnetManager>>,
    left: Option<u32>,
    now: Duration,
}

/// GUID of the manager with this number.
fn guid(manager: usize) -> Guid {
    Guid::new(0x100 + manager as u64)
}

/// GUID of the adapter beside the manager with this number. Only the first one is a VM's.
fn vm(manager: usize) -> Guid {
    Guid::new(0x200 + manager as u64)
}

/// A switch for each manager, in a row, and the manager and another adapter at it.
fn row(managers: usize) -> Topology {
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..managers)
        .map(|i| topology.add(NodeSpec::switch(Guid::new(0x10 + i as u64), 4, "")))
        .collect();
    for (i, &switch) in switches.iter().enumerate() {
        let manager = NodeSpec::channel_adapter(guid(i), guid(i), "");
        let other = NodeSpec::virtual_function(vm(i), "");
        for (port, adapter) in [(1, manager), (2, other)] {
            let adapter = topology.add(adapter);
            topology.link((switch, port), (adapter, 1), LinkRate::default());
        }
        if let Some(&next) = switches.get(i + 1) {
            topology.link((switch, 3), (next, 4), LinkRate::default());
        }
    }
    topology
}

impl Several {
    fn new(managers: usize) -> Self {
        let fabric = Fabric::new(&row(managers)).unwrap();
        let ports = (0..managers).map(|i| fabric.port_by_guid(guid(i)).unwrap());
        Self {
            inboxes: ports.map(|port| (port, VecDeque::new())).collect(),
            managers: (0..managers).map(|_| None).collect(),
            fabric,
            left: None,
            now: Duration::ZERO,
        }
    }

    fn start(&mut self, manager: usize, priority: u8) {
        let port = self.inboxes[manager].0;
        let none = CapabilityMask::default();
        self.fabric
            .set_owner(port, Owner::Consumer, SmpAccess::Fabric);
        self.fabric
            .set_capabilities(port, CapabilityMask::IS_SM, none);
        let config = Config {
            priority,
            spare_functions: (1..self.managers.len()).map(vm).collect(),
            ..Config::default()
        };
        self.managers[manager] = Some(SubnetManager::new(config, Box::new(MinHop)).unwrap());
    }

    fn kill(&mut self, manager: usize) {
        let port = self.inboxes[manager].0;
        self.managers[manager] = None;
        self.inboxes[manager].1.clear();
        self.fabric
            .set_owner(port, Owner::Fabric, SmpAccess::Fabric);
        let none = CapabilityMask::default();
        self.fabric
            .set_capabilities(port, none, CapabilityMask::IS_SM);
    }

    fn poll(&mut self, index: usize) -> Option<Duration> {
        let Self {
            fabric,
            inboxes,
            managers,
            left,
            now,
        } = self;
        let mut port = Port {
            fabric,
            inboxes,
            index,
            left,
        };
        managers[index].as_mut()?.poll(*now, &mut port)
    }

    /// Lets the managers work until this time.
    fn run_until(&mut self, end: Duration) {
        loop {
            let mut next = None;
            // Twice: what one sends, another one may have to answer at once.
            for _ in 0..2 {
                let due = (0..self.managers.len()).filter_map(|index| self.poll(index));
                next = due.collect::<Vec<_>>().into_iter().min();
            }
            if self.inboxes.iter().any(|(_, inbox)| !inbox.is_empty()) {
                continue;
            }
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
    }

    fn run(&mut self) {
        self.run_until(self.now + LONG);
    }

    fn states(&self) -> Vec<Option<SmState>> {
        let managers = self.managers.iter();
        managers
            .map(|manager| Some(manager.as_ref()?.state()))
            .collect()
    }

    fn manager(&self, index: usize) -> &SubnetManager {
        self.managers[index].as_ref().unwrap()
    }

    /// Every port is Active, and its subnet manager is this one.
    fn managed_by(&self, master: usize) {
        let info = |port| self.fabric.port_info(port).unwrap();
        let lid = info(self.inboxes[master].0).lid;
        let guids = (0..self.managers.len()).flat_map(|i| [guid(i), Guid::new(0x200 + i as u64)]);
        for guid in guids {
            let port = self.fabric.port_by_guid(guid).unwrap();
            assert_eq!(info(port).port_state, PortState::Active, "{guid}");
            assert_eq!(info(port).master_sm_lid, lid, "{guid}");
            let from = self.inboxes[0].0;
            let route = self
                .fabric
                .resolve(from, info(port).lid, Sl::default(), None);
            assert_eq!(route.unwrap().port, port, "{guid}");
        }
    }

    /// Sets SMInfo at a manager, from another one's port; returns the answer's status and state.
    fn control(
        &mut self,
        from: usize,
        to: usize,
        modifier: u32,
        info: SmInfo,
    ) -> (Status, SmState) {
        let mut data = [0; 64];
        info.emit(&mut data);
        let mut ports = vec![1];
        ports.extend(vec![3; to.saturating_sub(from)]);
        ports.extend(vec![4; from.saturating_sub(to)]);
        ports.push(1);
        let request = Request {
            destination: Destination::Directed(Route::new(&ports).unwrap()),
            method: Method::SET,
            attribute: AttributeId::SM_INFO,
            modifier,
            transaction: 0xffff_0000,
            m_key: 0,
            data,
        };
        let packet = MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes());
        self.fabric.inject(self.inboxes[from].0, packet);
        self.fabric.run();
        // Polling the asked one fills the asker's inbox, which is read before the asker is polled.
        self.poll(to);
        let inbox = &mut self.inboxes[from].1;
        let answer = loop {
            let packet = inbox.pop_front();
            match packet {
                Some(packet) if packet.header().transaction() == 0xffff_0000 => break packet,
                Some(_) => {}
                None => {
                    self.fabric.run();
                    let output = self.fabric.poll_output().expect("an answer");
                    if let Output::Deliver { port, packet } = output
                        && port == self.inboxes[from].0
                    {
                        self.inboxes[from].1.push_back(*packet);
                    }
                    return self.answer(from);
                }
            }
        };
        Self::read(&answer)
    }

    fn answer(&mut self, at: usize) -> (Status, SmState) {
        loop {
            if let Some(packet) = self.inboxes[at].1.pop_front()
                && packet.header().transaction() == 0xffff_0000
            {
                return Self::read(&packet);
            }
            let output = self.fabric.poll_output().expect("an answer");
            if let Output::Deliver { port, packet } = output
                && port == self.inboxes[at].0
            {
                self.inboxes[at].1.push_back(*packet);
            }
        }
    }

    fn read(packet: &MadPacket) -> (Status, SmState) {
        let smp = Smp::new_checked(&packet.mad[..]).unwrap();
        let info = SmInfo::parse(smp.data()).unwrap();
        (smp.mad().status(), info.state)
    }
}

const MASTER: Option<SmState> = Some(SmState::Master);
const STANDBY: Option<SmState> = Some(SmState::Standby);

#[test]
fn the_higher_priority_is_master() {
    for (priorities, master) in [([3, 7], 1), ([7, 3], 0), ([5, 5], 0)] {
        let mut several = Several::new(2);
        several.start(0, priorities[0]);
        several.start(1, priorities[1]);
        several.run();
        let mut states = [STANDBY; 2];
        states[master] = MASTER;
        assert_eq!(several.states(), states, "{priorities:?}");
        several.managed_by(master);
    }
}

#[test]
fn a_higher_one_that_comes_later_is_handed_the_subnet() {
    let mut several = Several::new(2);
    several.start(0, 1);
    several.run();
    several.managed_by(0);
    let lids = several.manager(0).lids().clone();
    several.start(1, 9);
    several.run();
    several.run();
    assert_eq!(several.states(), [STANDBY, MASTER]);
    several.managed_by(1);
    assert_eq!(several.manager(1).lids(), &lids, "nobody's LID changes");
    // And back, when its priority sinks.
    let low = several.managers[1].as_mut().unwrap();
    low.set_priority(0);
    several.run();
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
    several.managed_by(0);
}

#[test]
fn a_lower_one_that_comes_later_stands_by() {
    let mut several = Several::new(3);
    several.start(1, 5);
    several.run();
    several.start(0, 5);
    several.start(2, 4);
    several.run();
    several.run();
    // Equal priority: the lower GUID.
    assert_eq!(several.states(), [MASTER, STANDBY, STANDBY]);
    several.managed_by(0);
}

#[test]
fn a_standby_takes_over_when_the_master_dies_in_the_middle_of_a_sweep() {
    // Where in the sweep: after this many packets.
    for left in (1..150).step_by(7) {
        let mut several = Several::new(2);
        several.start(0, 9);
        several.run();
        several.start(1, 1);
        several.run();
        assert_eq!(several.states(), [MASTER, STANDBY]);
        // The master begins anew with much to do, and dies.
        several.managers[0] = None;
        several.start(0, 9);
        let ports = [Guid::new(0x200), Guid::new(0x201)];
        for guid in ports {
            let port = several.fabric.port_by_guid(guid).unwrap();
            several.fabric.set_cable(port, false);
            several.fabric.set_cable(port, true);
        }
        several.left = Some(left);
        several.poll(0);
        several.left = None;
        several.kill(0);
        several.run();
        several.run();
        assert_eq!(several.states(), [None, MASTER], "after {left} packets");
        several.managed_by(1);
    }
}

#[test]
fn two_masters_that_meet() {
    for (priorities, master) in [([2, 8], 1), ([8, 2], 0), ([4, 4], 0)] {
        let mut several = Several::new(2);
        let switch = several.fabric.port_by_guid(Guid::new(0x10)).unwrap();
        let cable = PortRef { port: 3, ..switch };
        several.fabric.set_cable(cable, false);
        several.start(0, priorities[0]);
        several.start(1, priorities[1]);
        several.run();
        assert_eq!(several.states(), [MASTER; 2], "each its own half");
        several.fabric.set_cable(cable, true);
        several.run();
        several.run();
        let mut states = [STANDBY; 2];
        states[master] = MASTER;
        assert_eq!(several.states(), states, "{priorities:?}");
        several.managed_by(master);
    }
}

#[test]
fn control_packets() {
    const HANDOVER: u32 = 1;
    const ACKNOWLEDGE: u32 = 2;
    const DISABLE: u32 = 3;
    const STAND_BY: u32 = 4;
    const DISCOVER: u32 = 5;
    let mut several = Several::new(2);
    several.start(0, 9);
    several.start(1, 1);
    several.run();
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
    let from_master = SmInfo {
        guid: guid(0),
        sm_key: 1,
        priority: 9,
        state: SmState::Master,
        ..SmInfo::default()
    };
    // Not from who is no master, and not with the wrong key.
    for info in [
        SmInfo {
            state: SmState::Standby,
            ..from_master
        },
        SmInfo {
            sm_key: 2,
            ..from_master
        },
    ] {
        let (status, _) = several.control(0, 1, DISABLE, info);
        assert_eq!(status, Status::INVALID_FIELD);
    }
    let (status, state) = several.control(0, 1, 9, from_master);
    assert_eq!((status, state), (Status::INVALID_FIELD, SmState::Standby));
    // A standby is no heir of what nobody has.
    let (status, _) = several.control(0, 1, STAND_BY, from_master);
    assert_eq!(status, Status::INVALID_FIELD);
    let (status, _) = several.control(0, 1, DISABLE, from_master);
    assert_eq!(status, Status::OK);
    assert_eq!(several.states()[1], Some(SmState::NotActive));
    several.run();
    assert_eq!(several.states()[1], Some(SmState::NotActive));
    let (status, _) = several.control(0, 1, HANDOVER, from_master);
    assert_eq!(status, Status::INVALID_FIELD);
    let (status, _) = several.control(0, 1, STAND_BY, from_master);
    assert_eq!(status, Status::OK);
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
    let (status, _) = several.control(0, 1, DISCOVER, from_master);
    assert_eq!(status, Status::OK);
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
    // Asked to acknowledge what it did not offer, a master stays.
    let standby = SmInfo {
        state: SmState::Standby,
        ..from_master
    };
    several.control(1, 0, ACKNOWLEDGE, standby);
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
}

/// A manager that is not the master changes nothing, and says so.
#[test]
fn a_standby_migrates_nothing() {
    let mut several = Several::new(2);
    several.start(0, 9);
    several.run();
    several.start(1, 1);
    several.run();
    assert_eq!(several.states(), [MASTER, STANDBY]);
    let migration = Migration::new(vm(0), Target::Function(vm(1)));
    let ticket = several.managers[1].as_mut().unwrap().migrate(migration);
    several.poll(1);
    let result = several.managers[1].as_mut().unwrap().take_migration(ticket);
    assert_eq!(result, Some(Err(MigrationError::NotMaster)));
    assert_eq!(several.states(), [MASTER, STANDBY]);
}

/// A master that is handed the subnet in the middle of a migration sweeps, and says where the VM is.
#[test]
fn another_manager_comes_between() {
    const HANDOVER: u32 = 1;
    let mut several = Several::new(2);
    several.start(0, 9);
    several.start(1, 1);
    several.run();
    several.run();
    let lids = several.manager(0).lids().clone();
    let migration = Migration::new(vm(0), Target::Function(vm(1)));
    for packets in [1, 2, 3, 4] {
        let manager = several.managers[0].as_mut().unwrap();
        let to = if manager.function_of(vm(0)) == Some(vm(0)) {
            vm(1)
        } else {
            vm(0)
        };
        let migration = Migration {
            to: Target::Function(to),
            ..migration
        };
        let ticket = manager.migrate(migration);
        several.left = Some(packets);
        several.poll(0);
        several.left = None;
        let master = SmInfo {
            guid: guid(1),
            sm_key: 1,
            priority: 1,
            state: SmState::Master,
            ..SmInfo::default()
        };
        several.control(1, 0, HANDOVER, master);
        several.run();
        let manager = several.managers[0].as_mut().unwrap();
        let at = manager.function_of(vm(0));
        match manager.take_migration(ticket) {
            Some(Err(MigrationError::Interrupted { reason, now_at, .. })) => {
                assert_eq!(reason, "another subnet manager came between", "{packets}");
                assert!(
                    now_at.is_some() && now_at == at,
                    "{packets}: {now_at:?} {at:?}"
                );
            }
            other => panic!("{packets}: {other:?}"),
        }
        several.managed_by(0);
        assert_eq!(*several.manager(0).lids(), lids);
    }
}

/// A migration fails, and the sweep after it finds a manager of higher priority, which puts things in
/// order: who asked is told at once.
#[test]
fn another_manager_sees_to_a_failed_migration() {
    let mut several = Several::new(2);
    several.start(0, 1);
    several.run();
    let migration = Migration::new(vm(0), Target::Function(vm(1)));
    let ticket = several.managers[0].as_mut().unwrap().migrate(migration);
    several.left = Some(1);
    // Sent four times, 200 ms apart; then the sweep begins.
    let given_up = several.now + Duration::from_millis(800);
    while several.now <= given_up {
        several.now = several.poll(0).expect("something is to be sent again");
    }
    several.left = None;
    several.start(1, 9);
    several.run();
    assert_eq!(several.states(), [STANDBY, MASTER]);
    let result = several.managers[0].as_mut().unwrap().take_migration(ticket);
    let Some(Err(MigrationError::Interrupted { reason, .. })) = result else {
        panic!("{result:?}");
    };
    assert!(reason.contains("no answer"), "{reason}");
    several.managed_by(1);
}
