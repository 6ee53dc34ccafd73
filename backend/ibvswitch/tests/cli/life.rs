//! Daemons start, answer, stop, and are killed.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use super::*;
use testing::Configuration;

#[test]
fn a_daemon_starts_answers_and_stops() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = scratch();
        let run_dir = dir.path().join("run");
        let daemon = Daemon::start(&run_dir, &[]);
        assert_eq!(
            names(&run_dir),
            ["control.sock", "ibvswitch.lock", "vm1.sock", "vm2.sock"]
        );
        let status = run(&run_dir, &["status", "--json"]);
        assert_eq!(status.status, SUCCESS, "{}", status.err);
        let json: serde_json::Value = serde_json::from_str(&status.out).expect("is JSON");
        assert_eq!(json["vfs"][0]["name"], "vm1");
        assert_eq!(json["vfs"][1]["name"], "vm2");
        assert_eq!(json["pid"], daemon.child.id());
        let end = daemon.stop(signal);
        assert_eq!(end.status, SUCCESS, "{}", end.err);
        assert_eq!(names(&run_dir), ["ibvswitch.lock"]);
        // Neither escape sequences nor panics in the log.
        assert!(
            !end.err.contains('\u{1b}') && !end.err.contains("panicked"),
            "{}",
            end.err
        );
    }
}

/// A start that fails leaves nothing behind, however late it fails.
#[test]
fn a_start_with_a_socket_that_is_taken() {
    let dir = scratch();
    let run_dir = dir.path().join("run");
    let name = format!("ibvswitch-taken-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(format!("{name}:ctl\0")).expect("a name");
    let _other = UnixDatagram::bind_addr(&address).expect("is free");
    let config = dir.path().join("c.toml");
    let text = Configuration::new()
        .set("external.socket", name)
        .hypervisor("hv1", ["vm1"]);
    std::fs::write(&config, text.to_string()).expect("is writable");
    let config = config.to_str().expect("is text");
    let outcome = run(&run_dir, &["run", "--config", config]);
    assert_eq!(outcome.status, FAILURE);
    assert!(
        outcome.err.contains("`external.socket = "),
        "{}",
        outcome.err
    );
    assert_eq!(names(&run_dir), ["ibvswitch.lock"]);
}

#[test]
fn readiness_is_told_to_systemd() {
    let dir = scratch();
    let path = dir.path().join("notify.sock");
    let systemd = UnixDatagram::bind(&path).expect("a socket");
    systemd
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("is not zero");
    let mut command = command(&dir.path().join("run"));
    let daemon = Daemon::spawn(command.arg("run").env("NOTIFY_SOCKET", &path));
    let next = || {
        let mut message = [0; 64];
        let length = systemd.recv(&mut message).expect("a message");
        String::from_utf8_lossy(&message[..length])
            .trim()
            .to_owned()
    };
    assert_eq!(next(), "READY=1");
    daemon.stop(Signal::SIGTERM);
    assert_eq!(next(), "STOPPING=1");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    let second = run(dir.path(), &["run"]);
    assert_eq!(second.status, FAILURE);
    assert_eq!(second.out, "");
    let wanted = format!(
        "in use by another ibvswitch (process {})",
        daemon.child.id()
    );
    assert!(second.err.contains(&wanted), "{}", second.err);
    assert_eq!(run(dir.path(), &["status"]).status, SUCCESS);
}

#[test]
fn a_killed_daemon_is_no_obstacle() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    drop(daemon);
    assert!(
        names(dir.path()).contains(&"vm1.sock".to_owned()),
        "was not killed"
    );
    let daemon = Daemon::start(dir.path(), &[]);
    assert_eq!(daemon.stop(Signal::SIGTERM).status, SUCCESS);
}
