//! The examples of the pages for users (docs/users/examples), as users run them.

#[allow(dead_code)] // other tests use more of it
mod place;

use std::path::{Path, PathBuf};

use place::Place;

/// The folder of an example.
fn example(name: &str) -> String {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/users/examples");
    folder.join(name).display().to_string()
}

/// Runs an example, with more options, in which nothing may fail; what it prints.
fn succeeds(name: &str, options: &[&str]) -> String {
    let place = Place::new();
    let output = place.output(&[&["run"], options, &[&example(name)]].concat());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}\n{told}");
    printed
}

fn mpi(nodes: usize, options: &[&str]) {
    let printed = succeeds("mpi", options);
    for rank in 0..nodes {
        let line = format!(
            "n1: rank {rank} of {nodes} in n{}: all sums are right",
            rank + 1
        );
        assert!(printed.contains(&line), "{printed}");
    }
}

#[test]
fn mpi_in_two_nodes() {
    mpi(2, &["--nodes", "2"]);
}

#[test]
#[ignore = "four nodes"]
fn mpi_as_it_is() {
    mpi(4, &[]);
}
