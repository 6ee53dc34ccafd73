//! `ibvswitch capture`, as tshark reads what it writes.

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use crate::daemon::{Daemon, HALF, Peer, connected, connected_by, peers};
use crate::programs::Programs;
use ibvswitch::control::CAPTURES_MAX;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_driver::{
    AddressVector, Atomic, Config, Data, QueuePair, Receive, SendOpcode, SendRequest,
    SharedReceiveQueue, Transport, XrcDomain,
};
use testing::Configuration;

/// Bytes of a pcap file's header.
const FILE_HEADER: usize = 24;
const QKEY: u32 = 0x1122_3344;

/// A running capture.
struct Capture {
    child: Child,
    out: ChildStdout,
    err: ChildStderr,
    bytes: Vec<u8>,
}

impl Capture {
    /// Starts one; what happens from now on is in it.
    fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
            .args(["--runtime-dir", daemon.dir(), "--config", &daemon.config()])
            .arg("capture")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let mut bytes = vec![0; FILE_HEADER];
        out.read_exact(&mut bytes).expect("a file header");
        Self {
            child,
            out,
            err,
            bytes,
        }
    }

    /// Ends it as Ctrl-C does; returns the file, and what was said about it.
    fn stop(self) -> (Vec<u8>, String) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGINT).expect("is running");
        self.wait()
    }

    /// Waits until it ends by itself.
    fn wait(mut self) -> (Vec<u8>, String) {
        self.out.read_to_end(&mut self.bytes).expect("is read");
        let mut said = String::new();
        BufReader::new(self.err)
            .read_to_string(&mut said)
            .expect("is text");
        assert!(self.child.wait().expect("ends").success(), "{said}");
        (self.bytes, said)
    }
}

/// These fields of each packet, as tshark sees them: numbers in whatever notation, as numbers.
fn fields(capture: &[u8], filter: &str, fields: &[&str]) -> Vec<Vec<Option<u64>>> {
    let mut arguments = vec!["-r", "-", "-Y", filter, "-T", "fields", "-E", "separator=|"];
    for field in fields {
        arguments.extend(["-e", field]);
    }
    tshark(capture, &arguments)
        .lines()
        .map(|line| line.split('|').map(number).collect())
        .collect()
}

fn tshark(capture: &[u8], arguments: &[&str]) -> String {
    let mut child = Command::new("tshark")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tshark is installed (scripts/setup)");
    let mut stdin = child.stdin.take().expect("piped");
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(capture).expect("is read"));
        let output = child.wait_with_output().expect("ends");
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).expect("is text")
    })
}

fn number(text: &str) -> Option<u64> {
    let first = text.split(',').next().unwrap_or(text);
    match first {
        "True" => Some(1),
        "False" => Some(0),
        _ => match first.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => first.parse().ok(),
        },
    }
}

const ROUTE: [&str; 6] = [
    "erf.flags.cap",
    "infiniband.lrh.slid",
    "infiniband.lrh.dlid",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
];

