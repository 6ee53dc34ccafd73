//! Files of OpenSM's forms, written after each sweep.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use subnet_manager::{Dump, SubnetManager};
use tracing::error;

/// The bit of OpenSM's log flags by which it dumps tables.
pub const ROUTING_FLAG: u8 = 0x40;

/// Files in a directory.
#[derive(Debug, Clone)]
pub struct DumpFiles {
    dir: PathBuf,
    /// Tables besides the list of nodes and cables.
    has_tables: bool,
    failed: bool,
}

impl DumpFiles {
    /// Those of a directory, with tables or without.
    #[must_use]
    pub fn new(dir: PathBuf, has_tables: bool) -> Self {
        Self {
            dir,
            has_tables,
            failed: false,
        }
    }

    /// Writes them as the last sweep has it. An error is told once.
    pub fn write(&mut self, manager: &SubnetManager) {
        for (name, dump) in Dump::FILES {
            if dump != Dump::Subnet && !self.has_tables {
                continue;
            }
            let path = self.dir.join(name);
            match write_whole(&path, |out| dump.write(manager, out)) {
                Ok(()) => self.failed = false,
                Err(_) if self.failed => {}
                Err(error) => {
                    self.failed = true;
                    let path = path.display();
                    error!(
                        "{path}: not written: {error}; name another directory in dump_files_dir"
                    );
                }
            }
        }
    }
}

/// Writes a file as a whole or not at all.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let mut out = BufWriter::new(File::create(&new)?);
    write(&mut out)?;
    out.into_inner()?.flush()?;
    fs::rename(new, path)
}
