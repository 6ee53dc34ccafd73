//! LIDs by the paths of pairs of ports: `ibtracert` walks every path of a subnet of 64 nodes, by the LIDs that `saquery` tells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::daemon::Daemon;
use crate::programs::Programs;
use testing::Configuration;
use topologies::{Hosts, Irregular};

/// By GUID of an adapter's port, its first and its last LID.
type Ranges = BTreeMap<String, (u16, u16)>;

/// The LIDs of adapters' ports, as the manager has written them down.
fn ranges(daemon: &Daemon, state: &Path) -> Ranges {
    let text = std::fs::read_to_string(state.join("guid2lid")).expect("is kept");
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("a list").iter();
    let adapters = nodes.filter(|node| node["kind"] != "switch");
    adapters
        .map(|node| {
            let guid = node["port_guid"].as_str().expect("a GUID");
            let value = number(&guid.replace(':', "")).expect("a GUID");
            let line = { text.lines() }.find(|line| line.starts_with(&format!("0x{value:016x}")));
            let words: Vec<_> = line
                .expect("a line")
                .split_whitespace()
                .map(number)
                .collect();
            let [_, Ok(first), Ok(last)] = words[..] else {
                panic!("{line:?}");
            };
            (guid.to_owned(), (first as u16, last as u16))
        })
        .collect()
}

/// For each pair of the ports in the arguments, its LIDs and what `ibtracert` prints, two at a time.
const WALK: &str = r#"
walk() {
    for from in $1; do for to in $2; do
        [ "$from" = "$to" ] && continue
        set -- "$1" "$2" $(saquery PR --sgid "fe80::$from" --dgid "fe80::$to" |
            sed -n 's/.*[sd]lid\.*\([0-9]\)/\1/p' | head -2)
        echo "pair $from $to $4 $3"
        ibtracert "$4" "$3"
    done; done
}
walk "$1" "$1 $2" >one &
walk "$2" "$1 $2" >two
wait
cat one two
"#;

#[test]
fn every_path_is_walked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let network = Irregular::new(52, 6, 12, 3).expect("is one");
    let topology = network.topology(Hosts::Adapters);
    std::fs::write(path("net"), topology.to_netlist().expect("is a fabric")).expect("is written");
    let subnet = || {
        Configuration::new()
            .set("fabric.topology", path("net"))
            .set("sm.lids", "color")
            .set("sm.paths", "path-selection")
            .set("sm.state_dir", path("state"))
    };
    let daemon = Daemon::configured(subnet());
    let ranges_of = |daemon: &Daemon| ranges(daemon, &dir.path().join("state"));
    let ranges = ranges_of(&daemon);
    assert_eq!(ranges.len(), 12);
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["routed_by"], "path-selection");
    let lids: u16 = ranges.values().map(|(first, last)| last - first + 1).sum();
    assert_eq!(status["lids"]["used"], lids);
    assert_eq!(status["lids"]["saved"], 12 * 16 - lids);
    assert_eq!(status["lids"]["paths"], 12 * 11);

    let guids: Vec<&str> = ranges.keys().map(String::as_str).collect();
    let (one, two) = guids.split_at(6);
    let text =
        Programs::new(&daemon).run(&["sh", "-c", WALK, "sh", &one.join(" "), &two.join(" ")]);
    let mut further = 0;
    let pairs: Vec<&str> = text.split("pair ").skip(1).collect();
    assert_eq!(pairs.len(), 12 * 11, "{text}");
    for walk in pairs {
        let mut lines = walk.lines();
        let words: Vec<&str> = lines.next().expect("a pair").split_whitespace().collect();
        let [from, to, slid, dlid] = words[..] else {
            panic!("{walk}");
        };
        for (guid, lid) in [(from, slid), (to, dlid)] {
            let lid: u16 = lid.parse().expect("a LID");
            let (first, last) = ranges[guid];
            assert!((first..=last).contains(&lid), "{walk}");
            further += usize::from(guid == to && lid != first);
        }
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let [start, hops @ .., end] = &lines[..] else {
            panic!("{walk}");
        };
        for (line, side, guid) in [(start, "From ca", from), (end, "To ca", to)] {
            let (first, last) = ranges[guid];
            let is_there =
                line.starts_with(side) && line.contains(&format!(" lid {first}-{last} "));
            assert!(is_there, "{walk}");
        }
        let met: BTreeSet<&str> = hops
            .iter()
            .filter_map(|hop| hop.split(" lid ").nth(1))
            .collect();
        assert_eq!(met.len(), hops.len(), "nowhere twice: {walk}");
    }
    assert!(
        further > 0,
        "{further} pairs have a LID besides the base LID"
    );

    // The LIDs stay when a link is lost, and for the next program. Switches have the cables without which the subnet
    // would fall apart at their first ports.
    let topology = daemon.ask(&["topology"]);
    let links = topology["links"].as_array().expect("a list").iter();
    let ends = |link: &&serde_json::Value| {
        let port = |end: &str| link[end]["port"].as_u64().expect("a number");
        port("from").min(port("to"))
    };
    let lost = &links.max_by_key(ends).expect("a link")["from"];
    let place = format!(
        "{}:{}",
        lost["node"].as_str().expect("a name"),
        lost["port"]
    );
    daemon.ask(&["link", "down", &place]);
    let status = daemon.ask(&["sm", "sweep"]);
    assert_eq!(status["errors"], serde_json::json!([]), "{place}");
    assert_eq!(status["routed_by"], "path-selection");
    assert_eq!(status["lids"]["used"], lids);
    assert_eq!(ranges_of(&daemon), ranges);
    drop(daemon);
    let daemon = Daemon::configured(subnet());
    assert_eq!(ranges_of(&daemon), ranges);
}
