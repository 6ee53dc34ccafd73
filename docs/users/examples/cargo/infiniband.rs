//! Tests of cargo that use a lab: two VMs with an InfiniBand HCA each. A file for `tests/` of your crate; `ibvswitch`
//! has to be in PATH.

use std::process::Command;

/// Runs a line of the shell in all nodes at once, which has to succeed in all; what they print.
fn lab(options: &[&str], line: &str) -> String {
    let mut command = Command::new("ibvswitch");
    command.args(["lab", "run", "--timeout", "5m"]).args(options);
    let output = command.args(["--", line]).output().expect("ibvswitch is in PATH");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{told}");
    printed
}

/// A server in n1 and its client in n2, each the program that is to be tested.
#[test]
fn payload_arrives() {
    // What this crate builds is there by its path, where its libraries are Debian 13's:
    // let program = env!("CARGO_BIN_EXE_my-program");
    let program = "ibv_rc_pingpong -c";
    let printed = lab(
        &["--nodes", "2"],
        &format!(
            "if [ $LAB_NODE = n1 ]; then
                 {program} & await-port 18515 $!
                 lab-barrier listening
                 wait $!
             else
                 lab-barrier listening
                 {program} n1
             fi"
        ),
    );
    assert!(!printed.contains("invalid data"), "{printed}");
    assert_eq!(printed.matches("8192000 bytes in").count(), 2, "{printed}");
}
