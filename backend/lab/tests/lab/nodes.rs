//! `ibvswitch lab run` as users have it: nodes, what they print, how it ends, and what it leaves.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use ibvswitch_lab::image::{Image, Kernel};
use nix::sys::signal::{Signal, kill};

use crate::place::{Place, signal};

/// Waits until a running lab has shown this; what it has shown until then.
fn await_text(lab: &mut Child, text: &str) -> Vec<String> {
    let lines = BufReader::new(lab.stdout.as_mut().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.map_while(Result::ok) {
        said.push(line);
        if said.last().is_some_and(|line| line.contains(text)) {
            return said;
        }
    }
    panic!("{text} has not come: {said:?}");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Scripts of the nodes. Both have the same directory, and n2 waits until n1 listens.
const SCRIPTS: [(&str, &str); 3] = [
    (
        "lab.toml",
        "control = true
         [[node]]
         name = 'anna'
         [[node]]
         name = 'berta'
         [[at]]
         time = '0s'
         run = 'link delay anna:1 0'",
    ),
    (
        "anna.sh",
        "cat greeting
        touch written 2>/dev/null && echo could be written
        ibv_rc_pingpong -c & await-port 18515 $!
        lab-barrier listening
        wait $!
        rping -s -C 1 >/dev/null 2>&1 || true
        # Every way and name, and nobody asks.
        for name in berta berta-ib 10.18.0.2 localhost; do ssh $name hostname </dev/null; done
        echo out | ssh berta 'cat >/tmp/in; echo there; exit 6'; [ $? = 6 ] || echo wrong status
        lab-barrier done",
    ),
    (
        "berta.sh",
        "#!/usr/bin/busybox sh
        cat greeting
        lab-barrier listening
        ibv_rc_pingpong -c $LAB_PEER || exit 1
        # It is refused until the other one listens.
        until rping -c -a $LAB_PEER-ib -C 1 >/dev/null 2>&1; do sleep 0.1; done
        lab-barrier done
        cat /tmp/in
        state=/sys/class/infiniband/mlx5_0/ports/1/state
        ibvswitch link down berta:1 || exit 1
        until grep -q DOWN $state; do sleep 0.05; done
        ibvswitch link up berta:1 || exit 1
        until grep -q ACTIVE $state; do sleep 0.05; done
        ibvswitch link show nothing:1 2>/dev/null; echo status $?
        ibvswitch external run id; echo status $?
        ibvswitch topology | grep -c 'VF anna '
        echo '<6>a message of a kernel' >/dev/kmsg && exit 3",
    ),
];

#[test]
fn two_nodes_run_scripts_and_nothing_is_left() {
    let place = Place::new();
    // Beside the directory that this is started in.
    let folder = place.work().with_file_name("folder");
    fs::create_dir(&folder).unwrap();
    for (name, text) in SCRIPTS.iter().chain(&[("greeting", "from the host\n")]) {
        fs::write(folder.join(name), text).unwrap();
    }
    let (json, junit) = (place.work().join("out.json"), place.work().join("out.xml"));
    let output = place.output(&[
        "run",
        "--json",
        "out.json",
        "--junit",
        "out.xml",
        "../folder",
    ]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    // The status of the script in berta, which is higher than that in anna.
    assert_eq!(output.status.code(), Some(3), "{printed}\n{told}");
    let lines = |node: &str| -> Vec<&str> {
        let begin = format!("{node}: ");
        let lines = printed.lines();
        lines.filter_map(|line| line.strip_prefix(&begin)).collect()
    };
    for node in ["anna", "berta"] {
        let of_node = lines(node);
        assert_eq!(of_node[0], "from the host", "{printed}");
        // ibv_rc_pingpong ends with status 0 though the payload was wrong.
        assert!(
            of_node.iter().any(|it| it.contains("8192000 bytes in ")),
            "{printed}"
        );
        assert!(!printed.contains("invalid data"), "{printed}");
        assert!(!printed.contains("could be written"), "{printed}");
    }
    let said = lines("anna").join("\n");
    let names = "berta\nberta\nberta\nanna\nthere";
    assert!(said.ends_with(names), "{printed}");
    let said = lines("berta").join("\n");
    assert!(said.contains("\nout\n"), "{printed}");
    let refused = "and not `external run id`\nstatus 2\n1";
    assert!(
        said.contains("\nstatus 5\n") && said.ends_with(refused),
        "{printed}"
    );
    assert!(told.contains("] ibvswitch link delay anna:1 0"), "{told}");
    assert!(told.contains("berta: status 3; its kernel said"), "{told}");
    assert!(told.contains("a message of a kernel"), "{told}");

    let results: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
    assert_eq!(results["status"], 3);
    assert_eq!(results["nodes"][0]["node"], "anna");
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
    fs::write(place.work().join("greeting"), "from the host\n").unwrap();
    // In the root file system of this machine, over which the node writes.
    let line = "cat greeting; >/etc/lab-was-here && ls /etc/lab-was-here; ssh n1 ls /etc/lab-was-here; echo begun; sleep 1000";
    let run = ["run", "--nodes", "1", "--root", "/", "--", line];
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
    let said = await_text(&mut ended, "n1: begun");
    assert_eq!(said[0], "n1: from the host");
    assert_eq!(said[1..3], ["n1: /etc/lab-was-here"; 2], "{said:?}");
    assert!(!Path::new("/etc/lab-was-here").exists());
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
    fs::write(place.work().join("wrong.toml"), "nods = 2").unwrap();
    for (folder, script) in [("one", "n1.sh"), ("two", "n2.sh")] {
        fs::create_dir(place.work().join(folder)).unwrap();
        fs::write(place.work().join(folder).join(script), "true").unwrap();
    }
    for (arguments, status, message) in [
        (
            vec!["run", "--nodes", "0", "--", "true"],
            2,
            "0 is not in 1..=64",
        ),
        (vec!["run"], 2, "name a FILE"),
        (vec!["run", "."], 125, "there is nothing to run in"),
        (vec!["run", "wrong.toml"], 125, "unknown field `nods`"),
        (
            vec!["run", "--nodes", "3", "one"],
            125,
            "node n2 has no script",
        ),
        (
            vec!["run", "--nodes", "1", "two"],
            125,
            "script for unknown node n2",
        ),
        (
            vec!["run", "script", "--", "true"],
            2,
            "cannot be used with",
        ),
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
            vec!["run", "--kernel", "5.4", "--", "true"],
            2,
            "there are 5.10, 6.1, 6.12 and 7.2",
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

/// A kernel with the header of one, which does this and nothing else.
fn kernel(place: &Place, code: &[u8]) -> String {
    let image = Image::get(Kernel::default()).unwrap();
    let mut bytes = fs::read(&image.vmlinuz).unwrap();
    // What follows the sectors of setup (Linux Documentation/arch/x86/boot.rst, setup_sects) runs first.
    let begin = (usize::from(bytes[0x1f1]) + 1) * 512;
    for (at, byte) in bytes[begin..].iter_mut().enumerate() {
        *byte = code[at % code.len()];
    }
    let path = place.work().join("bzImage");
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn a_kernel_that_does_not_boot_is_told_of() {
    let place = Place::new();
    for (code, message) in [
        // It jumps to where it is; it does what it may not.
        (
            &[0xeb, 0xfe][..],
            "has not booted within 2s; --boot-timeout gives it more time",
        ),
        (&[0x0f, 0x0b], "QEMU ended"),
    ] {
        let kernel = kernel(&place, code);
        let run = [
            "run",
            "--nodes",
            "1",
            "--kernel",
            &kernel,
            "--boot-timeout",
            "2s",
            "--",
            "true",
        ];
        let output = place.output(&run);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains(message), "{told}");
        assert_eq!(place.left(), [] as [PathBuf; 0]);
        assert_eq!(place.processes(), [] as [String; 0]);
    }
}

/// Where a file system has no room, that is said, and nothing is left.
#[test]
fn a_full_disk_is_told_of() {
    let place = Place::new();
    fs::create_dir(place.labs()).unwrap();
    let full = "mount -t tmpfs -o size=5m,mode=700 tmpfs \"$IBVSWITCH_LAB_DIR\" || exit 99; \"$@\"; status=$?; \
                ls -A \"$IBVSWITCH_LAB_DIR\"; exit $status";
    let lab = place.lab(&["run", "--nodes", "1", "--", "true"]);
    let mut command = Command::new("unshare");
    command
        .args(["-r", "-m", "sh", "-c", full, "sh"])
        .arg(lab.get_program())
        .args(lab.get_args())
        .current_dir(place.work())
        .env("IBVSWITCH_LAB_DIR", place.labs());
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    if ![Some(125), Some(0)].contains(&output.status.code()) {
        eprintln!("no file system can be mounted here: not tested\n{told}");
        return;
    }
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(told.contains("there is no room in"), "{told}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "lock\n");
}

/// A node that neither answers nor ends: its command is given up, and the lab ends it.
#[test]
#[ignore = "it is waited for that a node answers"]
fn a_node_that_hangs_ends_with_the_lab() {
    let place = Place::new();
    let mut lab = place.lab(&[
        "run",
        "--nodes",
        "1",
        "--timeout",
        "5s",
        "--",
        "echo begun; sleep 1000",
    ]);
    let mut lab = lab
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_text(&mut lab, "n1: begun");
    let qemu = place.process("n1/qmp");
    kill(qemu, Signal::SIGSTOP).unwrap();
    let output = lab.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(
        told.contains("n1: does not answer: its command could not be killed"),
        "{told}"
    );
    assert_eq!(place.left(), [] as [PathBuf; 0]);
    assert_eq!(place.processes(), [] as [String; 0]);
}
