//! A guest of a guest: QEMU, and what it boots, for a guest that plays a host.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use lab::{image::Image, qemu::Qemu};

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
    let mut written = vec![(KERNEL.to_owned(), dir.join("vmlinux"))];
    let vmlinux = unpacked(&image.vmlinuz)?;
    fs::write(&written[0].1, vmlinux).map_err(|error| failed(&written[0].1, error))?;
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

/// What the guest's guest says when its program has moved data and polled for completions, and when it has waited
/// for interrupts.
pub const DATA: [&str; 2] = ["nested: data, polled", "nested: data, -e"];

/// What the guest's guest says in the end.
pub const DONE: &str = "nested: done";

/// The kernel that a bzImage unpacks when it is booted (Linux Documentation/arch/x86/boot.rst): in an emulated
/// guest that would take minutes.
fn unpacked(vmlinuz: &PathBuf) -> Result<Vec<u8>> {
    let odd = |what: &str| Error::Host(format!("{}: {what}", vmlinuz.display()));
    let file = fs::read(vmlinuz).map_err(|error| odd(&error.to_string()))?;
    let payload = payload(&file).ok_or_else(|| odd("no bzImage with a payload of zstd"))?;
    let mut zstd = Command::new("zstd")
        .args(["-dc"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| odd(&format!("zstd (scripts/setup installs it): {error}")))?;
    let input = zstd.stdin.take();
    let output = std::thread::scope(|scope| {
        // In a thread of its own: zstd writes before it has read all.
        scope.spawn(move || input.map(|mut input| input.write_all(payload)));
        zstd.wait_with_output()
    });
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(odd(&format!("zstd cannot unpack it: {}", output.status))),
        Err(error) => Err(odd(&error.to_string())),
    }
}

/// The packed kernel, without the four bytes after it that say how long it is unpacked.
fn payload(file: &[u8]) -> Option<&[u8]> {
    const SETUP_SECTS: usize = 0x1f1;
    const PAYLOAD_OFFSET: usize = 0x248;
    const PAYLOAD_LENGTH: usize = 0x24c;
    const SIZE: usize = 4;
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let word = |at: usize| {
        let bytes = file.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let setup = match usize::from(*file.get(SETUP_SECTS)?) {
        0 => 4,
        sectors => sectors,
    };
    let start = (setup + 1) * 512 + word(PAYLOAD_OFFSET)?;
    let end = (start + word(PAYLOAD_LENGTH)?).checked_sub(SIZE)?;
    let payload = file.get(start..end)?;
    payload.starts_with(&ZSTD).then_some(payload)
}
