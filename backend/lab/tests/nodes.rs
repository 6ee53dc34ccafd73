//! `ibvswitch lab run` as users have it: nodes, what they print, how it ends, and what it leaves.

mod place;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use place::{Place, signal};

/// Waits until a running lab has shown this.
fn await_text(lab: &mut Child, text: &str) {
    let lines = BufReader::new(lab.stdout.as_mut().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains(text)), "{text} has not come");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

const PINGPONG: &str = "
cat greeting
touch written 2>/dev/null && echo could be written
if [ $LAB_NODE = n1 ]; then
    ibv_rc_pingpong -c & await-port 18515 $!
    lab-barrier listening
    wait $!
    rping -s -C 1 >/dev/null 2>&1 || true
else
    lab-barrier listening
    ibv_rc_pingpong -c $LAB_PEER || exit 1
    # It is refused until the other one listens.
    until rping -c -a $LAB_PEER-ib -C 1 >/dev/null 2>&1; do sleep 0.1; done
    echo '<6>a message of a kernel' >/dev/kmsg && exit 3
fi";

#[test]
fn two_nodes_run_a_command_and_nothing_is_left() {
    let place = Place::new();
    fs::write(place.work().join("greeting"), "from the host\n").unwrap();
    let (json, junit) = (place.work().join("out.json"), place.work().join("out.xml"));
    let output = place.output(&[
        "run", "--nodes", "2", "--json", "out.json", "--junit", "out.xml", "--", PINGPONG,
    ]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // The status of the command in n2, which is higher than that of n1.
    assert_eq!(output.status.code(), Some(3), "{printed}\n{told}");
    for node in ["n1", "n2"] {
        let of_node: Vec<&str> = printed
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{node}: ")))
            .collect();
        assert_eq!(of_node[0], "from the host", "{printed}");
        // ibv_rc_pingpong ends with status 0 though the payload was wrong.
        assert!(
            of_node.iter().any(|it| it.contains("8192000 bytes in ")),
            "{printed}"
        );
        assert!(!printed.contains("invalid data"), "{printed}");
        assert!(!printed.contains("could be written"), "{printed}");
    }
    assert!(told.contains("n2: status 3; its kernel said"), "{told}");
    assert!(told.contains("a message of a kernel"), "{told}");

    let results: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
    assert_eq!(results["status"], 3);
    assert_eq!(results["nodes"][0]["node"], "n1");
    assert_eq!(results["nodes"][0]["status"], 0);
    assert_eq!(results["nodes"][1]["status"], 3);
    let xml = text(&junit);
    let xml = roxmltree::Document::parse(&xml).unwrap();
    assert_eq!(xml.root_element().attribute("failures"), Some("1"));

    assert_eq!(place.left(), [] as [PathBuf; 0]);
    assert_eq!(place.processes(), [] as [String; 0]);
}

#[test]
fn a_lab_that_is_ended_leaves_nothing_and_a_killed_one_nothing_for_long() {
    let place = Place::new();
    let run = ["run", "--nodes", "1", "--", "echo begun; sleep 1000"];
    let start = || {
        let mut lab = place.lab(&run);
        lab.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut killed = start();
    // In the middle of its boot.
    while !place.left().iter().any(|it| it.join("n1/qmp").exists()) {
        assert!(killed.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(20));
    }
    signal(&killed, Signal::SIGKILL);
    killed.wait().unwrap();
    place.await_nobody();
    assert_eq!(place.left().len(), 1);

    let mut ended = start();
    await_text(&mut ended, "n1: begun");
    let own = format!("run-{}", ended.id());
    assert_eq!(place.left(), [place.labs().join(own)]);
    signal(&ended, Signal::SIGINT);
    assert_eq!(ended.wait().unwrap().code(), Some(130));
    assert_eq!(place.left(), [] as [PathBuf; 0]);
    assert_eq!(place.processes(), [] as [String; 0]);
}

#[test]
fn mistakes_are_told_before_anything_is_booted() {
    let place = Place::new();
    for (arguments, status, message) in [
        (
            vec!["run", "--nodes", "0", "--", "true"],
            2,
            "0 is not in 1..=64",
        ),
        (vec!["run"], 2, "<COMMAND>..."),
        (
            vec!["run", "--memory", "1", "--", "true"],
            2,
            "as in 512M or 2G",
        ),
        (
            vec!["run", "--timeout", "soon", "--", "true"],
            2,
            "as in 90s, 5m or 2h",
        ),
        (
            vec!["run", "--kernel", "5.10", "--", "true"],
            2,
            "there are 6.1, 6.12 and 7.2",
        ),
    ] {
        let output = place.output(&arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{told}");
        assert!(told.contains(message), "{told}");
    }
    let output = place
        .lab(&["run", "--", "true"])
        .current_dir("/usr")
        .output();
    let output = output.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(told.contains("/usr cannot be in the nodes"), "{told}");
}
