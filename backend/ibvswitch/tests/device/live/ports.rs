//! VMs with Ethernet cards that move while they run, as far as the daemon goes: their ports' addresses follow.

use crate::daemon::Daemon;
use crate::daemon::ethernet::{acquainted, ping};
use crate::daemon::live::{Move, STEPS};
use ibvswitch::control::LiveStep;
use testing::{Configuration, wait_until};
use vhost_user_driver::Driver;

/// A VM with an HCA and a card, another one with a card, and room for the first one.
fn start() -> Daemon {
    Daemon::configured(
        Configuration::new()
            .set("engine.doorbells", "trap")
            .hypervisor("hv1", ["vm1"])
            .port("net1", 1)
            .hypervisor("hv2", [])
            .spare_vfs(1)
            .key("spare_ports", 2)
            .hypervisor("hv3", ["vm2"])
            .port("net2", 2),
    )
}

/// Where each VM has its addresses, and its LID.
fn places(daemon: &Daemon) -> Vec<(String, String, u64)> {
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs").iter();
    let held = vfs.filter_map(|vf| {
        let holds = vf["holds"].as_str()?.to_owned();
        let name = vf["name"].as_str()?.to_owned();
        Some((holds, name, vf["lid"].as_u64()?))
    });
    let mut held: Vec<_> = held.collect();
    held.sort();
    held
}

/// A guest's frame arrives at whoever has the addresses of guest 1, and not at the other.
fn arrives(from: &mut Driver, at: &mut Driver, not_at: &mut Driver, seq: u16) {
    let frame = ping(2, 1, seq, b"where it is");
    loop {
        from.send(&frame).expect("is taken");
        // Who has sent it is not known there yet by its Ethernet address.
        match at.try_receive() {
            Some(heard) if heard[12..] == frame[12..] => break,
            _ => std::thread::yield_now(),
        }
    }
    while let Some(heard) = not_at.try_receive() {
        assert_ne!(heard[12..], frame[12..]);
    }
}

fn left(daemon: &Daemon, name: &str) {
    wait_until("a client that goes", || {
        daemon.vf(name)["client_connected"] != true
    });
}

/// Whatever ends the move before its last step, the addresses of HCA and card are where they were; then both are
/// where the VM is.
#[test]
fn a_vm_moves_with_its_hca_and_its_card() {
    const BOTH: [&str; 2] = ["vm1", "net1=hv2-spare-port1"];
    let daemon = start();
    let vm = daemon.open("vm1");
    let (mut here, mut peer) = acquainted(&daemon);
    let before = places(&daemon);
    for taken in 0..STEPS.len() {
        let receiver = vm.receiver(daemon.socket("hv2-spare1")).expect("is served");
        let mut there = Driver::start(daemon.socket("hv2-spare-port1")).expect("is served");
        let mut live = Move::begin(&daemon, &BOTH, "hv2").expect("begins");
        for step in &STEPS[..taken] {
            live.step(*step).expect("is done");
        }
        if STEPS[..taken].contains(&LiveStep::Move) {
            arrives(&mut peer, &mut there, &mut here, taken as u16);
        }
        drop(live);
        Move::settle(&daemon, "net1");
        assert_eq!(places(&daemon), before, "{taken}");
        arrives(&mut peer, &mut here, &mut there, 100 + taken as u16);
        drop((receiver, there));
        left(&daemon, "hv2-spare1");
        left(&daemon, "hv2-spare-port1");
    }
    let receiver = vm.receiver(daemon.socket("hv2-spare1")).expect("is served");
    let mut there = Driver::start(daemon.socket("hv2-spare-port1")).expect("is served");
    let mut live = Move::begin(&daemon, &BOTH, "hv2").expect("begins");
    for step in STEPS {
        live.step(step).expect("is done");
    }
    drop(live);
    let moved = |(vm, at, lid): &(String, String, u64)| {
        let at = match &**vm {
            "vm1" => "hv2-spare1",
            "net1" => "hv2-spare-port1",
            _ => at,
        };
        (vm.clone(), at.to_owned(), *lid)
    };
    let after: Vec<_> = before.iter().map(moved).collect();
    assert_eq!(places(&daemon), after);
    arrives(&mut peer, &mut there, &mut here, 1000);
    drop(receiver);
}

