//! Processors, memory and huge pages of this host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::budget::Available;

/// A processor that this process may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// Its number.
    pub number: usize,
    /// Its core: the lowest number of the core's processors.
    pub core: usize,
    /// Its NUMA node.
    pub node: usize,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Processors, in rising order.
    pub processors: Vec<Processor>,
    /// Memory in bytes, if the system tells.
    pub memory: Option<u64>,
    /// Huge pages by their size in bytes: reserved ones, free or not.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// Returns the numbers of the processors in this process's affinity mask.
pub(crate) fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let is_in = |&number: &usize| set.is_set(number).unwrap_or(false);
    (0..CpuSet::count()).filter(is_in).collect()
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        let memory = Available::here().map(Available::bytes);
        Self::at(Path::new("/"), &allowed(), memory)
    }

    /// The one with `sys` in this directory, of which these processors may be used.
    #[must_use]
    pub fn at(root: &Path, allowed: &[usize], memory: Option<u64>) -> Self {
        let processors = allowed.iter().map(|&number| processor(root, number));
        Self {
            processors: processors.collect(),
            memory,
            huge_pages: huge_pages(root),
        }
    }

    /// Number of its NUMA nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let last = self.processors.iter().map(|it| it.node).max();
        last.map_or(1, |last| last + 1)
    }
}

fn processor(root: &Path, number: usize) -> Processor {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{number}"));
    let siblings = fs::read_to_string(folder.join("topology/thread_siblings_list"));
    let siblings = siblings.unwrap_or_default();
    let first = siblings.trim().split([',', '-']).next();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes = entries.filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    });
    Processor {
        number,
        core: first.and_then(|it| it.parse().ok()).unwrap_or(number),
        node: nodes.next().unwrap_or(0),
    }
}

fn huge_pages(root: &Path) -> BTreeMap<u64, u64> {
    let pools = fs::read_dir(root.join("sys/kernel/mm/hugepages"));
    let pools = pools.into_iter().flatten().flatten();
    let pool = |pool: fs::DirEntry| {
        let name = pool.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = kib.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(pool.path().join("nr_hugepages")).ok()?;
        Some((kib << 10, pages.trim().parse().ok()?))
    };
    pools.filter_map(pool).collect()
}
