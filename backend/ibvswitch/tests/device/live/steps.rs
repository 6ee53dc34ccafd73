//! VMs that move while they run, as far as the daemon goes: two monitors that share a guest's memory, and the
//! steps of the control socket.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::daemon::live::{Move, STEPS};
use crate::daemon::{Daemon, HALF, Peer, connected_by};
use ibvswitch::control::{LiveDone, LiveSaved, LiveStep};
use test_driver::{Connection, Data, SendRequest, Transport};
use testing::{Configuration, wait_until};

/// Doorbells are trapped: the test's driver has mapped the pages of one device for good.
fn start() -> Daemon {
    Daemon::configured(
        Configuration::new()
            .set("engine.doorbells", "trap")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", [])
            .spare_vfs(1)
            .hypervisor("hv3", ["vm2"]),
    )
}

/// Gives a connection the patience to wait for a device that rests.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
}

/// Returns the VF that has the VM's addresses, and its LID.
fn place(daemon: &Daemon, vm: &str) -> (String, u64) {
    let status = daemon.ask(&["status"]);
    let mut at = status["vfs"].as_array().expect("VFs").iter();
    let at: Vec<_> = at.by_ref().filter(|vf| vf["holds"] == vm).collect();
    let [only] = at[..] else {
        panic!("{vm} is at {at:?}")
    };
    let name = only["name"].as_str().expect("a name").to_owned();
    (name, only["lid"].as_u64().expect("a LID"))
}

/// Others write into the VM's memory, and it sends, while it goes from hypervisor to hypervisor.
#[test]
fn a_vm_moves_under_traffic() {
    const MOVES: u32 = 6;
    let daemon = start();
    let (mut vm, mut peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let before = place(&daemon, "vm1");
    let (to, from) = (peer.config(Transport::Rc), vm.config(Transport::Rc));
    let (mut theirs, mut own) = connected_by(&to, &from, &peer, &vm, patient);
    let (moved, messages) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let (device, daemon) = (vm.device.clone(), &daemon);
        let (moved, messages) = (&moved, &messages);
        scope.spawn(move || {
            for round in 0..MOVES {
                let seen = messages.load(Ordering::Relaxed);
                while messages.load(Ordering::Relaxed) < seen + 3 {
                    std::thread::yield_now();
                }
                let (to, vf) = [("hv2", "hv2-spare1"), ("hv1", "vm1")][round as usize % 2];
                let receiver = device.receiver(daemon.socket(vf)).unwrap();
                let mut live = Move::begin(daemon, &["vm1"], to).unwrap();
                // The test's VM is paused: nobody rings for it from here on.
                let mut paused = device.client();
                // What it has rung by now has come, as when a monitor reads behind what its guest has written.
                paused.region_read(7, 0, &mut [0; 4]).unwrap();
                for step in STEPS {
                    match live.step(step).unwrap() {
                        LiveDone::Saved(LiveSaved {
                            pages,
                            queue_pairs,
                            config,
                            ..
                        }) => {
                            assert_eq!((queue_pairs, config.len()), (1, 64));
                            assert_eq!(config[0], 0x101e_15b3);
                            // It has got at least one message since the move began, or is about to.
                            assert!(pages < 1 << 14, "{pages}");
                        }
                        LiveDone::Moved { moves } => assert_eq!(moves[0].former_lid, None),
                        _ => {}
                    }
                }
                // Nobody rings at the source any more.
                *paused = receiver;
            }
            moved.store(true, Ordering::Release);
        });
        let mut number = 0_u32;
        while !moved.load(Ordering::Acquire) || number < 20 {
            let len = [8, 5000, 300_000, 2_000_000][number as usize % 4];
            let seed = u64::from(number);
            peer.fill(0, len, seed);
            let data = [peer.sge(0, len)];
            let write = SendRequest::write(vm.remote(HALF), Data::Memory(&data));
            peer.execute(&mut theirs, &write);
            vm.verify(HALF, len, seed);
            let data = [vm.sge(HALF, len)];
            let write = SendRequest::write(peer.remote(HALF), Data::Memory(&data));
            vm.execute(&mut own, &write);
            peer.verify(HALF, len, seed);
            number += 1;
            messages.store(number, Ordering::Relaxed);
        }
    });
    assert_eq!(place(&daemon, "vm1"), before);
    // Nobody had to send anything twice. Between engines, what is sent while the VM's LID is at no port gets lost.
    let between_engines = std::env::var_os("IBVSWITCH_TEST_ENGINES").is_some();
    for name in ["vm1", "vm2"] {
        let retries = daemon.vf(name)["counters"]["retries"].clone();
        let retries = retries.as_object().expect("counters").values();
        let retries: u64 = retries.filter_map(|it| it.as_u64()).sum();
        assert!(retries == 0 || between_engines, "{name}: {retries}");
    }
    // New connections and commands, too.
    vm.write_to(&peer);
    peer.write_to(&vm);
}

