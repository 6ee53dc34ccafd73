//! Configurations, and what comes of wrong ones.

use super::*;
use testing::{Configuration, Toml};

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
    let check = |text: Configuration| {
        std::fs::write(&file, text.to_string()).expect("is written");
        let file = file.to_str().expect("is text");
        let json = run(dir.path(), &["config", "check", "--json", "-c", file]);
        let json: serde_json::Value = serde_json::from_str(&json.out).expect("is JSON");
        (run(dir.path(), &["config", "check", "-c", file]).out, json)
    };
    let vfs = |memory: u32| {
        Configuration::new()
            .hypervisor("hv1", ["a", "b"])
            .key("object_memory", memory)
            .hypervisor("hv2", ["c"])
    };
    let bytes = |json: &serde_json::Value| json.as_u64().expect("a number");
    let (text, json) = check(vfs(42));
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
    let (text, json) = check(vfs(1 << 20).set("engine.object_memory", 1 << 20));
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

/// Checks a configuration beside a partition file.
fn check(configuration: &Configuration, partitions: &str) -> Outcome {
    let dir = scratch();
    let file = dir.path().join("c.toml");
    std::fs::write(dir.path().join("p.conf"), partitions).expect("is written");
    std::fs::write(&file, configuration.to_string()).expect("is written");
    run(
        dir.path(),
        &["config", "check", file.to_str().expect("is text")],
    )
}

fn two() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
}

/// The check tells the P_Keys that ports will have, and looks for files beside the configuration.
#[test]
fn the_check_tells_the_p_keys_of_the_partition_file() {
    let configuration = two().set("sm.partitions_file", "p.conf");
    let partitions = "Default=0x7fff, ipoib, defmember=both : ALL_CAS=both, SELF=full ;\n\
                      storage=1 : vm1=full, vm2=full, 0x2c9030000beef=full ;\n";
    let checked = check(&configuration, &partitions.replace(", vm2=full", ""));
    assert_eq!(checked.status, SUCCESS, "{}", checked.err);
    for (vf, pkeys) in [("vm1", "0xffff 0x7fff 0x8001"), ("vm2", "0xffff 0x7fff")] {
        let mut lines = checked.out.lines();
        let line = lines
            .find(|line| line.contains(&format!(" {vf} on ")))
            .expect("is told");
        assert!(line.contains(&format!("P_Keys {pkeys}, ")), "{line}");
    }
    assert!(
        checked
            .out
            .contains("p.conf:2: no port has the GUID 0x0002c9030000beef; "),
        "{}",
        checked.out
    );
    // vm1 alone may use the partition's service level.
    let levels = Configuration::new()
        .set("sm.partitions_file", "p.conf")
        .hypervisor("hv1", ["vm1"])
        .key("sl", [0, 3])
        .hypervisor("hv2", ["vm2"])
        .key("sl", [1]);
    let told = check(
        &levels,
        "Default=0x7fff : ALL=full ;\nstorage=1, sl=3 : ALL=full ;\n",
    );
    let warning = "p.conf:2: paths in the partition 0x8001 have sl=3, which these VFs may not use: vm2; add 3 to their `sl`";
    assert!(told.out.contains(warning), "{}", told.out);
    let unknown = check(&configuration, "a=1 : vm3 ;");
    assert_eq!(unknown.status, CONFIGURATION);
    assert!(
        unknown.err.contains("p.conf:1: vm3 is no port; ")
            && unknown.err.contains("there are vm1, vm2"),
        "{}",
        unknown.err
    );
    let levels = "Default : ALL=full ; io=4, sl=3 : ALL ;";
    assert_eq!(check(&configuration, levels).status, SUCCESS);
    let layered = configuration.set("sm.routing", "lash");
    let refused = check(&layered, levels);
    assert!(
        refused
            .err
            .contains("p.conf:1: sl=3: sm.routing chooses the service levels"),
        "{}",
        refused.err
    );
}

