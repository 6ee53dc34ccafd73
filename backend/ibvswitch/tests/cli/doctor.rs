//! `ibvswitch doctor`, with a made-up QEMU. What else a host may lack, unit tests make up.

use std::path::Path;
use std::process::Command;

use crate::{FAILURE, Outcome, SUCCESS, command, outcome, scratch};

fn doctor(dir: &Path, programs: &Path, args: &[&str]) -> Outcome {
    let mut command = command(&dir.join("run"));
    command.env_remove("IBVSWITCH_QEMU").env("PATH", programs);
    outcome(&command.arg("doctor").args(args).output().expect("starts"))
}

#[test]
fn the_exit_status_says_whether_something_is_missing() {
    let dir = scratch();
    let programs = dir.path().join("bin");
    let missing = doctor(dir.path(), &programs, &[]);
    assert_eq!(missing.status, FAILURE, "{}", missing.out);
    assert_eq!(
        missing.err,
        "ibvswitch: something is missing on this host: see the lines with `error` and their remedies\n"
    );
    let line = "This host\n  error    QEMU: there is no qemu-system-x86_64 in $PATH\n           QEMU has \
                vfio-user-pci since 10.1; ";
    assert!(missing.out.starts_with(line), "{}", missing.out);
    assert!(!dir.path().join("run").exists());

    // A shell makes it, so that nobody has it open for writing when it is run.
    let script = r#"mkdir "$1" && cat >"$1/qemu-system-x86_64" <<'END' && chmod 755 "$1/qemu-system-x86_64"
#!/bin/sh
echo 'QEMU emulator version 11.1.3 (made up)'
echo 'name "vfio-user-pci", bus PCI'
END"#;
    let made = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&programs)
        .status();
    assert!(made.expect("a shell").success());
    let found = doctor(dir.path(), &programs, &[]);
    assert_eq!(found.status, SUCCESS, "{}", found.out);
    assert_eq!(found.err, "");
    let found = doctor(dir.path(), &programs, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&found.out).expect("is JSON");
    assert_eq!(report["checks"][0]["what"], "QEMU");
    assert_eq!(report["checks"][0]["verdict"], "ok");
    assert_eq!(report["passthrough"]["configured"], false);
}
