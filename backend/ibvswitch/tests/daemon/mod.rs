//! A daemon with four VFs on two hypervisors, and drivers on its sockets.

// Each test program uses its part of this.
#![allow(dead_code)]

pub mod ethernet;
pub mod live;
pub mod passthrough;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use test_driver::{
    Access, Buffer, CompletionQueue, Config, Connection, Cqe, Device, Event, EventType,
    MemoryRegion, Port, ProtectionDomain, QueuePair, Remote, SendRequest, Sge, Transport, Uar,
    pattern,
};
use testing::{Configuration, wait_until};

/// Bytes that a peer can send from, and as many to receive to.
pub const HALF: usize = 4 << 20;

/// Switches for [`Daemon::configured`]: two leaves and a spine.
pub fn leaves() -> Configuration {
    Configuration::new()
        .switches(["spine", "leaf1", "leaf2"])
        .link("leaf1", "spine")
        .link("leaf2", "spine")
}

/// Two clusters with LIDs from 1, and VMs outside of both, on two ports that VMs share.
pub fn clusters_at_shared_ports() -> Configuration {
    Configuration::new()
        .set("fabric.model", "shared-port")
        .clusters(["a", "b"])
        .hypervisor("hv1", ["out1"])
        .member("a1", "a")
        .member("b1", "b")
        .member("a3", "a")
        .key("vlid", 3)
        .hypervisor("hv2", ["out2"])
        .spare_vfs(1)
        .member("a2", "a")
        .member("b2", "b")
}

/// Output of the program, and its status.
#[derive(Debug)]
pub struct Outcome {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The program, serving; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
    /// The device sees every doorbell.
    pub traps: bool,
    /// Daemon that drivers connect to, if the data path of all VFs is passed through.
    front: Option<Box<Daemon>>,
}

/// Adds to a configuration the number of engines that all tests of devices are to be done with
/// (`IBVSWITCH_TEST_ENGINES`), unless it says that itself.
fn with_engines(text: &str) -> String {
    let Ok(count) = std::env::var("IBVSWITCH_TEST_ENGINES") else {
        return text.to_owned();
    };
    let line = format!("[engine]\nthreads = {count}\n");
    if text.contains("\nthreads = ") {
        text.to_owned()
    } else if text.contains("[engine]\n") {
        text.replacen("[engine]\n", &line, 1)
    } else {
        format!("{text}\n{line}")
    }
}

impl Daemon {
    /// Starts it with all VFs taking doorbells in this way: "trap" or "poll".
    pub fn start(doorbells: &str) -> Self {
        Self::configured(
            Configuration::new()
                .set("engine.doorbells", doorbells)
                .hypervisor("hv1", ["vm1", "vm3"])
                .hypervisor("hv2", ["vm2", "vm4"]),
        )
    }

    /// Starts it with a configuration of the test's own.
    pub fn configured(text: impl Display) -> Self {
        let text = format!("log = \"warn\"\n{text}");
        Self::spawned(text, |program, _| Command::new(program))
    }

    /// Starts it with the slowest links that there are. A daemon that was built without optimization hardly fills two
    /// of them, so it is the program as users build it where `IBVSWITCH_BIN` names that.
    pub fn with_slow_links(configuration: Configuration) -> Self {
        let configuration = configuration
            .set("log", "warn")
            .set("fabric.bandwidth", "model")
            .set("fabric.link_width", "1X")
            .set("fabric.link_speed", "SDR");
        Self::spawned(configuration, |program, _| {
            Command::new(std::env::var_os("IBVSWITCH_BIN").unwrap_or_else(|| program.into()))
        })
    }

    /// Starts it with a log that can be read.
    pub fn logging(text: impl Display) -> Self {
        Self::spawned(text, |program, dir| {
            let log = std::fs::File::create(dir.join("log")).expect("is created");
            let mut command = Command::new(program);
            command.stderr(log);
            command
        })
    }

