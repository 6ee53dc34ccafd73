//! Firmware of VFs that are made after an adapter's: slow, silent, or in want of pages, for drivers and for VFs that
//! are passed through to such.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::daemon::{Daemon, Peer};
use connectx::Backend;
use connectx::bits::command::{Opcode, Status, alloc_pd_out, create_eq_in};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use passthrough::{Parts, Passthrough, Policy};
use testing::{Configuration, wait_until};
use vfio_user::{Interrupts, IrqInfo};

fn vfs() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("a")
        .key("like", "connectx-5")
        .hypervisor("hv2", ["b"])
}

/// Returns the output of `vf firmware`: microseconds, commands to be lost, pages.
fn firmware(daemon: &Daemon, options: &[&str]) -> (u64, u64, u64) {
    let report = daemon.ask(&[&["vf", "firmware", "a"], options].concat());
    let number = |key: &str| report[key].as_u64().expect("a number");
    (number("delay_us"), number("lose"), number("pages"))
}

#[test]
fn commands_take_their_time() {
    let inner = Daemon::configured(vfs());
    assert_eq!(firmware(&inner, &["--delay", "2.5"]), (2500, 0, 0));
    let outer = inner.before(&["a"], "strict");
    let (mut a, mut b) = (Peer::open(&outer, "a"), Peer::open(&inner, "b"));
    a.write_to(&b);
    b.write_to(&a);
    let said = inner.run(&["vf", "firmware", "a"], "").out;
    assert!(said.starts_with("a answers commands within 2.5 ms; its firmware has "));
}

/// A function that is passed through to `a`, without a guest's monitor before it.
fn passed_through(inner: &Daemon, time_limit: Duration) -> Passthrough {
    let device = format!("unix:{}/a.sock", inner.dir());
    let device: passthrough::Device = device.parse().expect("a device");
    let function = Passthrough::new(Parts {
        name: "a".to_owned(),
        open: Box::new(move || device.open()),
        interrupts: |vectors| Interrupts::new(&[IrqInfo::msix(vectors)]),
        time_limit,
        policy: Policy::default(),
    });
    function.expect("comes up")
}

fn give(function: &mut Passthrough, slot: u32, opcode: Opcode) {
    let mut request = vec![0; 16];
    create_eq_in::OPCODE.set(&mut request, opcode.code().into());
    function.submit(slot, &mut request, 16);
}

/// The next reply: its entry, and the status.
fn next(function: &mut Passthrough) -> (u32, Option<Status>) {
    let wait = |fd: BorrowedFd<'_>| {
        let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::NONE).expect("is polled");
    };
    let mut reply = Vec::new();
    loop {
        if let Some(slot) = function.poll_reply(&mut reply) {
            let status = alloc_pd_out::STATUS.get(&reply) as u8;
            return (slot, Status::from_code(status));
        }
        wait(function.ready().expect("a descriptor"));
    }
}

fn bring_up(function: &mut Passthrough) {
    for opcode in [Opcode::EnableHca, Opcode::InitHca] {
        give(function, 0, opcode);
        assert_eq!(next(function), (0, Some(Status::Ok)));
    }
}

#[test]
fn each_of_many_commands_is_answered() {
    let inner = Daemon::configured(vfs());
    firmware(&inner, &["--delay", "1"]);
    let mut function = passed_through(&inner, Duration::from_secs(600));
    bring_up(&mut function);
    for slot in 0..32 {
        give(&mut function, slot, Opcode::AllocPd);
    }
    let mut slots: Vec<u32> = (0..32)
        .map(|_| match next(&mut function) {
            (slot, Some(Status::Ok)) => slot,
            other => panic!("{other:?}"),
        })
        .collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..32).collect::<Vec<_>>());
    let behind = inner.vf("a");
    assert_eq!(behind["objects"]["pd"], 32);
}

/// The VF is of use again when it has been reset.
#[test]
fn a_command_that_is_lost() {
    let inner = Daemon::configured(vfs());
    let mut function = passed_through(&inner, Duration::from_millis(100));
    bring_up(&mut function);
    assert_eq!(firmware(&inner, &["--lose", "1"]), (0, 1, 32));
    give(&mut function, 3, Opcode::AllocPd);
    assert_eq!(next(&mut function), (3, Some(Status::Internal)));
    assert_eq!(firmware(&inner, &[]), (0, 0, 32));
    assert_ne!(function.registers().health, [0; 64]);
    function.reset();
    assert_eq!(function.registers().health, [0; 64]);
    bring_up(&mut function);
    give(&mut function, 3, Opcode::AllocPd);
    assert_eq!(next(&mut function), (3, Some(Status::Ok)));
    assert_eq!(inner.vf("a")["objects"]["pd"], 1);
}

/// As one does that has the VF to itself.
#[test]
fn a_driver_gives_pages() {
    let inner = Daemon::configured(vfs());
    let (mut a, mut b) = (Peer::open(&inner, "a"), Peer::open(&inner, "b"));
    assert_eq!(firmware(&inner, &[]).2, 32);
    a.write_to(&b);
    firmware(&inner, &["--pages", "999"]);
    b.write_to(&a);
    a.write_to(&b);
    assert_eq!(firmware(&inner, &[]).2, 32 + 999);
}

#[test]
fn firmware_wants_pages_when_it_likes() {
    let inner = Daemon::configured(vfs());
    let said = inner.run(&["vf", "firmware", "a", "--pages", "1"], "").err;
    let up = "`a`: its driver hears of no such wishes: it is not up";
    assert!(said.contains(up), "{said}");
    let outer = inner.before(&["a"], "strict");
    let (mut a, b) = (Peer::open(&outer, "a"), Peer::open(&inner, "b"));
    let mut expected = 32;
    for change in [1, 999, -600, -432, 700] {
        expected += change;
        firmware(&inner, &["--pages", &change.to_string()]);
        wait_until("pages", || firmware(&inner, &[]).2 as i64 == expected);
    }
    a.write_to(&b);
    // What it cannot have.
    for (name, change, why) in [
        (
            "a",
            "4096",
            "`a`: its firmware has 700 pages, and holds at most 4096",
        ),
        (
            "a",
            "-701",
            "`a`: its firmware has 700 pages, and holds at most 4096",
        ),
        (
            "b",
            "1",
            "`b` has no firmware; give it `like = \"connectx-5\"`",
        ),
        (
            "x",
            "1",
            "there is no VF `x` of software; see `ibvswitch vf show`",
        ),
    ] {
        let outcome = inner.run(&["vf", "firmware", name, "--pages", change], "");
        assert!(outcome.err.contains(why), "{outcome:?}");
    }
}
