//! A text in a file of its own, which a daemon leaves to the one after it.
//!
//! A file is written before it is handed over and never again, so that nobody reads half a text.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// The longest text, in bytes.
const LONGEST: usize = 4096;

/// A file with the text.
pub(crate) fn write(text: &str) -> io::Result<OwnedFd> {
    let fd = memfd_create("note", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

/// The text of a file. Where others have read to does not matter.
pub(crate) fn read(fd: OwnedFd) -> io::Result<String> {
    let file = File::from(fd);
    let mut bytes = vec![0; LONGEST];
    let count = file.read_at(&mut bytes, 0)?;
    let mut text = String::new();
    bytes[..count].as_ref().read_to_string(&mut text)?;
    Ok(text)
}
