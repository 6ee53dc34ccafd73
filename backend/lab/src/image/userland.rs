//! Programs that guests run: Debian's packages, unpacked.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::debian::apt::{Apt, Package, run};
use crate::debian::architecture::Architecture;
use crate::debian::sysroot::Sysroot;
use crate::error::{Doing, Result};
use crate::paths;

/// The tools; their dependencies come with them.
const TOOLS: &[&str] = &[
    "rdma-core",
    "ibverbs-utils",
    "ibverbs-providers",
    "rdmacm-utils",
    "ibacm",
    "infiniband-diags",
    "perftest",
    "opensm",
    "srptools",
    "open-iscsi",
    "ucx-utils",
    "iproute2",
    "busybox-static",
    "dnsmasq-base",
    "kmod",
    "socat",
    "dropbear-bin",
];

/// Tools that Debian does not have for 32 bits.
const NOT_OF_32_BITS: &[&str] = &["ucx-utils"];

/// Dependencies that a guest whose process 1 is busybox has no use for; names that end in `*`
/// stand for all that begin so.
const UNNEEDED: &[&str] = &[
    "adduser",
    "base-passwd",
    "debconf",
    "gcc-*",
    "init-system-helpers",
    "libamd*",
    "libaudit*",
    "libdb5*",
    "libdebconfclient0",
    "libdrm*",
    "libfuse3-4",
    "libgdbm*",
    "libhs*",
    "libhwloc-plugins",
    "libllvm*",
    "libpam*",
    "libpciaccess0",
    "libperl*",
    "libsemanage*",
    "libsystemd-shared",
    "libx11*",
    "libxau6",
    "libxcb1",
    "libxdmcp6",
    "libxext6",
    "libxml2",
    "libxnvctrl0",
    "libz3-4",
    "libze1",
    "login.defs",
    "lsb-base",
    "mount",
    "ocl-icd-libopencl1",
    "openssl-provider-legacy",
    "passwd",
    "pci.ids",
    "perl*",
    "systemd*",
    "udev",
];

/// Parts of packages that no tool reads.
const UNREAD: &[&str] = &[
    "usr/share",
    "usr/include",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/openmpi",
    "var",
];

/// A release of Debian, of one architecture, whose programs a guest runs, whatever its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Userland {
    /// Debian 13 (trixie).
    #[default]
    Trixie,
    /// Debian 12 (bookworm) for processors with 32 bits, SSE or not. Later ones require SSE2, and have no kernel.
    Bookworm32,
    /// Debian unstable (sid), which changes from day to day: the newest programs.
    Sid,
}

impl Userland {
    /// Its architecture.
    #[must_use]
    pub const fn architecture(self) -> Architecture {
        match self {
            Self::Bookworm32 => Architecture::I386,
            _ => Architecture::Amd64,
        }
    }

    /// The name of its release.
    #[must_use]
    pub const fn release(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Bookworm32 => "bookworm",
            Self::Sid => "sid",
        }
    }

    /// Its packages.
    pub(crate) fn apt(self) -> Result<Apt> {
        match self {
            // Shared with kernels of the same release.
            Self::Trixie => Apt::new(&["trixie", "trixie-backports"]),
            _ => Apt::of(self.architecture(), &[self.release()]),
        }
    }

    /// A part of names of folders in the cache.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Trixie => "",
            Self::Bookworm32 => "-i386",
            Self::Sid => "-sid",
        }
    }

    fn tools_wanted(self) -> Vec<&'static str> {
        let mut names = TOOLS.to_vec();
        if self == Self::Bookworm32 {
            names.retain(|name| !NOT_OF_32_BITS.contains(name));
        }
        names
    }

    /// The tree of its tools, the same for all kernels.
    pub(crate) fn tools(self) -> Result<Sysroot> {
        let names = self.tools_wanted();
        let key = paths::key(&(&names, UNNEEDED, UNREAD, self.release(), 3));
        let dir = paths::cached(&format!("tools{}-{key}", self.suffix()), |dir| {
            let apt = self.apt()?;
            let mut packages = apt.resolve(self.release(), &names)?;
            packages.retain(|package| !unneeded(package));
            let tree = Sysroot::new(dir);
            tree.prepare()?;
            apt.unpack("guest tools", &packages, dir)?;
            tree.merge()?;
            self.line_buffering(&apt, dir)?;
            self.remove_unread(dir)?;
            busybox_links(dir)
        })?;
        Ok(Sysroot::new(dir))
    }

    fn remove_unread(self, tree: &Path) -> Result<()> {
        UNREAD
            .iter()
            .try_for_each(|it| paths::remove(&tree.join(self.architecture().path(it))))
    }

    /// Adds the library that makes programs print line by line into a pipe (stdbuf(1)), and nothing
    /// else of coreutils: busybox has the rest.
    fn line_buffering(self, apt: &Apt, tree: &Path) -> Result<()> {
        const LIBRARY: &str = "usr/libexec/coreutils/libstdbuf.so";
        let mut packages = apt.resolve(self.release(), &["coreutils"])?;
        packages.retain(|package| package.name == "coreutils");
        let whole = tree.join("coreutils.unpacked");
        apt.unpack("guest tools: stdbuf", &packages, &whole)?;
        let target = tree.join(LIBRARY);
        let parent = target.parent().unwrap_or(tree);
        fs::create_dir_all(parent).at("create", parent)?;
        fs::rename(whole.join(LIBRARY), &target).at("move to", &target)?;
        paths::remove(&whole)
    }
}

