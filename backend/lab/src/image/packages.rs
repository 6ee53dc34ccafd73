//! More of Debian's packages in a guest.

use std::{fs, path::Path};

use crate::debian::apt;
use crate::debian::apt::Apt;
use crate::debian::sysroot::Sysroot;
use crate::error::{Doing, Error, Result};
use crate::image::userland::Userland;
use crate::image::{Image, Kernel, alternatives};
use crate::paths;

/// Parts of packages that take memory of guests and are documentation.
const UNREAD: &[&str] = &[
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
];

/// Folders of a package's documentation that contain programs.
const PROGRAMS: &[&str] = &["tests", "examples"];

/// The release that all tools are of.
const TOOLS_RELEASE: &str = Userland::Trixie.release();

/// Every guest has it.
const C_LIBRARY: &str = "libc6";

impl Image {
    /// The image with `kernel`, and these packages of the release that the tools are of, with all that
    /// they depend on. They are unpacked and not configured: their maintainers' scripts do not run. Names of
    /// update-alternatives are there.
    pub fn with_packages(kernel: Kernel, packages: &[String]) -> Result<Self> {
        let image = Self::get(kernel)?;
        if packages.is_empty() {
            return Ok(image);
        }
        let mut names: Vec<&str> = packages.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let key = paths::key(&(&names, &image.initramfs, UNREAD, TOOLS_RELEASE, 3));
        let dir = paths::cached(&format!("packages-{kernel}-{key}"), |dir| {
            let apt = Apt::new(kernel.suites().1)?;
            let mut found = apt.resolve(TOOLS_RELEASE, &names).map_err(unknown)?;
            found.retain(|package| package.name != C_LIBRARY);
            let root = dir.join("root");
            let tree = Sysroot::new(&root);
            tree.prepare()?;
            let mut named = Vec::new();
            apt.unpack_each(&names.join(", "), &found, &root, |file| {
                named.extend(alternatives::read(&apt::postinst(file)));
                Ok(())
            })?;
            alternatives::link(&root, named)?;
            for unread in UNREAD {
                paths::remove(&root.join(unread))?;
            }
            remove_documentation(&root.join("usr/share/doc"))?;
            image.with(&[], &[&root], dir)?;
            paths::remove(&root)
        })?;
        Ok(Self {
            initramfs: dir.join("initramfs"),
            ..image
        })
    }
}

/// Removes what nobody reads of packages' documentation, which is in a folder for each.
fn remove_documentation(all: &Path) -> Result<()> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    for folder in entries(all) {
        for entry in entries(&folder.path()) {
            let name = entry.file_name();
            if PROGRAMS.iter().any(|it| name == *it) {
                continue;
            }
            let path = entry.path();
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                paths::remove(&path)?;
            } else {
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
    }
    Ok(())
}

/// Turns apt's error about unknown packages into one with a remedy.
fn unknown(error: Error) -> Error {
    match &error {
        Error::Program { output, .. } => {
            let said: Vec<&str> = output.lines().filter(|it| it.starts_with("E: ")).collect();
            Error::Host(format!(
                "--packages: apt finds no way to install them from Debian {TOOLS_RELEASE}, component main:\n{}\n\
                 `apt-cache search` on such a machine says what there is",
                said.join("\n")
            ))
        }
        _ => error,
    }
}
