//! Configurations, and what comes of wrong ones.

use super::*;

#[test]
fn configuration_commands() {
    let dir = scratch();
    let printed = run(dir.path(), &["config", "default"]);
    assert_eq!(printed.status, SUCCESS);
    let file = dir.path().join("c.toml");
    std::fs::write(&file, &printed.out).expect("is written");
    let file = file.to_str().expect("is text");
    let check = run(dir.path(), &["config", "check", "--config", file]);
    assert_eq!(check.status, SUCCESS, "{}", check.err);
    assert!(
        check.out.contains("2 hypervisors on switch sw1, 2 VFs"),
        "{}",
        check.out
    );
    let json = run(dir.path(), &["config", "check", "--json", "-c", file]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("is JSON");
    assert_eq!(json["vfs"][1]["hypervisor"], "hv2");
}

#[test]
fn the_check_adds_up_what_guests_can_take() {
    const MIB: u64 = 1 << 20;
    let dir = scratch();
    let file = dir.path().join("c.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("is written");
        let file = file.to_str().expect("is text");
        let json = run(dir.path(), &["config", "check", "--json", "-c", file]);
        let json: serde_json::Value = serde_json::from_str(&json.out).expect("is JSON");
        (run(dir.path(), &["config", "check", "-c", file]).out, json)
    };
    let vfs = |memory: u32| {
        format!(
            "[[hypervisor]]\nname = \"hv1\"\n[[hypervisor.vf]]\nname = \"a\"\n\
             [[hypervisor.vf]]\nname = \"b\"\nobject_memory = {memory}\n\
             [[hypervisor]]\nname = \"hv2\"\n[[hypervisor.vf]]\nname = \"c\"\n"
        )
    };
    let bytes = |json: &serde_json::Value| json.as_u64().expect("a number");
    let (text, json) = check(&vfs(42));
    let of_vf = |at: usize| bytes(&json["vfs"][at]["memory_bytes"]);
    let [a, b, c] = [0, 1, 2].map(of_vf);
    assert!(a <= 64 * MIB, "{a}");
    assert_eq!((b, c), (a + 2 * MIB, a));
    let memory = &json["memory"];
    assert_eq!(bytes(&memory["hypervisors"]["hv1"]), a + b);
    let sum = bytes(&memory["sum_bytes"]);
    // Of one VM that moves there is an image in hand, too.
    let least = a + b + c + 64 * MIB;
    assert!((least..least + MIB).contains(&sum), "{sum}");
    assert!(memory["warning"].is_null() && bytes(&memory["available_bytes"]) > sum);
    for line in [
        format!("doorbells trap, at most {} MiB\n", a.div_ceil(MIB)),
        format!(
            "\nThe daemon's memory: at most {} MiB on account of guests, and its own needs.\n",
            sum.div_ceil(MIB)
        ),
        format!("\n  hv1: {} MiB\n", (a + b).div_ceil(MIB)),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("Warning"), "{text}");
    // More than any machine that runs this has.
    let all = format!("[engine]\nobject_memory = {}\n{}", 1 << 20, vfs(1 << 20));
    let (text, json) = check(&all);
    let warning = json["memory"]["warning"].as_str().expect("there is one");
    assert!(text.contains(&format!("\nWarning: {warning}.\n")), "{text}");
    assert!(
        warning.starts_with("guests can make the daemon take 3145"),
        "{warning}"
    );
    assert!(
        warning.contains("; lower `engine.object_memory`"),
        "{warning}"
    );
    // Where it goes on all the same.
    assert!(text.starts_with("The configuration is right"), "{text}");
}

#[test]
fn a_wrong_configuration_starts_nothing() {
    let dir = scratch();
    let file = dir.path().join("c.toml");
    let text =
        "[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\nlid = 0xc000\npkey = 1\n";
    std::fs::write(&file, text).expect("is written");
    let run_dir = dir.path().join("run");
    let outcome = run(
        &run_dir,
        &["run", "--config", file.to_str().expect("is text")],
    );
    assert_eq!(outcome.status, CONFIGURATION);
    assert_eq!(
        outcome.err,
        format!(
            "ibvswitch: {0}:5:7: `hypervisor.vf.lid = 0xc000`: out of range; a unicast LID is \
             0x0001 to 0xbfff (1 to 49151)\n\
             {0}:6:1: `hypervisor.vf.pkey`: unknown key; did you mean `pkeys`?\n",
            file.display()
        )
    );
    assert!(!run_dir.exists());

    let outcome = run(&run_dir, &["run", "--config", "/nonexistent.toml"]);
    assert_eq!(outcome.status, CONFIGURATION);
    assert!(
        outcome.err.starts_with("ibvswitch: /nonexistent.toml: "),
        "{}",
        outcome.err
    );
}

#[test]
fn a_wrong_log_filter_in_the_environment() {
    let dir = scratch();
    let output = command(dir.path())
        .arg("run")
        .env("RUST_LOG", "a=b=c")
        .output()
        .expect("is started");
    let outcome = outcome(&output);
    assert_eq!(outcome.status, FAILURE);
    assert!(
        outcome.err.contains("RUST_LOG is `a=b=c`: "),
        "{}",
        outcome.err
    );
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn configuration_from_the_environment() {
    let dir = scratch();
    let file = dir.path().join("c.toml");
    std::fs::write(
        &file,
        "[[hypervisor]]\nname='h'\n[[hypervisor.vf]]\nname='mine'\n",
    )
    .expect("is written");
    let output = command(dir.path())
        .args(["vf", "qemu-args", "mine"])
        .env("IBVSWITCH_CONFIG", &file)
        .output()
        .expect("is started");
    assert!(output.status.success());
}