/// Premature end of a move.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The command is killed, or gives up.
    Connection,
    /// The monitor at the destination is killed, before the next step.
    Destination,
}

/// After each step but the last, whatever happens leaves the VM at work where it was.
#[test]
fn a_move_that_fails_leaves_the_vm_where_it_was() {
    let daemon = start();
    let (mut vm, mut peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let before = place(&daemon, "vm1");
    let (to, from) = (peer.config(Transport::Rc), vm.config(Transport::Rc));
    let (mut theirs, mut own) = connected_by(&to, &from, &peer, &vm, patient);
    let mut seed = 0;
    for taken in 0..STEPS.len() {
        for end in [End::Connection, End::Destination] {
            let receiver = vm.device.receiver(daemon.socket("hv2-spare1")).unwrap();
            let mut live = Move::begin(&daemon, &["vm1"], "hv2").unwrap();
            for step in &STEPS[..taken] {
                live.step(*step).unwrap();
            }
            // What is sent to the VM waits, and so does what the VM rings for.
            seed += 1;
            peer.fill(0, 5000, seed);
            let data = [peer.sge(0, 5000)];
            theirs
                .post_send(&SendRequest::write(vm.remote(HALF), Data::Memory(&data)))
                .unwrap();
            let data = [vm.sge(0, 5000)];
            vm.fill(0, 5000, seed + 1000);
            own.post_send(&SendRequest::write(peer.remote(HALF), Data::Memory(&data)))
                .unwrap();
            match end {
                End::Connection => drop((live, receiver)),
                End::Destination => {
                    drop(receiver);
                    wait_until("a client that goes", || {
                        daemon.vf("hv2-spare1")["client_connected"] != true
                    });
                    let next = live.step(STEPS[taken]);
                    // An image can be taken without whoever is to get it, and addresses move.
                    let needed = matches!(
                        STEPS[taken],
                        LiveStep::Stop | LiveStep::Restore | LiveStep::Resume
                    );
                    assert_eq!(next.is_err(), needed, "{taken} {next:?}");
                    drop(live);
                }
            }
            Move::settle(&daemon, "vm1");
            assert_eq!(place(&daemon, "vm1"), before, "{taken} {end:?}");
            assert!(peer.sent(&mut theirs).is_ok(), "{taken} {end:?}");
            vm.verify(HALF, 5000, seed);
            assert!(vm.sent(&mut own).is_ok(), "{taken} {end:?}");
            peer.verify(HALF, 5000, seed + 1000);
            wait_until("a client that goes", || {
                daemon.vf("hv2-spare1")["client_connected"] != true
            });
        }
    }
    vm.write_to(&peer);
    // It moves after all of that.
    let receiver = vm.device.receiver(daemon.socket("hv2-spare1")).unwrap();
    let mut live = Move::begin(&daemon, &["vm1"], "hv2").unwrap();
    for step in STEPS {
        live.step(step).unwrap();
    }
    vm.device.go_on_with(receiver);
    // There is no way back: that the connection ends is nothing now.
    drop(live);
    Move::settle(&daemon, "vm1");
    let after = place(&daemon, "vm1");
    assert_eq!(after, ("hv2-spare1".to_owned(), before.1));
    peer.write_to(&vm);
}

/// A doorbell that the VM rings just before it is paused comes after its device rests, and even after the image is
/// made.
#[test]
fn what_a_vm_rings_late_is_heard_where_it_goes() {
    let daemon = start();
    let (mut vm, peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let (to, from) = (vm.config(Transport::Rc), peer.config(Transport::Rc));
    let (mut own, _theirs) = connected_by(&to, &from, &vm, &peer, patient);
    for late in 1..STEPS.len() {
        let (to, vf) = [("hv1", "vm1"), ("hv2", "hv2-spare1")][late % 2];
        let receiver = vm.device.receiver(daemon.socket(vf)).unwrap();
        let mut live = Move::begin(&daemon, &["vm1"], to).unwrap();
        let seed = late as u64;
        vm.fill(0, 5000, seed);
        for (taken, step) in STEPS.into_iter().enumerate() {
            if taken == late {
                let data = [vm.sge(0, 5000)];
                let write = SendRequest::write(peer.remote(HALF), Data::Memory(&data));
                own.post_send(&write).unwrap();
                // It has come, as when a monitor reads behind what its guest has written.
                let mut word = [0; 4];
                { vm.device.client().region_read(7, 0, &mut word) }.unwrap();
            }
            live.step(step).unwrap();
        }
        vm.device.go_on_with(receiver);
        assert!(vm.sent(&mut own).is_ok(), "{late}");
        peer.verify(HALF, 5000, seed);
    }
}

/// A monitor of the source that dies takes its VM along until there is an image; then the VM arrives all the same.
#[test]
fn the_source_may_die_when_its_image_is_taken() {
    let daemon = start();
    let (mut vm, mut peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let (to, from) = (peer.config(Transport::Rc), vm.config(Transport::Rc));
    let (mut theirs, _own) = connected_by(&to, &from, &peer, &vm, patient);
    let receiver = vm.device.receiver(daemon.socket("hv2-spare1")).unwrap();
    let mut live = Move::begin(&daemon, &["vm1"], "hv2").unwrap();
    live.step(LiveStep::Stop).unwrap();
    live.step(LiveStep::Save).unwrap();
    vm.device.go_on_with(receiver);
    wait_until("a client that goes", || {
        daemon.vf("vm1")["client_connected"] != true
    });
    for step in [LiveStep::Move, LiveStep::Restore, LiveStep::Resume] {
        live.step(step).unwrap();
    }
    peer.fill(0, 5000, 7);
    let data = [peer.sge(0, 5000)];
    let write = SendRequest::write(vm.remote(HALF), Data::Memory(&data));
    peer.execute(&mut theirs, &write);
    vm.verify(HALF, 5000, 7);
    vm.write_to(&peer);
}

#[test]
fn what_cannot_be_is_refused() {
    let daemon = start();
    let begin = |to: &str| match Move::begin(&daemon, &["vm1"], to) {
        Ok(_) => String::new(),
        Err(why) => why,
    };
    assert!(begin("hv2").contains("VF `vm1`: no VMM is connected"));
    let (mut vm, mut peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    assert!(begin("nowhere").contains("`nowhere`; there are hv1, hv2, hv3"));
    assert!(begin("hv2").contains("no free VF of hypervisor `hv2` has a QEMU that waits"));
    let mut steps = Move::connect(&daemon);
    let none = steps.step(LiveStep::Stop).unwrap_err();
    assert!(none.contains("this connection moves no VM"), "{none}");

    let _receiver = vm.device.receiver(daemon.socket("hv2-spare1")).unwrap();
    let mut live = Move::begin(&daemon, &["vm1"], "hv2").unwrap();
    for wrong in [
        LiveStep::Save,
        LiveStep::Move,
        LiveStep::Restore,
        LiveStep::Resume,
    ] {
        let why = live.step(wrong).unwrap_err();
        assert!(why.contains("is not the next one"), "{why}");
    }
    assert!(begin("hv2").contains("has a QEMU that waits"));
    let outcome = daemon.run(&["vf", "migrate", "vm1", "--to", "hv2"], "");
    assert!(outcome.err.contains("moves while it runs"), "{outcome:?}");
    drop(live);
    Move::settle(&daemon, "vm1");
    vm.write_to(&peer);
    peer.write_to(&vm);
}

/// Connections name the LID of the other end, which a VM at a shared port does not keep.
#[test]
fn a_vm_that_would_have_another_lid_stays() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.model", "shared-port")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", [])
            .spare_vfs(1),
    );
    let vm = daemon.open("vm1");
    let _receiver = vm.receiver(daemon.socket("hv2-spare1")).unwrap();
    let why = Move::begin(&daemon, &["vm1"], "hv2").map(drop).unwrap_err();
    assert!(why.contains("its VM would have another LID there"), "{why}");
}