#[test]
fn connections() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let capture = Capture::start(&daemon, &["--vf", "vm1", "--data"]);

    a.fill(0, 9001, 1);
    let from = [a.sge(0, 9001)];
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
    let into = [a.sge(HALF, 5000)];
    a.execute(&mut qa, &SendRequest::read(b.remote(HALF), &into));
    b.set_word(64, 1000);
    let into = [a.sge(HALF, 8)];
    let operands = Atomic {
        swap_add: 23,
        ..Atomic::default()
    };
    let add = SendRequest::atomic(SendOpcode::FetchAdd, b.remote(64), operands, &into);
    a.execute(&mut qa, &add);
    qb.post_receive(&[b.sge(HALF, 64)]).expect("is posted");
    a.execute(&mut qa, &SendRequest::send_imm(Data::Inline(b"hello"), 42));
    qb.complete_receive(&b.cq.wait().expect("arrives"));
    let (file, said) = capture.stop();

    let (la, lb) = (u64::from(a.port.lid), u64::from(b.port.lid));
    let (na, nb) = (u64::from(qa.number()), u64::from(qb.number()));
    let psn = |plus: u64| (0x00ff_fff0 + plus) & 0xff_ffff;
    let there = |opcode, plus| [0, la, lb, opcode, psn(plus), nb].map(Some).to_vec();
    let back = |opcode, plus| [1, lb, la, opcode, psn(plus), na].map(Some).to_vec();
    let found = fields(&file, "infiniband.bth", &ROUTE);
    // Opcodes of table 38 of the specification, volume 1.
    let expected = vec![
        there(0x06, 0),
        there(0x07, 1),
        there(0x08, 2),
        back(0x11, 2),
        there(0x0c, 3),
        back(0x0d, 3),
        back(0x0f, 4),
        there(0x14, 5),
        back(0x12, 5),
        there(0x05, 6),
        back(0x11, 6),
    ];
    assert_eq!(found, expected);
    assert!(said.starts_with("11 packets captured, 0 lost"), "{said}");

    let only = |filter: &str, names: &[&str]| fields(&file, filter, names).remove(0);
    assert_eq!(
        only(
            "infiniband.bth.opcode == 6",
            &[
                "infiniband.reth.va",
                "infiniband.reth.r_key",
                "infiniband.reth.dmalen"
            ]
        ),
        [b.remote(HALF).addr, u64::from(b.remote(HALF).key), 9001].map(Some)
    );
    // The length in words is without the variant CRC: 9001 - 2 * 4096 bytes, 3 of padding.
    assert_eq!(
        only(
            "infiniband.bth.opcode == 8",
            &["infiniband.lrh.pktlen", "infiniband.bth.padcnt", "erf.wlen"]
        ),
        [(8 + 12 + 809 + 3 + 4) / 4, 3, 838].map(Some)
    );
    assert_eq!(
        only(
            "infiniband.bth.opcode == 0x14",
            &["infiniband.atomiceth.swapdt"]
        ),
        [Some(23)]
    );
    assert_eq!(
        only(
            "infiniband.bth.opcode == 0x12",
            &["infiniband.atomicacketh.origremdt", "infiniband.aeth.msn"]
        ),
        [Some(1000), Some(3)]
    );
    // Immediate data, then the payload.
    assert!(file.windows(9).any(|window| window == b"\0\0\0\x2ahello"));
    // What was written, byte for byte.
    let mut payload = vec![0; 4096];
    a.buffer.read(0, &mut payload);
    assert!(file.windows(4096).any(|window| window == payload));
}

#[test]
fn datagrams_and_extended_connections() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    qa.activate(0, QKEY).expect("becomes ready");
    qb.activate(0, QKEY).expect("becomes ready");
    let domain = XrcDomain::new(&b.device).expect("a domain");
    let mut queue = SharedReceiveQueue::new(&b.pd, 4, 1, Some((&domain, &b.cq))).expect("an SRQ");
    let target = Config {
        receive: Receive::Shared(&queue),
        xrcd: Some(&domain),
        ..b.config(Transport::XrcTarget)
    };
    let initiator = a.config(Transport::XrcInitiator);
    let (mut xa, _xb): (QueuePair, QueuePair) = connected_by(&initiator, &target, &a, &b, |_| {});
    // Seen from the receiver, and of the payload the beginning.
    let capture = Capture::start(&daemon, &["--vf", "vm2", "--data", "--snaplen", "16"]);
    let gid = b.device.gid(0).expect("a GID");
    let to = AddressVector {
        lid: b.port.lid,
        qpn: qb.number(),
        qkey: QKEY,
        global: Some((gid, 64)),
        ..AddressVector::default()
    };
    qb.post_receive(&[b.sge(HALF, 4136)]).expect("is posted");
    a.fill(0, 1000, 3);
    let from = [a.sge(0, 1000)];
    a.execute(&mut qa, &SendRequest::send(Data::Memory(&from)).to(&to));
    qb.complete_receive(&b.cq.wait().expect("arrives"));
    queue.post(&[b.sge(HALF, 65_536)]).expect("is posted");
    let from = [a.sge(0, 9000)];
    let send = SendRequest::send(Data::Memory(&from)).to_srq(queue.number());
    a.execute(&mut xa, &send);
    queue.complete(&b.cq.wait().expect("arrives"));
    let (file, _) = capture.stop();

    let (la, lb) = (u64::from(a.port.lid), u64::from(b.port.lid));
    let lengths = [&ROUTE[..4], &["erf.wlen"]].concat();
    let found = fields(&file, "infiniband.bth", &lengths);
    // Headers of 8 and 12 bytes, 4 that name the receive queue, and 6 of check sums.
    let extended = 8 + 12 + 4 + 6;
    let expected: Vec<Vec<Option<u64>>> = [
        [1, la, lb, 0x64, 8 + 40 + 12 + 8 + 1000 + 6],
        [1, la, lb, 0xa0, extended + 4096],
        [1, la, lb, 0xa1, extended + 4096],
        [1, la, lb, 0xa2, extended + 9000 - 2 * 4096],
        [0, lb, la, 0xb1, 8 + 12 + 4 + 6],
    ]
    .map(|row| row.map(Some).to_vec())
    .to_vec();
    assert_eq!(found, expected);
    let datagram = fields(
        &file,
        "infiniband.deth",
        &[
            "infiniband.deth.q_key",
            "infiniband.deth.srcqp",
            "infiniband.grh.paylen",
            "erf.rlen",
            "erf.wlen",
        ],
    )
    .remove(0);
    let headers = 8 + 40 + 12 + 8;
    assert_eq!(
        datagram,
        [
            u64::from(QKEY),
            u64::from(qa.number()),
            12 + 8 + 1000 + 4,
            16 + headers + 16,
            headers + 1000 + 6
        ]
        .map(Some)
    );
}

