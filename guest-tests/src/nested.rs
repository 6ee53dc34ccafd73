//! A guest of a guest: QEMU, and what it boots, for a guest that plays a host.

use std::{fs, path::Path};

use lab::guest::qemu::Qemu;
use lab::image::Image;

use crate::error::{Error, Result};

/// The kernel of the guest's guest, in the guest: in a folder that is there.
const KERNEL: &str = "usr/lib/vmlinux-nested";
/// Its initial RAM file system.
const INITRAMFS: &str = "/nested/initramfs";
/// Its memory.
const MEMORY: &str = "384M";
/// Scripts of the guest, by their names there: what makes [`INITRAMFS`], and what runs in it.
const SCRIPTS: [(&str, &str); 2] = [
    ("nested-image", include_str!("../guest/nested-image")),
    ("nested-init", include_str!("../guest/nested-init")),
];

/// An image with all that its guest needs to have a guest, and with `files`. It is written to `dir`.
pub fn host(image: &Image, files: &[(&str, &Path)], dir: &Path) -> Result<Image> {
    let failed =
        |what: &Path, error| Error::Host(format!("cannot write {}: {error}", what.display()));
    // That of a bzImage would take minutes to unpack itself.
    let Some(vmlinux) = &image.vmlinux else {
        return Err(Error::Host(format!(
            "no kernel in {}",
            image.vmlinuz.display()
        )));
    };
    let mut written = vec![(KERNEL.to_owned(), vmlinux.clone())];
    for (name, text) in SCRIPTS {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        written.push((format!("usr/bin/{name}"), path));
    }
    let mut all = files.to_vec();
    all.extend(
        written
            .iter()
            .map(|(name, path)| (name.as_str(), path.as_path())),
    );
    image.with(&all, &[&Qemu::tree()?], dir)
}

/// The command that boots the guest's guest with the VF at `socket`: the stock driver, its port, data to itself
/// by [`DATA`], and [`DONE`] when the driver is gone again.
///
/// By instructions counted: else timers of the second emulation come faster than they are served.
pub fn boot(socket: &str) -> String {
    let device =
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#);
    format!(
        "nested-image {INITRAMFS} && qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
         -machine q35,memory-backend=ram -accel tcg,thread=single,tb-size=128 -icount shift=2 -cpu qemu64 \
         -m {MEMORY} -object memory-backend-memfd,id=ram,size={MEMORY},share=on \
         -kernel /{KERNEL} -initrd {INITRAMFS} \
         -append 'console=ttyS0 quiet panic=-1 no_timer_check mitigations=off' \
         -serial stdio -device '{device}' </dev/null 2>&1"
    )
}

/// Lines of the guest's guest after its program has moved data: with polling for completions, and with
/// interrupts.
pub const DATA: [&str; 2] = ["nested: data, polled", "nested: data, -e"];

/// Last line of the guest's guest.
pub const DONE: &str = "nested: done";
