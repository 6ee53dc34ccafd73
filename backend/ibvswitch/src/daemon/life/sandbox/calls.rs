//! System calls: seccomp.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// Calls that are allowed whatever their arguments.
const CALLS: &[libc::c_long] = &[
    // Files: which ones, Landlock says.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Messages.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Events, and interrupts by asynchronous I/O.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Time and chance.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Threads, processors, and the programs that take over. Which these are, Landlock says.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Signals: to whom, Landlock says.
    libc::SYS_kill,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Identity of the process.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// The same by older names, which libraries for these processors still use.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_setrlimit,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Calls that are allowed where an argument, by its number, has one of these values.
const VALUES: [(libc::c_long, u8, &[u64]); 4] = [
    // No network but that of this host's processes.
    (libc::SYS_socket, 0, &[libc::AF_UNIX as u64]),
    (libc::SYS_socketpair, 0, &[libc::AF_UNIX as u64]),
    (
        libc::SYS_prctl,
        0,
        &[
            libc::PR_GET_NAME as u64,
            libc::PR_SET_NAME as u64,
            libc::PR_SET_PDEATHSIG as u64,
            libc::PR_SET_TIMERSLACK as u64,
        ],
    ),
    // State of a descriptor, and whether it is a terminal.
    (
        libc::SYS_ioctl,
        1,
        &[
            libc::FIOCLEX,
            libc::FIONBIO,
            libc::FIONREAD,
            libc::TCGETS,
            libc::TIOCGWINSZ,
        ],
    ),
];

/// Calls that are allowed where all of these bits of an argument, by its number, are 0. Several of one call: where
/// one of them holds.
const NO_BITS: [(libc::c_long, u8, u64); 4] = [
    // Memory that is code is not written to: neither made so, nor later.
    (libc::SYS_mmap, 2, libc::PROT_EXEC as u64),
    (libc::SYS_mmap, 2, libc::PROT_WRITE as u64),
    (libc::SYS_mprotect, 2, libc::PROT_EXEC as u64),
    (libc::SYS_clone, 0, NAMESPACES),
];

/// Bits of clone(2) that ask for a namespace.
const NAMESPACES: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64;

/// From now on, all else that this thread, and those that it starts, ask for fails with `EPERM`. With `devices`, any
/// ioctl(2) is allowed.
///
/// # Errors
/// The system has no such filters, or does not let this process have one.
pub(super) fn enter(devices: bool) -> io::Result<()> {
    // The second lets no further one be had.
    for filter in [without_clone3(), filter(devices)] {
        apply_filter(&filter.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filter(devices: bool) -> Result<BpfProgram, BackendError> {
    let always = CALLS.iter().chain(OLDER).chain(&[libc::SYS_clone3]);
    let mut rules: BTreeMap<_, Vec<_>> = always.map(|&call| (call, Vec::new())).collect();
    let one = |argument, how, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)?;
        SeccompRule::new(vec![condition])
    };
    for (call, argument, values) in VALUES {
        let allowed = rules.entry(call).or_default();
        for &value in values {
            allowed.push(one(argument, SeccompCmpOp::Eq, value)?);
        }
    }
    for (call, argument, bits) in NO_BITS {
        let how = SeccompCmpOp::MaskedEq(bits);
        rules.entry(call).or_default().push(one(argument, how, 0)?);
    }
    if devices {
        rules.insert(libc::SYS_ioctl, Vec::new());
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?.try_into()
}

/// No filter sees what clone3(2) is asked for. Libraries that do not have it use clone(2).
fn without_clone3() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, unknown, architecture)?.try_into()
}
