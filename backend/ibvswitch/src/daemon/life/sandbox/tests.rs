//! Tests of refusals. Other tests with a daemon show that its own calls are not refused.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tempfile::TempDir;

use super::*;
use config::{DEFAULT, Directories};

fn config(dir: &Path, more: &str) -> Config {
    let dirs = Directories {
        chosen: Some(dir),
        fallback: dir,
    };
    Config::parse("f", &format!("{more}{DEFAULT}"), dirs).expect("is right")
}

fn code<T>(outcome: io::Result<T>) -> Option<Errno> {
    let error = outcome.err()?;
    Some(
        error
            .raw_os_error()
            .map_or(Errno::UnknownErrno, Errno::from_raw),
    )
}

#[test]
fn what_the_daemon_does_not_need_is_refused() {
    let own = TempDir::new().expect("a directory");
    let other = TempDir::new().expect("a directory");
    let config = config(own.path(), "");
    let secret = other.path().join("secret");
    fs::write(&secret, "x").expect("is written");
    let program = other.path().join("program");
    fs::copy("/bin/true", &program).expect("is copied");
    // Landlock and seccomp are of one thread.
    let sandboxed = thread::spawn(move || {
        let landlock = files::enter(&Needs::of(&config)).expect("rules that it can have");
        calls::enter(false).expect("the system has filters");
        println!("Landlock of this kernel: {landlock:?}");
        if landlock == Landlock::None {
            println!(
                "skipped: this kernel has no Landlock: files, sockets and programs that are refused"
            );
        } else {
            let denied = Some(Errno::EACCES);
            assert_eq!(code(File::open(&secret)), denied, "open");
            assert_eq!(code(File::open("/etc/passwd")), denied, "open");
            assert_eq!(code(File::create(other.path().join("x"))), denied, "create");
            assert_eq!(code(fs::remove_file(&secret)), denied, "remove");
            assert_eq!(
                code(File::options().write(true).open("/usr/bin/true")),
                denied
            );
            assert_eq!(code(UnixListener::bind(other.path().join("s"))), denied);
            assert_eq!(code(Command::new(&program).status()), denied, "execute");
            // What it may write it may not execute.
            let own_program = own.path().join("program");
            fs::write(&own_program, "#!/bin/sh\n").expect("its own directory");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&own_program, mode).expect("its own file");
            assert_eq!(code(Command::new(&own_program).status()), denied, "execute");
        }
        let refused = Some(Errno::EPERM);
        assert_eq!(code(TcpStream::connect((Ipv4Addr::LOCALHOST, 1))), refused);
        assert_eq!(code(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))), refused);
        let unshared = unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from);
        assert_eq!(code(unshared), refused, "namespace");
        if landlock != Landlock::Full {
            println!("skipped: this kernel's Landlock does not know signals: one that is refused");
        } else {
            let signalled = kill(Pid::parent(), None).map_err(io::Error::from);
            assert_eq!(code(signalled), refused, "signal");
        }
        // What it needs, it has.
        let socket = own.path().join("s");
        let listener = UnixListener::bind(&socket).expect("its own directory");
        UnixStream::connect(&socket).expect("listens");
        drop(listener);
        fs::remove_file(&socket).expect("its own file");
        File::open("/dev/urandom").expect("random numbers");
        fs::read_to_string("/proc/self/cgroup").expect("limits");
        let started = Command::new("true")
            .status()
            .expect("a program of the system");
        assert!(started.success());
        let processors: CpuSet = sched_getaffinity(Pid::from_raw(0)).expect("processors");
        sched_setaffinity(Pid::from_raw(0), &processors).expect("a thread that is pinned");
        thread::spawn(|| ()).join().expect("a thread");
    });
    sandboxed.join().expect("as it is to be");
}

#[test]
fn no_more_is_let_through_than_is_configured() {
    let dir = TempDir::new().expect("a directory");
    let needs = Needs::of(&config(dir.path(), ""));
    assert_eq!(needs.own, [dir.path()]);
    assert_eq!(needs.sockets, Vec::<PathBuf>::new());
    assert_eq!(needs.devices, [Path::new("/dev/null")]);
    assert!(!needs.read.contains(&"/sys".into()));
}
