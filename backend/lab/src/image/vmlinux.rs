//! The kernel inside of a bzImage (Linux Documentation/arch/x86/boot.rst). An emulated guest that unpacks it by itself
//! takes a sixth of its time to boot for that.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use crate::error::{Doing, Result};
use crate::image::elf::{long, word};

/// Formats of packed kernels: the beginning of a payload, and the command that unpacks its standard input.
const PACKERS: [(&[u8], [&str; 2]); 2] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], ["zstd", "-dc"]),
    (&[0xfd, 0x37, 0x7a, 0x58, 0x5a], ["xz", "-dc"]),
];

/// Writes the kernel inside of the bzImage `from` to `to`; false where there is none that QEMU boots: it is packed
/// otherwise, the program that unpacks it is not there, or it has no entry for who has not been unpacked (CONFIG_PVH).
///
/// # Errors
/// Where a file cannot be read or written.
pub fn unpack(from: &Path, to: &Path) -> Result<bool> {
    let file = fs::read(from).at("read", from)?;
    let Some(kernel) = payload(&file).and_then(unpacked) else {
        return Ok(false);
    };
    let boots = has_entry(&kernel);
    if boots {
        fs::write(to, kernel).at("write", to)?;
    }
    Ok(boots)
}

/// The packed kernel, without the four bytes after it that say how long it is unpacked.
fn payload(file: &[u8]) -> Option<&[u8]> {
    const SETUP_SECTS: usize = 0x1f1;
    const PAYLOAD_OFFSET: usize = 0x248;
    const PAYLOAD_LENGTH: usize = 0x24c;
    const SIZE: usize = 4;
    let setup = match usize::from(*file.get(SETUP_SECTS)?) {
        0 => 4,
        sectors => sectors,
    };
    let offset = (setup + 1) * 512 + word(file, PAYLOAD_OFFSET)?;
    let end = (offset + word(file, PAYLOAD_LENGTH)?).checked_sub(SIZE)?;
    file.get(offset..end)
}

fn unpacked(payload: &[u8]) -> Option<Vec<u8>> {
    let (_, [program, option]) =
        { PACKERS.iter() }.find(|(magic, _)| payload.starts_with(magic))?;
    let mut child = Command::new(program)
        .arg(option)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let input = child.stdin.take();
    let output = thread::scope(|scope| {
        // In a thread of its own: it writes before it has read all.
        scope.spawn(move || input.map(|mut input| input.write_all(payload)));
        child.wait_with_output()
    });
    let output = output.ok()?;
    output.status.success().then_some(output.stdout)
}

/// Whether an ELF file of 64 bits has the note that says where to enter it with physical addresses.
fn has_entry(elf: &[u8]) -> bool {
    const PROGRAM_HEADERS: usize = 0x20;
    const SIZE_AND_COUNT: usize = 0x36;
    const NOTE: usize = 4;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(start), Some(shape)) = (long(elf, PROGRAM_HEADERS), word(elf, SIZE_AND_COUNT)) else {
        return false;
    };
    let (size, count) = (shape & 0xffff, shape >> 16);
    let headers = (0..count).filter_map(|at| elf.get(start + at * size..));
    headers
        .filter(|header| word(header, 0) == Some(NOTE))
        .filter_map(|header| {
            let (offset, length) = (long(header, 0x08)?, long(header, 0x20)?);
            elf.get(offset..offset.checked_add(length)?)
        })
        .any(names_entry)
}

/// Whether notes have the one of Xen with the number 18, by which others than Xen go as well.
fn names_entry(mut notes: &[u8]) -> bool {
    const HEAD: usize = 12;
    const PHYS32_ENTRY: usize = 18;
    while let (Some(name), Some(length), Some(kind)) =
        (word(notes, 0), word(notes, 4), word(notes, 8))
    {
        if kind == PHYS32_ENTRY && notes.get(HEAD..HEAD + name) == Some(b"Xen\0") {
            return true;
        }
        let next = HEAD + name.next_multiple_of(4) + length.next_multiple_of(4);
        match notes.get(next..) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one program header, of a note with this name and kind behind another one.
    fn elf(name: &[u8; 4], kind: u32) -> Vec<u8> {
        let mut file = vec![0; 0x40 + 0x38];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = 0x40;
        (file[0x36], file[0x38]) = (0x38, 1);
        file[0x40] = 4;
        file[0x48] = 0x78;
        let mut notes = Vec::new();
        for (name, kind) in [(b"GNU\0", 3), (name, kind)] {
            notes.extend([4_u32, 5, kind].map(u32::to_le_bytes).concat());
            notes.extend(name);
            notes.extend([0; 8]);
        }
        file[0x60] = notes.len() as u8;
        file.extend(notes);
        file
    }

    #[test]
    fn kernels_have_an_entry_or_not() {
        assert!(has_entry(&elf(b"Xen\0", 18)));
        assert!(!has_entry(&elf(b"Xen\0", 17)));
        assert!(!has_entry(&elf(b"Zen\0", 18)));
        assert!(!has_entry(b"#!/bin/sh"));
        // Whatever is wrong with it.
        let whole = elf(b"Xen\0", 18);
        for at in 0..whole.len() {
            has_entry(&whole[..at]);
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            has_entry(&wrong);
        }
    }

    #[test]
    fn other_files_have_no_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for bytes in [&b""[..], &[0xff; 0x1000], &[0; 0x1000]] {
            fs::write(&from, bytes).unwrap();
            assert!(!unpack(&from, &to).unwrap());
            assert!(!to.exists());
        }
    }
}
