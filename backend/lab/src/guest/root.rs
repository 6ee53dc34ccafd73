//! A root file system of the host's for commands in nodes: a folder, or the host's own.
//!
//! Nodes boot from their own tree as ever. They mount the folder to be read, by 9p, and over it a file system in their
//! memory for what they write; commands, ssh sessions and the console are there by chroot(1).

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::error::{Doing, Error, Result};
use crate::guest::share::Share;
use crate::progress;

/// Where a node has it.
pub const PLACE: &str = "/host";

/// A folder that is a root file system.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// The folder at `path`. One without a shell is refused.
    pub fn new(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).at("find", path)?;
        if !found(&path, "bin/sh") {
            return Err(Error::Host(format!(
                "--root: {} has no /bin/sh, so no command could run in it; name a root file system, as debootstrap \
                 makes one, or / for that of this machine",
                path.display()
            )));
        }
        if path.to_str().is_none_or(|it| it.contains('\n')) {
            return Err(Error::Host("--root: there is no way to name it".into()));
        }
        Ok(Self(path))
    }

    /// Says what is not there that most want.
    pub fn tell(&self) {
        let path = &self.0;
        let missing: Vec<&str> = ["usr/bin/ibv_devinfo", "usr/bin/ssh"]
            .into_iter()
            .filter(|program| !found(path, program))
            .filter_map(|program| program.rsplit('/').next())
            .collect();
        if !missing.is_empty() {
            progress::step(format_args!(
                "{} has no {}: Debian's ibverbs-utils, ibverbs-providers and openssh-client have them",
                path.display(),
                missing.join(" and no ")
            ));
        }
    }

    /// The folder as nodes get it.
    pub fn share(&self) -> Share {
        Share::root(&self.0)
    }

    /// The command by which a node has it. Status 9 says that its kernel cannot.
    pub fn mount() -> String {
        format!("/etc/guest/root {PLACE}")
    }
}

/// Whether a tree has a program, or a link by that name: where that leads is the tree's own matter.
fn found(root: &Path, program: &str) -> bool {
    fs::symlink_metadata(root.join(program)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_has_a_shell() {
        Root::new(Path::new("/")).unwrap();
        let empty = tempfile::tempdir().unwrap();
        let error = Root::new(empty.path()).unwrap_err().to_string();
        assert!(error.contains("has no /bin/sh"), "{error}");
        let error = Root::new(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/nowhere: No such file"), "{error}");
    }
}