/// The folder of rdma-core's own tests in the guest, for an image with [`rdma_core_tests`].
pub const RDMA_CORE_TESTS: &str = "/usr/lib/rdma-core-tests";

/// A tree of rdma-core's own tests, as Debian has them, and of what they need: Python with pyverbs and
/// scapy. `run_tests.py` in [`RDMA_CORE_TESTS`] runs them.
///
/// Scapy is that of an older release: the tests read the first half of a structure, which scapy 2.6 takes
/// for an error.
pub fn rdma_core_tests(userland: Userland) -> Result<PathBuf> {
    const TESTS: &str = "python3-pyverbs";
    const SCAPY: (&str, &str) = ("bookworm", "python3-scapy");
    let key = paths::key(&(TESTS, SCAPY, UNNEEDED, userland.release(), 2));
    paths::cached(
        &format!("rdma-core-tests{}-{key}", userland.suffix()),
        |dir| {
            let apt = userland.apt()?;
            let mut packages = apt.resolve(userland.release(), &[TESTS])?;
            packages.retain(|package| !unneeded(package));
            let tree = Sysroot::new(dir);
            tree.prepare()?;
            apt.unpack("rdma-core's tests", &packages, dir)?;
            let (release, scapy) = SCAPY;
            let apt = Apt::new(&[release])?;
            let mut packages = apt.resolve(release, &[scapy])?;
            packages.retain(|package| package.name == scapy);
            apt.unpack("scapy", &packages, dir)?;
            let tests = dir.join(RDMA_CORE_TESTS.trim_start_matches('/'));
            let source = dir.join("usr/share/doc/rdma-core/tests");
            fs::rename(&source, &tests).at("move to", &tests)?;
            // Debian compresses what is documentation to it.
            for entry in fs::read_dir(&tests).at("read", &tests)?.flatten() {
                if entry.path().extension().is_some_and(|it| it == "gz") {
                    run(Command::new("gunzip").arg(entry.path()))?;
                }
            }
            userland.remove_unread(dir)
        },
    )
}

fn unneeded(package: &Package) -> bool {
    UNNEEDED
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => package.name.starts_with(prefix),
            None => package.name == *pattern,
        })
}

/// Links every command that busybox has and no package brings.
fn busybox_links(tree: &Path) -> Result<()> {
    let busybox = tree.join("usr/bin/busybox");
    for applet in run(Command::new(&busybox).arg("--list"))?.lines() {
        let taken = ["usr/bin", "usr/sbin"]
            .iter()
            .any(|dir| fs::symlink_metadata(tree.join(dir).join(applet)).is_ok());
        if !taken {
            let link = tree.join("usr/bin").join(applet);
            symlink("busybox", &link).at("link", &link)?;
        }
    }
    // Where no package brings OpenSSH's.
    let ssh = tree.join("usr/bin/ssh");
    symlink("dbclient", &ssh).at("link", &ssh)?;
    let init = tree.join("init");
    symlink("usr/bin/busybox", &init).at("link", &init)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perl_is_not_needed_but_perftest_is() {
        let package = |name: &str| Package {
            name: name.into(),
            version: String::new(),
            size: 0,
        };
        assert!(unneeded(&package("perl-modules-5.40")));
        assert!(unneeded(&package("udev")));
        assert!(!unneeded(&package("perftest")));
        assert!(!unneeded(&package("libudev1")));
    }
}
