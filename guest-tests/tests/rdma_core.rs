//! rdma-core's own tests, as Debian has them, on the device: they end as `rdma_core/skipped.txt` lists, which has the
//! reasons of those that are skipped. What users lack for those reasons,
//! `docs/users/capabilities.md` says.

use std::{collections::BTreeMap, time::Duration};

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    diags::no_kernel_warning,
    hca::await_active,
    image::{Kernel, RDMA_CORE_TESTS, rdma_core_tests},
    ipoib,
    testbed::{DEVICE, MLX5, Testbed},
};

const LIMIT: Duration = Duration::from_secs(600);
const OF_A_SIDE: &str = "SkipTest occurred on ";
const ONE_SIDE: &str = "SkipTest occurred on one side";
const SKIPPED: &str = include_str!("rdma_core/skipped.txt");

/// How many tests were skipped for each reason; for those that were not, the reason is how they ended.
type Outcomes = BTreeMap<String, usize>;

/// The outcomes that `text` lists: a number and a reason per line.
fn expected(text: &str) -> Outcomes {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parts = lines.filter_map(|line| line.trim().split_once(' '));
    parts
        .map(|(count, reason)| (reason.to_owned(), count.parse().expect("a number")))
        .collect()
}

/// The outcomes that Python's `unittest -v` tells of: each test's name, and then, on the same line or on a later
/// one, how it ended. What programs print stands between the two. Tests that failed are named.
fn outcomes(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut running = None;
    for line in text.lines() {
        if line.starts_with("test_") && line.contains("(tests.") {
            running = line.split(' ').next();
        }
        let skipped = ["skipped '", "skipped \""]
            .iter()
            .find_map(|mark| line.split_once(mark))
            .and_then(|(_, reason)| reason.strip_suffix(['\'', '"']))
            // The two sides of a connection are two processes: either may be first to say so.
            .map(|reason| match reason.strip_prefix(OF_A_SIDE) {
                Some(_) => ONE_SIDE,
                None => reason,
            });
        let ended = ["ok", "FAIL", "ERROR"]
            .into_iter()
            .find(|end| line == *end || line.ends_with(&format!(" {end}")));
        if let (Some(outcome), Some(name)) = (skipped.or(ended), running) {
            let outcome = match outcome {
                "FAIL" | "ERROR" => format!("{outcome} {name}"),
                other => other.to_owned(),
            };
            *outcomes.entry(outcome).or_default() += 1;
            running = None;
        }
    }
    outcomes
}

#[test]
fn outcomes_are_read() {
    let text = "test_a (tests.test_x.X.test_a)\nWhat it is. ... ok\n\
                test_b (tests.test_x.X.test_b) ... skipped 'No such thing'\n\
                test_c (tests.test_x.X.test_c) ... Traceback (most recent call last):\n\
                it is not ok at all\nskipped \"It's not there\"\n\
                test_d (tests.test_x.X.test_d) ... FAIL\nskipped 'twice'\n";
    let all = "1 FAIL test_d\n1 It's not there\n1 No such thing\n1 ok\n";
    assert_eq!(outcomes(text), expected(all));
}

#[test]
fn rdma_cores_own_tests() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let mut config = bed.config("vm1");
    config.image = bed.image.with(&[], &[&rdma_core_tests()?], bed.dir())?;
    config.memory = 1536;
    config.modules = MLX5.map(str::to_owned).to_vec();
    config.devices = vec![daemon.device("vm1", None)?];
    let guest = bed.start(config)?;
    guest.booted()?;
    await_active(&guest, DEVICE)?;
    // Tests of the connection manager need an address.
    ipoib::up(&guest, "ib0", "10.9.0.1", LIMIT)?;
    let mut checks = Checks::default();
    checks.check("rdma-core's own tests", || {
        // What a test leaves behind is else collected amid another, which may take the error of that for its own.
        let python = format!(
            "import gc, runpy; gc.disable(); runpy.run_path('{RDMA_CORE_TESTS}/run_tests.py', run_name='__main__')"
        );
        let run = format!("cd {RDMA_CORE_TESTS} && python3 -c \"{python}\" -v --dev {DEVICE} 2>&1");
        let said = guest.run(&run, LIMIT)?;
        let found = outcomes(&said.text);
        if found == expected(SKIPPED) {
            return Ok(());
        }
        let found: String = found
            .iter()
            .map(|(reason, count)| format!("{count} {reason}\n"))
            .collect();
        Err(guest.failed(format!("{}\n{found}", said.text)))
    });
    // A queue that is made shorter than what is in it.
    let resized = "MODIFY_CQ(0x403) op_mod(0x1) failed, status bad resource state(0x9)";
    checks.check("no kernel warning", || {
        no_kernel_warning(&guest, &[resized])
    });
    checks.finish();
    Ok(())
}
