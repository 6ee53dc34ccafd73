//! Results of rdma-core's own tests, and the expected ones.

use std::collections::{BTreeMap, BTreeSet};

const OF_A_SIDE: &str = "SkipTest occurred on ";
const ONE_SIDE: &str = "SkipTest occurred on one side";
const ON_ONE_DEVICE: &str = "on one device: ";

/// Number of skipped tests by reason; for the others the key is their result.
pub type Outcomes = BTreeMap<String, usize>;

/// The outcomes that `text` lists: a number and a reason per line.
pub fn expected(text: &str) -> Outcomes {
    let parts = lines(text).filter_map(|line| line.split_once(' '));
    parts
        .map(|(count, reason)| (reason.to_owned(), count.parse().expect("a number")))
        .collect()
}

/// The lines of a list that are no comments.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::trim).filter(|line| !line.is_empty())
}

/// The outcomes that Python's `unittest -v` tells of: each test's name, and then, on the same line or on a later
/// one, how it ended. What programs print stands between the two. Tests that failed are named.
pub fn outcomes(text: &str) -> Outcomes {
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

/// Returns the tests that `two_devices.py` reports to have used one device.
pub fn on_one_device(text: &str) -> BTreeSet<&str> {
    let named = text.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix(ON_ONE_DEVICE)?.split_once(' ')?;
        Some(name)
    });
    named.collect()
}

#[test]
fn outcomes_are_read() {
    let text = "test_a (tests.test_x.X.test_a)\nWhat it is. ... ok\n\
                test_b (tests.test_x.X.test_b) ... skipped 'No such thing'\n\
                test_c (tests.test_x.X.test_c) ... Traceback (most recent call last):\n\
                it is not ok at all\nskipped \"It's not there\"\n\
                test_d (tests.test_x.X.test_d) ... FAIL\nskipped 'twice'\n\
                on one device: test_a (tests.test_x.X.test_a)\n";
    let all = "1 FAIL test_d\n1 It's not there\n1 No such thing\n1 ok\n";
    assert_eq!(outcomes(text), expected(all));
    assert_eq!(on_one_device(text), BTreeSet::from(["test_a"]));
}