/// A VM that has only a card moves nothing but its addresses.
#[test]
fn a_vm_with_a_card_alone_moves_in_two_steps() {
    let daemon = start();
    let (mut here, mut peer) = acquainted(&daemon);
    let before = places(&daemon);
    let mut there = Driver::start(daemon.socket("hv2-spare-port1")).expect("is served");
    let mut live = Move::begin(&daemon, &["net1"], "hv2").expect("begins");
    for wrong in [
        LiveStep::Stop,
        LiveStep::Save,
        LiveStep::Restore,
        LiveStep::Resume,
    ] {
        let why = live.step(wrong).expect_err("it is not next");
        assert!(why.contains("is not the next one"), "{why}");
    }
    live.step(LiveStep::Move).expect("is done");
    arrives(&mut peer, &mut there, &mut here, 1);
    drop(live);
    Move::settle(&daemon, "net1");
    assert_eq!(places(&daemon), before);
    let mut live = Move::begin(&daemon, &["net1"], "hv2").expect("begins");
    live.step(LiveStep::Move).expect("is done");
    live.step(LiveStep::Resume).expect("is done");
    drop(live);
    arrives(&mut peer, &mut there, &mut here, 2);
    assert_eq!(daemon.vf("hv2-spare-port1")["holds"], "net1");
    // And back, where the former VMM is still.
    let mut live = Move::begin(&daemon, &["net1"], "hv1").expect("begins");
    live.step(LiveStep::Move).expect("is done");
    live.step(LiveStep::Resume).expect("is done");
    arrives(&mut peer, &mut here, &mut there, 3);
    assert_eq!(places(&daemon), before);
}

#[test]
fn what_cannot_be_is_refused() {
    let daemon = start();
    let begin = |vms: &[&str]| match Move::begin(&daemon, vms, "hv2") {
        Ok(_) => String::new(),
        Err(why) => why,
    };
    let refused = |vms: &[&str], wanted: &str| {
        let why = begin(vms);
        assert!(why.contains(wanted), "{vms:?}: {why}");
    };
    refused(&["net1"], "port `net1`: no VMM is connected");
    refused(&["net9"], "there is no VM `net9`");
    refused(&[], "name the devices of one VM");
    let vm = daemon.open("vm1");
    let other = daemon.open("vm2");
    let start = |name: &str| Driver::start(daemon.socket(name)).expect("is served");
    let _cards = [start("net1"), start("net2")];
    refused(&["net1"], "no free port of hypervisor `hv2` has a QEMU");
    let _receiver = vm.receiver(daemon.socket("hv2-spare1")).expect("is served");
    // A port does for no HCA, and the other way round.
    refused(&["net1"], "no free port of hypervisor `hv2` has a QEMU");
    let _waits = start("hv2-spare-port1");
    refused(
        &["net1=hv2-spare1"],
        "port `hv2-spare1` of hypervisor `hv2` is not free, or not",
    );
    refused(&["vm1=hv2-spare-port1"], "VF `hv2-spare-port1` of");
    refused(
        &["net1", "net2"],
        "port `net2`: it is named twice, or its destination is",
    );
    refused(&["net1", "net1"], "port `net1`: it is named twice");
    refused(&["vm1", "vm2"], "named twice");
    drop(other);
    let _also_waits = start("hv2-spare-port2");
    refused(
        &["net1"],
        "several ports of hypervisor `hv2`: hv2-spare-port1, hv2-spare-port2",
    );
    assert_eq!(begin(&["net1=hv2-spare-port2", "net2=hv2-spare-port1"]), "");
}
