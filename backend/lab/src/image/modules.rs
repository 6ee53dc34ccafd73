//! Kernel modules: those a guest may need, with all they depend on.

mod trim;

use std::{
    collections::BTreeSet,
    fs,
    fs::File,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::debian::apt::run;
use crate::debian::sysroot::Sysroot;
use crate::error::{Doing, Error, Result};

/// The modules that guests with some kernel may load.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Modules {
    /// Modules that are there, or built in.
    pub wanted: &'static [&'static str],
    /// Modules that are built in or gone in some kernels.
    pub optional: &'static [&'static str],
}

/// Modules of kernels that have all drivers.
pub const ALL: Modules = Modules {
    wanted: WANTED,
    optional: &["crc32_generic", "crc32c_generic"],
};

/// Modules of kernels for cloud images.
pub const CLOUD: Modules = Modules {
    wanted: &["virtio_pci", "virtio_net", "virtio_console"],
    // They are not there, which guests are to say.
    optional: &["ib_ipoib", "9p", "9pnet_virtio"],
};

/// Modules of kernels for processors with 32 bits: those of the device. Soft-RoCE goes without memory beyond that which a
/// kernel reaches at once (HIGHMEM), which these have.
pub const PAE: Modules = Modules {
    wanted: &[
        "mlx5_core",
        "mlx5_ib",
        "ib_umad",
        "ib_uverbs",
        "rdma_ucm",
        "ib_ipoib",
        "virtio_pci",
        "virtio_net",
        "virtio_console",
    ],
    optional: &[],
};

const WANTED: &[&str] = &[
    // the device under test and what stands on it
    "mlx5_core",
    "mlx5_ib",
    "ib_umad",
    "ib_uverbs",
    "rdma_ucm",
    "ib_ipoib",
    // SRP: a target and an initiator
    "ib_srpt",
    "ib_srp",
    "nvme-rdma",
    "nvmet-rdma",
    // iSER: a target with disks that are files, and an initiator
    "ib_isert",
    "target_core_file",
    "ib_iser",
    "sd_mod",
    // RDS; without rds_tcp, so that messages go by RDMA or not at all
    "rds_rdma",
    // the way between guests and to the host
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    // folders of the host, and what a node writes over them
    "9p",
    "9pnet_virtio",
    "overlay",
    // NFS over RDMA
    "nfsd",
    "nfsv4",
    "rpcrdma",
    // Soft-RoCE
    "rdma_rxe",
    // a guest that plays the host of a passed-through function
    "vfio-pci",
    "vfio_iommu_type1",
];

/// Copies modules, with their dependencies and uncompressed,
/// from the unpacked kernel package at `kernel` to `image`; gives the kernel's release.
///
/// Uncompressed, and without what only takes time to load, because a guest under emulation takes seconds for the rest.
pub fn install(tools: &Sysroot, kernel: &Path, image: &Path, modules: Modules) -> Result<String> {
    link_lib(kernel)?;
    link_lib(image)?;
    let release = release(kernel)?;
    depmod(tools, kernel, &release)?;
    let from = kernel.join("lib/modules").join(&release);
    for module in copy(&from, image, &release, modules)? {
        let mut bytes = fs::read(&module).at("read", &module)?;
        trim::trim(&mut bytes);
        fs::write(&module, bytes).at("write", &module)?;
    }
    depmod(tools, image, &release)?;
    Ok(release)
}

/// Copies modules with their dependencies, and what says which are built in, from the folder `from` of a
/// kernel's modules to below `image`. Those of xz are uncompressed. Gives the copies of modules.
fn copy(from: &Path, image: &Path, release: &str, modules: Modules) -> Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    let to = image.join("lib/modules").join(release);
    let dependencies = index(from, "modules.dep")?;
    let builtin = index(from, "modules.builtin")?;
    for path in closure(modules, &dependencies, &builtin)? {
        let source = from.join(&path);
        let target = to.join(path.strip_suffix(".xz").unwrap_or(&path));
        let parent = target.parent().unwrap_or(&to);
        fs::create_dir_all(parent).at("create", parent)?;
        if path.ends_with(".xz") {
            unxz(&source, &target)?;
        } else {
            fs::copy(&source, &target).at("copy", &source)?;
        }
        copies.push(target);
    }
    for name in [
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ] {
        let source = from.join(name);
        if source.exists() {
            fs::copy(&source, to.join(name)).at("copy", &source)?;
        }
    }
    Ok(copies)
}

