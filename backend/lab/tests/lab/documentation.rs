//! The page for users about labs: its blocks, and the commands in its sentences with their options.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::page::{Program, directory, follow};

#[test]
fn lab() {
    assert!(directory().join("lab.md").is_file());
    let dir = tempfile::tempdir().expect("a directory");
    // What `ibvswitch lab` does, in a place without that program. The page's configuration is checked where a lab
    // is made of it, in left_running.rs.
    let path = dir.path().join("ibvswitch");
    let program = env!("CARGO_BIN_EXE_ibvswitch-lab");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = config ] && exit\n[ \"$1\" = lab ] && shift && exec {program} \"$@\"\n"
    );
    fs::write(&path, script).expect("is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("is ours");
    let commands = &["lab"];
    follow(
        "lab.md",
        Program {
            path: &path,
            commands,
        },
    );
}
