//! VMMs that do something wrong: what the daemon says of it, and that others have what is theirs.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::{Command, Stdio};

use crate::daemon::{Bystanders, Daemon, Peer};
use nix::sys::memfd::{MFdFlags, memfd_create};
use testing::Configuration;
use vfio_user::Protection;
use vfio_user::client::Client;

fn two() -> Configuration {
    Configuration::new().hypervisor("hv1", ["vm1", "vm2"])
}

fn connect(daemon: &Daemon, vf: &str) -> Client {
    Client::connect(daemon.socket(vf)).expect("is served")
}

/// A memfd that takes no memory.
fn sparse(size: u64) -> File {
    let file = File::from(memfd_create("sparse", MFdFlags::empty()).expect("a memfd"));
    file.set_len(size).expect("is sparse");
    file
}

/// Shares some of a file; what the daemon thought of it.
fn share(client: &mut Client, file: impl AsFd, addr: u64) -> Result<(), nix::Error> {
    let shared = client.dma_map(Some(file.as_fd()), 0, addr, 0x1000, Protection::READ_WRITE);
    shared.map_err(|error| error.errno().expect("an answer"))
}

/// Lines of the log with this text.
fn lines(log: &str, text: &str) -> Vec<String> {
    let lines = log.lines().filter(|line| line.contains(text));
    lines.map(str::to_owned).collect()
}

#[test]
fn memory_that_is_not_shared_is_told_of_at_once() {
    const TOLD: &str = "guest memory came without a file descriptor";
    let daemon = Daemon::logging(two());
    let mut wrong = connect(&daemon, "vm1");
    let mut right = connect(&daemon, "vm2");
    // As QEMU 11.1 begins: without shared memory, and with. ROMs and a display's memory have no
    // descriptor either way.
    let announce = |client: &mut Client, addr, size, protection| {
        client
            .dma_map(None, 0, addr, size, protection)
            .expect("is taken");
    };
    for client in [&mut wrong, &mut right] {
        announce(client, 0xfffc_0000, 0x4_0000, Protection::READ);
        announce(client, 0xc_0000, 0x2_0000, Protection::READ_WRITE);
        announce(client, 0xfd00_0000, 0x100_0000, Protection::READ_WRITE);
    }
    share(&mut right, sparse(0x1000), 0).expect("is memory");
    assert_eq!(lines(&daemon.log(), TOLD), [""; 0]);
    announce(&mut wrong, 0, 0xa_0000, Protection::READ_WRITE);
    // Its firmware maps it again and again.
    wrong.dma_unmap(0, 0xa_0000).expect("is unmapped");
    announce(&mut wrong, 0, 0x8_0000, Protection::READ_WRITE);

    let log = daemon.log();
    let [line] = &lines(&log, TOLD)[..] else {
        panic!("one line: {log}")
    };
    assert!(line.contains(" WARN vf{name=\"vm1\"}:"), "{line}");
    assert!(
        line.ends_with("share it: memory-backend-memfd,share=on"),
        "{line}"
    );
    assert_eq!(daemon.vf("vm1")["memory_unshared"], true);
    assert_eq!(daemon.vf("vm2")["memory_unshared"], serde_json::Value::Null);
    let status = daemon.run(&["status"], "").out;
    assert_eq!(lines(&status, "memory not shared").len(), 1, "{status}");
    let show = daemon.run(&["vf", "show", "vm1"], "").out;
    let expected = "connected, but its memory is not shared: add share=on, as `ibvswitch vf \
                    qemu-args` does";
    assert_eq!(lines(&show, expected).len(), 1, "{show}");

    drop(wrong);
    // The next one begins anew.
    let mut next = connect(&daemon, "vm1");
    share(&mut next, sparse(0x1000), 0).expect("is memory");
    assert_eq!(daemon.vf("vm1")["memory_unshared"], serde_json::Value::Null);
}

