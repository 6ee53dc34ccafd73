//! QEMU, which has to know the device.

use std::fs;
use std::path::Path;

use super::program::Programs;
use crate::finding::{Finding, Verdict};

const WHAT: &str = "QEMU";
const PROGRAM: &str = "qemu-system-x86_64";

/// The QEMU named, or the one of `$PATH`; `needed` says whether a VM of the configuration has a vfio-user
/// device.
pub(super) fn check(
    named: Option<&Path>,
    programs: Programs<'_>,
    root: &Path,
    needed: bool,
) -> Finding {
    let lacks = if needed {
        Verdict::Error
    } else {
        Verdict::Note
    };
    let program = named.map(Path::to_owned).or_else(|| programs.find(PROGRAM));
    let Some(program) = program else {
        let none = format!("there is no {PROGRAM} in $PATH");
        return Finding::new(WHAT, Verdict::Error, none).remedy(get(root));
    };
    let asked = programs.ask(&program, &["-version"]).and_then(|version| {
        let devices = programs.ask(&program, &["-device", "help"])?;
        Ok((version, devices))
    });
    let shown = program.display();
    match asked {
        Err(error) => Finding::new(
            WHAT,
            Verdict::Error,
            format!("{shown} does not run: {error}"),
        )
        .remedy(format!(
            "`{shown} -version` has to work: install what it lacks, or name another QEMU with --qemu"
        )),
        Ok((said, devices)) => {
            let version = version(&said).unwrap_or("of unknown version");
            if devices.contains("\"vfio-user-pci\"") {
                let found = format!("{shown} is {version} and has vfio-user-pci");
                Finding::new(WHAT, Verdict::Ok, found)
            } else {
                let found = format!("{shown} is {version} and has no vfio-user-pci");
                Finding::new(WHAT, lacks, found).remedy(get(root))
            }
        }
    }
}

/// `QEMU emulator version 11.1.3 (Debian …)` → `11.1.3`.
fn version(said: &str) -> Option<&str> {
    let (_, after) = said.split_once("version ")?;
    after.split_whitespace().next()
}

/// Where this system gets a QEMU that is new enough.
fn get(root: &Path) -> String {
    let release = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
    let of = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_default().trim_matches('"')
    };
    let how = match (of("ID="), of("VERSION_CODENAME=")) {
        ("debian", "bullseye" | "bookworm") => {
            "no suite of this Debian has one, backports included: use Debian 13 with \
             trixie-backports, or build QEMU and name it with --qemu"
        }
        ("debian", "trixie") => {
            "add trixie-backports to apt's sources, and `apt install -t trixie-backports \
             qemu-system-x86`"
        }
        ("debian", _) => "`apt install qemu-system-x86`",
        _ => {
            "Debian has it in trixie-backports and since forky; else build QEMU and name it with \
              --qemu"
        }
    };
    format!("QEMU has vfio-user-pci since 10.1; {how}")
}