/// Requests of the subnet manager and answers, whole and with check sums.
#[test]
fn management_packets() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.sweep_interval", 1)
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"]),
    );
    let capture = Capture::start(&daemon, &["--manager", "--count", "10"]);
    let (file, said) = capture.wait();
    assert!(said.starts_with("10 packets captured, 0 lost"), "{said}");
    let found = fields(
        &file,
        "infiniband.mad",
        &[
            "erf.flags.cap",
            "infiniband.lrh.vl",
            "infiniband.mad.mgmtclass",
            "infiniband.mad.method",
        ],
    );
    assert_eq!(found.len(), 10);
    for packet in &found {
        // SMPs by directed route or by LID: a Get or a Set goes out, the answer comes in.
        let [interface, vl, class, method] = packet[..] else {
            panic!("{packet:?}")
        };
        assert_eq!(vl, Some(15));
        assert!(matches!(class, Some(1 | 0x81)), "{packet:?}");
        match interface {
            Some(0) => assert!(matches!(method, Some(1 | 2 | 7)), "{packet:?}"),
            _ => assert!(matches!(method, Some(0x81 | 5)), "{packet:?}"),
        }
    }
    // Each record behind its two headers is a packet with right check sums.
    let mut rest = &file[FILE_HEADER..];
    while let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = rest {
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        wire::MadPacket::parse(&rest[32..16 + length]).expect("is a packet");
        rest = &rest[16 + length..];
    }
    assert!(rest.is_empty());
}

/// Two guests send to one, whose link a switch marks packets for: the bits and the notifications are seen.
#[test]
fn congestion() {
    const LEN: usize = 128 << 10;
    let daemon = Daemon::with_slow_links(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"])
            .hypervisor("hv3", ["vm3"]),
    );
    let mut near = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
    let far = Peer::open(&daemon, "vm3");
    let mut pairs = [0, 1].map(|at| {
        let (config, other) = (near[at].config(Transport::Rc), far.config(Transport::Rc));
        connected_by(&config, &other, &near[at], &far, |connection| {
            connection.ack_timeout = 20;
        })
    });
    let nodes = daemon.ask(&["topology"])["nodes"].clone();
    let mut nodes = nodes.as_array().expect("a list").iter();
    let switch = nodes.find(|node| node["name"] == "sw1").expect("a switch");
    let (programs, switch) = (Programs::new(&daemon), switch["lid"].to_string());
    let setting = ["0x14", "0", "0", "15", "0", "0", "0:0", "0"];
    let set = [
        &["ibccconfig", "SwitchCongestionSetting", &switch],
        &setting[..],
    ]
    .concat();
    programs.run(&set);
    let lids = [0, 1].map(|at| near[at].port.lid);
    let to_vm3 = |at: usize| format!("infiniband.lrh.slid == {} && infiniband.reth", lids[at]);
    // On a machine that has other things to do the guests may send one after the other.
    let mut rounds = 0;
    let (capture, marked) = loop {
        let capture = Capture::start(&daemon, &["--vf", "vm3", "--data"]);
        for ((qp, _), from) in pairs.iter_mut().zip(&near) {
            let list = [from.sge(0, LEN)];
            for _ in 0..16 {
                let write = SendRequest::write(far.remote(HALF), Data::Memory(&list));
                qp.post_send(&write).expect("is posted");
            }
        }
        for (at, (qp, _)) in pairs.iter_mut().enumerate() {
            for _ in 0..16 {
                assert!(near[at].sent(qp).is_ok());
            }
        }
        let (capture, _) = capture.stop();
        // The upper bit of the eight that the dissector has no name for.
        let marked = [0, 1].map(|at| {
            let filter = format!("{} && infiniband[12:1] == 80", to_vm3(at));
            fields(&capture, &filter, &ROUTE).len()
        });
        rounds += 1;
        if marked.iter().all(|&marked| marked > 0) {
            break (capture, marked);
        }
        assert!(rounds < 20, "no packet is marked");
    };
    for (at, (qp, _)) in pairs.iter().enumerate() {
        let marked = marked[at];
        let all = fields(&capture, &to_vm3(at), &ROUTE).len();
        assert!(marked <= all);
        let notifications = format!(
            "infiniband.bth.opcode == 128 && infiniband.lrh.dlid == {} && infiniband[12:1] == 40",
            lids[at]
        );
        let seen = fields(&capture, &notifications, &ROUTE);
        // The first packet of a frame alone has an RETH.
        assert!(seen.len() >= marked, "{} of {marked}", seen.len());
        for packet in seen {
            assert_eq!(packet[1], Some(u64::from(far.port.lid)));
            assert_eq!(packet[5], Some(u64::from(qp.number())));
        }
    }
    let malformed = fields(&capture, "_ws.malformed", &ROUTE);
    assert_eq!(malformed.len(), 0);
}