#[test]
fn the_log_names_who_comes_goes_and_waits() {
    let daemon = Daemon::logging(two());
    let first = connect(&daemon, "vm2");
    let log = daemon.log();
    let [line] = &lines(&log, "client connected")[..] else {
        panic!("one line: {log}")
    };
    assert!(line.contains(" INFO vf{name=\"vm2\"}:"), "{line}");
    let second = UnixStream::connect(daemon.socket("vm2")).expect("is listening");
    daemon.await_log("another client waits until this one is gone");
    let log = daemon.log();
    let [line] = &lines(&log, "another client waits")[..] else {
        panic!("one line: {log}")
    };
    assert!(line.contains(" WARN vf{name=\"vm2\"}:"), "{line}");
    drop((first, second));
    daemon.await_log("client gone");
    let gone = lines(&daemon.log(), "client gone");
    assert!(gone[0].contains(" INFO vf{name=\"vm2\"}:"), "{gone:?}");
}

#[test]
fn a_client_that_errs_without_end_fills_no_log() {
    let daemon = Daemon::logging(two());
    let mut client = connect(&daemon, "vm1");
    let (pipe, _other): (OwnedFd, _) = nix::unistd::pipe().expect("a pipe");
    for _ in 0..5000 {
        assert_eq!(share(&mut client, &pipe, 0), Err(nix::Error::EINVAL));
    }
    drop(client);
    // Nor one that begins anew each time.
    for _ in 0..200 {
        let mut client = connect(&daemon, "vm1");
        assert_eq!(share(&mut client, &pipe, 0), Err(nix::Error::EINVAL));
    }
    // Served when those before are gone.
    drop(connect(&daemon, "vm1"));
    let log = daemon.log();
    assert!(log.lines().count() < 100, "{} lines", log.lines().count());
    let refused = "guest memory cannot be used: guest memory must be a regular file or memfd: use \
                   memory-backend-memfd,share=on";
    // What is left out is counted.
    let (of_first, _) = log.split_once("client gone").expect("is gone");
    let of_first = &log[..of_first.len() + log[of_first.len()..].find('\n').expect("a line")];
    let omitted: usize = { of_first.split(" lines were left out before") }
        .filter_map(|text| text.rsplit_once('(')?.1.parse::<usize>().ok())
        .sum();
    let told = lines(of_first, refused).len();
    assert!((16..50).contains(&told), "{log}");
    assert_eq!(told + omitted, 5000, "{log}");
}

#[test]
fn address_space_that_one_takes_is_its_own() {
    let daemon = Daemon::start("trap");
    let bystanders = Bystanders::start(&daemon);
    let mut clients = [connect(&daemon, "vm1"), connect(&daemon, "vm2")];
    let files: Vec<File> = (0..107).map(|_| sparse(1 << 40)).collect();
    for client in &mut clients {
        for (file, page) in files.iter().zip(0..) {
            let shared = share(client, file, page * 0x1000);
            let expected = match page {
                0 => Ok(()),
                _ => Err(nix::Error::ENOSPC),
            };
            assert_eq!(shared, expected, "{page}");
        }
    }
    bystanders.stop();
    // Others attach as ever.
    let (mut a, b) = (Peer::open(&daemon, "vm3"), Peer::open(&daemon, "vm4"));
    a.write_to(&b);
}

#[test]
fn a_vm_may_have_as_much_memory_as_configured() {
    let daemon = Daemon::logging(two().key("guest_memory", "5T"));
    let (mut small, mut large) = (connect(&daemon, "vm1"), connect(&daemon, "vm2"));
    let file = sparse(4 << 40);
    assert_eq!(share(&mut large, &file, 0), Ok(()));
    assert_eq!(share(&mut small, &file, 0), Err(nix::Error::ENOSPC));
    let told = "guest memory cannot be used: the file has 4398046511104 bytes, other files of this \
                VM have 0, and the limit for all of them is 1099511627776: raise the VF's \
                `guest_memory` in the configuration";
    assert_eq!(lines(&daemon.log(), told).len(), 1, "{}", daemon.log());
}

