//! Memory that a guest can make the daemon allocate.

use std::fs;

use crate::daemon::{Daemon, Peer};
use test_driver::exhaustion::{Exhaustion, ObjectKind};
use test_driver::{Device, Options, Transport};

/// Memory that one guest may take, in MiB.
const MAX_MIB: f64 = 64.0;

/// Resident memory of a daemon that is not shared with guests, in MiB.
fn resident(daemon: &Daemon) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("is alive");
    let kib = |key: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let value = line.and_then(|line| line.split_whitespace().next());
        value
            .and_then(|value| value.parse().ok())
            .expect("a number")
    };
    (kib("VmRSS:") - kib("RssShmem:")) / 1024.0
}

/// Takes objects of these kinds, one kind after the other, until each is refused; returns what the
/// daemon's memory was at most.
fn hoard(daemon: &Daemon, kinds: impl IntoIterator<Item = ObjectKind>, bound: f64) -> f64 {
    let options = Options {
        memory: 512 << 20,
        ..Options::default()
    };
    let device = Device::open_with(daemon.socket("vm1"), options).expect("opens");
    let mut hoard = Exhaustion::new(&device).expect("begins");
    let mut peak: f64 = 0.0;
    for kind in kinds {
        for count in 1_u32.. {
            let more = hoard
                .take(kind)
                .expect("is refused for want of resources only");
            if !more || count.is_multiple_of(16) {
                peak = peak.max(resident(daemon));
                assert!(peak <= bound, "{kind:?}, {count} of them: {peak} MiB");
            }
            if !more {
                break;
            }
        }
    }
    // Without any of the commands that would take the objects down.
    let client = device.client();
    client
        .stream()
        .shutdown(std::net::Shutdown::Both)
        .expect("is cut");
    peak
}

/// A VF that is passed through has no tags and no signatures.
fn is_there(kind: ObjectKind) -> bool {
    let of_software = matches!(
        kind,
        ObjectKind::TaggedQueues | ObjectKind::SignedKeys | ObjectKind::SignatureValues
    );
    std::env::var_os("IBVSWITCH_TEST_PASSTHROUGH").is_none() || !of_software
}

#[test]
fn a_guest_has_its_share_of_memory_and_no_more() {
    let daemon = Daemon::start("trap");
    // What the neighbour has, it has before the guest takes everything and after.
    let neighbour = Peer::open(&daemon, "vm2");
    let before = resident(&daemon);
    for round in 0..3 {
        let kinds = ObjectKind::round(round).filter(|kind| is_there(*kind));
        let peak = hoard(&daemon, kinds, before + MAX_MIB);
        println!("round {round}: {peak:.1} MiB, {before:.1} before");
        neighbour.qp(Transport::Rc);
    }
    // The guest is gone, and so is what it had.
    drop(Peer::open(&daemon, "vm1"));
    let after = resident(&daemon);
    println!("afterwards: {after:.1} MiB");
    assert!(after - before <= 8.0, "{after} MiB of {before}");
}
