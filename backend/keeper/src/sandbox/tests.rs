//! Tests of refused system calls. Other tests of the keeper show that the allowed ones work.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::*;
use crate::mark::{Left, Mark};

fn refused<T>(what: &str, outcome: io::Result<T>) {
    let error = outcome.err().and_then(|error| error.raw_os_error());
    assert_eq!(error, Some(libc::EPERM), "{what}");
}

#[test]
fn nothing_is_opened_started_or_reached() {
    let this = Pid::this();
    let mark = Mark::new().expect("memory");
    mark.take(&[7; 32]);
    let shared = mark.as_fd().try_clone_to_owned().expect("a descriptor");
    // A filter is of one thread.
    let sandboxed = thread::spawn(move || {
        enter().expect("the system has filters");
        refused("open", File::open("/proc/self/maps"));
        refused("create", File::create("/tmp/x"));
        refused("remove", fs::remove_file("/tmp/x"));
        refused("listen", UnixListener::bind("/tmp/x"));
        refused("connect", UnixStream::connect("/tmp/x"));
        refused("network", TcpStream::connect((Ipv4Addr::LOCALHOST, 1)));
        refused("start", Command::new("true").status());
        refused("signal", kill(this, None).map_err(io::Error::from));
        // What a daemon had in hand is seen.
        let seen = Mark::adopt(shared).expect("memory of a daemon");
        assert_eq!(seen.left(), Left::InHand(vec![7; 32]));
        // Memory is had.
        assert_eq!(vec![1_u8; 64 << 20].len(), 64 << 20);
    });
    sandboxed.join().expect("all that was refused");
}
