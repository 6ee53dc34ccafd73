//! The processors of this machine that a guest runs on.

use std::fs;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::error::{Doing, Error, Result};
use crate::guest::qmp::Qmp;

/// Place of a guest on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Words before the name of QEMU: taskset and chrt.
    pub prefix: Vec<String>,
    /// The processor of this machine for each of the guest's.
    pub pinned: Vec<usize>,
    /// Processors of QEMU's other threads, where the guest's are pinned.
    pub others: Vec<usize>,
    /// More properties of the guest's memory.
    pub memory: String,
}

impl Placement {
    /// Pins the threads of a QEMU.
    pub(super) fn pin(&self, pid: u32, qmp: &mut Qmp) -> Result<()> {
        if self.pinned.is_empty() {
            return Ok(());
        }
        let threads = qmp.execute("query-cpus-fast", json!({}))?;
        let threads = threads.as_array().into_iter().flatten();
        let number = |thread: &Value, name: &str| thread[name].as_i64();
        let threads: Vec<(i64, i64)> = threads
            .filter_map(|it| Some((number(it, "cpu-index")?, number(it, "thread-id")?)))
            .collect();
        let folder = format!("/proc/{pid}/task");
        for entry in fs::read_dir(&folder).at("read", folder.as_ref())?.flatten() {
            let name = entry.file_name();
            let Some(thread) = name.to_str().and_then(|it| it.parse::<i32>().ok()) else {
                continue;
            };
            let vcpu = threads.iter().find(|(_, id)| *id == i64::from(thread));
            let own = vcpu.and_then(|(at, _)| self.pinned.get(usize::try_from(*at).ok()?));
            let set = match own {
                Some(processor) => set(&[*processor])?,
                None => set(&self.others)?,
            };
            match sched_setaffinity(Pid::from_raw(thread), &set) {
                // A thread that has ended meanwhile.
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => {
                    let why = format!("cannot pin a thread of QEMU: {error}");
                    return Err(Error::Host(why));
                }
            }
        }
        Ok(())
    }
}

fn set(processors: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &processor in processors {
        let why = |error| Error::Host(format!("processor {processor}: {error}"));
        set.set(processor).map_err(why)?;
    }
    Ok(set)
}
