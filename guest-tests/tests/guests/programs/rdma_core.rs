//! rdma-core's own tests, as Debian has them, on the device: they end as `rdma_core/skipped.txt` lists, which has the
//! reasons of those that are skipped. What users lack for those reasons,
//! `docs/users/capabilities.md` says.
//!
//! The tests make client and server on one device. `rdma_core/two_devices.py` has them on two, but for those that
//! `rdma_core/one_device.txt` lists.

mod outcomes;

use std::{collections::BTreeSet, fmt::Display, path::Path, time::Duration};

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::userland::{RDMA_CORE_TESTS, Userland, rdma_core_tests};
use ibvswitch_guest_tests::image::{Image, Kernel};
use ibvswitch_guest_tests::testbed::{DEVICE, MLX5, Testbed};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use outcomes::{Outcomes, expected, lines, on_one_device, outcomes};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(600);
const SKIPPED: &str = include_str!("rdma_core/skipped.txt");
/// As that, of the newest tests, and the version that they were of.
const NEWEST: &str = include_str!("rdma_core/newest.txt");
const NEWEST_VERSION: &str = "65.0";
const ON_ONE_DEVICE: &str = include_str!("rdma_core/one_device.txt");
const TWO_DEVICES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/guests/programs/rdma_core/two_devices.py"
);
/// Where that is in the guest.
const RUNNER: &str = "usr/lib/two_devices.py";
const ON_DEMAND: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/guests/programs/rdma_core/on_demand.py"
);
/// As above.
const ON_DEMAND_RUNNER: &str = "usr/lib/on_demand.py";
/// Tests with on-demand paging: of tags, and of signatures.
const ON_DEMAND_TESTS: &str = "tests.test_tag_matching tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_crc \
                               tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_t10dif";

/// Reason and number of tests that are skipped only if doorbells trap.
const WITHOUT_MEMORY: (&str, usize) = ("Device memory is not supported", 18);

/// The kernel's word on a queue that is made shorter than what is in it.
const RESIZED: &str = "MODIFY_CQ(0x403) op_mod(0x1) failed, status bad resource state(0x9)";

/// Its word on a queue that a test lets run over.
const OVERRUN: &str = "CQ error on CQN";

/// Pages of 2 MiB for tests that register some, or have their queues there.
const HUGE_PAGES: usize = 32;

/// The device of the second VF, and the network namespace of its IPoIB interface.
const OTHER: (&str, &str) = ("mlx5_1", "other");
/// Addresses of the IPoIB interfaces, of two networks: the tests make an address of a multicast group of all but the
/// first byte, and both ends are to have the same group.
const ADDRESSES: [&str; 2] = ["10.9.0.1", "11.9.0.1"];

/// VFs whose doorbells are memory while there is traffic, and trap when there is none.
fn adaptive() -> Configuration {
    Configuration::new()
        .set("engine.doorbells", "adaptive")
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
}

/// Starts a guest that has the tests of a release and these VFs, with an address at the first one.
fn guest(bed: &Testbed, release: Userland, daemon: &Daemon, vfs: &[&str]) -> Result<Guest> {
    let mut config = bed.config("vm1");
    let files: [(&str, &Path); 2] = [
        (RUNNER, TWO_DEVICES.as_ref()),
        (ON_DEMAND_RUNNER, ON_DEMAND.as_ref()),
    ];
    config.image = bed
        .image
        .with(&files, &[&rdma_core_tests(release)?], bed.dir())?;
    config.memory = 1536;
    config.modules = MLX5.map(str::to_owned).to_vec();
    for vf in vfs {
        config.devices.push(daemon.device(vf, None)?);
    }
    let guest = bed.start(config)?;
    guest.booted()?;
    // While memory is not in pieces yet.
    let reserve = format!(
        "echo {HUGE_PAGES} >/proc/sys/vm/nr_hugepages && \
         [ $(cat /proc/sys/vm/nr_hugepages) = {HUGE_PAGES} ]"
    );
    guest.sh(&reserve, LIMIT)?;
    await_active(&guest, DEVICE)?;
    // Tests of the connection manager need an address.
    ipoib::up(&guest, "ib0", ADDRESSES[0], LIMIT)?;
    Ok(guest)
}

/// Returns the expected results on a device without memory of its own.
fn without_memory() -> Outcomes {
    let (reason, count) = WITHOUT_MEMORY;
    let mut outcomes = expected(SKIPPED);
    *outcomes.get_mut("ok").expect("tests that pass") -= count;
    outcomes.insert(reason.into(), count);
    outcomes
}

/// Checks that the tests end so that Python runs with these arguments, and that those were on one device where others
/// were on two.
fn check(
    guest: &Guest,
    setting: &str,
    python: &str,
    (expected, on_one): (&Outcomes, &BTreeSet<&str>),
) {
    let mut checks = Checks::default();
    checks.check(format_args!("rdma-core's own tests, {setting}"), || {
        let run = format!("cd {RDMA_CORE_TESTS} && python3 {python} -v --dev {DEVICE} 2>&1");
        let said = guest.run(&run, LIMIT)?;
        let found = outcomes(&said.text);
        let were_on_one = on_one_device(&said.text);
        if found == *expected && were_on_one == *on_one {
            return Ok(());
        }
        let found: String = found
            .iter()
            .map(|(reason, count)| format!("{count} {reason}\n"))
            .collect();
        Err(guest.failed(format!("{}\n{found}", said.text)))
    });
    checks.check("tags and signatures on pages that are away", || {
        let run = format!(
            "cd {RDMA_CORE_TESTS} && python3 /{ON_DEMAND_RUNNER} -v --dev {DEVICE} {ON_DEMAND_TESTS} 2>&1"
        );
        let said = guest.run(&run, LIMIT)?;
        let six = Outcomes::from([("ok".to_owned(), 6)]);
        if outcomes(&said.text) == six {
            return Ok(());
        }
        Err(guest.failed(said.text))
    });
    checks.check("no kernel warning", || no_kernel_warning(guest, &[RESIZED]));
    checks.finish();
}

