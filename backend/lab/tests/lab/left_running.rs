//! Labs that are left running, as users have them: `up`, `exec`, `cp`, `shell`, `list`, `down`.

use std::{
    fs,
    fs::File,
    io::{Read, Write},
    process::Stdio,
    thread,
    time::Duration,
};

use ibvswitch_lab::image::{Image, Kernel};
use nix::{
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::place::{Place, printed, signal, told};
use testing::wait_until;

impl Place {
    /// The process that holds the lab of this name.
    fn holder(&self, name: &str) -> Pid {
        let lock = fs::read_to_string(self.labs().join(name).join("lock")).unwrap();
        Pid::from_raw(lock.trim().parse().unwrap())
    }

    fn await_no_folder(&self) {
        wait_until("no folder", || self.left().is_empty());
    }
}

#[test]
fn a_lab_that_is_left_running_obeys_until_it_is_ended() {
    let place = Place::new();
    started_and_killed(&place);

    fs::write(place.work().join("greeting"), "from the host\n").unwrap();
    assert_eq!(
        place.prints(&["up", "--nodes", "2", "--name", "mine"]),
        "mine\n"
    );
    assert!(place.prints(&["list"]).starts_with("mine: n1 n2 (process "));
    let error = place.fails(&["up", "--name", "mine"]);
    assert!(error.contains("a lab `mine` runs already"), "{error}");

    let output = place.output(&[
        "exec",
        "n2",
        "--",
        "cat greeting; echo $LAB_NODE $LAB_PEER; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", told(&output));
    assert_eq!(printed(&output), "from the host\nn2 n1\n");
    assert_eq!(told(&output), "");
    assert_eq!(
        place.prints(&["exec", "--name", "mine", "n1", "--", "echo", "a  b"]),
        "a  b\n"
    );
    place.prints(&["exec", "n1", "--", "ping", "-c", "1", "n2"]);
    // What begins a record in the channel of commands, before the record of the command's end.
    let prints = place.prints(&["exec", "n1", "--", "printf '\\036'"]);
    assert_eq!(prints, "\x1e");
    let output = place.output(&[
        "exec",
        "--timeout",
        "1s",
        "n2",
        "--",
        "echo begun; sleep 1000",
    ]);
    assert_eq!(output.status.code(), Some(124), "{}", told(&output));
    assert_eq!(printed(&output), "begun\n");
    assert!(
        told(&output).contains("killed at the time limit"),
        "{}",
        told(&output)
    );
    place.prints(&["exec", "n2", "--", "! pidof sleep"]);
    let output = place.output(&["exec", "n2", "--", "ibvswitch", "link", "down", "n1:1"]);
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    assert!(
        printed(&output).contains("start it with --control"),
        "{}",
        printed(&output)
    );
    // Names, addresses and ports are a lab's own.
    assert_eq!(
        place.prints(&[
            "run",
            "--nodes",
            "1",
            "--",
            "ssh n1 hostname; ! ping -c 1 -W 1 n2"
        ]),
        "n1: n1\nn1: ping: bad address 'n2'\n"
    );
    let error = place.fails(&["exec", "n3", "--", "true"]);
    assert!(
        error.contains("there is no node n3; there are n1, n2"),
        "{error}"
    );
    let error = place.fails(&["exec", "--name", "other", "n1", "--", "true"]);
    assert!(
        error.contains("there is no lab other; there are mine"),
        "{error}"
    );

    who_does_not_wait_leaves_nothing(&place);
    copies(&place);
    terminal(&place);

    // Somebody who never asks keeps nobody.
    let socket = place.labs().join("mine/control");
    let _silent = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let mut waits = place.lab(&["exec", "n1", "--", "echo begun; sleep 1000"]);
    let mut waits = waits
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    waits
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 6])
        .unwrap();
    place.prints(&["down"]);
    assert_eq!(place.left(), [] as [std::path::PathBuf; 0]);
    assert_eq!(place.processes().len(), 0, "{:?}", place.processes());
    let ended = waits.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(125));
    assert!(
        told(&ended).contains("the lab has ended"),
        "{}",
        told(&ended)
    );
    assert_eq!(place.prints(&["list"]), "");
    let error = place.fails(&["down"]);
    assert!(error.contains("`ibvswitch lab up` starts one"), "{error}");
}

