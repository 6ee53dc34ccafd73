//! The subnet comes up; OpenSM takes it over and gives it back.

use crate::place::{Place, Program};

/// `links` are the ends of links that are Active.
fn manages(place: &Place, links: usize) {
    let manager = Program::start(&mut place.manager(&[]));
    let line = manager.says("subnet up");
    assert!(line.contains("errors=0"), "{line}");
    let text = place.output(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    let text = place.output(&["iblinkinfo"]);
    assert_eq!(text.matches("Active/  LinkUp").count(), links, "{text}");
    let text = place.output(&["saquery", "--src-to-dst", "1:2"]);
    assert!(text.contains("dlid....................2"), "{text}");
    let text = place.output(&["ibtracert", "1", "2"]);
    assert!(text.contains("lid 2-2"), "{text}");

    // Polls the master four times a second.
    let options = place.dir.path().join("opensm.conf");
    std::fs::write(&options, "sminfo_polling_timeout 250\n").expect("is written");
    let options = options.to_str().expect("is text");
    let opensm = ["opensm", "-d2", "-f", "-", "-F", options];
    let opensm = Program::start(place.other(&opensm).env("SIM_HOST", "d"));
    opensm.says("Entering STANDBY state");
    manager.end();
    opensm.says("Entering MASTER state");
    opensm.says("SUBNET UP");
    let manager = Program::start(&mut place.manager(&["--priority", "1"]));
    opensm.says("Entering STANDBY state");
    let line = manager.says("subnet up");
    assert!(line.contains("errors=0"), "{line}");
    let text = place.output(&["iblinkinfo"]);
    assert_eq!(text.matches("Active/  LinkUp").count(), links, "{text}");
}

#[test]
fn of_ibsim() {
    manages(&Place::ibsim(), 12);
}

#[test]
fn of_the_daemon() {
    manages(&Place::daemon(), 14);
}
