//! What a daemon has to do with data that are passed through: nothing. By counting, since no slowness of the
//! machine changes how often a thread goes to sleep.

mod daemon;

use daemon::{Daemon, HALF, Peer, connected};
use driver::{Data, SendRequest, Transport};

/// How often the threads that serve the VFs of a daemon have gone to sleep.
fn sleeps(daemon: &Daemon) -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("is running");
    let counts = tasks.filter_map(|task| {
        let task = task.expect("is readable").path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let count = line.trim().parse().expect("a number");
        name.starts_with("vf ")
            .then(|| (name.trim().to_owned(), count))
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort();
    counts
}

/// The same, of threads that have nothing left to do.
fn settled(daemon: &Daemon) -> Vec<(String, u64)> {
    let mut before = sleeps(daemon);
    loop {
        std::thread::yield_now();
        let now = sleeps(daemon);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("is running");
        let asleep = tasks.into_iter().all(|task| {
            let stat = task.expect("is readable").path().join("stat");
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            !stat.contains("(vf ") || stat.contains(") S ")
        });
        if now == before && asleep {
            return now;
        }
        before = now;
    }
}

/// How often threads have gone to sleep for this many writes, and before them.
fn counted(doorbells: &str, times: u64) -> [Vec<(String, u64)>; 2] {
    let inner = Daemon::start(doorbells);
    let outer = inner.before(&["vm1", "vm2"]);
    let (mut a, b) = (Peer::open(&outer, "vm1"), Peer::open(&outer, "vm2"));
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let write = SendRequest::write(b.remote(HALF), Data::Inline(b"eight by"));
    a.execute(&mut qa, &write);
    let before = settled(&outer);
    assert_eq!(before.len(), 2, "{before:?}");
    for _ in 0..times {
        a.execute(&mut qa, &write);
    }
    [before, settled(&outer)]
}

#[test]
fn threads_of_vfs_sleep_while_data_flow() {
    let [before, after] = counted("poll", 1000);
    assert_eq!(before, after);
}

#[test]
fn doorbells_that_trap_wake_them() {
    let [before, after] = counted("trap", 100);
    assert!(after[0].1 > before[0].1, "{before:?} {after:?}");
}
