//! Memory: of the daemon, and that which VMs share with it.

use std::fs;
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::budget::{Available, Budget, mebibytes};
use crate::finding::{Finding, Verdict};
use config::Config;

/// Compares the most memory that guests can make the daemon take with the memory that there is.
pub(super) fn of_daemon(config: &Config, available: Option<Available>) -> Option<Finding> {
    const WHAT: &str = "memory";
    let (available, budget) = (available?, Budget::of(&config.clone().settled(None)));
    Some(match available.shortage(&budget) {
        Some((found, remedy)) => Finding::new(WHAT, Verdict::Warning, found).remedy(remedy),
        None => {
            let found = format!(
                "{} MiB, of which guests can make the daemon take {} MiB, beside their own memory",
                available.bytes() >> 20,
                mebibytes(budget.sum())
            );
            Finding::new(WHAT, Verdict::Ok, found)
        }
    })
}

/// Files in memory, which the memory of VMs is.
pub(super) fn shared() -> Finding {
    const WHAT: &str = "shared memory";
    match memfd_create("ibvswitch-doctor", MFdFlags::MFD_CLOEXEC) {
        Ok(_) => Finding::new(WHAT, Verdict::Ok, "memfd_create works"),
        Err(error) => {
            let found = format!("memfd_create fails: {error}");
            Finding::new(WHAT, Verdict::Error, found).remedy(
                "allow it (a container's seccomp filter may not), or give VMs a \
                 memory-backend-file with share=on in /dev/shm",
            )
        }
    }
}

/// Huge pages for it, which nothing needs: lists of pages of registered memory are shorter with them.
pub(super) fn huge_pages(root: &Path) -> Finding {
    const WHAT: &str = "huge pages";
    let memory = root.join("sys/kernel/mm");
    let pools = fs::read_dir(memory.join("hugepages"));
    let mut free: Vec<(u64, u64)> = pools
        .into_iter()
        .flatten()
        .filter_map(|pool| {
            let pool = pool.ok()?;
            let name = pool.file_name();
            let kib = name.to_str()?.strip_prefix("hugepages-")?;
            let kib = kib.strip_suffix("kB")?.parse().ok()?;
            let pages = fs::read_to_string(pool.path().join("free_hugepages")).ok()?;
            Some((kib, pages.trim().parse().ok()?))
        })
        .filter(|(_, pages)| *pages > 0)
        .collect();
    free.sort_unstable();
    if !free.is_empty() {
        let pools = free.iter();
        let pools = pools.map(|(kib, pages)| format!("{pages} of {} MiB", kib >> 10));
        let found = format!("{} free", pools.collect::<Vec<_>>().join(", "));
        return Finding::new(WHAT, Verdict::Ok, found);
    }
    let modes = memory.join("transparent_hugepage/shmem_enabled");
    let modes = fs::read_to_string(modes).unwrap_or_default();
    let mode = modes.split(['[', ']']).nth(1).unwrap_or("never");
    if !matches!(mode, "never" | "deny") {
        let found = format!("none reserved; transparent ones for shared memory: {mode}");
        return Finding::new(WHAT, Verdict::Ok, found);
    }
    let found = "none reserved, and no transparent ones for shared memory";
    Finding::new(WHAT, Verdict::Note, found).remedy(
        "where guests register much memory: `sysctl vm.nr_hugepages=NUMBER` and hugetlb=on in a VM's \
         memory-backend-memfd, or write `always` to \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )
}
