//! The program as a user runs it: output, messages and exit status.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const CONFIGURATION: i32 = 3;
const NO_DAEMON: i32 = 4;
const UNKNOWN: i32 = 5;

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibvswitch"));
    // What the tester's own environment says is not to matter.
    for variable in [
        "IBVSWITCH_CONFIG",
        "IBVSWITCH_RUNTIME_DIR",
        "RUST_LOG",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(variable);
    }
    command.arg("--runtime-dir").arg(dir).stdin(Stdio::null());
    command
}

struct Outcome {
    status: i32,
    out: String,
    err: String,
}

fn run(dir: &Path, args: &[&str]) -> Outcome {
    outcome(&command(dir).args(args).output().expect("is started"))
}

fn outcome(output: &Output) -> Outcome {
    Outcome {
        status: output.status.code().expect("is not killed"),
        out: String::from_utf8(output.stdout.clone()).expect("is text"),
        err: String::from_utf8(output.stderr.clone()).expect("is text"),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("is readable").file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A daemon that is ready; killed if a test fails before it stops.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(dir: &Path, args: &[&str]) -> Self {
        Self::spawn(command(dir).arg("run").args(args))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("is started");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("is piped");
        BufReader::new(out).read_line(&mut line).expect("is text");
        let mut daemon = Self { child };
        if line != "ready\n" {
            let mut err = String::new();
            let _ = daemon
                .child
                .stderr
                .as_mut()
                .expect("is piped")
                .read_to_string(&mut err);
            panic!("not ready: {line:?}, {err}");
        }
        daemon
    }

    fn stop(mut self, signal: Signal) -> Outcome {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("is running");
        let status = self.child.wait().expect("ends");
        let mut err = String::new();
        self.child
            .stderr
            .take()
            .expect("is piped")
            .read_to_string(&mut err)
            .expect("is text");
        Outcome {
            status: status.code().expect("is not killed"),
            out: String::new(),
            err,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_starts_answers_and_stops() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = scratch();
        let run_dir = dir.path().join("run");
        let daemon = Daemon::start(&run_dir, &[]);
        assert_eq!(
            names(&run_dir),
            ["control.sock", "ibvswitch.lock", "vm1.sock", "vm2.sock"]
        );
        let status = run(&run_dir, &["status", "--json"]);
        assert_eq!(status.status, SUCCESS, "{}", status.err);
        let json: serde_json::Value = serde_json::from_str(&status.out).expect("is JSON");
        assert_eq!(json["vfs"][0]["name"], "vm1");
        assert_eq!(json["vfs"][1]["name"], "vm2");
        assert_eq!(json["pid"], daemon.child.id());
        let end = daemon.stop(signal);
        assert_eq!(end.status, SUCCESS, "{}", end.err);
        assert_eq!(names(&run_dir), ["ibvswitch.lock"]);
        // Neither escape sequences nor panics in the log.
        assert!(
            !end.err.contains('\u{1b}') && !end.err.contains("panicked"),
            "{}",
            end.err
        );
    }
}

#[test]
fn readiness_is_told_to_systemd() {
    let dir = scratch();
    let path = dir.path().join("notify.sock");
    let systemd = UnixDatagram::bind(&path).expect("a socket");
    systemd
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("is not zero");
    let mut command = command(&dir.path().join("run"));
    let daemon = Daemon::spawn(command.arg("run").env("NOTIFY_SOCKET", &path));
    let next = || {
        let mut message = [0; 64];
        let length = systemd.recv(&mut message).expect("a message");
        String::from_utf8_lossy(&message[..length])
            .trim()
            .to_owned()
    };
    assert_eq!(next(), "READY=1");
    daemon.stop(Signal::SIGTERM);
    assert_eq!(next(), "STOPPING=1");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    let second = run(dir.path(), &["run"]);
    assert_eq!(second.status, FAILURE);
    assert_eq!(second.out, "");
    let wanted = format!(
        "in use by another ibvswitch (process {})",
        daemon.child.id()
    );
    assert!(second.err.contains(&wanted), "{}", second.err);
    assert_eq!(run(dir.path(), &["status"]).status, SUCCESS);
}

#[test]
fn a_killed_daemon_is_no_obstacle() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    drop(daemon);
    assert!(
        names(dir.path()).contains(&"vm1.sock".to_owned()),
        "was not killed"
    );
    let daemon = Daemon::start(dir.path(), &[]);
    assert_eq!(daemon.stop(Signal::SIGTERM).status, SUCCESS);
}

#[test]
fn vf_show() {
    let dir = scratch();
    let _daemon = Daemon::start(dir.path(), &[]);
    let one = run(dir.path(), &["vf", "show", "vm2"]);
    assert!(one.out.starts_with("VF 'vm2' on hv2\n"), "{}", one.out);
    assert!(one.out.contains("Port GUID: 0002:c903:"), "{}", one.out);
    let all = run(dir.path(), &["vf", "show"]);
    assert!(
        all.out.contains("VF 'vm1' on hv1\n") && all.out.contains("VF 'vm2'"),
        "{}",
        all.out
    );
    let json = run(dir.path(), &["vf", "show", "vm1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("is JSON");
    assert_eq!(json["name"], "vm1");
    let unknown = run(dir.path(), &["vf", "show", "vm3"]);
    assert_eq!(unknown.status, UNKNOWN);
    assert_eq!(
        unknown.err,
        "ibvswitch: there is no VF `vm3`; there are vm1, vm2\n"
    );
}

/// The daemon's subnet and the planned one are the same, but for VMs, of which the plan has none.
#[test]
fn topology_live_and_planned() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    let json = |args: &[&str]| -> serde_json::Value {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
        serde_json::from_str(&outcome.out).expect("is JSON")
    };
    let mut live = json(&["topology", "--json"]);
    let planned = json(&["topology", "--planned", "--format", "json"]);
    for node in live["nodes"].as_array_mut().expect("is an array") {
        if node["kind"] == "vf" {
            assert_eq!(node["connected"], false);
            assert_eq!(node["state"], "Active");
            node["connected"] = serde_json::Value::Null;
            assert_eq!(node["holds"], node["name"]);
            node["holds"] = serde_json::Value::Null;
        }
    }
    assert_eq!(live, planned);
    for (format, beginning) in [
        ("text", "NODE "),
        ("dot", "graph subnet {"),
        ("svg", "<svg xmlns="),
    ] {
        let live = run(dir.path(), &["topology", "--format", format]);
        assert!(live.out.starts_with(beginning), "{}", live.out);
        assert!(live.out.contains("vm1") && live.out.contains("sw1"));
    }
    let text = run(dir.path(), &["topology"]).out;
    assert!(text.contains("chosen by the subnet manager"), "{text}");
    drop(daemon);
}

/// Every node and cable as the stock tool finds them by packets.
#[test]
fn the_netlist_is_what_ibnetdiscover_prints() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    let lines = |args: &[&str]| -> Vec<String> {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
        let told = |line: &&str| !line.starts_with('#') && !line.is_empty();
        let mut lines: Vec<String> = outcome
            .out
            .lines()
            .filter(told)
            .map(str::to_owned)
            .collect();
        // In which order nodes are met is the tool's own affair.
        lines.sort();
        lines
    };
    let ours = lines(&["topology", "--format", "ibnetdiscover"]);
    assert_eq!(ours, lines(&["external", "run", "ibnetdiscover"]));
    assert_eq!(
        ours,
        lines(&["topology", "--planned", "--format", "ibnetdiscover"])
    );
    drop(daemon);
}

/// The picture in the documentation is what the command draws.
#[test]
fn the_documented_picture_is_up_to_date() {
    let dir = scratch();
    let drawn = run(dir.path(), &["topology", "--planned", "--format", "svg"]);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/users/subnet.svg");
    assert_eq!(
        std::fs::read_to_string(path).expect("is there"),
        drawn.out,
        "run: ibvswitch topology --planned --format svg > docs/users/subnet.svg"
    );
}

#[test]
fn counters_and_metrics() {
    let dir = scratch();
    let daemon = Daemon::start(dir.path(), &[]);
    let all = run(dir.path(), &["counters"]);
    assert_eq!(all.status, SUCCESS, "{}", all.err);
    // Both ends of each of the five cables, under a heading.
    assert_eq!(all.out.lines().count(), 11, "{}", all.out);
    let one = run(dir.path(), &["counters", "sw1"]).out;
    assert!(one.contains("sw1:3"), "{one}");
    assert!(
        one.contains("Forwarding: 6 LIDs, the highest 6, blocks of 64: 1"),
        "{one}"
    );
    assert!(one.contains("Get(NodeInfo): "), "{one}");
    let none = run(dir.path(), &["counters", "sw9"]);
    assert_eq!(none.status, UNKNOWN);
    assert!(
        none.err.contains("there is no node `sw9`; there are sw1, "),
        "{}",
        none.err
    );
    let json = run(dir.path(), &["counters", "sw1", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
    let port = &json["nodes"][0]["ports"][2];
    // What the manager sent to the switch, and more, came in at its port.
    assert!(port["rcv_packets"].as_u64() > Some(20), "{port}");

    let file = dir.path().join("x.prom");
    let to_file = run(
        dir.path(),
        &["metrics", "--write", file.to_str().expect("is text")],
    );
    assert_eq!(to_file.status, SUCCESS, "{}", to_file.err);
    let metrics = std::fs::read_to_string(&file).expect("is written");
    for line in [
        "ibvswitch_vf_active{hypervisor=\"hv1\",vf=\"vm1\"} 1",
        "ibvswitch_vf_connected{hypervisor=\"hv1\",vf=\"vm1\"} 0",
        "ibvswitch_switch_lids{node=\"sw1\"} 6",
        "# TYPE ibvswitch_port_received_bytes_total counter",
    ] {
        assert!(
            metrics.lines().any(|other| other == line),
            "{line} in\n{metrics}"
        );
    }
    // Prometheus' own program reads it, and has nothing to remark.
    let check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::fs::File::open(&file).expect("is written"))
        .output()
        .expect("promtool is installed: ./scripts/setup");
    let said = [check.stdout, check.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(check.status.success() && said.is_empty(), "{said}");

    // What is counted never becomes less, whatever the manager does.
    let smps = || {
        let metrics = run(dir.path(), &["metrics"]).out;
        let line = metrics.lines().find_map(|line| {
            let value = line.strip_prefix("ibvswitch_sm_smps_total ")?;
            value.parse::<u64>().ok()
        });
        line.expect("is counted")
    };
    let mut before = smps();
    for _ in 0..2 {
        assert_eq!(run(dir.path(), &["sm", "sweep"]).status, SUCCESS);
        let after = smps();
        assert!(
            after > before,
            "{before} SMPs before a sweep, {after} after it"
        );
        before = after;
    }
    drop(daemon);
}

#[test]
fn without_a_daemon() {
    let dir = scratch();
    for args in [&["status"][..], &["topology"], &["vf", "show"]] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, NO_DAEMON, "{args:?}");
        assert_eq!(outcome.out, "");
        assert!(
            outcome.err.contains("start one with `ibvswitch run`"),
            "{}",
            outcome.err
        );
    }
}

#[test]
fn qemu_arguments() {
    let dir = scratch();
    let socket = dir.path().join("vm1.sock");
    let device = format!(
        r#"{{"driver":"vfio-user-pci","id":"vm1","socket":{{"type":"unix","path":"{}"}}}}"#,
        socket.display()
    );
    let outcome = run(dir.path(), &["vf", "qemu-args", "vm1", "--memory", "2G"]);
    assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
    assert_eq!(
        outcome.out,
        format!(
            "-object memory-backend-memfd,id=ibvswitch-ram,size=2G,share=on \
             -machine q35,memory-backend=ibvswitch-ram -device '{device}'\n"
        )
    );
    let outcome = run(
        dir.path(),
        &["vf", "qemu-args", "vm1", "--device-only", "--json"],
    );
    let arguments: Vec<String> = serde_json::from_str(&outcome.out).expect("is JSON");
    assert_eq!(arguments, ["-device", device.as_str()]);
    let outcome = run(dir.path(), &["vf", "qemu-args", "vm9"]);
    assert_eq!(outcome.status, UNKNOWN);
    for memory in ["", "G", "1GG", "0", "1G,share=off", "-1G", "1.5G"] {
        let outcome = run(
            dir.path(),
            &["vf", "qemu-args", "vm1", &format!("--memory={memory}")],
        );
        assert_eq!(outcome.status, USAGE, "{memory}");
    }
}

#[test]
fn libvirt_xml() {
    let dir = scratch();
    let outcome = run(dir.path(), &["vf", "libvirt-xml", "vm1"]);
    assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
    assert!(
        outcome.out.contains("<access mode='shared'/>"),
        "{}",
        outcome.out
    );
    assert!(
        outcome
            .out
            .contains("<qemu:arg value='{\"driver\":\"vfio-user-pci\",")
    );
}

/// The file in the source tree is what the program prints, with the socket of the systemd unit.
#[test]
fn libvirt_snippet_is_up_to_date() {
    let outcome = run(Path::new("/run/ibvswitch"), &["vf", "libvirt-xml", "vm1"]);
    let snippet = include_str!("../../../qemu/libvirt-snippet.xml");
    assert!(
        snippet.ends_with(&outcome.out),
        "{snippet}\n{}",
        outcome.out
    );
}

/// The directories that the built-in configuration speaks of are there under the systemd unit, which lets
/// the daemon write to no others; and systemd finds nothing wrong with the unit.
#[test]
fn the_unit_fits_the_configuration() {
    let unit = include_str!("../../../qemu/ibvswitch.service");
    let configuration = run(Path::new("/run/ibvswitch"), &["config", "default"]).out;
    let mut found = 0;
    for line in configuration.lines() {
        let keys = [
            ("state_dir", "/var/lib", "State"),
            ("runtime_dir", "/run", "Runtime"),
        ];
        for (key, base, directory) in keys {
            let value = line.strip_prefix(&format!("# {key} = \"{base}/"));
            if let Some(name) = value.and_then(|value| value.strip_suffix('"')) {
                let wanted = format!("{directory}Directory={name}");
                assert!(unit.lines().any(|line| line == wanted), "{wanted}");
                found += 1;
            }
        }
    }
    assert_eq!(found, 2);

    let dir = scratch();
    let file = dir.path().join("ibvswitch.service");
    let here = unit.replace("/usr/local/bin/ibvswitch", env!("CARGO_BIN_EXE_ibvswitch"));
    std::fs::write(&file, here).expect("is written");
    let checked = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
        .expect("is installed");
    assert!(checked.status.success());
    assert_eq!(String::from_utf8_lossy(&checked.stderr), "");
}

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
    assert!((a + b + c..a + b + c + MIB).contains(&sum), "{sum}");
    assert!(memory["warning"].is_null() && bytes(&memory["available_bytes"]) > sum);
    for line in [
        format!("doorbells trap, at most {} MiB\n", a.div_ceil(MIB)),
        format!(
            "\nThe daemon's memory: at most {} MiB on account of guests, and what it needs itself.\n",
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

#[test]
fn every_command_has_help() {
    let dir = scratch();
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["vf", "--help"],
        &["vf", "show", "--help"],
        &["vf", "qemu-args", "--help"],
        &["vf", "libvirt-xml", "--help"],
        &["status", "--help"],
        &["topology", "--help"],
        &["counters", "--help"],
        &["metrics", "--help"],
        &["capture", "--help"],
        &["config", "--help"],
        &["config", "check", "--help"],
        &["config", "default", "--help"],
    ] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, SUCCESS, "{args:?}");
        assert!(
            outcome.out.contains("Usage: ibvswitch"),
            "{args:?}: {}",
            outcome.out
        );
    }
    assert!(
        run(dir.path(), &["--version"])
            .out
            .starts_with("ibvswitch 0.")
    );
}

