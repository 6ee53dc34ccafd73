//! Cost of data that are passed through: no access of the guest traps, and the daemon in front of the VF does
//! nothing. The tests count, since no slowness of the machine changes how often a thread goes to sleep.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::{Data, Device, QueuePair, SendRequest, Transport};
use testing::Configuration;
use vfio_user::testing::Relay;

/// The first page of BAR 0 that the VF behind may offer to be mapped.
const MAPPED: u64 = 16;
/// Operations while which nothing is to happen, and how many of them are posted at a time.
const OPERATIONS: usize = 100_000;
const BATCH: usize = 32;

/// Two guests of a daemon with VFs that are passed through, of which one comes by a relay, and a connection.
struct Pair {
    near: Peer,
    qp: QueuePair,
    far: Peer,
    _far_qp: QueuePair,
    relay: Relay,
    _dir: tempfile::TempDir,
    outer: Daemon,
    inner: Daemon,
}

impl Pair {
    fn new(doorbells: &str) -> Self {
        Self::with(doorbells, "")
    }

    /// The same with these keys of their VFs.
    fn with(doorbells: &str, keys: &str) -> Self {
        let inner = Daemon::start(doorbells);
        let keys = format!("isolation = 'strict'\n{keys}");
        let outer = inner.before_with(Configuration::new(), &[("vm1", &keys), ("vm2", &keys)]);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("relay");
        let relay = Relay::start(&path, &outer.socket("vm1")).expect("a socket");
        let near = Peer::new(Device::open(&path).expect("the device opens"));
        let far = Peer::open(&outer, "vm2");
        let (qp, far_qp) = connected(Transport::Rc, &near, &far);
        let mut pair = Self {
            near,
            qp,
            far,
            _far_qp: far_qp,
            relay,
            _dir: dir,
            outer,
            inner,
        };
        pair.write();
        pair
    }

    /// One operation, polled for.
    fn write(&mut self) {
        let to = self.far.remote(HALF);
        let write = SendRequest::write(to, Data::Inline(b"eight by"));
        self.near.execute(&mut self.qp, &write);
    }

    /// Operations that each ring, of which the last completes.
    fn write_many(&mut self) {
        let to = self.far.remote(HALF);
        let write = SendRequest::write(to, Data::Inline(b"eight by"));
        for _ in 1..BATCH {
            self.qp.post_send(&write.unsignaled()).expect("is posted");
        }
        self.near.execute(&mut self.qp, &write);
    }

    /// One operation, of which an interrupt tells.
    fn write_with_interrupt(&mut self) {
        let cq = &mut self.near.cq;
        cq.arm(false).expect("is armed");
        let write = SendRequest::write(self.far.remote(HALF), Data::Inline(b"eight by"));
        self.qp.post_send(&write).expect("is posted");
        // A completion queue whose doorbells are memory begins armed: the first event may be of an entry that was
        // polled for.
        let entry = loop {
            let number = self.near.device.wait_completion(0).expect("an interrupt");
            let cq = &mut self.near.cq;
            assert_eq!(number, cq.number());
            cq.acknowledge();
            if let Some(entry) = cq.poll() {
                break entry;
            }
            cq.arm(false).expect("is armed");
        };
        assert!(entry.is_ok(), "{entry:?}");
        self.qp.complete(&entry);
    }

    /// Accesses of the guest's so far that the daemon was asked to do: to pages that trap, and to others.
    fn exits(&self) -> [u64; 2] {
        let mut exits = [0; 2];
        for (access, count) in self.relay.accesses() {
            if access.region == 0 {
                exits[usize::from(access.page >= MAPPED)] += count;
            }
        }
        exits
    }
}

