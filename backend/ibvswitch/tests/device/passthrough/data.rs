//! VFs that are passed through to those of another daemon: drivers at the sockets of one daemon, their
//! data by the other.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::{Data, Device, SendRequest, Status, Transport};
use testing::{Configuration, wait_until};
use vfio_user::client::Client;
use vfio_user::{Errno, Protection, SharedMemory};

with_both_doorbells!(data_go_from_one_to_another, what_a_guest_leaves_behind_goes,);

fn data_go_from_one_to_another(inner: &Daemon) {
    let outer = inner.before(&["vm1"], "strict");
    // One of them is passed through, the other is not.
    let (mut a, mut b) = (Peer::open(&outer, "vm1"), Peer::open(inner, "vm2"));
    assert_eq!(a.port.lid, inner.lid("vm1"));
    a.write_to(&b);
    b.write_to(&a);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    qb.post_receive(&[b.sge(HALF, 64)]).expect("is posted");
    let text = b"through and through";
    a.execute(&mut qa, &SendRequest::send(Data::Inline(text)));
    let entry = b.cq.wait().expect("a completion");
    qb.complete_receive(&entry);
    let mut arrived = [0; 19];
    b.buffer.read(HALF, &mut arrived);
    assert_eq!(&arrived, text);
}

/// Objects that the VF behind has: queue pairs, completion queues, keys, protection domains, event queues.
fn objects(inner: &Daemon, name: &str) -> [u64; 5] {
    let objects = &inner.vf(name)["objects"];
    ["qp", "cq", "mr", "pd", "eq"].map(|kind| objects[kind].as_u64().expect("a number"))
}

/// Objects of a VF that is passed through and has no guest: the daemon's event queue.
const NOTHING: [u64; 5] = [0, 0, 0, 0, 1];

fn what_a_guest_leaves_behind_goes(inner: &Daemon) {
    let outer = inner.before(&["vm1"], "strict");
    assert_eq!(objects(inner, "vm1"), NOTHING);
    // A driver that resets the function, and one that dies.
    for reset in [true, false] {
        let peer = Peer::open(&outer, "vm1");
        let _qp = peer.qp(Transport::Rc);
        assert_eq!(objects(inner, "vm1")[..4], [1, 1, 1, 1]);
        if reset {
            peer.device.reset().expect("is reset");
            assert_eq!(objects(inner, "vm1"), NOTHING);
        }
    }
    wait_until("no objects", || objects(inner, "vm1") == NOTHING);
    let mut again = Peer::open(&outer, "vm1");
    let other = Peer::open(inner, "vm2");
    again.write_to(&other);
}

/// Returns the part of `status` about a VF that is passed through.
fn passed(outer: &Daemon) -> serde_json::Value {
    crate::daemon::named(&outer.ask(&["status"])["passthrough"], "vm1")
}