/// A capture ends with its reader, and the data path does not notice a reader that sleeps.
#[test]
fn a_reader_that_does_not_read() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let capture = Capture::start(&daemon, &["--data"]);
    // More than pipes and queues hold.
    let from = [a.sge(0, 1 << 20)];
    for _ in 0..100 {
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
        a.execute(&mut qa, &write);
    }
    let (file, said) = capture.stop();
    assert!(file.len() > 1 << 20);
    assert!(!said.contains(" 0 lost"), "{said}");
    // Whatever was lost, the rest is well-formed.
    let opcodes = fields(&file, "infiniband.bth", &["infiniband.bth.opcode"]);
    assert!(opcodes.len() > 1000, "{}", opcodes.len());
}

#[test]
fn wrong_wishes() {
    let daemon = Daemon::start("trap");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
            .args(["--runtime-dir", daemon.dir(), "--config", &daemon.config()])
            .arg("capture")
            .args(arguments)
            .output()
            .expect("starts");
        let error = String::from_utf8(output.stderr).expect("is text");
        (output.status.code(), error)
    };
    assert_eq!(
        run(&["--vf", "vm9"]),
        (
            Some(5),
            "ibvswitch: there is no VF `vm9`; there are vm1, vm3, vm2, vm4\n".to_owned()
        )
    );
    assert_eq!(
        run(&["-w", "/nowhere/x.pcap"]),
        (
            Some(1),
            "ibvswitch: cannot write /nowhere/x.pcap: No such file or directory (os error 2); name a \
             file in a directory where this user may write\n"
                .to_owned()
        )
    );
    let (status, error) = run(&["--json"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("-w FILE"), "{error}");
    for (arguments, message) in [
        (
            ["--duration", "0"],
            "invalid value '0' for '--duration <SECONDS>': write seconds, such as 10 or 0.5",
        ),
        (
            ["--duration", "soon"],
            "invalid value 'soon' for '--duration <SECONDS>': write seconds, such as 10 or 0.5",
        ),
        (
            ["--count", "1.5"],
            "invalid value '1.5' for '--count <N>': write a whole number from 1 on",
        ),
        (
            ["--snaplen", "9000"],
            "invalid value '9000' for '--snaplen <BYTES>': write a whole number from 0 to 4096",
        ),
    ] {
        let (status, error) = run(&arguments);
        assert_eq!(status, Some(2));
        assert!(error.contains(message), "{error}");
    }
}

/// The daemon says which VFs there are, whatever the client's configuration.
#[test]
fn the_daemons_vfs_are_captured() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.sweep_interval", 1)
            .hypervisor("h", ["own"]),
    );
    let file = format!("{}/x.pcap", daemon.dir());
    // Without its configuration: the built-in one has other names.
    let capture =
        |arguments: &[&str]| daemon.run(&[&["capture", "-w", &file][..], arguments].concat(), "");
    let all = capture(&["--count", "2"]);
    assert_eq!(
        (all.status, all.err.lines().last()),
        (Some(0), Some("2 packets captured, 0 lost, 0 left out"))
    );
    let one = capture(&["--vf", "own", "--duration", "0.05"]);
    assert_eq!(one.status, Some(0), "{}", one.err);
    let none = capture(&["--vf", "vm1"]);
    assert_eq!(
        (none.status, none.err.as_str()),
        (
            Some(5),
            "ibvswitch: there is no VF `vm1`; there is only own\n"
        )
    );
}

/// Captures end when their clients like: they leave places for others.
#[test]
fn captures_keep_nobody_from_asking() {
    let daemon = Daemon::start("trap");
    let mut captures = Vec::new();
    for _ in 0..CAPTURES_MAX {
        captures.push(Capture::start(&daemon, &[]));
    }
    let file = format!("{}/x.pcap", daemon.dir());
    let one_more = daemon.run(&["capture", "-w", &file], "");
    assert_eq!(one_more.status, Some(1));
    assert_eq!(
        one_more.err,
        "ibvswitch: the daemon refused: 12 captures are running; end one first\n"
    );
    captures.pop().expect("is running").stop();
    let again = daemon.run(&["capture", "-w", &file, "--duration", "0.05"], "");
    assert_eq!(again.status, Some(0), "{}", again.err);
}
