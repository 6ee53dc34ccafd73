//! Commands about the subnet of a running daemon, and commands that change it.

use super::*;
use testing::wait_until;

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
        // Series whose first event is to come.
        "ibvswitch_vf_mads_refused_total{kind=\"cluster\",vf=\"vm1\"} 0",
        "ibvswitch_port_errors_total{kind=\"symbol_errors\",node=\"sw1\",port=\"1\"} 0",
        "ibvswitch_up 1",
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
    wait_until("an active link", || state() == "Active");

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
