//! A QEMU that knows `vfio-user-pci`: the system's own where it does, else a private one.
//!
//! The device exists since QEMU 10.1, which no Debian release before forky has; trixie-backports
//! has a newer one. It is unpacked beside the system and run with its own libraries, so that it
//! works on any Debian and needs no root. `$IBVSWITCH_QEMU` names another program to use.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::debian::apt::{Apt, run};
use crate::debian::sysroot::Sysroot;
use crate::error::{Error, Result};
use crate::{paths, progress};

const PROGRAM: &str = "qemu-system-x86_64";
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const PACKAGES: [&str; 1] = ["qemu-system-x86"];

/// A QEMU for x86-64 guests with `vfio-user-pci`.
#[derive(Debug, Clone)]
pub struct Qemu {
    place: Place,
    /// Its version, as `11.1.3`.
    pub version: String,
}

#[derive(Debug, Clone)]
enum Place {
    System(PathBuf),
    Private(Sysroot),
}

impl Place {
    fn command(&self) -> Command {
        match self {
            Self::System(program) => Command::new(program),
            Self::Private(tree) => {
                let mut command = tree.command(&format!("usr/bin/{PROGRAM}"), PROGRAM);
                // QEMU finds firmware and modules relative to /proc/self/exe, which is the
                // loader here.
                for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
                    command.arg("-L").arg(tree.path().join(data));
                }
                let modules = tree.path().join("usr/lib/x86_64-linux-gnu/qemu");
                command.env("QEMU_MODULE_DIR", modules);
                command
            }
        }
    }

    fn usable(self) -> Result<Option<Qemu>> {
        let devices = run(self.command().args(["-device", "help"]))?;
        if !devices.contains("\"vfio-user-pci\"") {
            return Ok(None);
        }
        let version = run(self.command().arg("-version"))?;
        let version = parse_version(&version).ok_or_else(|| Error::Output {
            what: "QEMU version".into(),
            text: version.clone(),
        })?;
        Ok(Some(Qemu {
            place: self,
            version,
        }))
    }
}

impl Qemu {
    /// Finds or fetches one.
    pub fn find() -> Result<Self> {
        if let Some(program) = env::var_os("IBVSWITCH_QEMU") {
            if !is_program(&program) {
                return Err(Error::Host(format!(
                    "IBVSWITCH_QEMU={} names no program; name a QEMU 10.1 or later, or unset the variable to have one fetched",
                    program.display()
                )));
            }
            let found = Place::System(program.into()).usable()?;
            return found.ok_or_else(|| {
                Error::Host(
                    "the QEMU that IBVSWITCH_QEMU names has no vfio-user-pci (QEMU 10.1 and \
                     later have it); unset IBVSWITCH_QEMU to have one fetched"
                        .into(),
                )
            });
        }
        // A system QEMU that cannot even list its devices is no reason to give up.
        if let Ok(Some(qemu)) = Place::System(PROGRAM.into()).usable() {
            return Ok(qemu);
        }
        let tree = Self::tree()?;
        Place::Private(Sysroot::new(tree)).usable()?.ok_or_else(|| {
            Error::Host(
                "the QEMU of trixie-backports on this machine's mirror has no vfio-user-pci; \
                 is the mirror older than November 2025?"
                    .into(),
            )
        })
    }

    /// The unpacked tree of a private one, for guests that have guests themselves, whatever the system has.
    pub fn tree() -> Result<PathBuf> {
        let recipe = paths::key(&(SUITES, PACKAGES, 1));
        paths::cached(&format!("qemu-{recipe}"), |dir| {
            progress::step("QEMU with vfio-user-pci: fetching one");
            let apt = Apt::new(&SUITES)?;
            let packages = apt.resolve("trixie-backports", &PACKAGES)?;
            let tree = Sysroot::new(dir);
            tree.prepare()?;
            apt.unpack("QEMU", &packages, dir)
        })
    }

    /// A command line that starts it; arguments are to be added.
    pub fn command(&self) -> Command {
        self.place.command()
    }

    /// The command line's words so far, for a user who wants to start it by hand.
    pub fn words(&self) -> Vec<String> {
        let command = self.command();
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }
}

/// Whether this is the path of a file, or the name of one in `$PATH`.
fn is_program(name: &OsStr) -> bool {
    let path = Path::new(name);
    if path.components().count() != 1 {
        return path.is_file();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| folder.join(path).is_file())
}

/// `QEMU emulator version 11.1.3 (Debian …)` → `11.1.3`.
fn parse_version(text: &str) -> Option<String> {
    let after = text.split_once("version ")?.1;
    Some(after.split_whitespace().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_debian_build() {
        let text = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright";
        assert_eq!(parse_version(text).as_deref(), Some("11.1.3"));
        assert_eq!(parse_version("nonsense"), None);
    }
}
