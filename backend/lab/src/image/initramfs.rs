//! An initial RAM file system: the "newc" cpio format that the kernel unpacks at boot
//! (Linux Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Written here rather than by cpio(1) because a device node has to go in and no root is needed
//! for that; everything belongs to root and has no time stamp, so the same tree gives the same
//! bytes.

use std::{
    fs,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use crate::error::{Doing, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// Writes an archive, entry by entry.
#[derive(Debug)]
pub struct Initramfs<W> {
    out: W,
    inode: u32,
    written: usize,
}

impl<W: Write> Initramfs<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self {
            out,
            inode: 0,
            written: 0,
        }
    }

    /// Adds all that lies below `root`.
    pub fn tree(&mut self, root: &Path) -> Result<()> {
        self.folder(root, "")
    }

    fn folder(&mut self, root: &Path, below: &str) -> Result<()> {
        let dir = root.join(below);
        let mut names: Vec<_> = fs::read_dir(&dir)
            .at("read", &dir)?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        for name in names {
            let path = dir.join(&name);
            let inside = Path::new(below).join(&name).to_string_lossy().into_owned();
            let meta = fs::symlink_metadata(&path).at("read", &path)?;
            if meta.is_dir() {
                self.directory(&inside)?;
                self.folder(root, &inside)?;
            } else if meta.is_symlink() {
                let target = fs::read_link(&path).at("read", &path)?;
                self.entry(
                    &inside,
                    SYMLINK | 0o777,
                    target.as_os_str().as_bytes(),
                    (0, 0),
                )?;
            } else if meta.is_file() {
                let data = fs::read(&path).at("read", &path)?;
                self.entry(&inside, REGULAR | (meta.mode() & 0o777), &data, (0, 0))?;
            }
        }
        Ok(())
    }

    /// Adds a folder.
    pub fn directory(&mut self, name: &str) -> Result<()> {
        self.entry(name, DIRECTORY | 0o755, &[], (0, 0))
    }

    /// Adds a file with the given permission bits.
    pub fn file(&mut self, name: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.entry(name, REGULAR | mode, data, (0, 0))
    }

    /// Adds a character device, major and minor number as in `device`.
    pub fn character_device(&mut self, name: &str, device: (u32, u32)) -> Result<()> {
        self.entry(name, CHARACTER | 0o600, &[], device)
    }

    /// Writes the trailer and gives the output back.
    pub fn finish(mut self) -> Result<W> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[], (0, 0))?;
        self.out.flush().doing("write the initramfs")?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8], device: (u32, u32)) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(data.len()).map_err(|_| io::Error::other("file over 4 GiB"));
        let size = size.doing(format_args!("put {name} into the initramfs"))?;
        let name_size = name.len() as u32 + 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        // ino mode uid gid nlink mtime filesize dev(major minor) rdev(major minor) namesize check
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08x}");
        }
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.align()?;
        self.put(data)?;
        self.align()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes).doing("write the initramfs")
    }

    fn align(&mut self) -> Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// cpio(1) is the independent reader; without it there is nothing to compare with.
    #[test]
    fn cpio_lists_what_was_written() {
        let mut archive = Initramfs::new(Vec::new());
        archive.directory("dev").unwrap();
        archive.character_device("dev/console", (5, 1)).unwrap();
        archive.file("odd", 0o755, b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let Ok(mut cpio) = Command::new("cpio")
            .args(["-itv", "--quiet", "--numeric-uid-gid"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            eprintln!("cpio is not installed: not compared");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listing = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<&str> = listing.lines().collect();
        assert_eq!(lines.len(), 3, "{listing}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with("dev"));
        assert!(lines[1].starts_with("crw-------") && lines[1].contains("5,   1"));
        assert!(lines[2].starts_with("-rwxr-xr-x") && lines[2].contains(" 5 "));
    }
}
