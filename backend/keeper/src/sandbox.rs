//! System calls of the keeper once it runs: it may wait, use and inspect its descriptors, and allocate memory.
//! It opens nothing, starts nothing and connects to nobody.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// Calls that are allowed whatever their arguments.
const CALLS: &[libc::c_long] = &[
    // Messages and descriptors.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Time, chance, signals, the one thread.
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
];

/// Calls that are allowed where these bits of an argument, by its number, have this value.
const BITS: [(libc::c_long, u8, i32, i32); 4] = [
    // Memory that is no code.
    (libc::SYS_mmap, 2, libc::PROT_EXEC, 0),
    (libc::SYS_mprotect, 2, libc::PROT_EXEC, 0),
    // How large the file of a descriptor is.
    (
        libc::SYS_newfstatat,
        3,
        libc::AT_EMPTY_PATH,
        libc::AT_EMPTY_PATH,
    ),
    (libc::SYS_statx, 2, libc::AT_EMPTY_PATH, libc::AT_EMPTY_PATH),
];

/// From now on, all else that this thread asks for fails with `EPERM`: a library that wants more than is known
/// here is refused, and the keeper lives.
///
/// # Errors
/// The system has no such filters, or does not let this process have one.
pub(crate) fn enter() -> io::Result<()> {
    let filter = filter().map_err(io::Error::other)?;
    apply_filter(&filter).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<_, _> = CALLS.iter().map(|&call| (call, Vec::new())).collect();
    for (call, argument, mask, value) in BITS {
        let bits = SeccompCmpOp::MaskedEq(mask as u64);
        let bits = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, bits, value as u64)?;
        rules.insert(call, vec![SeccompRule::new(vec![bits])?]);
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?.try_into()
}
