//! The subnet comes up; OpenSM takes it over and gives it back.

use nix::sys::signal::Signal;

use crate::place::{Place, Program};

/// `links` are the ends of links that are Active.
fn serves(place: &Place, links: usize) {
    let text = place.output(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    let text = place.output(&["iblinkinfo"]);
    assert_eq!(text.matches("Active/  LinkUp").count(), links, "{text}");
    let text = place.output(&["ibtracert", "1", "2"]);
    assert!(text.contains("lid 2-2"), "{text}");
    // The last one: libumad2sim acknowledges no table, and ends a program that is sent one of its predecessor again.
    let text = place.output(&["saquery", "--src-to-dst", "1:2"]);
    assert!(text.contains("dlid....................2"), "{text}");
}

/// OpenSM at a node, which polls the master four times a second.
fn opensm(place: &Place, host: &str) -> Program {
    let options = place.dir.path().join("opensm.conf");
    std::fs::write(&options, "sminfo_polling_timeout 250\n").expect("is written");
    let options = options.to_str().expect("is text");
    let opensm = ["opensm", "-d2", "-f", "-", "-F", options];
    Program::start(place.other(&opensm).env("SIM_HOST", host))
}

fn takes_turns(place: &Place, links: usize) {
    // Of equal managers the one with the lower GUID would be master.
    let manager = Program::start(&mut place.manager(&["--priority", "1"]));
    let line = manager.says("subnet up");
    assert!(line.contains("errors=0"), "{line}");
    serves(place, links);
    let opensm = opensm(place, "d");
    opensm.says("Entering STANDBY state");
    manager.end();
    opensm.says("Entering MASTER state");
    opensm.says("SUBNET UP");
    let manager = Program::start(&mut place.manager(&["--priority", "1"]));
    opensm.says("Entering STANDBY state");
    let line = manager.says("subnet up");
    assert!(line.contains("errors=0"), "{line}");
    serves(place, links);
}

#[test]
fn of_ibsim() {
    takes_turns(&Place::ibsim(), 12);
}

#[test]
fn of_the_daemon() {
    takes_turns(&Place::daemon(), 14);
}

/// Virtual ports come up where OpenSM, a standby here, has none.
#[test]
fn virtual_ports() {
    let place = Place::virtualized();
    let states = |state: &str| {
        let text = place.command(&["status"]);
        let vfs = ["a ", "b ", "d "].map(|vf| text.lines().find(|line| line.starts_with(vf)));
        let all = vfs.iter().flatten();
        assert_eq!(all.filter(|line| line.contains(state)).count(), 3, "{text}");
    };
    states("Down");
    let manager = Program::start(&mut place.manager(&["--priority", "1"]));
    let line = manager.says("subnet up");
    assert!(
        line.contains("virtual_ports=3 ") && line.contains("errors=0"),
        "{line}"
    );
    states("Active");
    let opensm = opensm(&place, "hv2");
    opensm.says("Entering STANDBY state");
    manager.signal(Signal::SIGHUP);
    let line = manager.says("sweep=2 ");
    assert!(line.contains("virtual_ports=3 "), "{line}");
    // Told to do without them.
    manager.end();
    opensm.says("Entering MASTER state");
    opensm.says("SUBNET UP");
    let options = place.dir.path().join("sm.conf");
    std::fs::write(&options, "virt_enabled 1\n").expect("is written");
    let options = options.to_str().expect("is text");
    let manager = Program::start(&mut place.manager(&["--priority", "1", "--config", options]));
    manager.says("subnet up");
    states("Down");
}

/// Switches' traps reach the manager, and a signal has it read its files again and look at the whole subnet.
#[test]
fn sweeps() {
    let place = Place::daemon();
    let file = place.dir.path().join("partitions.conf");
    let write = |text: &str| std::fs::write(&file, text).expect("is written");
    write("Default=0x7fff : ALL=full ;\n");
    let manager =
        Program::start(&mut place.manager(&["--sweep", "0", "--Pconfig", "partitions.conf"]));
    let line = manager.says("sweep=1 ");
    assert!(line.contains("active=8 "), "{line}");
    let pkeys = || place.output(&["smpquery", "pkeys", "1"]);
    assert!(!pkeys().contains("0x8005"), "{}", pkeys());
    write("Default=0x7fff : ALL=full ;\nio=0x5 : ALL=full ;\n");
    manager.signal(Signal::SIGHUP);
    manager.says("sweep=2 ");
    assert!(pkeys().contains("0x8005"), "{}", pkeys());
    write("Default=0x7fff : ALL=full ;\nio=0x5 ALL=full ;\n");
    manager.signal(Signal::SIGHUP);
    let line = manager.says("stay as they were");
    assert!(line.contains("partitions.conf:2: "), "{line}");
    manager.says("sweep=3 ");
    assert!(pkeys().contains("0x8005"), "{}", pkeys());
    place.command(&["link", "down", "a:1"]);
    manager.says("active=7 ");
    place.command(&["link", "up", "a:1"]);
    manager.says("active=8 ");
}

/// libumad2sim takes the place of the kernel's MAD device.
#[test]
fn by_the_mad_device() {
    let place = Place::ibsim();
    let manager = Program::start(&mut place.manager_at_device());
    let line = manager.says("subnet up");
    assert!(line.contains("errors=0"), "{line}");
    serves(&place, 12);
    opensm(&place, "d").says("Entering STANDBY state");
}
