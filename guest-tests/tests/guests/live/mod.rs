//! A VM moves from QEMU to QEMU and from hypervisor to hypervisor while its programs use the HCA, other programs
//! take the daemon's place, and nothing in the VM notices.

mod failures;
mod journey;
mod scene;
mod throughput;
mod traffic;
mod upgrades;

use std::time::Duration;

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::Hca;
use ibvswitch_guest_tests::testbed::DEVICE;
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Result, progress};

use failures::{death_of_the_daemon, failures};
use scene::{PEER, PLACES, Scene, VM};
use traffic::{Background, Pair, Traffic};
use upgrades::upgrades;

const LIMIT: Duration = Duration::from_secs(400);
const PINGS: u32 = 30;
/// Seconds beside its pause in which a VM that moves may miss pings, one each second: addresses move, and where
/// processors are slow, a kernel waits for ARP in vain.
const MISSED_S: f64 = 3.0;

/// The pings without an answer, those next to each other together.
fn missed(text: &str) -> Vec<u32> {
    let numbers = text.split("seq=").skip(1);
    let numbers = numbers.filter_map(|text| {
        let end = text.find(|c: char| !c.is_ascii_digit())?;
        text[..end].parse::<u32>().ok()
    });
    let numbers: Vec<u32> = numbers.collect();
    let between = numbers
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0] + 1));
    let mut missed: Vec<u32> = between.filter(|&count| count > 0).collect();
    let lost = PINGS.saturating_sub(numbers.len() as u32);
    let at_an_end = lost.saturating_sub(missed.iter().sum());
    missed.extend(Some(at_an_end).filter(|&count| count > 0));
    missed
}

#[test]
fn a_vm_moves_under_traffic_and_does_not_notice() -> Result<()> {
    let (scene, mut vm) = Scene::new()?;
    let peer = &scene.peer;
    let mut checks = Checks::default();
    let before = Hca::of(&vm, DEVICE)?;
    vm.sh("dmesg -c >/dev/null", LIMIT)?;

    // The device writes into the VM's memory all the time.
    let mut traffic = [
        Traffic::bandwidth("write", "ib_write_bw -q 4", 18600, 20, &vm),
        Traffic::pingpong(500, peer),
        Traffic::rping(1_000),
    ];
    let mut pauses_s = Vec::new();
    let pinging = Background::start(peer, "ping", &format!("ping -c {PINGS} {VM}"))?;
    for (to, place) in [("hv2", PLACES[1]), ("hv1", PLACES[0])] {
        for each in &mut traffic {
            each.keep(Pair { vm: &vm, peer })?;
        }
        let report;
        (vm, report) = scene.migrate(vm, to, place)?;
        pauses_s.push(report["pause_ms"].as_f64().unwrap_or_default() / 1e3);
        let name = format!("at {to} it has the LID, GUID and P_Keys that it had");
        checks.check(&name, || {
            let after = Hca::of(&vm, DEVICE)?;
            if after == before {
                return Ok(());
            }
            Err(vm.failed(format!("{after:?}, and before {before:?}")))
        });
        let name = format!("at {to} its Ethernet card is the card of the port there");
        checks.check(&name, || scene.reach_card(&vm));
    }
    let pair = Pair { vm: &vm, peer };
    for each in &mut traffic {
        let name = format!(
            "{} has come to its end, with all as it should be",
            each.name
        );
        checks.check(name, || each.finish(pair));
    }
    checks.check("bytes that came meanwhile were compared", || {
        let compared = traffic
            .iter()
            .map(|each| (each.name, each.runs, each.bytes));
        let compared: Vec<_> = compared.filter(|(name, ..)| *name != "write").collect();
        progress::step(format_args!("runs and bytes compared: {compared:?}"));
        if compared
            .iter()
            .all(|&(_, runs, bytes)| runs > 0 && bytes >= 1 << 20)
        {
            return Ok(());
        }
        Err(vm.failed(format!("{compared:?}")))
    });
    checks.check("IPoIB goes on", || {
        // Datagrams that come at the moment in which the addresses move may get lost.
        let text = pinging.end(peer)?;
        progress::step(text.lines().rev().nth(1).unwrap_or_default());
        let missed = missed(&text);
        progress::step(format_args!(
            "pings missed: {missed:?}, pauses in s: {pauses_s:.2?}"
        ));
        let allowed: f64 = pauses_s.iter().map(|pause| pause.ceil() + MISSED_S).sum();
        if missed.len() > pauses_s.len() || f64::from(missed.iter().sum::<u32>()) > allowed {
            return Err(peer.failed(text));
        }
        ipoib::ping(&vm, PEER, "", LIMIT)
    });
    failures(&scene, &vm, &mut checks)?;
    checks.check("connections are made as before", || {
        Pingpong::Rc.between((peer, &vm), DEVICE, true, "-n 200", LIMIT)
    });
    checks.check("the kernels have said nothing", || {
        no_kernel_warning(peer, &[])?;
        let said = vm.sh("dmesg | grep -vE 'clocksource:|hrtimer:' || true", LIMIT)?;
        if said.trim().is_empty() {
            return Ok(());
        }
        Err(vm.failed(said))
    });
    upgrades(&scene, &vm, 2, &mut checks)?;
    death_of_the_daemon(&scene, &vm, &mut checks)?;
    checks.finish();
    Ok(())
}

#[test]
#[ignore = "takes minutes where processors are emulated"]
fn twenty_programs_take_over() -> Result<()> {
    let (scene, vm) = Scene::new()?;
    let mut checks = Checks::default();
    upgrades(&scene, &vm, 20, &mut checks)?;
    checks.finish();
    Ok(())
}
