//! `ibvswitch-simulate` as `ibvswitch simulate` runs it: output, messages and exit status.

use std::fs;
use std::process::{Command, Stdio};

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

struct Outcome {
    status: i32,
    out: String,
    err: String,
}

fn simulate(args: &[&str]) -> Outcome {
    simulate_from(args, Stdio::null())
}

fn simulate_from(args: &[&str], input: Stdio) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch-simulate"))
        .args(args)
        .stdin(input)
        .output()
        .expect("is started");
    Outcome {
        status: output.status.code().expect("is not killed"),
        out: String::from_utf8(output.stdout).expect("is text"),
        err: String::from_utf8(output.stderr).expect("is text"),
    }
}

fn good(args: &[&str]) -> String {
    let outcome = simulate(args);
    assert_eq!((outcome.status, outcome.err.as_str()), (0, ""), "{args:?}");
    outcome.out
}

fn json(args: &[&str]) -> serde_json::Value {
    let args = [args, &["--json"]].concat();
    serde_json::from_str(&good(&args)).expect("is JSON")
}

fn bad(args: &[&str], status: i32, message: &str) {
    let outcome = simulate(args);
    assert_eq!(
        (outcome.status, outcome.out.as_str()),
        (status, ""),
        "{args:?}"
    );
    assert!(outcome.err.contains(message), "{args:?}: {}", outcome.err);
}

/// Paths of a fat-tree of 32 hosts, by hand: from each of 8 leaves and 4 roots to 32 hosts, from the
/// leaves to 12 switches. A leaf has 4 of the hosts.
#[test]
fn routing_of_a_small_tree() {
    let args = ["routing", "--topology", "XGFT(2;8,4;4,1)"];
    let outcome = json(&args);
    assert_eq!(outcome["switches"], 12);
    assert_eq!(outcome["cables"], 32);
    let engines = outcome["engines"].as_array().expect("a list");
    assert_eq!(engines.len(), 10);
    for row in engines {
        assert_eq!(row["walk"]["arriving"], 12 * 32 + 8 * 12);
        assert_eq!(row["walk"]["hops"][0], 32 + 8);
        assert_eq!(row["walk"]["deadlock"], serde_json::Value::Null);
        // Every leaf sends all that is for 28 other hosts up by 4 cables.
        if row["engine"] == "ftree" {
            assert_eq!(row["walk"]["largest_load"], 4 * 28 / 4);
        }
    }
    let text = good(&args);
    assert!(text.starts_with(
        "XGFT(2;8,4;4,1): 12 switches, 32 LIDs at adapters, 44 LIDs, 32 cables between switches\n"
    ));
    assert!(
        text.contains("dor cannot route this topology; minhop did: "),
        "{text}"
    );
    // Wherever an engine that gave way is named, the one that took its place is named, too.
    assert!(text.matches("dor (minhop) ").count() == 2, "{text}");
    let csv = good(&[&args[..], &["--engine", "dor", "--csv"]].concat());
    assert!(csv.contains("\",dor (minhop),ibvswitch,"), "{csv}");
    let csv = good(&[&args[..], &["--engine", "ftree", "--csv"]].concat());
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("topology,engine,by,fallback,seconds,paths,"));
    assert!(lines[1].starts_with("\"XGFT(2;8,4;4,1)\",ftree,ibvswitch,,"));
    assert_eq!(lines.len(), 2);
}

#[test]
fn a_file_is_routed_as_the_generator() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.net");
    let tree: topologies::FatTree = "XGFT(2;4,2;2,1)".parse().expect("is a tree");
    let netlist = tree.topology(topologies::Hosts::Adapters).to_netlist();
    fs::write(&file, netlist.expect("is a fabric")).expect("is written");
    let engines = |topology: &str| {
        let mut outcome = json(&["routing", "--engine", "minhop", "-t", topology]);
        outcome["engines"][0]["walk"].take()
    };
    let of_file = engines(file.to_str().expect("is text"));
    assert_eq!(of_file, engines("XGFT(2;4,2;2,1)"));
    // From standard input, and without the option.
    let args = ["routing", "-", "--engine", "minhop"];
    let piped = simulate_from(&args, fs::File::open(&file).expect("is there").into());
    assert_eq!(piped.status, 0, "{}", piped.err);
    let first = piped.out.lines().next();
    assert_eq!(
        first,
        Some("-: 6 switches, 8 LIDs at adapters, 14 LIDs, 8 cables between switches")
    );
    assert!(
        piped
            .out
            .contains("LIDs and link speeds of the file do not count"),
        "{}",
        piped.out
    );
}

