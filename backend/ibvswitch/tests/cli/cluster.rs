//! Clusters given out, resized, compacted, proved and deleted, while a daemon runs.

use super::*;

/// Two leaves under a spine, with a hypervisor or two each.
const TREE: &str = "\
[sm]
cluster_lanes = true
[[switch]]
name = \"leaf1\"
[[switch]]
name = \"leaf2\"
[[switch]]
name = \"spine1\"
[[link]]
from = \"leaf1\"
to = \"spine1\"
[[link]]
from = \"leaf2\"
to = \"spine1\"
[[hypervisor]]
name = \"hv1\"
switch = \"leaf1\"
processors = 8
spare_vfs = 2
[[hypervisor]]
name = \"hv2\"
switch = \"leaf1\"
processors = 8
spare_vfs = 1
[[hypervisor]]
name = \"hv3\"
switch = \"leaf2\"
processors = 8
";

struct Cloud {
    dir: tempfile::TempDir,
    file: String,
    _daemon: Daemon,
}

impl Cloud {
    fn start() -> Self {
        let dir = scratch();
        let file = dir.path().join("cloud.toml");
        std::fs::write(&file, TREE).expect("is writable");
        let file = file.to_str().expect("is text").to_owned();
        let daemon = Daemon::start(dir.path(), &["--config", &file]);
        Self {
            dir,
            file,
            _daemon: daemon,
        }
    }

    fn run(&self, line: &str) -> Outcome {
        let words = ["--config", &self.file, "cluster"].into_iter();
        let words: Vec<&str> = words.chain(line.split(' ')).collect();
        run(self.dir.path(), &words)
    }

    #[track_caller]
    fn json(&self, line: &str) -> serde_json::Value {
        let outcome = self.run(&format!("{line} --json"));
        assert_eq!(outcome.status, SUCCESS, "{line}: {}", outcome.err);
        serde_json::from_str(&outcome.out).expect("is JSON")
    }

    #[track_caller]
    fn refused(&self, line: &str, status: i32) -> String {
        let outcome = self.run(line);
        assert_eq!(outcome.status, status, "{line}: {}", outcome.out);
        outcome.err
    }
}

/// The hypervisors of a cluster's VMs.
fn places(cluster: &serde_json::Value) -> Vec<&str> {
    let vms = cluster["vms"].as_array().expect("is a list").iter();
    vms.map(|vm| vm["hypervisor"].as_str().expect("a name"))
        .collect()
}

/// Names of clusters in a table, with what stands in this column.
fn column<'a>(table: &'a str, heading: &str) -> Vec<[&'a str; 2]> {
    let at = table.find(heading).expect("has the column");
    let word = |text: &'a str| text.split("  ").next().expect("is one").trim();
    let rows = table.lines().skip(1);
    rows.map(|row| [word(row), word(&row[at..])]).collect()
}