    /// Starts it with all that it has to say in its log, for [`Daemon::await_line`].
    pub fn talkative() -> Self {
        Self::logging(
            Configuration::new()
                .set("log", "debug")
                .hypervisor("hv1", ["vm1", "vm2"]),
        )
    }

    /// The same, by a command of the test's own, which gets the program's arguments.
    pub fn spawned(text: impl Display, command: impl FnOnce(&str, &Path) -> Command) -> Self {
        Self::spawned_with(&[], text, command)
    }

    /// Starts it with a keeper and a log that can be read.
    pub fn kept(text: impl Display) -> Self {
        Self::spawned_with(&["--keeper"], text, |program, dir| {
            let log = std::fs::File::create(dir.join("log")).expect("is created");
            let mut command = Command::new(program);
            command.stderr(log);
            command
        })
    }

    /// Kills the process that has the sockets.
    pub fn kill_served(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("ibvswitch.lock"));
        let pid = pid.expect("is readable").trim().parse().expect("a number");
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it is there");
    }

    fn spawned_with(
        options: &[&str],
        text: impl Display,
        command: impl FnOnce(&str, &Path) -> Command,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = dir.path().join("config.toml");
        let text = &with_engines(&text.to_string());
        std::fs::write(&config, text).expect("is written");
        let mut child = command(env!("CARGO_BIN_EXE_ibvswitch"), dir.path())
            .env_remove("RUST_LOG")
            .env_remove("NOTIFY_SOCKET")
            .arg("--runtime-dir")
            .arg(dir.path())
            .arg("run")
            .arg("--config")
            .arg(&config)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = child.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("is text");
        assert_eq!(line, "ready\n");
        Self {
            child,
            dir,
            traps: !text.contains("\"poll\"") && !text.contains("\"adaptive\""),
            front: None,
        }
        .passed_through(text)
    }

    /// With a daemon before it, where all tests of devices are to be done so
    /// (`IBVSWITCH_TEST_PASSTHROUGH`).
    fn passed_through(mut self, text: &str) -> Self {
        if std::env::var_os("IBVSWITCH_TEST_PASSTHROUGH").is_some() && !text.contains("device = ") {
            let vfs = self.ask(&["status"])["vfs"].clone();
            let vfs = vfs.as_array().expect("a list").iter();
            let names: Vec<String> = vfs
                .filter(|vf| vf["ethernet"].is_null())
                .map(|vf| vf["name"].as_str().expect("a name").to_owned())
                .collect();
            if names.is_empty() {
                return self;
            }
            // Tests of the device have all that it can do, where they do not ask for less.
            let strict = std::env::var("IBVSWITCH_TEST_PASSTHROUGH").is_ok_and(|it| it == "strict");
            let isolation = if strict { "strict" } else { "sriov" };
            self.front = Some(Box::new(self.before(&names, isolation)));
        }
        self
    }

    /// Starts a daemon with VFs of these names, which are passed through to those of this one, with this
    /// isolation, and with all the rights that they have here.
    pub fn before<S: AsRef<str>>(&self, names: &[S], isolation: &str) -> Self {
        let keys = format!("isolation = \"{isolation}\"\nsmp = \"fabric\"\n");
        let vfs = names.iter().map(|name| (name.as_ref(), keys.as_str()));
        self.before_with(Configuration::new(), &vfs.collect::<Vec<_>>())
    }

    /// The same with a configuration of its own, and for each VF keys of its own.
    pub fn before_with(&self, configuration: Configuration, vfs: &[(&str, &str)]) -> Self {
        let hypervisor = configuration.hypervisor("hw", []);
        let configuration = vfs.iter().fold(hypervisor, |it, (name, keys)| {
            let device = format!("unix:{}", self.own_socket(name).display());
            it.vf(name).key("device", device).lines(keys)
        });
        let mut front = Self::logging(configuration);
        front.traps = self.traps;
        front
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its runtime directory.
    pub fn dir(&self) -> &str {
        self.dir.path().to_str().expect("is text")
    }

    /// Its configuration file.
    pub fn config(&self) -> String {
        format!("{}/config.toml", self.dir())
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("has a log")
    }

    /// Waits until it has logged this.
    pub fn await_log(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    /// Waits until the log has a line with all of these.
    pub fn await_line(&self, wanted: &[&str]) {
        let has_all = |line: &str| wanted.iter().all(|part| line.contains(part));
        wait_until(&wanted.join(", "), || self.log().lines().any(has_all));
    }

    /// The socket of a VF: that before it, where there is one.
    pub fn socket(&self, name: &str) -> PathBuf {
        let front = self.front.as_ref().map(|front| front.own_socket(name));
        let front = front.filter(|socket| socket.exists());
        front.unwrap_or_else(|| self.own_socket(name))
    }

    fn own_socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    /// The program, told which daemon is meant.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibvswitch"));
        command
            .arg("--runtime-dir")
            .arg(self.dir.path())
            .arg("--config")
            .arg(self.dir.path().join("config.toml"));
        command
    }

    /// Runs a command about the running daemon, and returns the JSON that it prints.
    pub fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
            .arg("--runtime-dir")
            .arg(self.dir.path())
            .args(arguments)
            .arg("--json")
            .output()
            .expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("is JSON")
    }

    /// Runs the program against the daemon, with `input` to read.
    pub fn run(&self, arguments: &[&str], input: &str) -> Outcome {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
            .env_remove("IBVSWITCH_CONFIG")
            .arg("--runtime-dir")
            .arg(self.dir.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut stdin = child.stdin.take().expect("its input");
        // It may have ended without reading.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("ends");
        let text = |bytes| String::from_utf8(bytes).expect("is text");
        Outcome {
            status: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Returns a VF's entry in `status`.
    pub fn vf(&self, name: &str) -> serde_json::Value {
        named(&self.ask(&["status"])["vfs"], name)
    }

    /// The LID of a VF in the subnet.
    pub fn lid(&self, name: &str) -> u16 {
        self.vf(name)["lid"].as_u64().expect("a number") as u16
    }

    /// Returns a node's entry in `topology`.
    pub fn node(&self, name: &str) -> serde_json::Value {
        named(&self.ask(&["topology"])["nodes"], name)
    }

    /// Opens a VF.
    pub fn open(&self, name: &str) -> Device {
        Device::open(self.socket(name)).expect("the device opens")
    }

    /// Whether it is still running.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("can be waited for").is_none()
    }

    /// Its resident memory without that of guests, in KiB.
    pub fn private_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("is running");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .expect("the kernel says");
        let number = line.split_whitespace().next().expect("a number");
        number.parse().expect("a number")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let alive = self.is_alive();
        if std::thread::panicking() {
            // What it counted may say why.
            let status = self.command().arg("status").output();
            let status = status.map(|output| output.stdout).unwrap_or_default();
            println!("{}", String::from_utf8_lossy(&status));
            let log = std::fs::read_to_string(self.dir.path().join("log"));
            println!("{}", log.unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Not while another failure is being told.
        if !std::thread::panicking() {
            assert!(alive, "the daemon ended before its test");
        }
    }
}

/// Returns the entry of this name in a list.
pub fn named(list: &serde_json::Value, name: &str) -> serde_json::Value {
    let list = list.as_array().expect("a list");
    let found = list.iter().find(|entry| entry["name"] == name);
    found.expect("is there").clone()
}

/// An open VF with what every test needs.
#[derive(Debug)]
pub struct Peer {
    pub cq: CompletionQueue,
    pub region: MemoryRegion,
    pub uar: Arc<Uar>,
    pub pd: Arc<ProtectionDomain>,
    /// The lower half is to send from, the upper half to receive to.
    pub buffer: Buffer,
    pub port: Port,
    pub device: Device,
}

impl Peer {
    /// Opens a VF and waits until its port is Active.
    pub fn open(daemon: &Daemon, name: &str) -> Self {
        Self::new(daemon.open(name))
    }

    pub fn new(device: Device) -> Self {
        let port = device.wait_active().expect("a subnet manager");
        let pd = ProtectionDomain::new(&device).expect("a PD");
        let uar = Uar::new(&device).expect("a UAR");
        let cq = CompletionQueue::new(&device, &uar, 8, 0).expect("a CQ");
        let buffer = device.allocate_pages(2 * HALF).expect("memory");
        let region = MemoryRegion::new(&pd, &buffer, Access::ALL).expect("an MR");
        Self {
            cq,
            region,
            uar,
            pd,
            buffer,
            port,
            device,
        }
    }

    pub fn config(&self, transport: Transport) -> Config<'_> {
        Config::new(transport, &self.pd, &self.uar, &self.cq)
    }

    pub fn qp(&self, transport: Transport) -> QueuePair {
        QueuePair::new(&self.config(transport)).expect("a QP")
    }

    pub fn gid(&self) -> [u8; 16] {
        self.device.gid(0).expect("a GID")
    }

    /// Writes something to another one, over a connection by LIDs.
    #[track_caller]
    pub fn write_to(&mut self, to: &Self) {
        const LEN: usize = 5000;
        let (mut qp, _far) = connected(Transport::Rc, self, to);
        self.write_by(&mut qp, to, LEN, 3);
        to.verify(HALF, LEN, 3);
    }

    /// Writes something to another one by a connection.
    #[track_caller]
    pub fn write_by(&mut self, qp: &mut QueuePair, to: &Self, len: usize, seed: u64) {
        self.fill(0, len, seed);
        let from = [self.sge(0, len)];
        let write = SendRequest::write(to.remote(HALF), test_driver::Data::Memory(&from));
        self.execute(qp, &write);
    }

    /// `len` bytes at `offset` of the buffer.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.region.start() + offset as u64,
            len: len as u32,
            key: self.region.key(),
        }
    }

    /// The same for a peer.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.region.start() + offset as u64,
            key: self.region.key(),
        }
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u64) {
        pattern::fill(&self.buffer, offset, len, seed);
    }

    #[track_caller]
    pub fn verify(&self, offset: usize, len: usize, seed: u64) {
        if let Err(mismatch) = pattern::verify(&self.buffer, offset, len, seed) {
            panic!("{mismatch}");
        }
    }

    /// Waits for what an unreliable connection has sent: that it has left is all that its sender knows.
    pub fn arrives(&self, offset: usize, len: usize, seed: u64) {
        while pattern::verify(&self.buffer, offset, len, seed).is_err() {
            std::thread::yield_now();
        }
    }

    pub fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.buffer.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub fn set_word(&self, offset: usize, value: u64) {
        self.buffer.write(offset, &value.to_le_bytes());
    }

    /// The next completion, of a send request on `qp`.
    #[track_caller]
    pub fn sent(&mut self, qp: &mut QueuePair) -> Cqe {
        let entry = self.cq.wait().expect("a completion");
        assert_eq!(entry.qpn(), qp.number());
        qp.complete(&entry);
        entry
    }

    /// Waits for the next event of this kind; others, as of the port, pass.
    pub fn event(&self, kind: EventType) -> Event {
        loop {
            let event = self.device.wait_event().expect("an event");
            if event.kind() == kind {
                return event;
            }
        }
    }

    /// Posts a request and waits until it has completed well.
    #[track_caller]
    pub fn execute(&mut self, qp: &mut QueuePair, request: &SendRequest<'_>) -> Cqe {
        qp.post_send(request).expect("is posted");
        let entry = self.sent(qp);
        assert!(entry.is_ok(), "{:?} {entry:?}", entry.syndrome());
        entry
    }
}

