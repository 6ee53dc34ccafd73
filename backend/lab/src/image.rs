//! The guest: a kernel and an initial RAM file system from Debian's own packages.

pub mod alternatives;
pub(crate) mod elf;
pub mod initramfs;
pub mod linux;
pub mod modules;
pub mod packages;
pub mod vmlinux;

use std::{
    fmt, fs,
    fs::File,
    io::BufWriter,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use crate::debian::apt::{Apt, Package, run};
use crate::debian::sysroot::Sysroot;
use crate::error::{Doing, Error, Result};
use crate::image::initramfs::Initramfs;
use crate::image::modules::Modules;
use crate::{paths, progress};

/// The Debian release whose tools every guest runs, whatever its kernel.
pub(crate) const TOOLS_RELEASE: &str = "trixie";

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

/// The guest's own scripts: name in the image, content.
const SCRIPTS: [(&str, &str); 8] = [
    ("etc/inittab", include_str!("../guest/inittab")),
    ("etc/guest/boot", include_str!("../guest/boot")),
    ("etc/guest/channel", include_str!("../guest/channel")),
    ("etc/guest/root", include_str!("../guest/root")),
    ("etc/guest/shell", include_str!("../guest/shell")),
    ("usr/bin/await-port", include_str!("../guest/await-port")),
    ("usr/bin/lab-barrier", include_str!("../guest/lab-barrier")),
    ("usr/bin/ibvswitch", include_str!("../guest/ibvswitch")),
];

/// A kernel of Debian that guests are tested with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kernel {
    /// 5.10, Debian 11 (bullseye), which mirrors have as long as they like.
    V5_10,
    /// 6.1, Debian 12 (bookworm).
    V6_1,
    /// 6.12, Debian 13 (trixie).
    #[default]
    V6_12,
    /// 7.2, trixie-backports.
    V7_2,
    /// Kernel of cloud images, Debian 13 (trixie): without IP over InfiniBand.
    Cloud,
}

impl Kernel {
    /// Kernels with all drivers, oldest first.
    pub const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7_2];

    /// Kernels with all drivers that mirrors are sure to have.
    pub const CURRENT: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7_2];

    /// The suite it comes from, and the suites needed to resolve it.
    pub(crate) fn suites(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::V5_10 => ("bullseye", &["bullseye"]),
            Self::V6_1 => ("bookworm", &["bookworm"]),
            Self::V6_12 => ("trixie", &["trixie", "trixie-backports"]),
            Self::V7_2 => ("trixie-backports", &["trixie", "trixie-backports"]),
            Self::Cloud => ("trixie", &["trixie"]),
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            _ => "linux-image-amd64",
        }
    }

    fn modules(self) -> Modules {
        match self {
            Self::Cloud => modules::CLOUD,
            _ => modules::ALL,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_2 => "7.2",
            Self::Cloud => "cloud",
        })
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|k| k.to_string() == text);
        found.ok_or_else(|| format!("no kernel {text}: there are 5.10, 6.1, 6.12 and 7.2"))
    }
}

/// A guest image, ready to boot.
#[derive(Debug, Clone)]
pub struct Image {
    /// The kernel.
    pub vmlinuz: PathBuf,
    /// The same unpacked, which emulated guests boot sooner, where it can be.
    pub vmlinux: Option<PathBuf>,
    /// The initial RAM file system.
    pub initramfs: PathBuf,
    /// The kernel's release, as `uname -r` says it.
    pub release: String,
}

impl Image {
    /// The image with `kernel`, built if it is not in the cache.
    pub fn get(kernel: Kernel) -> Result<Self> {
        let tools = tools()?;
        let linux = linux(kernel, &tools)?;
        let key = paths::key(&(SCRIPTS, tools.path(), &linux, 4));
        let dir = paths::cached(&format!("image-{kernel}-{key}"), |dir| {
            progress::step(format_args!("guest image with kernel {kernel}: writing"));
            write_initramfs(&dir.join("initramfs"), &[tools.path(), &linux.join("root")])
        })?;
        let file = linux.join("release");
        Ok(Self {
            vmlinuz: linux.join("vmlinuz"),
            vmlinux: Some(linux.join(VMLINUX)).filter(|path| path.is_file()),
            initramfs: dir.join("initramfs"),
            release: fs::read_to_string(&file).at("read", &file)?,
        })
    }

    /// The same image with more in it: programs and other files of this machine, by their paths in the
    /// guest, and trees. It is written to `dir`.
    pub fn with(&self, files: &[(&str, &Path)], trees: &[&Path], dir: &Path) -> Result<Self> {
        let initramfs = dir.join("initramfs");
        fs::copy(&self.initramfs, &initramfs).at("copy", &self.initramfs)?;
        // The kernel unpacks archives one after the other.
        let file = File::options().append(true).open(&initramfs);
        let mut archive = Initramfs::new(BufWriter::new(file.at("open", &initramfs)?));
        for tree in trees {
            archive.tree(tree)?;
        }
        for (name, path) in files {
            archive.file(name, 0o755, &fs::read(path).at("read", path)?)?;
        }
        archive.finish()?;
        Ok(Self {
            initramfs,
            ..self.clone()
        })
    }
}