/// A shell that sets a limit and becomes the program.
fn limited(limit: &str, program: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\""), program]);
    command
}

fn many_vfs() -> Configuration {
    let hypervisor = Configuration::new()
        .set("log", "error")
        .set("engine.doorbells", "poll")
        .hypervisor("hv1", []);
    (0..100).fold(hypervisor, |it, number| it.vf(&format!("vm{number}")))
}

#[test]
fn more_files_are_open_than_a_shell_allows_by_default() {
    let daemon = Daemon::spawned(many_vfs(), |program, _| limited("ulimit -S -n 64", program));
    drop(connect(&daemon, "vm99"));
}

#[test]
fn too_many_open_files_names_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.toml");
    std::fs::write(&config, many_vfs().to_string()).expect("is written");
    let output = limited("ulimit -n 64", env!("CARGO_BIN_EXE_ibvswitch"))
        .env_remove("NOTIFY_SOCKET")
        .arg("--runtime-dir")
        .arg(dir.path())
        .args(["run", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).expect("is text");
    assert!(
        error.ends_with(
            ": Too many open files (os error 24); raise the limit of open files: `LimitNOFILE=` of \
             a service, `ulimit -n` in a shell\n"
        ),
        "{error}"
    );
}

/// Connections of each kind that come as fast as they can.
const CONNECTIONS: usize = 2000;
/// Lines that the log may have about the clients of all sockets together: each kind has 16, and the time that the test
/// takes adds a few.
const MAX_LINES: usize = 200;

#[test]
fn clients_that_connect_again_and_again_have_few_lines_in_the_log() {
    let daemon = Daemon::kept(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .port("net1", 1),
    );
    // A header of a message that is too long, of both protocols.
    let nonsense = [0xff; 16];
    for socket in [daemon.socket("vm1"), daemon.socket("net1")] {
        for at in 0..CONNECTIONS {
            let mut stream = UnixStream::connect(&socket).expect("listens");
            if at % 2 == 0 {
                stream.write_all(&nonsense).expect("is buffered");
            }
        }
    }
    for at in 0..CONNECTIONS {
        let control = format!("{}/control.sock", daemon.dir());
        let mut stream = UnixStream::connect(control).expect("listens");
        if at % 2 == 0 {
            stream.write_all(&nonsense).expect("is buffered");
        }
    }
    // Programs of the host that want to attach where there is no node.
    let output = daemon.command().args(["external", "env"]).output();
    let text = String::from_utf8(output.expect("runs").stdout).expect("is text");
    let (_, name) = text.split_once("IBSIM_SOCKNAME='").expect("a name");
    let (name, _) = name.split_once('\'').expect("its end");
    let of = |name: String| SocketAddr::from_abstract_name(name).expect("a name");
    let program = UnixDatagram::bind_addr(&of(format!("{name}:test"))).expect("a socket");
    program
        .connect_addr(&of(format!("{name}:ctl\0")))
        .expect("listens");
    let mut question = [b'x'; 80];
    question[..4].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
    question[4..16].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0, 64, 0, 0, 0]);
    for _ in 0..CONNECTIONS {
        program.send(&question).expect("is taken");
        program.recv(&mut [0; 80]).expect("an answer");
    }
    // Those that are served after them.
    drop(connect(&daemon, "vm1"));
    vhost_user_driver::Driver::start_with(daemon.socket("net1"), vhost_user_driver::FEATURES)
        .expect("is served");
    daemon.ask(&["status"]);
    let log = daemon.log();
    assert!(log.lines().count() < MAX_LINES, "{log}");
    for text in ["client gone", "client sent away", "refused program"] {
        let shown = lines(&log, text).len();
        assert!((8..=40).contains(&shown), "{shown} of {text}: {log}");
    }
    assert!(log.contains("one in 10 s is written from now on"), "{log}");
}