/// As [`install`], of a kernel that somebody has built: nothing is written to its folder `from`, which has
/// an index.
pub fn install_built(
    tools: &Sysroot,
    from: &Path,
    image: &Path,
    release: &str,
    modules: Modules,
) -> Result<()> {
    link_lib(image)?;
    let to = image.join("lib/modules").join(release);
    fs::create_dir_all(&to).at("create", &to)?;
    copy(from, image, release, modules)?;
    depmod(tools, image, release)
}

/// Whether a kernel has a module, or has it built in. `from` is the folder of its modules.
pub fn has(from: &Path, name: &str) -> Result<bool> {
    let dependencies = index(from, "modules.dep")?;
    let files = dependencies.lines().filter_map(|line| line.split_once(':'));
    let builtin = index(from, "modules.builtin")?;
    let mut all = files.map(|(file, _)| file).chain(builtin.lines());
    Ok(all.any(|file| module_name(file) == name))
}

fn index(from: &Path, name: &str) -> Result<String> {
    let path = from.join(name);
    fs::read_to_string(&path).at("read", &path)
}

/// Makes `lib` a link to `usr/lib` where a package of a merged-/usr Debian left none: depmod
/// looks for modules below `lib`.
fn link_lib(root: &Path) -> Result<()> {
    let merged = root.join("usr/lib");
    fs::create_dir_all(&merged).at("create", &merged)?;
    let lib = root.join("lib");
    if !lib.exists() {
        symlink("usr/lib", &lib).at("link", &lib)?;
    }
    Ok(())
}

/// The kernel's release (`6.12.48+deb13-amd64`): the one folder below lib/modules.
fn release(kernel: &Path) -> Result<String> {
    let modules = kernel.join("lib/modules");
    let mut entries = fs::read_dir(&modules).at("read", &modules)?.flatten();
    match entries.next() {
        Some(entry) => Ok(entry.file_name().to_string_lossy().into_owned()),
        None => Err(Error::Host(format!("no modules in {}", modules.display()))),
    }
}

/// Makes the index of modules (modules.dep and others) with the depmod of the tools' tree.
fn depmod(tools: &Sysroot, root: &Path, release: &str) -> Result<()> {
    let mut command = tools.command("usr/bin/kmod", "depmod");
    run(command.arg("-b").arg(root).arg(release)).map(drop)
}

/// Returns the files of the wanted modules and of all they need, from the text of modules.dep. Its lines are `file:
/// file…` with every dependency, direct or not. Modules in modules.builtin are part of the kernel.
fn closure(modules: Modules, dependencies: &str, builtin: &str) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let Modules { wanted, optional } = modules;
    for (name, optional) in
        { wanted.iter().map(|name| (name, false)) }.chain(optional.iter().map(|name| (name, true)))
    {
        let line = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(file, _)| module_name(file) == name.replace('-', "_"));
        match line {
            Some((file, needs)) => {
                files.insert(file.to_owned());
                files.extend(needs.split_whitespace().map(str::to_owned));
            }
            None if optional => {}
            None if builtin
                .lines()
                .any(|file| module_name(file) == name.replace('-', "_")) => {}
            None => {
                return Err(Error::Output {
                    what: format!("module {name}"),
                    text: "modules.dep of this kernel".into(),
                });
            }
        }
    }
    Ok(files)
}

/// `kernel/drivers/vfio/pci/vfio-pci.ko.xz` → `vfio_pci`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    let stem = base.split('.').next().unwrap_or(base);
    stem.replace('-', "_")
}

fn unxz(source: &Path, target: &Path) -> Result<()> {
    let out = File::create(target).at("create", target)?;
    let status = Command::new("xz")
        .arg("-dc")
        .arg(source)
        .stdin(Stdio::null())
        .stdout(out)
        .status()
        .doing("start xz (scripts/setup installs xz-utils)")?;
    if !status.success() {
        return Err(Error::Host(format!(
            "xz cannot unpack {}",
            source.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closure_takes_dependencies_and_skips_optional() {
        let mut text = String::new();
        for name in WANTED {
            if *name != "virtio_pci" {
                text += &format!("kernel/{name}.ko.xz: kernel/needed-by-{name}.ko.xz\n");
            }
        }
        text += "kernel/unrelated.ko.xz:\n";
        let files = closure(ALL, &text, "kernel/drivers/virtio/virtio_pci.ko\n").unwrap();
        assert_eq!(files.len(), 2 * (WANTED.len() - 1));
        assert!(files.contains("kernel/needed-by-mlx5_ib.ko.xz"));
        let error = closure(ALL, "kernel/x.ko:", "").unwrap_err().to_string();
        assert!(error.contains("mlx5_core"), "{error}");
    }
}