/// A policy that cannot act as it is written is told with its line.
#[test]
fn the_check_of_a_policy_file() {
    let policy = "port-groups\nport-group\nname: a\nport-guid: 0x2c9030000beef\npartition: storage\nend-port-group\n\
                  end-port-groups\nqos-setup\nend-qos-setup\nqos-ulps\ndefault : 3\nend-qos-ulps\n";
    let configuration = Configuration::new()
        .set("partitions.storage", 0x10)
        .set("sm.qos_policy_file", "p.conf");
    let configuration = configuration.hypervisor("hv1", ["vm1"]);
    let told = check(&configuration, policy);
    assert_eq!(told.status, SUCCESS, "{}", told.err);
    for warning in [
        "p.conf:4: no port has the GUID 0x0002c9030000beef; ",
        "p.conf:8: qos-setup does not act, as in OpenSM; write the keys qos_sl2vl, ",
    ] {
        assert!(told.out.contains(warning), "{}", told.out);
    }
    for (key, value, policy, error) in [
        (
            "sm.routing",
            "lash",
            policy.to_owned(),
            "p.conf:11: sl=3: sm.routing chooses the service levels",
        ),
        (
            "sm.qos_sl2vl",
            "0,1,2,15,4,5,6,7,0,1,2,3,4,5,6,7",
            policy.to_owned(),
            "p.conf:11: sl=3: qos_sl2vl has lane 15 for this level, which drops its packets; write another",
        ),
        (
            "sm.priority",
            "",
            policy.replace("storage", "archive"),
            "p.conf:5: no partition has the name archive; ",
        ),
    ] {
        let configuration = match value {
            "" => configuration.clone(),
            value => configuration.clone().set(key, value),
        };
        let refused = check(&configuration, &policy);
        assert_eq!(refused.status, CONFIGURATION);
        assert!(refused.err.contains(error), "{}", refused.err);
    }
}

/// With an external manager the check does not promise addresses, and partitions are refused.
#[test]
fn the_check_with_an_external_manager() {
    let external = two().set("sm.manager", "external");
    let checked = check(&external, "");
    let line = "vm1 on hv1: LID as the external manager says, GUID 0002:c903:2214:8cd5, P_Keys as the external manager says, ";
    assert!(checked.out.contains(line), "{}", checked.out);
    let refused = check(&external.key("pkeys", Toml("[0x8010]")), "");
    assert_eq!(refused.status, CONFIGURATION);
    assert!(
        refused.err.contains("c.toml:11:9: `hypervisor.vf.pkeys = [0x8010]`: an external subnet manager gives this VF its P_Keys"),
        "{}",
        refused.err
    );
}

/// The daemon says the same in its log and its status.
#[test]
fn warnings_of_what_cannot_work() {
    let text = Configuration::new()
        .switches(["a", "b"])
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("pkeys", [0x10])
        .hypervisor("hv2", [])
        .at("b")
        .vf("vm2")
        .key("pkeys", [0x10, 0xffff]);
    let warnings = [
        "no cables join these switches to the subnet manager's host, so that it does not find them: b, hv2; add a [[link]]",
        "ports that stay in Initialize: b:1, hv2:1, hv2:2, vm2:1; no link that is up leads there from the subnet manager's host",
        "partition 0x0010 has limited members alone, which do not reach each other: vm1",
    ];
    let checked = check(&text, "");
    assert_eq!(checked.status, SUCCESS, "{}", checked.err);
    let daemon = daemon::Daemon::configured(&text);
    let status = daemon.run(&["status"], "").out;
    for warning in warnings {
        for told in [&checked.out, &status] {
            assert!(told.contains(warning), "{told}");
        }
    }
}

/// An adapter with a port in each of two subnets, of which one has no manager.
const TWO_PORTS: &str = r#"
Switch	8 "S-0000000000000001"		# "sw1" enhanced port 0 lid 0 lmc 0
[1]	"H-0000000000000010"[1](11)		# "dual" lid 0 4xEDR
[2]	"H-0000000000000020"[1](21)		# "single" lid 0 4xEDR

Switch	8 "S-0000000000000002"		# "sw2" enhanced port 0 lid 0 lmc 0
[1]	"H-0000000000000010"[2](12)		# "dual" lid 0 1xHDR
[2]	"H-0000000000000030"[1](31)		# "lone" lid 0 4xEDR

Ca	3 "H-0000000000000010"		# "dual"
[1](11)	"S-0000000000000001"[1]		# lid 0 lmc 0 "sw1" lid 0 4xEDR
[2](12)	"S-0000000000000002"[1]		# lid 0 lmc 0 "sw2" lid 0 1xHDR

Ca	1 "H-0000000000000020"		# "single"
[1](21)	"S-0000000000000001"[2]		# lid 0 lmc 0 "sw1" lid 0 4xEDR

Ca	1 "H-0000000000000030"		# "lone"
[1](31)	"S-0000000000000002"[2]		# lid 0 lmc 0 "sw2" lid 0 4xEDR
"#;

