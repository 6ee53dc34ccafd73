//! A kernel that somebody has built: for those who develop one.

use std::{
    fs,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::error::{Doing, Error, Result};
use crate::image::modules::Modules;
use crate::image::userland::Userland;
use crate::image::{Image, modules, vmlinux};

/// Modules that nodes require, with the options of the kernel's configuration.
const NEEDED: [(&str, &str); 5] = [
    ("virtio_pci", "CONFIG_VIRTIO_PCI"),
    ("virtio_console", "CONFIG_VIRTIO_CONSOLE"),
    ("mlx5_core", "CONFIG_MLX5_CORE"),
    ("mlx5_ib", "CONFIG_MLX5_INFINIBAND"),
    ("ib_uverbs", "CONFIG_INFINIBAND_USER_ACCESS"),
];

/// Modules that nodes use if the kernel has them.
const MODULES: Modules = Modules {
    wanted: &[],
    optional: &[
        "virtio_pci",
        "virtio_console",
        "mlx5_core",
        "mlx5_ib",
        "ib_uverbs",
        "ib_umad",
        "rdma_ucm",
        "ib_ipoib",
        "ib_srpt",
        "ib_srp",
        "nvme-rdma",
        "nvmet-rdma",
        "ib_isert",
        "target_core_file",
        "ib_iser",
        "sd_mod",
        "rds_rdma",
        "virtio_net",
        "9p",
        "9pnet_virtio",
        "overlay",
        "nfsd",
        "nfsv4",
        "rpcrdma",
        "rdma_rxe",
        "siw",
    ],
};

/// A kernel, and its modules.
#[derive(Debug, Clone)]
pub struct Build {
    /// The kernel: a bzImage.
    pub kernel: PathBuf,
    /// Directory filled by `make modules_install INSTALL_MOD_PATH=…`; `None` if nodes need no module.
    pub modules: Option<PathBuf>,
}

impl Build {
    /// An image with this kernel, and with all else of another image. It is written to `dir`.
    pub fn image(&self, base: &Image, dir: &Path) -> Result<Image> {
        let release = release(&self.kernel)?;
        let tree = dir.join("modules");
        fs::create_dir_all(&tree).at("create", &tree)?;
        if let Some(modules) = &self.modules {
            self.install(modules, &release, &tree)?;
        }
        let mut image = base.with(&[], &[&tree], dir)?;
        image.vmlinuz.clone_from(&self.kernel);
        let vmlinux = dir.join("vmlinux");
        image.vmlinux = vmlinux::unpack(&self.kernel, &vmlinux)?.then_some(vmlinux);
        image.release = release;
        Ok(image)
    }

    fn install(&self, from: &Path, release: &str, tree: &Path) -> Result<()> {
        let folder = from.join("lib/modules").join(release);
        if !folder.join("modules.dep").is_file() {
            return Err(Error::Host(format!(
                "--modules: {} has no modules of kernel {release}, or no modules.dep; fill it with \
                 make modules_install INSTALL_MOD_PATH={}",
                folder.display(),
                from.display()
            )));
        }
        for (name, option) in NEEDED {
            if !modules::has(&folder, name)? {
                return Err(Error::Host(format!(
                    "kernel {release} has no {name}, neither as a module nor built in; set {option} and build \
                     it again"
                )));
            }
        }
        modules::install_built(&Userland::Trixie.tools()?, &folder, tree, release, MODULES)
    }
}

/// The release of a bzImage: the kernel says in its boot header where it is
/// (Linux Documentation/arch/x86/boot.rst, fields header and kernel_version).
fn release(path: &Path) -> Result<String> {
    let mut file = File::open(path).at("open", path)?;
    let mut header = [0; 0x210];
    let mut version = [0; 256];
    let read = file.read_exact(&mut header).and_then(|()| {
        let at = u16::from_le_bytes([header[0x20e], header[0x20f]]);
        file.seek(SeekFrom::Start(u64::from(at) + 0x200))?;
        file.read_exact(&mut version)
    });
    let text = String::from_utf8_lossy(&version);
    let release = text.split([' ', '\0']).next().unwrap_or_default();
    if read.is_err() || header[0x202..0x206] != *b"HdrS" || release.is_empty() {
        return Err(Error::Host(format!(
            "--kernel: {} is no bzImage; name arch/x86/boot/bzImage of the build tree",
            path.display()
        )));
    }
    Ok(release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_where_the_header_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bzImage");
        let mut bytes = vec![0; 0x1000];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x300u16.to_le_bytes());
        bytes[0x500..0x50c].copy_from_slice(b"7.3.0-rc1 (x");
        fs::write(&path, &bytes).unwrap();
        assert_eq!(release(&path).unwrap(), "7.3.0-rc1");
        bytes[0x202] = 0;
        for wrong in [&bytes[..], &bytes[..100], b""] {
            fs::write(&path, wrong).unwrap();
            let error = release(&path).unwrap_err().to_string();
            assert!(error.contains("is no bzImage"), "{error}");
        }
    }
}