#[test]
fn bad_topologies() {
    let of = |topology: &str, message: &str| {
        bad(&["routing", "--topology", topology], FAILURE, message);
    };
    of(
        "XGFT(2;300,18;18,1)",
        "XGFT(2;300,18;18,1): a switch of level 0 would have 300 ports; a switch has 1 to 254",
    );
    of("XGFT(2;18;18,1)", "m has 1 numbers for 2 levels");
    of(
        "ring(4)",
        "\"ring(4)\" is no topology; the generators are XGFT(",
    );
    of("no such file", "no such file cannot be read: ");
    of(
        "RLFT(36,60000)",
        "ports need a LID each; a subnet has 49151",
    );
    let dir = tempfile::tempdir().expect("a directory");
    for (text, message) in [
        ("Switch 0 \"a\"\n", "line 1: "),
        ("Switch 300 \"a\"\n", "line 1: "),
        (
            "Switch 4 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[2]\n\nSwitch 4 \"b\"\n[1] \"a\"[1]\n",
            "line 3: port 1 has a cable already",
        ),
        (
            "Switch 4 \"a\"\n[1] \"b\"[1]\n",
            "line 2: there is no node `b`",
        ),
        (
            "Switch 4 \"a\"\n[1] \"b\"[1]\n\nSwitch 4 \"b\"\n",
            "line 2: `b` has no cable at port 1 that leads back here",
        ),
        ("Switch 4 \"a\"\n[1] \"", "line 2: "),
        (
            "Switch 4 \"a\"\n\nSwitch 4 \"b\"\n",
            "1 of 2 nodes cannot be reached from switch `a`",
        ),
        ("Ca 1 \"h\"\n", "there is no switch in it"),
        ("", "there is no node"),
    ] {
        let file = dir.path().join("net");
        fs::write(&file, text).expect("is written");
        of(file.to_str().expect("is text"), message);
    }
}

/// A whole tree that is routed for it blocks no shift: every pair has its bandwidth.
#[test]
fn bandwidth_of_a_shift() {
    let args = ["routing", "-t", "XGFT(2;8,4;4,1)", "--traffic", "shift"];
    let outcome = json(&args);
    let ftree = &outcome["engines"][2];
    assert_eq!(ftree["engine"], "ftree");
    assert_eq!(ftree["walk"]["bandwidth"]["mean"], 1.0);
}

#[test]
fn migrations_in_a_small_tree() {
    let args = [
        "migration",
        "--start",
        "uniform",
        "--pattern",
        "random,grouping",
        "--population",
        "50",
        "--draws",
        "50",
    ];
    let outcome = json(&args);
    let simulations = outcome["simulations"].as_array().expect("a list");
    assert_eq!(simulations.len(), 2);
    for simulation in simulations {
        assert_eq!(simulation["study"]["tree"], "XGFT(2;8,4;4,1)");
        assert_eq!(simulation["machines"], 64);
        let mean = |method: &str| simulation[method]["mean"].as_f64().expect("a number");
        assert!(mean("minimal") < mean("iterative"));
        assert_eq!(
            simulation["snapshots"].as_array().expect("a list").len(),
            11
        );
    }
    let csv = good(&[&args[..], &["--csv"]].concat());
    assert_eq!(csv.lines().count(), 1 + 2 * 11);
    assert_eq!(
        csv,
        good(&[&args[..], &["--csv"]].concat()),
        "the same again"
    );
    let other = good(&[&args[..], &["--csv", "--seed", "2"]].concat());
    assert_ne!(csv, other);
    bad(
        &["migration", "--start", "uniform", "--pattern", "to-uniform"],
        FAILURE,
        "uniform to uniform moves nobody",
    );
    bad(
        &["migration", "-t", "torus(4x4,1)"],
        FAILURE,
        "is no fat-tree",
    );
    bad(&["migration", "--population", "100"], USAGE, "from 1 to 99");
}

#[test]
fn lids_of_small_networks() {
    let args = [
        "lids",
        "--machines",
        "24",
        "--switches",
        "8,16",
        "--degree",
        "4",
        "--networks",
        "2",
    ];
    let outcome = json(&args);
    let surveys = outcome["surveys"].as_array().expect("a list");
    assert_eq!(surveys.len(), 2 * 4);
    for survey in surveys {
        for method in survey["lids"].as_array().expect("a list") {
            let mean = method["mean"].as_f64().expect("a number");
            // One each at least, and by definition no more where one is enough.
            assert!(mean >= 24.0);
            assert!(survey["scheme"] != "single-lid" || mean == 24.0);
        }
    }
    let text = good(&[&args[..], &["--optimum", "--scheme", "shortest-widest"]].concat());
    assert!(
        text.contains("OPTIMUM") && text.contains("2 of 2"),
        "{text}"
    );
    bad(
        &["lids", "--switches", "4"],
        FAILURE,
        "degree 8 among 4 switches: take at least 1 and less than 4",
    );
    bad(
        &["lids", "--networks", "0"],
        USAGE,
        "write a whole number from 1 on",
    );
}

