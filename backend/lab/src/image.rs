//! The guest: a kernel and an initial RAM file system from Debian's own packages.

pub mod alternatives;
pub(crate) mod elf;
pub mod initramfs;
pub mod linux;
pub mod modules;
pub mod packages;
pub mod userland;
pub mod vmlinux;

use std::{
    fmt, fs,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::debian::apt::Apt;
use crate::error::{Doing, Error, Result};
use crate::image::initramfs::Initramfs;
use crate::image::modules::Modules;
use crate::image::userland::Userland;
use crate::{paths, progress};

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
    /// 6.1 for processors with 32 bits and physical addresses of 36, Debian 12 (bookworm).
    V6_1Pae,
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
            Self::V6_1Pae => ("bookworm", &["bookworm"]),
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::V6_1Pae => "linux-image-686-pae",
            _ => "linux-image-amd64",
        }
    }

    /// The programs that guests with it run.
    const fn userland(self) -> Userland {
        match self {
            Self::V6_1Pae => Userland::Bookworm32,
            _ => Userland::Trixie,
        }
    }

    fn modules(self) -> Modules {
        match self {
            Self::Cloud => modules::CLOUD,
            Self::V6_1Pae => modules::PAE,
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
            Self::V6_1Pae => "6.1-pae",
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
        Self::of(kernel, kernel.userland())
    }

    /// The image with `kernel` and the tools of a release, of the same architecture.
    pub fn of(kernel: Kernel, userland: Userland) -> Result<Self> {
        let tools = userland.tools()?;
        let linux = linux(kernel)?;
        let key = paths::key(&(SCRIPTS, tools.path(), &linux, 4));
        let suffix = userland.suffix();
        let dir = paths::cached(&format!("image-{kernel}{suffix}-{key}"), |dir| {
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

/// The unpacked kernel in the folder of a kernel.
const VMLINUX: &str = "vmlinux";

/// The folder of a kernel: `vmlinuz`, [`VMLINUX`] where there is one, `release`, and `root/` with its modules.
fn linux(kernel: Kernel) -> Result<PathBuf> {
    let key = paths::key(&(kernel.modules(), kernel, 5));
    paths::cached(&format!("linux-{kernel}-{key}"), |dir| {
        let (suite, suites) = kernel.suites();
        let apt = Apt::of(kernel.userland().architecture(), suites)?;
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
        let release =
            modules::install(&Userland::Trixie.tools()?, &whole, &root, kernel.modules())?;
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
}