/// One whose `up` is killed ends; of one whose holder is killed the folder stays, for the next to remove.
fn started_and_killed(place: &Place) {
    let start = || {
        let mut up = place.lab(&["up", "--nodes", "1", "--name", "killed"]);
        let up = up.stderr(Stdio::null()).spawn().unwrap();
        // In the middle of its boot.
        while !place.labs().join("killed/n1/qmp").exists() {
            thread::sleep(Duration::from_millis(20));
        }
        up
    };
    let mut up = start();
    signal(&up, Signal::SIGKILL);
    up.wait().unwrap();
    place.await_nobody();
    place.await_no_folder();

    let mut up = start();
    kill(place.holder("killed"), Signal::SIGKILL).unwrap();
    assert!(!up.wait().unwrap().success());
    place.await_nobody();
    assert_eq!(place.left(), [place.labs().join("killed")]);
    assert_eq!(place.prints(&["list"]), "");
}

/// A command ends with the `exec` that waits for it, and there are not more than a node can run.
fn who_does_not_wait_leaves_nothing(place: &Place) {
    let start = |command: &str| {
        let command = format!("echo begun; {command}");
        let mut exec = place.lab(&["exec", "n1", "--", &command]);
        let mut exec = exec.stdout(Stdio::piped()).spawn().unwrap();
        exec.stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 6])
            .unwrap();
        exec
    };
    let killed = [start("sleep 1234"), start("sleep 1234")];
    let mut sees = start("timeout 60 sh -c 'while pidof sleep >/dev/null; do usleep 50000; done'");
    let error = place.fails(&["exec", "n1", "--", "true"]);
    assert!(error.contains("3 commands run in n1"), "{error}");
    for exec in &killed {
        signal(exec, Signal::SIGKILL);
    }
    for mut exec in killed {
        exec.wait().unwrap();
    }
    assert!(sees.wait().unwrap().success(), "they run on");
}

fn copies(place: &Place) {
    let work = place.work();
    // Every byte, and the one that begins a record in the channel of commands.
    let bytes: Vec<u8> = (0..=255).chain([0x1e; 5]).cycle().take(300_000).collect();
    fs::create_dir_all(work.join("folder/in it")).unwrap();
    fs::write(work.join("folder/in it/bytes"), &bytes).unwrap();
    place.prints(&["cp", "folder", "greeting", "n1:"]);
    place.prints(&["exec", "n1", "--", "cd; cat greeting; mv folder other"]);
    place.prints(&["cp", "n1:other", "back"]);
    assert_eq!(fs::read(work.join("back/in it/bytes")).unwrap(), bytes);

    let output = place.output(&["cp", "n1:nothing", "."]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("'nothing'"), "{}", told(&output));
    let error = place.fails(&["cp", "n1:other", "n2:"]);
    assert!(error.contains("from one node to this machine"), "{error}");

    // A node that puts a link in place of what it sends does not have its target copied.
    place.prints(&[
        "exec",
        "n2",
        "--",
        "cd; head -c 100000000 /dev/zero >passwd",
    ]);
    let trap = "cd /run/lab-exchange; echo begun; until [ -e cp-*/passwd ]; do :; done; for it in cp-*; do \
                mv $it gone; ln -s /etc $it; done";
    let mut trap = place.lab(&["exec", "n2", "--", trap]);
    let mut trap = trap.stdout(Stdio::piped()).spawn().unwrap();
    trap.stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 6])
        .unwrap();
    let error = place.fails(&["cp", "n2:passwd", "trapped"]);
    assert!(error.contains("n2 has replaced files"), "{error}");
    assert!(!work.join("trapped").exists());
    assert!(trap.wait().unwrap().success());
}

/// A console of which the node knows the size; one terminal has it at a time.
fn terminal(place: &Place) {
    let size = Winsize {
        ws_row: 33,
        ws_col: 99,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).unwrap();
    let mut shell = place.lab(&["shell", "n1"]);
    let terminal = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut shell = shell.stdin(terminal()).stdout(terminal()).spawn().unwrap();
    let mut screen = File::from(pty.master);
    let mut shown = String::new();
    let mut await_text = |screen: &mut File, text: &str| {
        let mut bytes = [0; 1024];
        while !shown.contains(text) {
            let count = screen.read(&mut bytes).unwrap();
            shown += &String::from_utf8_lossy(&bytes[..count]);
        }
    };
    await_text(&mut screen, "Ctrl-] leaves");
    await_text(&mut screen, "# ");
    screen.write_all(b"tty; stty size\r").unwrap();
    await_text(&mut screen, "/dev/ttyS0\r\n33 99\r\n");
    let other = place.lab(&["shell", "n1"]).stdin(terminal()).output();
    let other = other.unwrap();
    assert_eq!(other.status.code(), Some(125));
    let error = told(&other);
    assert!(
        error.contains("another terminal has n1's console"),
        "{error}"
    );
    screen.write_all(b"\x1d").unwrap();
    assert!(shell.wait().unwrap().success());

    // Without a terminal it is a script.
    let mut script = place.lab(&["shell", "n2"]);
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let mut typed = script.stdin.take().unwrap();
    typed
        .write_all(b"x=a\necho $x $LAB_NODE\nexit 4\n")
        .unwrap();
    drop(typed);
    let done = script.wait_with_output().unwrap();
    assert_eq!(printed(&done), "a n2\n");
    assert_eq!(done.status.code(), Some(4));
}