/// Requests to receive of a queue pair 1 count from here on. Where its VF is passed through, the daemon keeps its queue,
/// and looks at it before a command.
pub fn show_posted(qp: &QueuePair) {
    qp.query().expect("is told");
}

/// Two peers of one daemon.
pub fn peers(daemon: &Daemon) -> (Peer, Peer) {
    (Peer::open(daemon, "vm1"), Peer::open(daemon, "vm2"))
}

/// A connection between them.
pub fn connected(transport: Transport, a: &Peer, b: &Peer) -> (QueuePair, QueuePair) {
    connected_by(&a.config(transport), &b.config(transport), a, b, |_| {})
}

/// A connection with other parameters than usual.
pub fn connected_by(
    a_config: &Config<'_>,
    b_config: &Config<'_>,
    a: &Peer,
    b: &Peer,
    change: impl Fn(&mut Connection),
) -> (QueuePair, QueuePair) {
    let qa = QueuePair::new(a_config).expect("a QP");
    let qb = QueuePair::new(b_config).expect("a QP");
    let mut to_b = Connection {
        receive_psn: 0x00b0_0000,
        send_psn: 0x00ff_fff0,
        ..Connection::to(b.port.lid, qb.number())
    };
    let mut to_a = Connection {
        receive_psn: 0x00ff_fff0,
        send_psn: 0x00b0_0000,
        ..Connection::to(a.port.lid, qa.number())
    };
    change(&mut to_b);
    change(&mut to_a);
    qa.connect(Access::ALL, &to_b).expect("connects");
    qb.connect(Access::ALL, &to_a).expect("connects");
    (qa, qb)
}

