//! The three ways to move a VM.

use std::time::Duration;

use fabric::SmpAccess;
use hca::VfId;
use ibvswitch_vswitch::model::{AddressModel, ManagerPlace, Router, RouterPort, Vf, derive_guid};
use ibvswitch_vswitch::{How, MigrateError, Migrated, Model, MoveRequest, Output};
use subnet_manager::MigrationError;
use wire::{Lid, PortState};

use crate::lab::Lab;

pub fn request(tag: u64, vm: &str, to: &str) -> MoveRequest {
    MoveRequest {
        tag,
        vm: vm.to_owned(),
        to: to.to_owned(),
        vf: None,
        method: None,
        drop_first: false,
        every_switch: false,
        destination_routed: false,
        allowed: Duration::from_secs(30),
    }
}

/// Asks for a move that begins, waits a minute, and tells how it came out.
fn moved(lab: &Lab, request: &MoveRequest) -> Result<Migrated, MigrateError> {
    let refused = lab
        .vswitch
        .migrate(std::slice::from_ref(request), |_| false);
    assert!(matches!(&refused.expect("names are right")[..], [None]));
    lab.pass(Duration::from_secs(60));
    let ends = lab.outputs().into_iter().filter_map(|output| match output {
        Output::Moved { tag, outcome } => Some((tag, outcome)),
        _ => None,
    });
    let mut ends: Vec<_> = ends.collect();
    let (tag, outcome) = ends.pop().expect("it ends");
    assert!(ends.is_empty() && tag == request.tag);
    outcome
}

/// Two hypervisors at a switch, each with a VM and room for one.
fn two_hypervisors() -> Model {
    let mut model = Model::new(&["sw1"]);
    model.add_hypervisor("h1", 0, vec![Vf::new("a"), Vf::spare("h1-spare1")]);
    model.add_hypervisor("h2", 0, vec![Vf::new("b"), Vf::spare("h2-spare1")]);
    model
}

#[test]
fn by_the_manager_a_vm_takes_its_lid_along() {
    let mut model = two_hypervisors();
    model.hypervisors[0].vfs[0].smp = SmpAccess::Fabric;
    let lab = Lab::new(&model);
    let lid = lab.vswitch.physical_lid(VfId(0));
    let migrated = moved(&lab, &request(5, "a", "h2")).expect("it moves");
    // Its rights follow it.
    let access = [0, 3].map(|vf| lab.vswitch.smp_access(VfId(vf)));
    assert_eq!(access, [SmpAccess::OwnPort, SmpAccess::Fabric]);
    assert_eq!((migrated.vm.as_str(), migrated.lid), ("a", lid.into()));
    assert_eq!(migrated.to.vf, "h2-spare1");
    let How::Manager { moved: what, names } = migrated.how else {
        panic!("{:?}", migrated.how);
    };
    assert_eq!(
        (what.functions.sent, what.lid),
        (what.functions.updated, lid)
    );
    assert!(names.values().any(|name| name == "sw1"), "{names:?}");
    assert_eq!(lab.vswitch.physical_lid(VfId(3)), lid);
    let holders = lab.vswitch.holders();
    let holders: Vec<Option<&str>> = holders.iter().map(Option::as_deref).collect();
    assert_eq!(holders, [None, None, Some("b"), Some("a")]);
    // There is no more room, which the manager says.
    let begun = { lab.vswitch }.migrate(&[request(6, "b", "h2")], |_| false);
    let [Some(error)] = &begun.expect("names are right")[..] else {
        panic!("it is there already");
    };
    let there = matches!(error, MigrateError::Manager(MigrationError::AlreadyThere));
    assert!(there, "{error}");
}

#[test]
fn names_are_looked_at_before_anything_moves() {
    let lab = Lab::new(&two_hypervisors());
    let asked = |requests: &[MoveRequest]| {
        let begun = lab.vswitch.migrate(requests, |_| false);
        begun.expect_err("is wrong").to_string()
    };
    let right = request(1, "a", "h2");
    for (wrong, message) in [
        (request(2, "c", "h2"), "there is no VM `c`; there are a, b"),
        (
            request(2, "a", "h1"),
            "`a` is to move twice; name each VM once",
        ),
        (
            request(2, "h1-spare1", "h2"),
            "`h1-spare1` is a spare VF and no VM; name a VM",
        ),
        (
            request(2, "b", "h3"),
            "there is no hypervisor with VFs `h3`; there are h1, h2",
        ),
    ] {
        assert_eq!(asked(&[right.clone(), wrong]), message);
    }
    lab.pass(Duration::from_secs(10));
    assert!(
        !lab.outputs()
            .iter()
            .any(|it| matches!(it, Output::Moved { .. }))
    );
    assert_eq!(lab.vswitch.holders()[0].as_deref(), Some("a"));
}

