//! A tree of unpacked packages with programs that run on this host.
//!
//! The host may have an older C library than the tree, so a program is started by the tree's own
//! dynamic loader, with the tree's libraries only. Neither root nor chroot is needed.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::debian::apt::run;
use crate::error::{Doing, Result};
use crate::paths;

/// Folders of the root that are links to those of `usr`.
const TOP_LEVEL: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// An unpacked tree with Debian's layout (amd64).
#[derive(Debug, Clone)]
pub struct Sysroot(PathBuf);

impl Sysroot {
    /// The tree at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Makes the top-level links (`lib` → `usr/lib` and so on) that packages of a merged-/usr
    /// Debian expect to find: base-files, which carries them, is not among what is unpacked.
    pub fn prepare(&self) -> Result<()> {
        TOP_LEVEL.iter().try_for_each(|name| self.link(name))
    }

    /// Makes them anew where packages from before Debian 13 have put folders in their place.
    pub fn merge(&self) -> Result<()> {
        for name in TOP_LEVEL {
            let folder = self.0.join(name);
            if folder.is_symlink() {
                continue;
            }
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(folder.join("."));
            run(copy.arg(self.0.join("usr").join(name)))?;
            paths::remove(&folder)?;
            self.link(name)?;
        }
        Ok(())
    }

    fn link(&self, name: &str) -> Result<()> {
        let target = self.0.join("usr").join(name);
        std::fs::create_dir_all(&target).at("create", &target)?;
        let link = self.0.join(name);
        symlink(Path::new("usr").join(name), &link).at("link", &link)
    }

    /// The tree's folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A command that runs the tree's `program` (a path below the root) under the name `argv0`.
    pub fn command(&self, program: &str, argv0: &str) -> Command {
        let mut command = Command::new(self.0.join(LOADER));
        let libraries = self.0.join("usr/lib/x86_64-linux-gnu");
        command.arg("--library-path").arg(libraries);
        command.args(["--argv0", argv0]).arg(self.0.join(program));
        command
    }
}
