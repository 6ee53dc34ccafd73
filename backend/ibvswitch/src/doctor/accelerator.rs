//! KVM, or emulation.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;

use crate::finding::{Finding, Verdict};

const WHAT: &str = "KVM";
const ENODEV: i32 = Errno::ENODEV as i32;
const ENXIO: i32 = Errno::ENXIO as i32;

/// Whether VMs of this user can have the host's processors. Whether these then run a stock kernel, only a
/// VM can say.
pub(super) fn check(root: &Path) -> Finding {
    let device = root.join("dev/kvm");
    let opened = OpenOptions::new().read(true).write(true).open(&device);
    match (opened, extension(root)) {
        (Ok(_), Some(_)) => Finding::new(WHAT, Verdict::Ok, "/dev/kvm can be opened"),
        (Ok(_), None) => {
            let found = "/dev/kvm can be opened, but the processor has neither vmx nor svm: a \
                         stock kernel may not start";
            Finding::new(WHAT, Verdict::Warning, found).remedy(
                "where a VM with `-accel kvm` does not start, use `-accel tcg,thread=multi`",
            )
        }
        (Err(error), _) if error.kind() == ErrorKind::PermissionDenied => {
            Finding::new(WHAT, Verdict::Warning, "this user may not open /dev/kvm")
                .remedy(permission(&device))
        }
        // The file may be there without the module.
        (Err(error), extension)
            if error.kind() == ErrorKind::NotFound
                || matches!(error.raw_os_error(), Some(ENODEV | ENXIO)) =>
        {
            let found = "there is no KVM: VMs have to be emulated (`-accel tcg,thread=multi`), which \
                         is slower";
            let remedy = match extension {
                Some(module) => {
                    format!("`modprobe {module}`; a container has to be given /dev/kvm as well")
                }
                None => {
                    "turn VT-x or AMD-V on in the firmware; where this host is a VM, turn nested \
                         virtualisation on at its own host"
                        .to_owned()
                }
            };
            Finding::new(WHAT, Verdict::Warning, found).remedy(remedy)
        }
        (Err(error), _) => {
            let found = format!("/dev/kvm cannot be opened: {error}");
            Finding::new(WHAT, Verdict::Warning, found)
                .remedy("`dmesg` may say why; VMs can be emulated, `-accel tcg,thread=multi`")
        }
    }
}

/// Returns the remedy for a user without access to the device.
pub(super) fn permission(device: &Path) -> String {
    const JOIN: &str = "put the user who runs QEMU into the group kvm, `usermod -aG kvm USER`, and log in \
                        again";
    let open_to_group =
        fs::metadata(device).is_ok_and(|it| it.gid() != 0 && it.mode() & 0o060 == 0o060);
    if open_to_group {
        JOIN.to_owned()
    } else {
        format!("as root: `chgrp kvm /dev/kvm && chmod 660 /dev/kvm`; then {JOIN}")
    }
}

/// The module for the processor's extension, where it has one.
fn extension(root: &Path) -> Option<&'static str> {
    let processors = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let mut flags = processors
        .lines()
        .filter(|line| line.starts_with("flags"))
        .flat_map(str::split_whitespace);
    flags.find_map(|flag| match flag {
        "vmx" => Some("kvm_intel"),
        "svm" => Some("kvm_amd"),
        _ => None,
    })
}