/// The configuration of the page for users: two switches, two partitions, no Ethernet card.
fn configuration() -> &'static str {
    let page = include_str!("../../../../docs/users/lab.md");
    let (_, block) = page.split_once("```toml\n").unwrap();
    block.split_once("```").unwrap().0
}

#[test]
fn a_lab_has_the_subnet_and_the_kernel_that_it_is_given() {
    let place = Place::new();
    fs::write(place.work().join("lab.toml"), configuration()).unwrap();
    let error = place.fails(&["up", "--config", "lab.toml", "--nodes", "4"]);
    assert!(error.contains("the configuration has 3 VFs"), "{error}");
    let error = place.fails(&["up", "--config", "none.toml"]);
    assert!(error.contains("none.toml"), "{error}");

    // As somebody who has built one would have it: another than nodes have by themselves.
    let built = Image::get(Kernel::V7_2).unwrap();
    let kernel = built.vmlinuz.display().to_string();
    let modules = built.vmlinuz.with_file_name("root").display().to_string();
    let with = ["--kernel", &kernel, "--modules", &modules];
    let up = ["up", "--config", "lab.toml", with[0], with[1], with[2]];
    let error = place.fails(&[&up[..], &["/tmp"]].concat());
    assert!(
        error.contains("/tmp/lib/modules") && error.contains("make modules_install"),
        "{error}"
    );

    assert_eq!(place.prints(&[&up[..], &with[3..]].concat()), "lab\n");
    let release = place.prints(&["exec", "anna", "--", "uname", "-r"]);
    assert_eq!(release.trim(), built.release);
    assert!(
        place
            .prints(&["list"])
            .starts_with("lab: anna berta carl (")
    );
    place.prints(&["exec", "anna", "--", "ping", "-c", "1", "berta"]);
    let output = place.output(&["exec", "anna", "--", "ping", "-c", "1", "-W", "1", "carl"]);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let seen = place.prints(&["exec", "anna", "--", "saquery NR | grep -i nodedesc"]);
    assert!(seen.contains("berta") && !seen.contains("carl"), "{seen}");

    // A node that is gone says so however often it is asked, and the others are there.
    let panic = "echo c >/proc/sysrq-trigger";
    for command in [panic, "true", "true", "true", "true", "true"] {
        let error = place.fails(&["exec", "carl", "--", command]);
        assert!(error.contains("its kernel panicked: sysrq"), "{error}");
    }
    place.prints(&["exec", "anna", "--", "ping", "-c", "1", "berta"]);
    place.prints(&["down"]);
}

/// The host boots a node that was off; it joins the queue, and the job that waits for it begins.
#[test]
#[ignore = "two nodes with SLURM"]
fn a_node_boots_when_the_host_asks() {
    let place = Place::new();
    place.prints(&["up", "--cluster", "mpi2", "--nodes", "2", "--later", "n2"]);
    let error = place.fails(&["exec", "n2", "--", "true"]);
    assert!(
        error.contains("n2 is off; ibvswitch lab boot n2"),
        "{error}"
    );
    let head = |line: &str| place.prints(&["exec", "n1", "--", line]);
    head("sbatch --nodes 2 --output /shared/waits --wrap 'srun hostname'");
    assert_eq!(head("sinfo --noheader --states=down --format=%N"), "n2\n");
    assert_eq!(head("squeue --noheader --format='%D %T'"), "2 PENDING\n");
    let error = place.fails(&["boot", "n3"]);
    assert!(error.contains("there is no node n3"), "{error}");
    // Also where it is on already.
    for _ in 0..2 {
        assert_eq!(place.prints(&["boot", "n2"]), "n2 is ready\n");
    }
    // A job behind the one that has waited.
    let both = "srun --exclusive --nodes 2 true 2>/dev/null && sort /shared/waits";
    assert_eq!(head(both), "n1\nn2\n");
    place.prints(&["down"]);
}