#[test]
fn each_port_of_an_adapter_is_shown() {
    let dir = scratch();
    let listing = dir.path().join("net");
    std::fs::write(&listing, TWO_PORTS).expect("is written");
    let daemon = daemon::Daemon::logging(
        Configuration::new()
            .set("fabric.topology", listing.display().to_string())
            .hypervisor("hv1", ["vm1"]),
    );
    let ports = [
        [
            "dual:1",
            "Active",
            "1",
            "0000:0000:0000:0011",
            "4X EDR",
            "sw1:1",
        ],
        [
            "dual:2",
            "Initialize",
            "0",
            "0000:0000:0000:0012",
            "1X HDR",
            "sw2:1",
        ],
        ["dual:3", "Down", "0", "0000:0000:0000:0013", "-", "none"],
        [
            "lone:1",
            "Initialize",
            "0",
            "0000:0000:0000:0031",
            "4X EDR",
            "sw2:2",
        ],
    ];
    let warning = "ports that stay in Initialize: sw2:1, dual:2, sw2:2, lone:1; no link that is up leads there from the \
                   subnet manager's host";
    let text = daemon.run(&["status"], "").out;
    let shown: Vec<String> = { text.lines() }
        .skip_while(|line| !line.starts_with("ADAPTER"))
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(shown, ports.map(|port| port.join(" ")), "{text}");
    assert!(text.contains(warning), "{text}");
    assert_eq!(daemon.log().matches(warning).count(), 1);
    let json = daemon.run(&["status", "--json"], "").out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
    assert_eq!(json["warnings"][1], warning);
    let second = &json["adapters"][0]["ports"][1];
    assert_eq!(
        (&second["rate"], &second["cable"], &second["lid"]),
        (&"1X HDR".into(), &"sw2:1".into(), &serde_json::Value::Null)
    );
    let metrics = daemon.run(&["metrics"], "").out;
    for line in [
        "ibvswitch_port_active{guid=\"0000:0000:0000:0011\",node=\"dual\",port=\"1\"} 1",
        "ibvswitch_port_active{guid=\"0000:0000:0000:0012\",node=\"dual\",port=\"2\"} 0",
        "ibvswitch_port_lid{guid=\"0000:0000:0000:0011\",node=\"dual\",port=\"1\"} 1",
        "peer=\"sw2:1\",port=\"2\",rate=\"1X HDR\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

/// Whoever edits the daemon's file may ask the daemon.
#[test]
fn a_file_with_mistakes_and_a_daemon() {
    let daemon = daemon::Daemon::configured(two());
    let text = format!("runtime_dir = \"{}\"\nlog = \"loud\"\n[sm\n", daemon.dir());
    std::fs::write(daemon.config(), text).expect("is written");
    let config = daemon.config();
    let by_file = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ibvswitch"));
        program
            .env_remove("IBVSWITCH_RUNTIME_DIR")
            .args(["--config", &config]);
        outcome(&program.args(arguments).output().expect("is started"))
    };
    for command in [&["status"][..], &["vf", "show", "vm1"], &["counters"]] {
        let told = by_file(command);
        assert_eq!(told.status, SUCCESS, "{}", told.err);
        assert!(
            told.err.contains("warning: ") && told.err.contains("config.toml:3:"),
            "{}",
            told.err
        );
        let told = daemon.run(&[&["--config", &config], command].concat(), "");
        assert_eq!((told.status, told.err.as_str()), (Some(SUCCESS), ""));
    }
    let doctor = by_file(&["doctor"]);
    assert!(
        doctor.out.starts_with("This host\n") && doctor.status == CONFIGURATION,
        "{}",
        doctor.err
    );
}

#[test]
fn a_state_directory_that_cannot_be_written() {
    let dir = scratch();
    let file = dir.path().join("c.toml");
    std::fs::write(
        &file,
        two().set("sm.state_dir", "/proc/ibvswitch").to_string(),
    )
    .expect("is written");
    let outcome = run(dir.path(), &["run", "-c", file.to_str().expect("is text")]);
    assert_eq!(outcome.status, FAILURE);
    assert!(
        outcome.err.contains("sm.state_dir /proc/ibvswitch: "),
        "{}",
        outcome.err
    );
    assert!(!names(dir.path()).iter().any(|name| name.ends_with(".sock")));
}

#[test]
fn empty_variables_are_not_set() {
    let dir = scratch();
    let mut empty = command(dir.path());
    let empty = empty.args(["config", "check"]).env("IBVSWITCH_CONFIG", "");
    assert!(empty.output().expect("is started").status.success());
    let told = run(dir.path(), &["--config", "", "config", "check"]);
    assert_eq!(told.status, USAGE);
    assert!(told.err.contains("--config is empty"), "{}", told.err);
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
        outcome
            .err
            .contains("RUST_LOG is `a=b=c`: `c` is no log level; "),
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
        Configuration::new().hypervisor("h", ["mine"]).to_string(),
    )
    .expect("is written");
    let output = command(dir.path())
        .args(["vf", "qemu-args", "mine"])
        .env("IBVSWITCH_CONFIG", &file)
        .output()
        .expect("is started");
    assert!(output.status.success());
}
