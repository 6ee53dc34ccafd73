//! Tenants with a subnet manager each.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use nix::unistd::Pid;
use simulator::opensm::Program;
use tempfile::TempDir;
use testing::Configuration;

use crate::management::opensm;
use crate::{BenchError, Result};

/// Clusters in full mode, each with two VFs and an OpenSM of its own, a process of the host with the lowest priority: its
/// processor time is none of the daemon's.
#[derive(Debug)]
pub(super) struct Tenants {
    ids: Vec<Pid>,
    /// Only held: a [`Program`] cannot be shared between threads.
    _managers: Mutex<Vec<(Program, TempDir)>>,
}

/// Has all threads of a manager run only while processors are idle.
fn yield_processors(manager: &Program) -> Result<()> {
    let id = manager.id().to_string();
    let mut command = Command::new("chrt");
    command.args(["--all-tasks", "--idle", "--pid", "0", &id]);
    let done = command.status();
    let done = done.and_then(|status| {
        let failed = || io::Error::other(format!("chrt: {status}"));
        status.success().then_some(()).ok_or_else(failed)
    });
    done.map_err(BenchError::system("give OpenSM the lowest priority"))
}

/// Names of the sockets by which managers reach the daemon.
fn socket() -> String {
    format!("ibvswitch-bench-tenants-{}", std::process::id())
}

impl Tenants {
    /// Adds the clusters to a daemon's configuration.
    pub(super) fn configure(text: Configuration, tenants: usize) -> Configuration {
        let text = text.set("external.socket", socket());
        let text = (0..tenants).fold(text, |it, tenant| {
            it.entry("cluster", &format!("t{tenant}"))
                .key("view", "full")
                .key("full_mode_lease_s", 3600)
        });
        ["a", "b"].iter().fold(text, |it, end| {
            let it = it.hypervisor(&format!("tenants-{end}"), []);
            (0..tenants).fold(it, |it, tenant| {
                it.member(&format!("{end}{tenant}"), &format!("t{tenant}"))
            })
        })
    }

    /// Starts the managers, one after the other; each has its subnet up, and sweeps when it is told to.
    pub(super) fn start(tenants: usize, dir: &Path) -> Result<Self> {
        let manager = |tenant: usize| {
            let cache =
                tempfile::tempdir_in(dir).map_err(BenchError::system("create a directory"))?;
            let host = format!("t{tenant}/a{tenant}");
            let manager = opensm::start(&socket(), &host, cache.path(), &["-s", "0"])?;
            yield_processors(&manager)?;
            Ok((manager, cache))
        };
        let managers: Vec<_> = (0..tenants).map(manager).collect::<Result<_>>()?;
        let ids = managers.iter().map(|(manager, _)| manager.id() as i32);
        Ok(Self {
            ids: ids.map(Pid::from_raw).collect(),
            _managers: Mutex::new(managers),
        })
    }

    /// Processes of the managers.
    pub(super) fn managers(&self) -> &[Pid] {
        &self.ids
    }
}