/// Runs tests with both kinds of doorbells.
#[macro_export]
macro_rules! with_both_doorbells {
    ($($name:ident),* $(,)?) => {
        mod trapped {
            $(#[test] fn $name() { super::$name(&$crate::daemon::Daemon::start("trap")); })*
        }
        mod polled {
            $(#[test] fn $name() { super::$name(&$crate::daemon::Daemon::start("poll")); })*
        }
    };
}

/// A pair that transfers all the time and checks every byte, in a thread of
/// its own, until dropped.
#[derive(Debug)]
pub struct Bystanders {
    stop: Arc<std::sync::atomic::AtomicBool>,
    rounds: Arc<std::sync::atomic::AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bystanders {
    /// Starts transfers from `vm3` to `vm4`.
    pub fn start(daemon: &Daemon) -> Self {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (mut a, b) = (Peer::open(daemon, "vm3"), Peer::open(daemon, "vm4"));
        let (mut qa, qb) = connected(Transport::Rc, &a, &b);
        let stopped = Arc::clone(&stop);
        let counter: Arc<std::sync::atomic::AtomicU64> = Arc::default();
        let done = Arc::clone(&counter);
        let thread = std::thread::spawn(move || {
            let mut rounds = 0;
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                let len = 1 + (rounds as usize * 7919) % 40_000;
                a.fill(0, len, rounds);
                let sges = [a.sge(0, len)];
                let write = SendRequest::write(b.remote(HALF), test_driver::Data::Memory(&sges));
                a.execute(&mut qa, &write);
                b.verify(HALF, len, rounds);
                let back = [a.sge(HALF, len)];
                a.execute(&mut qa, &SendRequest::read(b.remote(HALF), &back));
                a.verify(HALF, len, rounds);
                rounds += 1;
                done.store(rounds, std::sync::atomic::Ordering::Release);
            }
            drop(qb);
        });
        Self {
            stop,
            rounds: counter,
            thread: Some(thread),
        }
    }

    /// Returns the number of transfers.
    fn rounds(&self) -> u64 {
        self.rounds.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Waits for a transfer that begins from now on, there and back. What was sent before over the same
    /// ways between the hypervisors, and did not get lost, has arrived then.
    #[track_caller]
    pub fn overtake(&self) {
        let begun = self.rounds();
        while self.rounds() < begun + 2 {
            let ended = self.thread.as_ref().is_none_or(|it| it.is_finished());
            assert!(!ended, "the transfers have ended");
            std::thread::yield_now();
        }
    }

    /// Ends the transfers after one more; returns how many there were.
    ///
    /// # Panics
    /// Where one was not right.
    pub fn stop(mut self) -> u64 {
        self.overtake();
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let thread = self.thread.take().expect("is running");
        thread.join().expect("every transfer was right");
        self.rounds()
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
