//! One program after the other takes the daemon's place, under messages that wait for each other and such that do
//! not.

use ibvswitch_guest_tests::{
    Error, Result, checks::Checks, guest::Guest, hca::Hca, progress, testbed::DEVICE,
};
use serde_json::{Value, json};

use super::{
    scene::Scene,
    traffic::{Pair, Traffic},
};

/// Another program takes over `count` times. The longest gaps between two messages that the VM has seen, one for
/// each run of `ib_write_lat`, in microseconds.
fn upgrade(scene: &Scene, vm: &Guest, count: u32) -> Result<Vec<f64>> {
    let pair = Pair {
        vm,
        peer: &scene.peer,
    };
    let mut sent = Traffic::bandwidth("send", "ib_send_bw", 18700, 20, vm);
    let mut written = Traffic::latency("lat", "ib_write_lat", 18800, 10_000, &scene.peer);
    for upgraded in 1..=count {
        sent.keep(pair)?;
        written.keep(pair)?;
        let report = scene.daemon.ask(&["upgrade", "--within", "4", "--json"])?;
        let report: Value = serde_json::from_str(&report).unwrap_or_default();
        progress::step(&report);
        if (&report["count"], &report["failed"], &report["vms"])
            != (&upgraded.into(), &0.into(), &2.into())
        {
            return Err(vm.failed(format!("after {upgraded} upgrades: {report}")));
        }
    }
    sent.finish(pair)?;
    written.finish(pair)?;
    // #bytes, iterations, then microseconds: the least, the most, … Each is half of a round trip.
    let gap = |text: &String| {
        let line = { text.lines() }.find(|line| line.trim_start().starts_with("2 "))?;
        let most: f64 = line.split_whitespace().nth(3)?.parse().ok()?;
        Some(2.0 * most)
    };
    let gaps: Option<Vec<f64>> = written.printed.iter().map(gap).collect();
    gaps.ok_or_else(|| Error::Output {
        what: "table of latencies".into(),
        text: written.printed.concat(),
    })
}

pub fn upgrades(scene: &Scene, vm: &Guest, count: u32, checks: &mut Checks) -> Result<()> {
    let before = Hca::of(vm, DEVICE)?;
    checks.check(
        format!("messages go on while {count} programs take over"),
        || {
            let gaps_us = upgrade(scene, vm, count)?;
            progress::step(json!({ "upgrades": count, "longest_gaps_us": gaps_us }));
            Ok(())
        },
    );
    checks.check("the VM is what it was", || scene.stays(vm, &before));
    Ok(())
}