/// Returns how often each thread that serves the VFs of a daemon has gone to sleep, and how often it has read and
/// written.
fn work(daemon: &Daemon) -> Vec<(String, u64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("is running");
    let counts = tasks.filter_map(|task| {
        let task = task.expect("is readable").path();
        let number = |file: &str, key: &str| -> Option<u64> {
            let text = fs::read_to_string(task.join(file)).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().parse().expect("a number"))
        };
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let sleeps = number("status", "voluntary_ctxt_switches:")?;
        let calls = number("io", "syscr:")? + number("io", "syscw:")?;
        name.starts_with("vf ")
            .then(|| (name.trim().to_owned(), sleeps, calls))
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort();
    counts
}

/// The same, of threads that have nothing left to do.
fn settled(daemon: &Daemon) -> Vec<(String, u64, u64)> {
    let mut before = work(daemon);
    loop {
        std::thread::yield_now();
        let now = work(daemon);
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("is running");
        let asleep = tasks.into_iter().all(|task| {
            let stat = task.expect("is readable").path().join("stat");
            let stat = fs::read_to_string(stat).unwrap_or_default();
            !stat.contains("(vf ") || stat.contains(") S ")
        });
        if now == before && asleep {
            return now;
        }
        before = now;
    }
}

/// Operations that are polled for, with doorbells in memory, concern nobody but the VF behind.
fn nothing_happens(doorbells: &str, keys: &str, operations: usize) {
    let mut pair = Pair::with(doorbells, keys);
    let before = (settled(&pair.outer), pair.exits());
    assert_eq!(before.0.len(), 2, "{before:?}");
    assert_eq!(before.1[1], 0, "accesses to pages that are mapped");
    let began = Instant::now();
    for _ in 0..operations / BATCH {
        pair.write_many();
    }
    let after = (settled(&pair.outer), pair.exits());
    assert_eq!(before.1, after.1);
    // Each looks once a second whether the VF behind is well, which may be a write, a read and a sleep. One look may
    // have been under way when it was counted before.
    let looks = began.elapsed().as_secs() + 2;
    for ((name, sleeps, calls), then) in after.0.iter().zip(&before.0) {
        assert!(*sleeps <= then.1 + looks, "{name}: {before:?} {after:?}");
        assert!(*calls <= then.2 + 2 * looks, "{name}: {before:?} {after:?}");
    }
}

#[test]
fn nothing_happens_while_data_flow() {
    nothing_happens("poll", "", OPERATIONS);
}

/// Where datagrams are looked at, connections are not.
#[test]
fn nothing_happens_while_data_flow_and_datagrams_would_be_looked_at() {
    nothing_happens("poll", "sl = [0, 1]", OPERATIONS / 10);
}

#[test]
fn nothing_happens_while_data_flow_and_an_engine_may_rest() {
    nothing_happens("adaptive", "", OPERATIONS);
}

#[test]
fn doorbells_that_trap_are_seen() {
    let mut pair = Pair::new("trap");
    let before = (settled(&pair.outer), pair.exits());
    for _ in 0..100 {
        pair.write();
    }
    let after = (settled(&pair.outer), pair.exits());
    assert!(after.0[0].1 > before.0[0].1, "{before:?} {after:?}");
    assert_eq!(after.1[1] - before.1[1], 100, "{before:?} {after:?}");
}

/// An interrupt costs its guest one access: that which arms the event queue again.
#[test]
fn an_interrupt_costs_one_access() {
    let mut pair = Pair::new("adaptive");
    let mut counts = Vec::new();
    for times in [100, 400] {
        let before = pair.exits();
        for _ in 0..times {
            pair.write_with_interrupt();
        }
        let after = pair.exits();
        assert_eq!(after[1], 0, "accesses to pages that are mapped");
        counts.push((after[0] - before[0]) as f64);
    }
    let slope = (counts[1] - counts[0]) / 300.0;
    assert!(slope <= 1.1, "{slope} accesses per interrupt: {counts:?}");
}

/// Numbers of the eventfds that a process has.
fn eventfds(pid: u32) -> BTreeSet<u64> {
    let fds = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("is running");
    let numbers = fds.filter_map(|fd| {
        let text = fs::read_to_string(fd.ok()?.path()).ok()?;
        let line = text.lines().find_map(|it| it.strip_prefix("eventfd-id:"))?;
        Some(line.trim().parse().expect("a number"))
    });
    numbers.collect()
}

/// Interrupts of completions are the client's own eventfds at the VF behind; that of commands is not, since the
/// daemon between answers them.
#[test]
fn interrupts_go_from_the_vf_behind_to_the_guest() {
    let pair = Pair::new("adaptive");
    let own = eventfds(std::process::id());
    let [behind, between] = [&pair.inner, &pair.outer].map(|daemon| eventfds(daemon.pid()));
    let shared: Vec<_> = own.intersection(&behind).collect();
    // One of each guest, which the driver here is both of.
    assert_eq!(shared.len(), 2, "{own:?} {behind:?}");
    let commands = own.difference(&behind);
    assert_eq!(commands.filter(|id| between.contains(id)).count(), 2);
}
