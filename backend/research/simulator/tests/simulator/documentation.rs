//! The page for users about simulations, as it stands: every block is run and its output compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::page::{Program, directory, follow};

#[test]
fn simulate() {
    assert!(directory().join("simulate.md").is_file());
    let dir = tempfile::tempdir().expect("a directory");
    // What `ibvswitch simulate` does, in a place without that program.
    let path = dir.path().join("ibvswitch");
    let program = env!("CARGO_BIN_EXE_ibvswitch-simulate");
    let script = format!("#!/bin/sh\n[ \"$1\" = simulate ] && shift && exec {program} \"$@\"\n");
    fs::write(&path, script).expect("is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("is ours");
    let commands = &["simulate"];
    follow(
        "simulate.md",
        Program {
            path: &path,
            commands,
        },
    );
}