#[test]
fn a_vf_that_is_passed_through_is_told_of() {
    let inner = Daemon::start("poll");
    let outer = inner.before(&["vm1"], "strict");
    // Without any client, as soon as the other subnet's manager has brought the port up.
    wait_until("an active port", || passed(&outer)["state"] == "Active");
    let (idle, behind) = (passed(&outer), inner.vf("vm1"));
    for key in ["lid", "sm_lid", "node_guid", "port_guid"] {
        assert_eq!(idle[key], behind[key], "{key}");
    }
    assert_eq!(
        idle["device"],
        format!("unix:{}", inner.socket("vm1").display())
    );
    let untouched = serde_json::json!({});
    assert_eq!(
        (&idle["commands"], &idle["alive"]),
        (&untouched, &true.into())
    );
    assert_eq!(
        (&idle["client_connected"], &idle["doorbells_mapped"]),
        (&false.into(), &true.into())
    );
    // With a guest.
    let peer = Peer::open(&outer, "vm1");
    let _qp = peer.qp(Transport::Rc);
    let refused = status(&peer.device, &request(0xaff, 0, 0, 16));
    assert_eq!(refused, Status::BadOp);
    let refused = status(&peer.device, &request(0x801, 0, 0x123, 16));
    assert_eq!(refused, Status::BadResource);
    let busy = passed(&outer);
    assert_eq!(busy["client_connected"], true);
    // The daemon has one event queue more.
    for kind in ["pd", "mr", "cq", "qp", "srq"] {
        assert_eq!(
            busy["objects"][kind],
            inner.vf("vm1")["objects"][kind],
            "{kind}"
        );
    }
    let fates = |command: &str| {
        let counts = &busy["commands"][command];
        ["answered", "refused", "executed", "failed"].map(|fate| counts[fate].as_u64().unwrap_or(0))
    };
    assert_eq!(fates("CREATE_QP"), [0, 0, 1, 0]);
    assert_eq!(fates("ENABLE_HCA"), [1, 0, 0, 0]);
    assert_eq!(fates("DEALLOC_PD"), [0, 1, 0, 0]);
    assert_eq!(fates("unknown"), [0, 1, 0, 0]);
    let metrics = outer.run(&["metrics"], "").out;
    let alive = format!(
        "ibvswitch_vf_passthrough_alive{{device={},isolation=\"strict\",vf=\"vm1\"}} 1",
        busy["device"]
    );
    for line in [
        alive.as_str(),
        "ibvswitch_vf_command_seconds_total{command=\"CREATE_QP\",vf=\"vm1\"} ",
        "ibvswitch_vf_commands_total{command=\"CREATE_QP\",fate=\"executed\",vf=\"vm1\"} 1",
        "ibvswitch_vf_active{hypervisor=\"hw\",vf=\"vm1\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let shown = outer.run(&["vf", "show", "vm1"], "").out;
    assert!(shown.contains("    CREATE_QP: 1 by the VF in "), "{shown}");
    assert!(shown.contains("    unknown: 1 refused here\n"), "{shown}");
    let elsewhere = &outer.ask(&["topology"])["elsewhere"][0];
    assert_eq!(
        (&elsewhere["name"], &elsewhere["device"]),
        (&"vm1".into(), &busy["device"])
    );
    // Its port goes down.
    drop(peer);
    inner.ask(&["link", "down", "vm1:1"]);
    wait_until("a port that is down", || passed(&outer)["state"] == "Down");
}

/// Two daemons with one VF behind another, and a driver.
fn one() -> (Daemon, Daemon, Peer) {
    let inner = Daemon::start("trap");
    let outer = inner.before(&["vm1"], "strict");
    let peer = Peer::open(&outer, "vm1");
    (inner, outer, peer)
}

/// A request with its opcode, its operation and a number.
fn request(opcode: u16, operation: u16, number: u32, len: usize) -> Vec<u8> {
    let mut request = vec![0; len];
    request[..2].copy_from_slice(&opcode.to_be_bytes());
    request[6..8].copy_from_slice(&operation.to_be_bytes());
    request[8..12].copy_from_slice(&number.to_be_bytes());
    request
}

/// The status of the reply to a command, whatever it is.
#[track_caller]
fn status(device: &Device, request: &[u8]) -> Status {
    match device.command(request, 272) {
        Ok(_) => Status::Ok,
        Err(test_driver::Error::Refused { status, .. }) => status,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_guest_names_what_is_its_own() {
    let (inner, _outer, peer) = one();
    let before = objects(&inner, "vm1");
    let device = &peer.device;
    for (opcode, number) in [
        // The event queue of the daemon, which made the first.
        (0x302, 1),
        (0x303, 1),
        // Keys, queues and domains that nobody has made.
        (0x202, 0x123),
        (0x401, 0x123),
        (0x501, 0x123),
        (0x703, 0x123),
        (0x801, 0x123),
        (0x80f, 0x123),
        // A page of a program that there is not.
        (0x803, 200),
    ] {
        let answer = status(device, &request(opcode, 0, number, 64));
        assert_eq!(answer, Status::BadResource, "{opcode:#x}");
    }
    assert_eq!(objects(&inner, "vm1"), before);
}

#[test]
fn what_is_not_on_the_list_is_refused() {
    let (_inner, _outer, peer) = one();
    let unknown = |opcode: &u16| connectx::bits::command::Opcode::from_code(*opcode).is_none();
    for opcode in (0..0xb00).filter(unknown) {
        let answer = status(&peer.device, &request(opcode, 0, 0, 64));
        assert_eq!(answer, Status::BadOp, "{opcode:#x}");
    }
    // User contexts, other ports, the port's registers.
    let mut of_context = request(0x800, 0, 0, 16);
    of_context[3] = 1;
    const OTHER: u32 = 1 << 31;
    for refused in [
        of_context,
        request(0x762, 0, OTHER, 64),
        request(0x763, 0, OTHER, 528),
        request(0x764, 0, OTHER, 64),
        request(0x765, 0, OTHER, 64),
        request(0x805, 0, 0x5004, 80),
        request(0x805, 1, 0x7004, 80),
        request(0x50d, 0, 2, 272),
    ] {
        let answer = status(&peer.device, &refused);
        assert_eq!(answer, Status::BadParam, "{refused:?}");
    }
}

#[test]
fn memory_where_the_daemon_has_its_own_is_refused() {
    let inner = Daemon::start("trap");
    let outer = inner.before(&["vm1"], "strict");
    let mut client = Client::connect(outer.socket("vm1")).expect("is served");
    let memory = SharedMemory::new("guest", 1 << 20).expect("memory");
    let end = 1_u64 << 38;
    let mut map = |addr| {
        let (fd, size) = (memory.fd().as_fd(), 1 << 20);
        let mapped = client.dma_map(Some(fd), 0, addr, size, Protection::READ_WRITE);
        mapped.map_err(|error| error.errno().expect("an answer"))
    };
    // With the room for queues of datagrams.
    for addr in [
        end - (1 << 20),
        end - (128 << 20),
        end - (129 << 20),
        end - (257 << 20) + 4096,
    ] {
        assert_eq!(map(addr), Err(Errno::EINVAL), "{addr:#x}");
    }
    for addr in [end, end - (257 << 20), 0] {
        assert_eq!(map(addr), Ok(()), "{addr:#x}");
    }
}

/// A daemon that can be killed and started again.
struct Mortal {
    dir: tempfile::TempDir,
    child: Child,
}

impl Mortal {
    fn start(dir: tempfile::TempDir) -> Self {
        let config = dir.path().join("config.toml");
        let text = Configuration::new()
            .set("log", "warn")
            .hypervisor("hv1", ["vm1", "vm2"]);
        std::fs::write(&config, text.to_string()).expect("is written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
            .arg("--runtime-dir")
            .arg(dir.path())
            .args(["run", "--config"])
            .arg(&config)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("is text");
        assert_eq!(line, "ready\n");
        Self { dir, child }
    }

    fn end(mut self) -> tempfile::TempDir {
        self.child.kill().expect("is running");
        self.child.wait().expect("ends");
        self.dir
    }
}

#[test]
fn a_vf_that_is_lost_comes_back_with_the_next_client() {
    let inner = Mortal::start(tempfile::tempdir().expect("a directory"));
    let socket = inner.dir.path().join("vm1.sock");
    let device = socket.display();
    let outer = Daemon::logging(
        Configuration::new()
            .hypervisor("hw", [])
            .vf("vm1")
            .key("device", format!("unix:{device}")),
    );
    let peer = Peer::open(&outer, "vm1");
    let health = |device: &Device| {
        // Severity, and the syndrome.
        [0x238, 0x23c].map(|offset| device.read_dword(offset).expect("is read"))
    };
    assert_eq!(health(&peer.device), [0, 0]);
    let dir = inner.end();
    let query = request(0x762, 0, 0, 16);
    assert_eq!(status(&peer.device, &query), Status::InternalError);
    assert_eq!(health(&peer.device), [1 << 31, 1 << 16]);
    outer.await_log("the VF behind it is lost");
    // It does not come back under a driver that has mapped its pages.
    let inner = Mortal::start(dir);
    peer.device.reset().expect("is reset");
    assert_eq!(health(&peer.device), [1 << 31, 1 << 16]);
    drop(peer);
    let again = Peer::open(&outer, "vm1");
    assert_eq!(health(&again.device), [0, 0]);
    inner.end();
}

#[test]
fn a_device_that_is_none_is_told_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.toml");
    let device = dir.path().join("none.sock");
    let text = Configuration::new()
        .hypervisor("hw", [])
        .vf("vm1")
        .key("device", format!("unix:{}", device.display()));
    std::fs::write(&config, text.to_string()).expect("is written");
    let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .arg("--runtime-dir")
        .arg(dir.path())
        .args(["run", "--config"])
        .arg(&config)
        .output()
        .expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("is text");
    let path = device.display();
    let expected = format!(
        "VF `vm1`: `device = \"unix:{path}\"`: cannot connect to {path}: No such file or directory (os \
         error 2); start the server first"
    );
    assert!(said.contains(&expected), "{said}");
    assert!(!dir.path().join("vm1.sock").exists());
}
