//! Rules for Prometheus and the dashboard for Grafana name metrics that there are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn file(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).expect("is readable")
}

/// The words of a text that begin as metrics' names do, without the prefix.
fn metrics(text: &str) -> BTreeSet<String> {
    text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_')
        .filter_map(|word| word.strip_prefix("ibvswitch_"))
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn exist(names: &BTreeSet<String>) {
    // A name is a literal there, or is made of two.
    let source = text("backend/report/src/metrics.rs");
    for name in names {
        let known = source.contains(&format!("\"{name}\""))
            || ["port_", "node_"].iter().any(|prefix| {
                name.strip_prefix(prefix)
                    .is_some_and(|rest| source.contains(rest.trim_end_matches("_total")))
            });
        assert!(known, "there is no metric ibvswitch_{name}");
    }
    assert!(names.len() > 3, "{names:?}");
}

#[test]
fn rules_tell_of_the_host_that_they_concern() {
    let path = "docs/users/monitoring/ibvswitch.rules.yml";
    let check = Command::new("promtool")
        .args(["check", "rules"])
        .arg(file(path))
        .output()
        .expect("promtool is installed: ./scripts/setup");
    let said = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{said}");
    exist(&metrics(&text(path)));
    // Each on two hosts: when it is to tell of one of them, and when of none.
    let test = Command::new("promtool")
        .args(["test", "rules"])
        .arg(file("backend/web/tests/web/ibvswitch.rules.test.yml"))
        .output()
        .expect("promtool is installed: ./scripts/setup");
    let said = String::from_utf8_lossy(&test.stderr);
    assert!(test.status.success(), "{said}");
    let tested = text("backend/web/tests/web/ibvswitch.rules.test.yml");
    for rule in text(path).split("- alert: ").skip(1) {
        let name = rule.lines().next().expect("a name");
        assert!(tested.contains(&format!("alertname: {name}\n")), "{name}");
    }
}

#[test]
fn the_dashboard_is_of_metrics_that_exist() {
    let text = text("docs/users/monitoring/ibvswitch-dashboard.json");
    let dashboard: Value = serde_json::from_str(&text).expect("is JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("a list"));
    let queries: Vec<&str> = targets
        .map(|target| target["expr"].as_str().expect("is text"))
        .collect();
    assert!(queries.iter().all(|query| query.contains("ibvswitch_")));
    exist(&metrics(&queries.join(" ")));
}
