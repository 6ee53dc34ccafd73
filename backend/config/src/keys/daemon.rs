//! Keys of the daemon itself.

use super::Values::{Integer, IntegerOr, Mode, Other, Table, Tables, Word};
use super::{Key, key, words};
use crate::names::HUGE_PAGES;
use crate::{Doorbells, ENGINES_MAX, Sandbox};

/// Keys of the outermost table.
pub static ROOT: &[Key] = &[
    key(
        "runtime_dir",
        Other("absolute path"),
        "[see here](#the-runtime-directory)",
        "Directory of the sockets and the lock file. The daemon creates the directory; its user must own it. A UNIX socket's path has at \
         most 107 bytes. `--runtime-dir` and `IBVSWITCH_RUNTIME_DIR` override this key.",
    ),
    key(
        "log",
        Other("log filter"),
        "`\"info\"`",
        "Level of the log on standard error: `off`, `error`, `warn`, `info`, `debug` or `trace`; also per module, as in \
         `\"info,ibvswitch_vfio_user=debug\"`. The environment variable `RUST_LOG` overrides this key.",
    ),
    key(
        "socket_mode",
        Mode,
        "`0o600`",
        "Permission bits of the VFs' sockets, with `0o600` at least. `0o660` lets QEMU run as another user of the same group, as with \
         libvirt. A program that can connect to the socket of a VF *is* that VM: see [security](../security.md).",
    ),
    key(
        "sandbox",
        Word(&words(&Sandbox::NAMES)),
        "`\"auto\"`",
        "`\"auto\"`: once it has its sockets, the daemon confines itself to the files and system calls that it needs, as far as the \
         kernel can ([details](../security.md#the-daemons-sandbox)). `status` shows the state.",
    ),
    key("engine", Table, "", ""),
    key("host", Table, "", ""),
    key("fabric", Table, "", ""),
    key("sm", Table, "", ""),
    key("external", Table, "", ""),
    key("partitions", Table, "", ""),
    key("cluster", Tables, "", ""),
    key("subnet", Tables, "", ""),
    key("switch", Tables, "", ""),
    key("link", Tables, "", ""),
    key("router", Tables, "", ""),
    key("hypervisor", Tables, "", ""),
];

/// Keys of `engine`.
pub static ENGINE: &[Key] = &[
    key(
        "cpu",
        Integer(0..=8191),
        "none",
        "Processor of the first engine; further engines have the next ones. Without this key the scheduler chooses.",
    ),
    key(
        "threads",
        IntegerOr(1..=ENGINES_MAX as i64, "auto"),
        "`1`",
        "Number of [engines](engines.md#several-engines). `\"auto\"`: one less than the processors, and no more than the hypervisors.",
    ),
    key(
        "doorbells",
        Word(&words(&Doorbells::NAMES)),
        "`\"trap\"`",
        "[Doorbell mode](engines.md#doorbells) of VFs without a `doorbells` of their own. The configuration of the package has `\"auto\"`.",
    ),
    key(
        "object_memory",
        Integer(1..=1 << 20),
        "`40`",
        "MiB of the daemon's memory for the [objects of one guest](engines.md#memory-that-guests-take), for VFs without an `object_memory` \
         of \
         their own.",
    ),
];

/// Keys of `host`.
pub static HOST: &[Key] = &[
    key(
        "kernel_processors",
        Integer(1..=8192),
        "`1`",
        "Number of processors for the kernel, daemons, and threads of QEMU that are no processors of VMs: the first ones.",
    ),
    key(
        "reserved_memory",
        Other(super::guest::SIZE),
        "`\"512M\"`",
        "Memory that no VM gets.",
    ),
    key(
        "huge_pages",
        Word(&words(&HUGE_PAGES)),
        "`\"none\"`",
        "Pages of the memory of VMs in the plan.",
    ),
    key(
        "io_threads",
        Integer(0..=16),
        "`1`",
        "Number of I/O threads of each VM in the plan, for its disks: `ibvswitch-io1` and so on.",
    ),
];

/// Keys of `external`.
pub static EXTERNAL: &[Key] = &[
    key(
        "socket",
        Other("name, or `\"\"`"),
        "derived from `runtime_dir`",
        "Beginning of the names of the sockets for these programs. The names are in the abstract namespace, not in a directory. `\"\"`: \
         no programs are served.",
    ),
    key(
        "partitions_file",
        Other("path"),
        "none",
        "File that the daemon writes at its start and after each change of its configuration: [partitions of \
         clusters](clusters.md#partition-files) for another subnet manager. Its directory should have nothing else in it, since the daemon \
         may write there.",
    ),
];

/// Partition names are the user's own.
pub static PARTITIONS: &[Key] = &[];
