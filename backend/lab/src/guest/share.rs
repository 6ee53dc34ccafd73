//! A folder of the host in guests: over 9p, which QEMU serves itself.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Folders that guests have themselves, and cannot do without.
const GUESTS_OWN: &[&str] = &[
    "/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr",
];

/// Where a node has the folder by which files are copied to it and from it.
pub const EXCHANGE: &str = "/run/lab-exchange";

/// A folder, and what guests may do with it.
#[derive(Debug, Clone)]
pub struct Share {
    path: PathBuf,
    /// Where guests have it.
    target: PathBuf,
    /// Tag by which guests mount it.
    tag: &'static str,
    writable: bool,
}

impl Share {
    /// A folder by its whole path. One in which guests have their own programs or devices is refused.
    pub fn new(path: &Path, writable: bool) -> Result<Self> {
        let own = GUESTS_OWN.iter().any(|it| Path::new(it) == path);
        let text = path.to_str().filter(|it| !it.contains('\n'));
        if own || text.is_none() || !path.is_absolute() {
            return Err(Error::Host(format!(
                "{} cannot be in the nodes, which have a folder of that name themselves, or no way to \
                 name it; change to another one, or leave it out with --no-share",
                path.display()
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            target: path.to_owned(),
            tag: "share",
            writable,
        })
    }

    /// A folder by which files are copied to one guest and from it: at [`EXCHANGE`] there.
    pub fn exchange(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            target: EXCHANGE.into(),
            tag: "exchange",
            writable: true,
        }
    }

    /// A folder that all nodes of a cluster write to, at this place there.
    pub fn common(path: &Path, target: &str) -> Self {
        Self {
            path: path.to_owned(),
            target: target.into(),
            tag: "common",
            writable: true,
        }
    }

    /// A root file system, which guests only read.
    pub(crate) fn root(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            target: path.to_owned(),
            tag: "root",
            writable: false,
        }
    }

    /// Whether files are copied by it.
    pub(crate) fn is_exchange(&self) -> bool {
        self.tag == "exchange"
    }

    /// Its path, on the host as in guests.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Arguments for QEMU.
    pub fn arguments(&self) -> Vec<String> {
        // Options of QEMU are between commas, and a comma itself is two.
        let path = self.path.display().to_string().replace(',', ",,");
        let readonly = if self.writable { "" } else { ",readonly=on" };
        let tag = self.tag;
        vec![
            "-fsdev".into(),
            format!("local,id={tag},path={path},security_model=none,multidevs=remap{readonly}"),
            "-device".into(),
            format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]
    }

    /// The command with which a guest mounts it, below a folder of the guest's. Status 9 says that the guest's kernel
    /// has no 9p.
    pub fn mount(&self, below: &str) -> String {
        let path = quoted(&format!("{below}{}", self.target.display()));
        let tag = self.tag;
        let mode = if self.writable { "rw" } else { "ro" };
        format!(
            "modprobe -a 9pnet_virtio 9p 2>/dev/null; \
             grep -qw 9p /proc/filesystems || exit 9; mkdir -p {path} && \
             mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,{mode} {tag} {path}"
        )
    }
}

/// A word of a shell's command line that means itself.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_keeps_its_own() {
        for own in ["/", "/usr", "/proc", "relative"] {
            let error = Share::new(Path::new(own), false).unwrap_err().to_string();
            assert!(error.contains("--no-share"), "{error}");
        }
    }

    #[test]
    fn odd_paths_arrive() {
        let share = Share::new(Path::new("/a,b/it's"), false).unwrap();
        let arguments = share.arguments().join(" ");
        assert!(arguments.contains("path=/a,,b/it's,"), "{arguments}");
        assert!(arguments.contains("readonly=on"), "{arguments}");
        assert!(share.mount("").contains(r"ro share '/a,b/it'\''s'"));
    }
}