/// The tree of tools, the same for all kernels.
pub(crate) fn tools() -> Result<Sysroot> {
    let key = paths::key(&(TOOLS, UNNEEDED, UNREAD, TOOLS_RELEASE, 3));
    let dir = paths::cached(&format!("tools-{key}"), |dir| {
        let apt = Apt::new(Kernel::V6_12.suites().1)?;
        let mut packages = apt.resolve(TOOLS_RELEASE, TOOLS)?;
        packages.retain(|package| !unneeded(package));
        let tree = Sysroot::new(dir);
        tree.prepare()?;
        apt.unpack("guest tools", &packages, dir)?;
        line_buffering(&apt, dir)?;
        for unread in UNREAD {
            paths::remove(&dir.join(unread))?;
        }
        busybox_links(dir)
    })?;
    Ok(Sysroot::new(dir))
}

/// The folder of rdma-core's own tests in the guest, for an image with [`rdma_core_tests`].
pub const RDMA_CORE_TESTS: &str = "/usr/lib/rdma-core-tests";

/// A tree of rdma-core's own tests, as Debian has them, and of what they need: Python with pyverbs and
/// scapy. `run_tests.py` in [`RDMA_CORE_TESTS`] runs them.
///
/// Scapy is that of an older release: the tests read the first half of a structure, which scapy 2.6 takes
/// for an error.
pub fn rdma_core_tests() -> Result<PathBuf> {
    const TESTS: &str = "python3-pyverbs";
    const SCAPY: (&str, &str) = ("bookworm", "python3-scapy");
    let key = paths::key(&(TESTS, SCAPY, UNNEEDED, TOOLS_RELEASE, 2));
    paths::cached(&format!("rdma-core-tests-{key}"), |dir| {
        let apt = Apt::new(Kernel::V6_12.suites().1)?;
        let mut packages = apt.resolve(TOOLS_RELEASE, &[TESTS])?;
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
        for unread in UNREAD {
            paths::remove(&dir.join(unread))?;
        }
        Ok(())
    })
}

fn unneeded(package: &Package) -> bool {
    UNNEEDED
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => package.name.starts_with(prefix),
            None => package.name == *pattern,
        })
}

/// Adds the library that makes programs print line by line into a pipe (stdbuf(1)), and nothing
/// else of coreutils: busybox has the rest.
fn line_buffering(apt: &Apt, tree: &Path) -> Result<()> {
    const LIBRARY: &str = "usr/libexec/coreutils/libstdbuf.so";
    let mut packages = apt.resolve(TOOLS_RELEASE, &["coreutils"])?;
    packages.retain(|package| package.name == "coreutils");
    let whole = tree.join("coreutils.unpacked");
    apt.unpack("guest tools: stdbuf", &packages, &whole)?;
    let target = tree.join(LIBRARY);
    let parent = target.parent().unwrap_or(tree);
    fs::create_dir_all(parent).at("create", parent)?;
    fs::rename(whole.join(LIBRARY), &target).at("move to", &target)?;
    paths::remove(&whole)
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

/// The unpacked kernel in the folder of a kernel.
const VMLINUX: &str = "vmlinux";

/// The folder of a kernel: `vmlinuz`, [`VMLINUX`] where there is one, `release`, and `root/` with its modules.
fn linux(kernel: Kernel, tools: &Sysroot) -> Result<PathBuf> {
    let key = paths::key(&(kernel.modules(), kernel, 5));
    paths::cached(&format!("linux-{kernel}-{key}"), |dir| {
        let (suite, suites) = kernel.suites();
        let apt = Apt::new(suites)?;
        let mut packages = apt.resolve(suite, &[kernel.package()])?;
        // Up to 6.x all is in linux-image-<release>; later the image is in linux-binary-*, the
        // modules are in linux-modules-* and their index in linux-base-*. The rest is tools for
        // installing them.
        packages.retain(|package| {
            [
                "linux-image-",
                "linux-binary-",
                "linux-modules-",
                "linux-base-",
            ]
            .iter()
            .any(|prefix| package.name.starts_with(prefix))
        });
        let whole = dir.join("unpacked");
        apt.unpack(&format!("kernel {kernel}"), &packages, &whole)?;
        progress::step(format_args!("kernel {kernel}: choosing modules"));
        let root = dir.join("root");
        let release = modules::install(tools, &whole, &root, kernel.modules())?;
        let vmlinuz = find_vmlinuz(&whole, &release)?;
        let target = dir.join("vmlinuz");
        fs::copy(&vmlinuz, &target).at("copy", &vmlinuz)?;
        vmlinux::unpack(&target, &dir.join(VMLINUX))?;
        let file = dir.join("release");
        fs::write(&file, release).at("write", &file)?;
        paths::remove(&whole)
    })
}

/// The kernel itself: beside its modules in later packages, in /boot in earlier ones.
fn find_vmlinuz(tree: &Path, release: &str) -> Result<PathBuf> {
    let places = [
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("boot/vmlinuz-{release}"),
    ];
    let found = places
        .iter()
        .map(|place| tree.join(place))
        .find(|path| path.is_file());
    found.ok_or_else(|| Error::Host(format!("no kernel {release} in {}", tree.display())))
}

fn write_initramfs(path: &Path, trees: &[&Path]) -> Result<()> {
    let file = File::create(path).at("create", path)?;
    let mut archive = Initramfs::new(BufWriter::new(file));
    for folder in [
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "root",
        "etc",
        "etc/guest",
    ] {
        archive.directory(folder)?;
    }
    // The kernel opens it for process 1, before anything could make it.
    archive.character_device("dev/console", (5, 1))?;
    for tree in trees {
        archive.tree(tree)?;
    }
    for (name, content) in SCRIPTS {
        archive.file(name, 0o755, content.as_bytes())?;
    }
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    archive.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_by_name() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.to_string().parse(), Ok(kernel));
        }
        assert!("5.4".parse::<Kernel>().unwrap_err().contains("6.12"));
    }

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