#[test]
fn clusters_are_given_out_and_proved() {
    let cloud = Cloud::start();
    let plan = cloud.json("plan red --vms 5 --processors 2");
    assert_eq!(places(&plan), ["hv1", "hv1", "hv1", "hv1", "hv2"]);
    assert_eq!(cloud.json("show"), serde_json::json!([]));
    let red = cloud.json("create red --vms 5 --processors 2");
    assert_eq!(red["clusters"][0], plan);
    let blue = cloud.json("create blue --vms 3 --per-host 1");
    assert_eq!(places(&blue["clusters"][0]), ["hv1", "hv2", "hv3"]);
    let err = cloud.refused("create green --vms 9 --processors 2", FAILURE);
    assert_eq!(
        err,
        "ibvswitch: cluster `green` finds no place: 9 more VMs were asked for, and there is room for 7: free processors of \
         hypervisors (hv1: 0, hv2: 6, hv3: 8); ask for fewer processors for each VM, or add a hypervisor\n"
    );
    let err = cloud.refused("resize gren --vms 2", UNKNOWN);
    assert!(err.contains("no cluster `gren`"), "{err}");

    let shown = cloud.json("show red");
    assert_eq!(
        (&shown["active"], &shown["connected"]),
        (&5.into(), &0.into())
    );
    assert_eq!(shown["lanes"]["levels"], serde_json::json!([1]));
    assert_eq!(
        column(&cloud.run("show").out, "LEVELS"),
        [["red", "1"], ["blue", "2"]]
    );
    assert_eq!(shown["fullest_cable"]["clusters"], 2);

    // The picture names them: the spine carries the cluster that is on both leaves, and that one alone.
    let topology = run(cloud.dir.path(), &["topology", "--json"]).out;
    let topology: serde_json::Value = serde_json::from_str(&topology).expect("is JSON");
    let node = |name: &str| daemon::named(&topology["nodes"], name);
    assert_eq!(node("red-5")["cluster"], "red");
    assert!(node("hv1-spare1")["cluster"].is_null());
    let links = topology["links"].as_array().expect("is a list");
    let between = |a: &str, b: &str| {
        let ends = |link: &&serde_json::Value| {
            let names = [&link["from"]["node"], &link["to"]["node"]];
            names.contains(&&a.into()) && names.contains(&&b.into())
        };
        links.iter().find(ends).expect("is there")["clusters"].clone()
    };
    assert_eq!(between("leaf1", "spine1"), serde_json::json!(["blue"]));
    assert_eq!(between("leaf1", "hv2"), serde_json::json!(["red", "blue"]));
    let drawn = run(cloud.dir.path(), &["topology", "--format", "svg"]).out;
    assert!(drawn.contains("red-5 (red)") && drawn.contains("; clusters red, blue"));

    let proof = cloud.json("verify");
    assert_eq!(proof["daemon"], serde_json::json!([]));
    assert_eq!(proof["proven"], true);
    for test in proof["tests"].as_array().expect("is a list") {
        let reaches =
            !["management", "management-write"].contains(&test["probe"].as_str().expect("a name"));
        assert_eq!(test["reached"], if reaches { 26 } else { 0 }, "{test}");
        assert_eq!(test["apart"], if reaches { 30 } else { 56 }, "{test}");
    }

    // A third cluster finds cables full, unless one of the others makes room.
    let err = cloud.refused("plan green --vms 2 --per-host 1 --per-cable 2", FAILURE);
    let full = "clusters that a cable may carry (hv1 - leaf1: 2, hv2 - leaf1: 2)";
    assert!(err.contains(full), "{err}");
    let room = "there is room after `ibvswitch cluster compact red --move` or `ibvswitch cluster compact blue --move`\n";
    assert!(err.ends_with(room), "{err}");

    // The distant VM comes to a spare VF, and is the first to be given up before.
    let compact = cloud.json("compact blue");
    assert_eq!(compact["before"]["sum"], 10);
    assert_eq!(compact["moves"][0]["vm"], "blue-3");
    let promised = compact["moves"][0]["smps"].as_u64().expect("is counted");
    let moved = cloud.json("compact blue --move");
    assert_eq!(moved["moves"][0]["moved"], true);
    assert_eq!(moved["moves"][0]["smps"].as_u64(), Some(promised));
    assert_eq!(cloud.json("show blue")["distance"]["sum"], 0);

    let smaller = cloud.json("resize red --vms 4");
    assert_eq!(
        smaller["clusters"][0]["removed"],
        serde_json::json!(["red-5"])
    );
    let gone = cloud.json("delete red --with-vfs");
    assert_eq!(
        gone["clusters"][0]["removed"].as_array().map(Vec::len),
        Some(4)
    );
    assert!(
        !std::fs::read_to_string(&cloud.file)
            .expect("is there")
            .contains("red")
    );
}

