//! VFs that live in several engines, and move between them while they work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::daemon::{Daemon, HALF, Peer, clusters_at_shared_ports, connected, peers};
use test_driver::{Data, SendRequest, Transport};
use testing::Configuration;

fn two_engines(doorbells: &str) -> Daemon {
    Daemon::configured(
        Configuration::new()
            .set("engine.threads", 2)
            .set("engine.doorbells", doorbells)
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"]),
    )
}

/// Returns the VFs that live in each engine.
fn lives(daemon: &Daemon) -> Vec<Vec<String>> {
    let status = daemon.ask(&["status"]);
    let engines = status["placement"]["engines"].as_array().expect("engines");
    let names = |engine: &serde_json::Value| {
        let vfs = engine["vfs"].as_array().expect("names");
        vfs.iter()
            .map(|vf| vf.as_str().expect("a name").to_owned())
            .collect()
    };
    engines.iter().map(names).collect()
}

fn pin(daemon: &Daemon, vf: &str, engine: &str) -> serde_json::Value {
    daemon.ask(&["vf", "pin", vf, "--engine", engine])
}

#[test]
fn who_talks_to_another_engine_is_told_to_move() {
    let daemon = two_engines("trap");
    assert_eq!(lives(&daemon), [["vm1"], ["vm2"]]);
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    a.fill(0, HALF, 3);
    let from = [a.sge(0, HALF)];
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
    b.verify(HALF, HALF, 3);
    let status = daemon.ask(&["status"]);
    let suggestions = &status["placement"]["suggestions"];
    assert_eq!(
        suggestions.as_array().map(Vec::len),
        Some(1),
        "{suggestions}"
    );
    assert_eq!(
        (&suggestions[0]["vf"], &suggestions[0]["engine"]),
        (&"vm1".into(), &1.into())
    );
    let metrics = daemon.run(&["metrics"], "").out;
    let of_first = |name: &str| {
        let name = format!("ibvswitch_engine_{name}{{engine=\"0\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse::<f64>().ok())
    };
    assert_eq!(of_first("vfs"), Some(1.0), "{metrics}");
    assert!(of_first("busy_seconds_total") >= Some(0.0), "{metrics}");
    assert!(
        of_first("crossing_bytes_total") >= Some(HALF as f64),
        "{metrics}"
    );
    assert!(
        of_first("crossing_frames_total") >= Some((HALF >> 16) as f64),
        "{metrics}"
    );
    let moved = pin(&daemon, "vm1", "1");
    assert_eq!(
        (&moved["vfs"][0], &moved["engine"]),
        (&"vm1".into(), &1.into())
    );
    assert_eq!(lives(&daemon), [vec![], vec!["vm1", "vm2"]]);
    a.fill(0, HALF, 4);
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
    b.verify(HALF, HALF, 4);
    let status = daemon.ask(&["status"]);
    assert_eq!(status["placement"]["suggestions"], serde_json::json!([]));
    let sent = |status: &serde_json::Value| status["vfs"][0]["counters"]["xmit_bytes"].as_u64();
    assert!(
        sent(&status) >= Some(2 * HALF as u64),
        "what was counted before stays"
    );
}

#[test]
fn nobody_lives_nowhere() {
    let daemon = two_engines("trap");
    for (vf, engine, why) in [
        ("vm3", "0", "there is no VF `vm3`; there are vm1, vm2"),
        ("vm1", "2", "there is no engine 2; there are engines 0 to 1"),
    ] {
        let outcome = daemon.run(&["vf", "pin", vf, "--engine", engine], "");
        assert_eq!(outcome.status, Some(5), "{}", outcome.err);
        assert!(outcome.err.contains(why), "{}", outcome.err);
    }
    assert_eq!(lives(&daemon), [["vm1"], ["vm2"]]);
}

#[test]
fn those_at_one_port_move_together() {
    let daemon = Daemon::configured(
        clusters_at_shared_ports()
            .set("engine.threads", 2)
            .set("sm.lmc", 2),
    );
    let moved = pin(&daemon, "a2", "0");
    assert_eq!(
        moved["vfs"],
        serde_json::json!(["out2", "a2", "b2", "hv2-spare1"])
    );
    assert_eq!(lives(&daemon)[1], [""; 0]);
    let (mut a1, b1) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let (mut qa, _qb) = connected(Transport::Rc, &a1, &b1);
    a1.fill(0, 1000, 9);
    let from = [a1.sge(0, 1000)];
    a1.execute(
        &mut qa,
        &SendRequest::write(b1.remote(HALF), Data::Memory(&from)),
    );
    b1.verify(HALF, 1000, 9);
}

fn a_vf_moves_under_load(doorbells: &str) {
    const LEN: usize = 20_000;
    let daemon = two_engines(doorbells);
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for (vf, engine) in [("vm2", "0"), ("vm1", "1"), ("vm2", "1"), ("vm1", "0")].repeat(5) {
                pin(&daemon, vf, engine);
            }
            done.store(true, Ordering::Release);
        });
        let mut seed = 0;
        while !done.load(Ordering::Acquire) {
            seed += 2;
            a.fill(0, LEN, seed);
            b.fill(0, LEN, seed + 1);
            let (from_a, from_b) = ([a.sge(0, LEN)], [b.sge(0, LEN)]);
            a.execute(
                &mut qa,
                &SendRequest::write(b.remote(HALF), Data::Memory(&from_a)),
            );
            b.verify(HALF, LEN, seed);
            qa.post_receive(&[a.sge(HALF, LEN)]).expect("is posted");
            b.execute(&mut qb, &SendRequest::send(Data::Memory(&from_b)));
            let entry = a.cq.wait().expect("a completion");
            qa.complete_receive(&entry);
            a.verify(HALF, LEN, seed + 1);
        }
    });
    assert_eq!(lives(&daemon), [["vm1"], ["vm2"]]);
}

#[test]
fn a_vf_moves_under_load_trapped() {
    a_vf_moves_under_load("trap");
}

#[test]
fn a_vf_moves_under_load_polled() {
    a_vf_moves_under_load("adaptive");
}