/// "16 VFs: 2891 hypervisors, 46 256 VMs".
#[test]
fn capacity_of_the_address_models() {
    let args = ["capacity", "--vfs", "16", "--population", "100"];
    let outcome = json(&args);
    let prepopulated = &outcome["rows"][1];
    assert_eq!(prepopulated["model"], "prepopulated");
    assert_eq!(prepopulated["hypervisors"], 2891);
    assert_eq!(prepopulated["vms"], 46_256);
    assert!(good(&args).contains("49151 LIDs"));
    bad(
        &["capacity", "--ports", "35"],
        FAILURE,
        "switches of 35 ports",
    );
    bad(&["capacity", "--vfs", "254"], USAGE, "from 1 to 253");
}

#[test]
fn published_beside_measured() {
    let text = good(&["papers", "packets", "--quick"]);
    // 324 nodes, of which everything is as published.
    assert!(
        text.contains("216 (216)") && text.contains("72 (72)"),
        "{text}"
    );
    assert!(text.contains("6 (6)") && text.contains("1 (1)"), "{text}");
    let csv = good(&["papers", "packets", "--quick", "--csv"]);
    assert!(csv.starts_with("table,row,column,unit,measured,published,ratio\n"));
    let outcome = json(&["papers", "packets", "marking", "--quick"]);
    assert_eq!(outcome["comparisons"].as_array().expect("a list").len(), 3);
    bad(
        &["papers", "weather"],
        USAGE,
        "possible values: packets, routing",
    );
}

#[test]
fn figures() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).to_str().expect("is text").to_owned();
    let plot = |name: &str| {
        good(&["capacity", "--plot", &file(name)]);
        fs::read(file(name)).expect("is there")
    };
    let svg = String::from_utf8(plot("c.svg")).expect("is text");
    roxmltree::Document::parse(&svg).expect("is XML");
    assert!(plot("c.png").starts_with(b"\x89PNG"));
    bad(
        &["capacity", "--plot", &file("c.pdf")],
        FAILURE,
        "c.pdf cannot be written: figures are .svg or .png; name the file so",
    );
    good(&["papers", "marking", "--quick", "--plots", &file("figures")]);
    for name in ["marking-times.svg", "marking-times.png"] {
        assert!(dir.path().join("figures").join(name).exists(), "{name}");
    }
}

#[test]
fn bad_arguments() {
    let tree = ["routing", "--topology", "XGFT(2;4,2;2,1)"];
    let with = |more: &[&str], message: &str| bad(&[&tree, more].concat(), USAGE, message);
    with(
        &["--engine", "fast"],
        "possible values: minhop, updn, ftree",
    );
    with(&["--vfs", "0"], "write a whole number from 1 to 253");
    with(&["--hypervisors", "4"], "--vfs");
    with(&["--json", "--csv"], "cannot be used with");
    with(&["XGFT(2;4,2;2,1)"], "cannot be used with");
    with(
        &["--vfs", "-1"],
        "'-1' for '--vfs <NUMBER>': write a whole number from 1 to 253",
    );
    bad(&["routing"], USAGE, "--topology");
    bad(&["routing"], USAGE, "\nUsage: ibvswitch simulate routing ");
    let many = [&tree[..], &["--vfs", "2", "--hypervisors", "99"]].concat();
    let message = "99 hypervisors; the topology has 8 adapters, give at most as many";
    bad(&many, FAILURE, message);
}

#[test]
fn numbers_of_simulations() {
    for (arguments, message) in [
        (
            &["capacity", "--vfs", "many"][..],
            "error: invalid value 'many' for '--vfs <NUMBER,…>': write a whole number from 1 to 253\n",
        ),
        (
            &["lids", "--networks", "0"],
            "error: invalid value '0' for '--networks <NUMBER>': write a whole number from 1 on\n",
        ),
    ] {
        let outcome = simulate(arguments);
        assert_eq!(outcome.status, USAGE);
        assert!(outcome.err.starts_with(message), "{}", outcome.err);
    }
    // Levels the other way round, as most literature has them.
    let outcome = simulate(&["routing", "--topology", "XGFT(2;4,8;1,4)"]);
    assert_eq!(outcome.status, FAILURE);
    assert_eq!(
        outcome.err,
        "ibvswitch: XGFT(2;4,8;1,4): w2 and p2 must be 1: a host has one uplink; levels are written \
         from the roots down, so turn lists round that go from the hosts up\n"
    );
}
