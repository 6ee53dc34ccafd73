//! A VM moves there and back very often, with all kinds of programs in it, and each byte that it gets is compared.

use std::env;

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::Hca;
use ibvswitch_guest_tests::storage::{disk, nvme};
use ibvswitch_guest_tests::testbed::DEVICE;
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning};
use ibvswitch_guest_tests::{Result, progress};
use serde_json::{Value, json};

use super::{
    LIMIT,
    scene::{PEER, PLACES, Scene},
    traffic::{Background, Pair, Traffic},
};

/// Another number of moves.
const MOVES: &str = "IBVSWITCH_TEST_MOVES";
/// Size of the disk that the VM has of its peer, by NVMe over RDMA.
const MEBIBYTES: u32 = 16;

/// A subnet manager in the VM. It stands by: the daemon's has the higher priority.
const OPENSM: &str = "mkdir -p /tmp/osm && OSM_CACHE_DIR=/tmp/osm OSM_TMP_DIR=/tmp/osm opensm -p 0 -f - -F none.conf";

/// That the VM's addresses are at one place: by packets that go from port to port, and as the subnet
/// administration tells the peer.
fn is_once(scene: &Scene, vm: &Guest, of: &Hca) -> Result<()> {
    let guid = of.port_guid.trim_start_matches("0x");
    let short = guid.trim_start_matches('0');
    for (guest, command, line) in [
        (vm, "ibnetdiscover", format!("caguid=0x{short}")),
        (
            &scene.peer,
            "saquery NR",
            format!("port_guid...............0x{guid}"),
        ),
    ] {
        let text = guest.sh(command, LIMIT)?;
        let found = text.lines().filter(|text| text.trim().starts_with(&line));
        if found.count() != 1 {
            return Err(guest.failed(format!("not once {line} in\n{text}")));
        }
    }
    Ok(())
}

/// Milliseconds of the moves: the median, and the most.
fn median_and_most(reports: &[Value], key: &str) -> [f64; 2] {
    let mut values: Vec<f64> = reports.iter().filter_map(|it| it[key].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or(f64::NAN);
    [values.get(values.len() / 2).copied().unwrap_or(most), most]
}

#[test]
#[ignore = "takes half an hour where processors are emulated"]
fn fifty_moves_lose_no_byte() -> Result<()> {
    let moves = env::var(MOVES).ok().and_then(|text| text.parse().ok());
    let moves: usize = moves.unwrap_or(50);
    let (scene, mut vm) = Scene::of_manager()?;
    let peer = &scene.peer;
    let before = Hca::of(&vm, DEVICE)?;
    nvme::serve(peer, PEER, MEBIBYTES, LIMIT)?;
    let disk = nvme::attach(&vm, PEER, LIMIT)?;
    let verified = disk::verification(&disk, MEBIBYTES, &disk::PIECES);
    let opensm = Background::start(&vm, "opensm", OPENSM)?;
    vm.sh(
        "until grep -q 'Entering STANDBY' opensm.log; do usleep 50000; done",
        LIMIT,
    )?;
    let mut traffic = [
        Traffic::pingpong(500, peer),
        Traffic::bandwidth("write", "ib_write_bw -q 4", 18600, 20, &vm),
        Traffic::rping(1_000),
        Traffic::tcp(8),
        Traffic::command("nvme", format!("{verified} && echo {}", MEBIBYTES << 20)),
    ];
    for guest in [&vm, peer] {
        guest.sh("dmesg -c >/dev/null", LIMIT)?;
    }

    let mut checks = Checks::default();
    let mut reports = Vec::new();
    for number in 0..moves {
        for each in &mut traffic {
            each.keep(Pair { vm: &vm, peer })?;
        }
        let at = (number + 1) % PLACES.len();
        let report;
        (vm, report) = scene.migrate(vm, ["hv1", "hv2"][at], PLACES[at])?;
        reports.push(report);
        is_once(&scene, &vm, &before)?;
        progress::step(format_args!("{} of {moves} moves", number + 1));
    }
    let pair = Pair { vm: &vm, peer };
    for each in &mut traffic {
        checks.check(format!("{} ends well", each.name), || each.finish(pair));
    }
    checks.check("OpenSM has stood by", || {
        if opensm.has_ended(&vm)? {
            return Err(vm.failed("OpenSM has ended".into()));
        }
        let log = vm.sh("cat opensm.log", LIMIT)?;
        progress::step(&log);
        expect(&log, &["Entering STANDBY"])?;
        if log.contains("Entering MASTER") {
            return Err(vm.failed(log));
        }
        Ok(())
    });
    checks.check("the disk is taken away", || nvme::detach(&vm, LIMIT));
    checks.check("the VM is what it was", || {
        let after = Hca::of(&vm, DEVICE)?;
        if after == before {
            return Ok(());
        }
        Err(vm.failed(format!("{after:?}, and before {before:?}")))
    });
    checks.check("the kernels have said nothing", || {
        no_kernel_warning(peer, &[])?;
        no_kernel_warning(&vm, &[])?;
        let lost = "dmesg | grep -iE 'nvme.*(reconnect|timeout|error)' || true";
        let said = vm.sh(lost, LIMIT)?;
        if said.trim().is_empty() {
            return Ok(());
        }
        Err(vm.failed(said))
    });
    let of = |each: &Traffic| (each.name.to_owned(), json!([each.runs, each.bytes]));
    progress::step(json!({
        "moves": moves,
        "median_and_most": {
            "pause_ms": median_and_most(&reports, "pause_ms"),
            "device_ms": median_and_most(&reports, "device_ms"),
            "image_bytes": median_and_most(&reports, "image_bytes"),
            "queue_pairs": median_and_most(&reports, "queue_pairs"),
        },
        "runs_and_bytes_compared": traffic.iter().map(of).collect::<serde_json::Map<_, _>>(),
        "bytes_compared": traffic.iter().map(|each| each.bytes).sum::<u64>(),
    }));
    checks.finish();
    Ok(())
}