/// Several requests are one change, all or nothing.
#[test]
fn requests_are_applied_together() {
    let cloud = Cloud::start();
    let file = cloud.dir.path().join("requests.json");
    let apply = |text: &str| {
        std::fs::write(&file, text).expect("is writable");
        cloud.run(&format!("apply {} --json", file.display()))
    };
    let before = std::fs::read_to_string(&cloud.file).expect("is there");
    let one = r#"{"action": "create", "name": "a", "vms": 2, "memory": "1G"}"#;
    let wrong = apply(&format!(
        r#"[{one}, {{"action": "create", "name": "b", "vms": 1000}}]"#
    ));
    assert_eq!(wrong.status, FAILURE);
    assert!(
        wrong.err.contains("cluster `b` finds no place"),
        "{}",
        wrong.err
    );
    assert_eq!(
        std::fs::read_to_string(&cloud.file).expect("is there"),
        before
    );
    for (text, what) in [
        (
            r#"{"action": "creat", "name": "a"}"#,
            "unknown variant `creat`",
        ),
        (
            r#"{"action": "create", "name": "a", "procesors": 2}"#,
            "unknown field `procesors`",
        ),
        (
            r#"[{"action": "resize", "name": "a"}]"#,
            "`vms`, the number after it, is missing",
        ),
        (
            r#"{"action": "delete", "name": "a", "vms": 2}"#,
            "`delete` takes a name",
        ),
    ] {
        let outcome = apply(text);
        assert_eq!(outcome.status, FAILURE);
        let remedy = "cluster apply --help";
        assert!(
            outcome.err.contains(what) && outcome.err.contains(remedy),
            "{}",
            outcome.err
        );
    }
    let both = apply(&format!(
        r#"[{one}, {{"action": "create", "name": "b", "vms": 1, "exclusive_switches": true}}]"#
    ));
    assert_eq!(both.status, SUCCESS, "{}", both.err);
    let shown = cloud.json("show");
    // The second one has a leaf for itself, and no cable with the first one.
    assert_eq!(places(&shown[0]), ["hv1", "hv1"]);
    assert_eq!(places(&shown[1]), ["hv3"]);
    let partitions = cloud.run("show --partitions").out;
    assert_eq!(
        partitions
            .matches("ipoib, defmember=full: 0x0002c903")
            .count(),
        2
    );
    assert!(partitions.contains("#   a-1 : hv1\n"), "{partitions}");
}

/// The proof holds as well with lanes of clusters, where other service levels lead nowhere, where a VF shares a port, and where
/// a tenant may manage its cluster. Two VMs in a cluster without a common partition do not reach each other by data.
#[test]
fn proofs_of_other_subnets() {
    let dir = scratch();
    let vfs = |more: &str| {
        format!(
            "[[cluster]]\nname = \"a\"\n[[cluster]]\nname = \"b\"\n\
             [[hypervisor]]\nname = \"hv1\"\n[[hypervisor.vf]]\nname = \"a1\"\ncluster = \"a\"\n{more}\n\
             [[hypervisor.vf]]\nname = \"b1\"\ncluster = \"b\"\n\
             [[hypervisor]]\nname = \"hv2\"\n[[hypervisor.vf]]\nname = \"a2\"\ncluster = \"a\"\n\
             [[hypervisor.vf]]\nname = \"alone\"\n"
        )
    };
    let proved = |text: &str| -> serde_json::Value {
        let file = dir.path().join("subnet.toml");
        std::fs::write(&file, text).expect("is writable");
        let file = file.to_str().expect("is text");
        let outcome = run(
            dir.path(),
            &["--config", file, "cluster", "verify", "--json"],
        );
        assert_eq!(outcome.status, SUCCESS, "{}{}", outcome.out, outcome.err);
        serde_json::from_str(&outcome.out).expect("is JSON")
    };
    let reached = |proof: &serde_json::Value| proof["tests"][0]["reached"].as_u64();
    let lanes = format!("[sm]\ncluster_lanes = true\n{}", vfs(""));
    assert_eq!(reached(&proved(&lanes)), Some(2));
    let shared = format!(
        "[fabric]\nmodel = \"shared-port\"\n[sm]\nlmc = 2\n{}",
        vfs("")
    );
    assert_eq!(reached(&proved(&shared)), Some(2));
    let virtualized = format!("[fabric]\nmodel = \"virtualized\"\n{}", vfs(""));
    assert_eq!(reached(&proved(&virtualized)), Some(2));
    let own = vfs("").replacen("\"a\"", "\"a\"\nview = \"full\"", 1);
    assert_eq!(reached(&proved(&own)), Some(2));
    let parted = vfs("pkeys = [0x8010]");
    assert_eq!(reached(&proved(&parted)), Some(0));
}

/// Requests for VMs on hosts that are none, by a daemon of their own.
#[test]
fn a_burst_of_requests_is_measured() {
    let dir = scratch();
    let line = "cluster emulate --hosts 9 --per-leaf 3 --vms 30 --batch 4 --json";
    let outcome = run(dir.path(), &line.split(' ').collect::<Vec<_>>());
    assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
    let measured: serde_json::Value = serde_json::from_str(&outcome.out).expect("is JSON");
    // Clusters of 1, 6, 3, 8, 5, 2 and 5 VMs.
    assert_eq!(
        (&measured["requests"], &measured["vms"]),
        (&7.into(), &30.into())
    );
    assert_eq!(
        (&measured["changes"], &measured["refused"]),
        (&2.into(), &0.into())
    );
    assert!(measured["smps"].as_u64() > Some(100), "{measured}");
}