#[test]
fn wrong_command_lines() {
    let dir = scratch();
    for args in [
        &[][..],
        &["walk"],
        &["vf"],
        &["status", "--yaml"],
        &["vf", "qemu-args"],
    ] {
        let outcome = run(dir.path(), args);
        assert_eq!(outcome.status, USAGE, "{args:?}");
        assert!(outcome.err.contains("Usage: "), "{args:?}: {}", outcome.err);
    }
}

#[test]
fn a_program_that_was_not_built_says_how_to_get_it() {
    let dir = scratch();
    // A copy of the program, so that nothing lies beside it.
    let copy = dir.path().join("ibvswitch");
    std::fs::copy(env!("CARGO_BIN_EXE_ibvswitch"), &copy).expect("is copied");
    for (command, remedy) in [
        ("demo", "run ./scripts/demo in the source tree"),
        (
            "simulate",
            "build both in the source tree, cargo build --release",
        ),
    ] {
        let output = Command::new(&copy).arg(command).output();
        let outcome = outcome(&output.expect("is started"));
        assert_eq!(outcome.status, FAILURE);
        assert!(outcome.err.contains(remedy), "{}", outcome.err);
    }
}

#[test]
fn programs_beside_this_one_get_their_arguments() {
    for command in ["demo", "bench", "simulate"] {
        let dir = scratch();
        let copy = dir.path().join("ibvswitch");
        std::fs::copy(env!("CARGO_BIN_EXE_ibvswitch"), &copy).expect("is copied");
        let other = dir.path().join(format!("ibvswitch-{command}"));
        std::fs::write(&other, "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 9\n").expect("is written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&other, mode).expect("is ours");
        let output = Command::new(&copy)
            .args([command, "--json", "a b", "--help"])
            .output()
            .expect("is started");
        let outcome = outcome(&output);
        assert_eq!(
            (outcome.out.as_str(), outcome.status),
            ("--json|a b|--help|", 9),
            "{command}"
        );
    }
}

/// Reading the first line and going away is no failure.
#[test]
fn a_reader_that_goes_away() {
    let dir = scratch();
    let mut child = command(dir.path())
        .args(["config", "default"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("is started");
    drop(child.stdout.take());
    let mut err = String::new();
    child
        .stderr
        .take()
        .expect("is piped")
        .read_to_string(&mut err)
        .expect("is text");
    assert!(child.wait().expect("ends").success());
    assert_eq!(err, "");
}

#[test]
fn a_link_goes_down_and_up() {
    let dir = scratch();
    let _daemon = Daemon::start(dir.path(), &[]);
    let link = |args: &[&str]| run(dir.path(), &[&["link"], args].concat());
    let show = link(&["show", "vm1:1"]);
    assert_eq!(show.status, SUCCESS, "{}", show.err);
    assert_eq!(show.out, "vm1:1 - hv1:2: Active, LinkUp\n");

    let down = link(&["down", "hv1:2"]);
    assert_eq!(down.out, "hv1:2 - vm1:1: Down, Polling, cable out\n");
    let state = || -> String {
        let status = run(dir.path(), &["status", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&status.out).expect("is JSON");
        json["vfs"][0]["state"]
            .as_str()
            .expect("is text")
            .to_owned()
    };
    assert_eq!(state(), "Down");

    // A trap tells the subnet manager, and it brings the port up again.
    assert_eq!(link(&["up", "vm1:1"]).status, SUCCESS);
    while state() != "Active" {
        std::thread::yield_now();
    }

    let drop = link(&["drop", "hv1:1", "12.5", "--seed", "7"]);
    assert_eq!(
        drop.out,
        "hv1:1 - sw1:1: Active, LinkUp, loses 12.5 % of packets\n"
    );
    let delay = link(&["delay", "sw1:1", "2.5", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&delay.out).expect("is JSON");
    assert_eq!(json["lost_per_million"], 125_000);
    assert_eq!(json["delay_us"], 2500);
    assert_eq!(json["peer"]["node"], "hv1");
    let by_guid = format!("{}:1", json["port"]["guid"].as_str().expect("is text"));
    assert_eq!(
        link(&["show", &by_guid]).out,
        drop.out
            .replace("hv1:1 - sw1:1", "sw1:1 - hv1:1")
            .replace(" packets\n", " packets, delays them by 2.5 ms\n")
    );
    link(&["drop", "hv1:1", "0"]);
    let sound = link(&["delay", "hv1:1", "0"]);
    assert_eq!(sound.out, "hv1:1 - sw1:1: Active, LinkUp\n");
    link(&["overrun", "hv1:1", "100"]);
    let stall = link(&["stall", "hv1:1", "out"]);
    assert_eq!(
        stall.out,
        "hv1:1 - sw1:1: Active, LinkUp, overruns at one packet of 100, stalled outwards\n"
    );
    assert!(
        link(&["show", "sw1:1"])
            .out
            .ends_with(", stalled inwards\n")
    );
    link(&["down", "hv1:1"]);
    let restored = link(&["restore", "hv1:1"]).out;
    assert!(!restored.contains("cable out"), "{restored}");
    assert!(!restored.contains("stalled"), "{restored}");

    for (args, status, message) in [
        (
            &["down", "vm9:1"][..],
            UNKNOWN,
            "there is no node `vm9`; there are sw1, hv1, vm1, hv2, vm2, subnet manager",
        ),
        (
            &["down", "vm1:2"],
            UNKNOWN,
            "no cable is at port 2 of `vm1`; `ibvswitch topology` shows the links",
        ),
        (
            &["down", "vm1"],
            USAGE,
            "write a node and a port from 1 on, such as sw1:2",
        ),
        (&["drop", "vm1:1", "101"], USAGE, "give 0 to 100"),
        (
            &["stall", "vm1:1", "up"],
            USAGE,
            "[possible values: out, in, both, off]",
        ),
    ] {
        let wrong = link(args);
        assert_eq!(wrong.status, status, "{args:?}");
        assert!(wrong.err.contains(message), "{}", wrong.err);
    }
}
