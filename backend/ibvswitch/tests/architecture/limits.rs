//! Counts that may only fall, and the file that holds them.

use std::collections::BTreeMap;

use super::root;

const FILE: &str = "backend/ibvswitch/tests/architecture/limits.toml";

/// Checks counts against a table of the file: a count may be `allowed`, or as high as its entry in the table.
/// An entry that is higher than its count has to be lowered, so that nothing rises again unseen.
pub fn check(table: &str, allowed: usize, counts: &BTreeMap<String, usize>) {
    let text = std::fs::read_to_string(root().join(FILE)).expect("is readable");
    let limits: toml::Table = text.parse().expect("is TOML");
    let limits = limits[table].as_table().expect("is a table");
    let limit = |name: &String| match limits.get(name).map(|it| it.as_integer()) {
        Some(limit) => usize::try_from(limit.expect("is a number")).expect("is a count"),
        None => allowed,
    };
    let mut wrong: Vec<String> = counts
        .iter()
        .filter(|(name, count)| **count > limit(name))
        .map(|(name, count)| format!("{name}: {count}, limit {}", limit(name)))
        .collect();
    for name in limits.keys() {
        let count = counts.get(name).copied().unwrap_or(0);
        if count <= allowed {
            wrong.push(format!("{name}: {count}, delete its entry"));
        } else if count < limit(name) {
            wrong.push(format!("{name}: {count}, lower its entry to that"));
        }
    }
    assert!(
        wrong.is_empty(),
        "[{table}] of {FILE} may only fall:\n{}",
        wrong.join("\n")
    );
}
