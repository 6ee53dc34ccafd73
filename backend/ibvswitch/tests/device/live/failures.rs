//! VMs that move while they run, and processes that are killed on the way, at each step: the VM goes on at one
//! place, and its addresses are at one place, as the daemon, the subnet and the subnet administration say.

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::administration::Vm;
use crate::daemon::live::{Move, STEPS};
use crate::daemon::{Daemon, HALF, Peer, connected_by};
use ibvswitch::control::LiveStep;
use test_driver::{Connection, Data, QueuePair, SendRequest, Transport};
use testing::{Configuration, wait_until};
use vfio_user::client::Client;

/// Doorbells are trapped: the test's driver has mapped the pages of one device for good.
fn subnet() -> Configuration {
    Configuration::new()
        .set("log", "info")
        .set("engine.doorbells", "trap")
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", [])
        .spare_vfs(1)
        .hypervisor("hv3", ["vm2", "vm3"])
}

const NODE_RECORD: u16 = 0x11;

/// Gives a connection the patience to wait for a device that rests.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
}

/// GUID and LID of whoever has the VM's addresses, and the VF. Nobody else has them, wherever one looks.
fn place(daemon: &Daemon, observer: &mut Vm) -> (u64, u16, String) {
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs");
    let at: Vec<_> = vfs.iter().filter(|vf| vf["holds"] == "vm1").collect();
    let [only] = at[..] else { panic!("{at:?}") };
    let (text, lid) = (only["port_guid"].as_str().expect("a GUID"), &only["lid"]);
    let guid = u64::from_str_radix(&text.replace(':', ""), 16).expect("a number");
    let with =
        |key: &str, value: &serde_json::Value| vfs.iter().filter(|vf| vf[key] == *value).count();
    assert_eq!(
        (with("port_guid", &only["port_guid"]), with("lid", lid)),
        (1, 1)
    );
    let lid = lid.as_u64().expect("a LID") as u16;
    // What a walk finds.
    let outcome = daemon.run(&["topology", "--format", "ibnetdiscover"], "");
    assert_eq!(
        outcome.out.matches(&format!("caguid=0x{guid:x}\n")).count(),
        1,
        "{outcome:?}"
    );
    // LID, two bytes, and of the node's description in front of its GUIDs 8 bytes, and two GUIDs.
    let records = observer.table(NODE_RECORD, 112);
    let lid_of = |record: &Vec<u8>| u16::from_be_bytes([record[0], record[1]]);
    let guid_of = |record: &Vec<u8>| u64::from_be_bytes(*record[24..].first_chunk().unwrap());
    let known: Vec<u16> = { records.iter() }
        .filter(|record| guid_of(record) == guid || lid_of(record) == lid)
        .map(lid_of)
        .collect();
    assert_eq!(known, [lid]);
    (guid, lid, only["name"].as_str().expect("a name").to_owned())
}

/// A VM, its peer, and a connection from the peer to the VM.
struct Scene {
    daemon: Daemon,
    vm: Peer,
    peer: Peer,
    /// VM that asks the subnet administration.
    observer: Vm,
    theirs: QueuePair,
    own: QueuePair,
}

impl Scene {
    fn new(daemon: Daemon) -> Self {
        let (vm, peer) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
        let observer = Vm::open(&daemon, "vm3");
        let (to, from) = (peer.config(Transport::Rc), vm.config(Transport::Rc));
        let (theirs, own) = connected_by(&to, &from, &peer, &vm, patient);
        Self {
            daemon,
            vm,
            peer,
            observer,
            theirs,
            own,
        }
    }

    /// The connection goes on.
    fn exchange(&mut self, seed: u64) {
        let (vm, peer) = (&mut self.vm, &mut self.peer);
        peer.fill(0, 5000, seed);
        let data = [peer.sge(0, 5000)];
        let write = SendRequest::write(vm.remote(HALF), Data::Memory(&data));
        assert!(peer.execute(&mut self.theirs, &write).is_ok());
        vm.verify(HALF, 5000, seed);
        let data = [vm.sge(HALF, 5000)];
        let write = SendRequest::write(peer.remote(HALF), Data::Memory(&data));
        assert!(vm.execute(&mut self.own, &write).is_ok());
        peer.verify(HALF, 5000, seed);
    }

    fn await_gone(&self, vf: &str) {
        wait_until(vf, || self.daemon.vf(vf)["client_connected"] == false);
    }
}

