//! The table of crates in docs/developers/architecture.md is the order in which crates use each other.

/// A regular expression that is built once.
macro_rules! pattern {
    ($text:literal) => {{
        static PATTERN: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new($text).expect("is a regular expression"));
        &*PATTERN
    }};
}

mod files;
mod imports;
mod journeys;
mod limits;
mod prose;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The rows of the table: the folder of a crate, and what it uses as written.
fn table() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(root().join("docs/developers/architecture.md"));
    let page = page.expect("is readable");
    let mut lines = page.lines();
    lines
        .find(|line| line.starts_with("| crate |"))
        .expect("there is a table of crates");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].split('`').nth(1).expect("a name in backquotes");
        let folder = if cells[1].ends_with("(top level)") {
            name.to_owned()
        } else {
            format!("backend/{name}")
        };
        (folder, cells[3].to_owned())
    };
    rows.map(row).collect()
}

/// For each crate of the workspace, by its folder, those that it is built with; not those that only its
/// tests use.
fn crates() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    let root = Path::new(metadata["workspace_root"].as_str().expect("a path"));
    let folder = |path: &Value| {
        let path = Path::new(path.as_str().expect("a path"));
        let inside = path.strip_prefix(root).expect("is in the workspace");
        inside.to_str().expect("is text").to_owned()
    };
    let packages = metadata["packages"].as_array().expect("a list");
    let package = |package: &Value| {
        let manifest = folder(&package["manifest_path"]);
        let uses = package["dependencies"].as_array().expect("a list").iter();
        let uses = uses.filter(|used| used["kind"].is_null() && !used["path"].is_null());
        let uses = uses.map(|used| folder(&used["path"])).collect();
        (manifest.trim_end_matches("/Cargo.toml").to_owned(), uses)
    };
    packages.iter().map(package).collect()
}

#[test]
fn the_table_of_crates_is_their_order() {
    let table = table();
    let crates = crates();
    let rows: Vec<&String> = table.iter().map(|(folder, _)| folder).collect();
    for folder in crates.keys() {
        assert!(
            rows.contains(&folder),
            "{folder} has no row in docs/developers/architecture.md; add one below all that it uses"
        );
    }
    for (at, (folder, written)) in table.iter().enumerate() {
        let uses = crates.get(folder);
        let uses = uses.unwrap_or_else(|| panic!("there is no crate {folder}; delete its row"));
        for used in uses {
            assert!(
                rows[..at].contains(&used),
                "{folder} uses {used}, of which the row stands below in docs/developers/architecture.md"
            );
        }
        let names: Vec<String> = rows[..at]
            .iter()
            .filter(|row| uses.contains(row))
            .map(|row| format!("`{}`", row.trim_start_matches("backend/")))
            .collect();
        assert_eq!(*written, names.join(", "), "what {folder} uses");
    }
}
