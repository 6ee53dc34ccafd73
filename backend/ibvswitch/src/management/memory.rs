//! Files of the subnet manager: what it remembers from run to run, and the partitions it is to make.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use subnet::{FILE_MAX, Partitions, persistence};
use tracing::{debug, warn};
use wire::{Guid, Lid};

use crate::config::{Config, Subnet};

/// Why the subnet manager's files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is remembered is not what was written.
    #[error("{}: {what}; correct it, or remove the file to begin anew", .path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// There are mistakes in the partition configuration file.
    #[error("{}", lines(.path, .mistakes))]
    Partitions {
        /// The file.
        path: PathBuf,
        /// All of them.
        mistakes: Vec<subnet::Mistake>,
    },
}

fn lines(path: &Path, mistakes: &[subnet::Mistake]) -> String {
    let path = path.display();
    let lines = mistakes.iter();
    let lines: Vec<String> = lines
        .map(|subnet::Mistake { line, what }| format!("{path}:{line}: {what}"))
        .collect();
    lines.join("\n")
}

/// The partitions of the file that a configuration names, if it names one.
///
/// # Errors
/// [`FileError`].
pub fn read_partitions(config: &Config) -> Result<Option<Partitions>, FileError> {
    let Some(path) = &config.manager.partitions_file else {
        return Ok(None);
    };
    let unreadable = |source| FileError::Unreadable {
        path: path.clone(),
        source,
    };
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_MAX as u64 {
        let large = format!("{size} bytes; at most {FILE_MAX} are read");
        return Err(unreadable(io::Error::new(
            io::ErrorKind::FileTooLarge,
            large,
        )));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let guid = |name: &str| {
        let mut vfs = config.vfs();
        vfs.find(|(_, vf)| vf.name == name).map(|(_, vf)| vf.guid)
    };
    Partitions::parse(&text, guid)
        .map(Some)
        .map_err(|mistakes| {
            let path = path.clone();
            FileError::Partitions { path, mistakes }
        })
}

/// The directory with what a subnet manager remembers.
#[derive(Debug)]
pub(super) struct Memory {
    directory: PathBuf,
    /// What the file holds.
    lids: BTreeMap<Guid, Lid>,
    failed: bool,
}

impl Memory {
    /// What is remembered of a subnet in the directory that a configuration names, if it names one:
    /// of one of several in a directory of the subnet's name there.
    pub(super) fn open(config: &Config, subnet: &Subnet) -> Result<Option<Self>, FileError> {
        let Some(directory) = &config.manager.state_dir else {
            return Ok(None);
        };
        let directory = match &subnet.name {
            Some(name) => directory.join(name),
            None => directory.clone(),
        };
        let path = directory.join(LIDS);
        let lids = match fs::read_to_string(&path) {
            Ok(text) => persistence::parse_lids(&text).map_err(|error| FileError::Memory {
                path,
                what: error.to_string(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(FileError::Unreadable { path, source }),
        };
        Ok(Some(Self {
            directory,
            lids,
            failed: false,
        }))
    }

    pub(super) fn lids(&self) -> &BTreeMap<Guid, Lid> {
        &self.lids
    }

    /// Writes what has changed; what cannot be written is told once.
    pub(super) fn keep(&mut self, lids: &BTreeMap<Guid, Lid>, lmc: impl Fn(Guid) -> u8) {
        if *lids == self.lids {
            return;
        }
        let text = persistence::format_lids(lids, lmc);
        match self.write(LIDS, &text) {
            Ok(()) => {
                debug!(lids = lids.len(), "LIDs are remembered");
                self.lids.clone_from(lids);
                self.failed = false;
            }
            Err(error) if !self.failed => {
                let path = self.directory.join(LIDS);
                warn!(path = %path.display(), %error, "LIDs are not remembered");
                self.failed = true;
            }
            Err(_) => {}
        }
    }

    /// Writes a file as a whole or not at all.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let new = self.directory.join(format!("{name}.new"));
        let mut file = fs::File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, self.directory.join(name))
    }
}

/// As OpenSM names it.
const LIDS: &str = "guid2lid";