/// The command is killed after each of its steps, or the QEMU at the destination.
#[test]
fn a_vm_is_at_one_place_whoever_dies() {
    let mut scene = Scene::new(Daemon::logging(subnet()));
    let before = place(&scene.daemon, &mut scene.observer);
    for taken in 0..STEPS.len() {
        for kills_receiver in [false, true] {
            let socket = scene.daemon.socket("hv2-spare1");
            let receiver = scene.vm.device.receiver(socket).unwrap();
            let mut live = Move::begin(&scene.daemon, &["vm1"], "hv2").unwrap();
            for step in &STEPS[..taken] {
                live.step(*step).unwrap();
            }
            if kills_receiver {
                drop(receiver);
                scene.await_gone("hv2-spare1");
                // Whatever the command tries, the last step is refused.
                let refused = STEPS[taken..].iter().any(|step| live.step(*step).is_err());
                assert!(refused, "{taken}");
                drop(live);
            } else {
                drop((live, receiver));
            }
            Move::settle(&scene.daemon, "vm1");
            assert_eq!(place(&scene.daemon, &mut scene.observer), before, "{taken}");
            scene.exchange(taken as u64);
            scene.await_gone("hv2-spare1");
        }
    }
}

/// The QEMU of the source is killed. Until there is an image the VM goes with it, and can be started again where
/// it was; afterwards it arrives.
#[test]
fn a_vm_whose_source_dies_is_at_one_place() {
    for taken in 0..STEPS.len() {
        let mut scene = Scene::new(Daemon::logging(subnet()));
        let before = place(&scene.daemon, &mut scene.observer);
        let socket = scene.daemon.socket("hv2-spare1");
        let receiver = scene.vm.device.receiver(socket).unwrap();
        let mut live = Move::begin(&scene.daemon, &["vm1"], "hv2").unwrap();
        for step in &STEPS[..taken] {
            live.step(*step).unwrap();
        }
        // Its connection ends; the test's driver goes on with the memory that both share.
        scene.vm.device.go_on_with(receiver);
        scene.await_gone("vm1");
        let outcome: Result<Vec<_>, _> = { STEPS[taken..].iter() }
            .map(|step| live.step(*step))
            .collect();
        let arrives = STEPS[..taken].contains(&LiveStep::Save);
        assert_eq!(outcome.is_ok(), arrives, "{taken} {outcome:?}");
        drop(live);
        Move::settle(&scene.daemon, "vm1");
        let after = place(&scene.daemon, &mut scene.observer);
        if arrives {
            assert_eq!(
                after,
                (before.0, before.1, "hv2-spare1".to_owned()),
                "{taken}"
            );
            scene.exchange(taken as u64);
        } else {
            assert_eq!(after, before, "{taken}");
            let mut again = Peer::open(&scene.daemon, "vm1");
            again.write_to(&scene.peer);
        }
    }
}

/// The daemon is killed. The keeper has all of them, and the next daemons have VMs where they went on.
#[test]
fn a_vm_whose_daemon_dies_is_at_one_place() {
    for taken in 0..=STEPS.len() {
        let mut scene = Scene::new(Daemon::kept(subnet()));
        let before = place(&scene.daemon, &mut scene.observer);
        let socket = scene.daemon.socket("hv2-spare1");
        let receiver = scene.vm.device.receiver(socket).unwrap();
        let mut live = Move::begin(&scene.daemon, &["vm1"], "hv2").unwrap();
        for step in &STEPS[..taken] {
            live.step(*step).unwrap();
        }
        scene.daemon.kill_served();
        scene.daemon.await_log("it is started again");
        drop(live);
        if taken == STEPS.len() {
            scene.vm.device.go_on_with(receiver);
        } else {
            drop(receiver);
        }
        let recovered = [&scene.vm, &scene.peer, &scene.observer.peer]
            .map(|peer| Peer::new(peer.device.recover().unwrap()));
        let [mut vm, peer, observer] = recovered;
        vm.write_to(&peer);
        let vf = if taken == STEPS.len() {
            "hv2-spare1"
        } else {
            "vm1"
        };
        let after = place(&scene.daemon, &mut Vm::at(observer));
        assert_eq!(after, (before.0, before.1, vf.to_owned()), "{taken}");
    }
}