#[test]
fn by_guid_a_vm_gets_the_other_ports_lid() {
    let mut model = Model::new(&["sw1"]);
    model.fabric.model = AddressModel::SharedPort;
    let vfs = |vm: &str, spare: &str| vec![Vf::new(vm).shared(), Vf::spare(spare).shared()];
    model.add_hypervisor("h1", 0, vfs("a", "h1-spare1"));
    model.add_hypervisor("h2", 0, vfs("b", "h2-spare1"));
    let lab = Lab::new(&model);
    let [here, there] = [0, 2].map(|vf| lab.vswitch.physical_lid(VfId(vf)));
    assert!(here != there && here.is_unicast() && there.is_unicast());
    let migrated = moved(&lab, &request(5, "a", "h2")).expect("it moves");
    assert!(matches!(migrated.how, How::Guid));
    assert_eq!(migrated.lid, there.into());
    assert_eq!(migrated.former_lid, Some(here));
    let port = lab.vswitch.function(VfId(3)).expect("is there");
    assert_eq!(port.facts().guid, migrated.guid);
    assert_eq!(port.facts().state, PortState::Active);
}

/// A model of two subnets and a router between them, each with a hypervisor.
fn two_subnets() -> Model {
    let mut model = Model::new(&[]);
    model.subnets.clear();
    model.add_subnet(Some("red"), 0xfec0_0000_0000_0001, &["sw1"]);
    model.add_subnet(Some("blue"), 0xfec0_0000_0000_0002, &["sw2"]);
    let port = |switch: usize| RouterPort {
        guid: derive_guid("router", &format!("r1 port {}", switch + 1)),
        switch,
    };
    model.wiring.routers.push(Router {
        name: "r1".to_owned(),
        guid: derive_guid("router", "r1"),
        ports: vec![port(0), port(1)],
    });
    model.add_hypervisor("h1", 0, vec![Vf::new("a"), Vf::spare("h1-spare1")]);
    model.add_hypervisor("h2", 1, vec![Vf::new("b"), Vf::spare("h2-spare1")]);
    model
}

#[test]
fn by_exchange_a_vm_goes_to_another_subnet() {
    let lab = Lab::new(&two_subnets());
    let prefix = |vf| {
        let port = lab.vswitch.function(VfId(vf)).expect("is there");
        port.facts().port.gid_prefix
    };
    assert_ne!(prefix(0), prefix(3));
    let migrated = moved(&lab, &request(5, "a", "h2")).expect("it moves");
    assert!(matches!(migrated.how, How::Exchange { .. }));
    assert_eq!(migrated.lid, lab.vswitch.physical_lid(VfId(3)).into());
    assert_eq!(lab.vswitch.holders()[3].as_deref(), Some("a"));
    assert_eq!(prefix(3), 0xfec0_0000_0000_0002);
    // No forwarding table of one subnet follows into another.
    let every = MoveRequest {
        every_switch: true,
        ..request(6, "a", "h1")
    };
    let begun = lab.vswitch.migrate(&[every], |_| false);
    let [Some(error)] = &begun.expect("names are right")[..] else {
        panic!("it has begun");
    };
    assert!(matches!(error, MigrateError::Crossing { .. }), "{error}");
}

/// Without a manager nobody makes the port Active.
#[test]
fn by_exchange_nobody_waits_for_ever() {
    let mut model = two_hypervisors();
    model.manager.place = ManagerPlace::External;
    let lab = Lab::new(&model);
    assert_eq!(lab.vswitch.physical_lid(VfId(0)), Lid::NONE);
    let error = moved(&lab, &request(5, "a", "h2")).expect_err("nobody manages");
    assert!(matches!(error, MigrateError::NotActive(_)), "{error}");
    // The places are exchanged nevertheless.
    assert_eq!(lab.vswitch.holders()[3].as_deref(), Some("a"));
}