/// Arguments for Python to run them all.
fn all() -> String {
    // What a test leaves behind is else collected amid another, which may take the error of that for its own. Processes that
    // tests start share objects with them, which Python 3.14 does not have by default.
    format!(
        "-c \"import gc, multiprocessing, runpy; gc.disable(); \
         multiprocessing.set_start_method('fork'); \
         runpy.run_path('{RDMA_CORE_TESTS}/run_tests.py', run_name='__main__')\""
    )
}

/// The tests with both ends on one VF.
fn on_one_vf(setting: &str, config: Option<&dyn Display>, expected: &Outcomes) -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", config)?;
    let guest = guest(&bed, Userland::Trixie, &daemon, &["vm1"])?;
    check(&guest, setting, &all(), (expected, &BTreeSet::new()));
    Ok(())
}

/// Has the second VF's IPoIB interface in a network namespace of its own, and waits for a way between the two.
fn part(guest: &Guest) -> Result<()> {
    let (device, namespace) = OTHER;
    let [first, second] = ADDRESSES;
    await_active(guest, device)?;
    // By its path: the shell's own does not know namespaces.
    let ip = "/sbin/ip";
    let inside = format!("{ip} netns exec {namespace}");
    let command = format!(
        "until [ -e /sys/class/net/ib1 ]; do usleep 50000; done && \
         {ip} route add {second} dev ib0 && {ip} netns add {namespace} && \
         {ip} link set ib1 netns {namespace} && {inside} ip link set lo up && \
         {inside} ip address add {second}/24 dev ib1 && {inside} ip link set ib1 up && \
         {inside} ip route add {first} dev ib1 && \
         until ping -c 1 -W 1 {second}; do :; done"
    );
    guest.sh(&command, LIMIT).map(drop)
}

#[test]
fn rdma_cores_own_tests() -> Result<()> {
    on_one_vf("one VF", Some(&adaptive()), &expected(SKIPPED))
}

#[test]
#[ignore = "two minutes more of the same tests"]
fn rdma_cores_own_tests_with_doorbells_that_trap() -> Result<()> {
    on_one_vf("doorbells that trap", None, &without_memory())
}

#[test]
#[ignore = "two minutes more of the same tests"]
fn rdma_cores_own_tests_between_two_vfs() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&adaptive()))?;
    let guest = guest(&bed, Userland::Trixie, &daemon, &["vm1", "vm2"])?;
    part(&guest)?;
    let (device, namespace) = OTHER;
    let python = format!("/{RUNNER} {device} {} {namespace}", ADDRESSES[1]);
    let on_one = lines(ON_ONE_DEVICE).collect();
    check(&guest, "two VFs", &python, (&expected(SKIPPED), &on_one));
    Ok(())
}

/// The newest ones, of Debian unstable, with the newest kernel. Where they are of another version than the list, none fails
/// beside those that the list names.
#[test]
#[ignore = "Debian unstable changes from day to day: two minutes, and a list to look through"]
fn rdma_cores_newest_tests() -> Result<()> {
    let release = Userland::Sid;
    let mut bed = Testbed::new(Kernel::V7_2)?;
    bed.image = Image::of(Kernel::V7_2, release)?;
    let daemon = bed.daemon("ibvswitch", Some(&adaptive()))?;
    let guest = guest(&bed, release, &daemon, &["vm1"])?;
    let version = "python3 -c 'import pyverbs; print(pyverbs.__version__)'";
    let version = guest.sh(version, LIMIT)?.trim().to_owned();
    let mut checks = Checks::default();
    checks.check(
        format_args!("rdma-core's own tests, version {version}"),
        || {
            let run = format!(
                "cd {RDMA_CORE_TESTS} && python3 {} -v --dev {DEVICE} 2>&1",
                all()
            );
            let said = guest.run(&run, LIMIT)?;
            let (found, expected) = (outcomes(&said.text), expected(NEWEST));
            let failed = |name: &str| ["ERROR ", "FAIL "].iter().any(|it| name.starts_with(it));
            let mut names = found.keys().filter(|name| failed(name));
            let as_known =
                found.contains_key("ok") && names.all(|name| expected.contains_key(name));
            let ended: String = found
                .iter()
                .map(|(reason, count)| format!("{count} {reason}\n"))
                .collect();
            if found == expected || (version != NEWEST_VERSION && as_known) {
                println!("version {version} ended:\n{ended}");
                return Ok(());
            }
            Err(guest.failed(format!("{}\n{ended}", said.text)))
        },
    );
    checks.check("no kernel warning", || {
        no_kernel_warning(&guest, &[RESIZED, OVERRUN])
    });
    checks.finish();
    Ok(())
}