/// VMs that did not run while their addresses moved, and ports.
#[test]
fn addresses_are_where_they_were_when_a_daemon_died() {
    let daemon = Daemon::kept(
        subnet()
            .entry("hypervisor.port", "card")
            .key("kind", "vhost-user-net")
            .hypervisor("hv4", [])
            .key("spare_ports", 1),
    );
    let holders = || -> Vec<(String, String)> {
        let status = daemon.ask(&["status"]);
        let vfs = status["vfs"].as_array().expect("VFs").iter();
        let holds = vfs.filter_map(|vf| Some((vf["name"].as_str()?, vf["holds"].as_str()?)));
        holds.map(|(vf, vm)| (vf.into(), vm.into())).collect()
    };
    let die = |times: usize| {
        daemon.kill_served();
        let said = || daemon.log().matches("run: serving").count();
        wait_until("there is another daemon", || said() == times + 1);
    };
    let lid = daemon.lid("vm1");
    daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
    daemon.ask(&["vf", "migrate", "card", "--to", "hv4"]);
    let moved = holders();
    assert!(moved.contains(&("hv2-spare1".into(), "vm1".into())));
    assert!(moved.contains(&("hv4-spare-port1".into(), "card".into())));
    die(1);
    assert_eq!(holders(), moved);
    assert_eq!(daemon.lid("hv2-spare1"), lid);
    // Another program in between, and back.
    daemon.ask(&["upgrade"]);
    daemon.ask(&["vf", "migrate", "vm1", "--to", "hv1"]);
    let back = holders();
    die(3);
    assert_eq!(holders(), back);
    assert!(back.contains(&("vm1".into(), "vm1".into())));
}

/// A destination with other memory than the VM's gets nothing.
#[test]
fn a_destination_with_other_memory_gets_no_vm() {
    let mut scene = Scene::new(Daemon::logging(subnet()));
    let before = place(&scene.daemon, &mut scene.observer);
    let mut receiver = Client::connect(scene.daemon.socket("hv2-spare1")).unwrap();
    receiver.device_info().unwrap();
    let mut live = Move::begin(&scene.daemon, &["vm1"], "hv2").unwrap();
    // Pages that the device has written since.
    scene.exchange(1);
    let outcome: Result<Vec<_>, _> = STEPS.into_iter().map(|step| live.step(step)).collect();
    let why = outcome.unwrap_err();
    assert!(why.contains("memory"), "{why}");
    drop(live);
    Move::settle(&scene.daemon, "vm1");
    assert_eq!(place(&scene.daemon, &mut scene.observer), before);
    scene.exchange(2);
}

/// A monitor that is not there, that nobody answers at, or that ends the connection.
#[test]
fn monitors_that_refuse_leave_the_vm_where_it_is() {
    let mut scene = Scene::new(Daemon::logging(subnet()));
    let before = place(&scene.daemon, &mut scene.observer);
    let socket = scene.daemon.socket("hv2-spare1");
    let _receiver = scene.vm.device.receiver(socket).unwrap();
    let path = Path::new(scene.daemon.dir()).join("vm1.qmp");
    let migrate = |why: &str| {
        let outcome = scene
            .daemon
            .run(&["vm", "migrate", "vm1", "--to", "hv2"], "");
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        let said = outcome.err.contains("vm1.qmp") && outcome.err.contains(why);
        assert!(said, "{outcome:?}");
        Move::settle(&scene.daemon, "vm1");
    };
    migrate("No such file");
    drop(UnixListener::bind(&path).unwrap());
    migrate("Connection refused");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept()));
        migrate("");
    });
    assert_eq!(place(&scene.daemon, &mut scene.observer), before);
    scene.exchange(1);
}

/// The file of the subnet manager's LIDs cannot be written.
#[test]
fn a_full_disk_keeps_no_vm_from_moving() {
    let state = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink("/dev/full", state.path().join("guid2lid.new")).unwrap();
    // The disk that is full is a device here, which a daemon that confines itself may not write to.
    let configuration = subnet()
        .set("sandbox", "off")
        .set("sm.state_dir", state.path().display().to_string());
    let mut scene = Scene::new(Daemon::logging(configuration));
    let (guid, lid, _) = place(&scene.daemon, &mut scene.observer);
    scene.daemon.await_log("LIDs are not remembered");
    let socket = scene.daemon.socket("hv2-spare1");
    let receiver = scene.vm.device.receiver(socket).unwrap();
    let mut live = Move::begin(&scene.daemon, &["vm1"], "hv2").unwrap();
    for step in STEPS {
        live.step(step).unwrap();
    }
    scene.vm.device.go_on_with(receiver);
    let after = place(&scene.daemon, &mut scene.observer);
    assert_eq!(after, (guid, lid, "hv2-spare1".to_owned()));
    scene.exchange(1);
    assert!(scene.daemon.log().contains("No space left on device"));
}
