//! The folder of a running lab: sockets, logs, and what says that it runs.
//!
//! All labs of a user lie in one folder. Each has one of its own there with a file that is locked as long
//! as the lab's process lives, however it ends. So whoever starts another lab knows what a killed one has
//! left, and removes that and nothing else.

use std::{
    env, fs,
    fs::{DirBuilder, File},
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{self, Command},
};

use nix::{sys::statvfs::statvfs, unistd::geteuid};

use crate::debian::apt;
use crate::error::{Doing, Error, Result};

/// The file that a lab that runs has locked, with the number of its process.
const LOCK: &str = "lock";

/// Room that a lab takes for its logs: what its daemon says, and what is kept of a node's console.
const ROOM: u64 = 8 << 20;

/// Sockets in the folder have to fit into sun_path of unix(7).
const LONGEST: usize = 70;

/// The folder of one lab that runs. It goes when this is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Locked while this lives.
    _lock: File,
    kept: bool,
}

/// Where the labs of this user are: `$IBVSWITCH_LAB_DIR`; else /run/ibvswitch-lab for root, `ibvswitch-lab`
/// in `$XDG_RUNTIME_DIR`, or /tmp/ibvswitch-lab-UID.
pub fn base() -> PathBuf {
    if let Some(dir) = env::var_os("IBVSWITCH_LAB_DIR") {
        return dir.into();
    }
    if geteuid().is_root() {
        return "/run/ibvswitch-lab".into();
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => Path::new(&dir).join("ibvswitch-lab"),
        None => format!("/tmp/ibvswitch-lab-{}", geteuid()).into(),
    }
}

impl RunDir {
    /// Makes the folder of a lab `name`, after it has removed what labs that do not run any more have left.
    pub fn create(base: &Path, name: &str) -> Result<Self> {
        let path = base.join(name);
        if path.as_os_str().len() > LONGEST {
            return Err(Error::Host(format!(
                "{} is too long a path for sockets; set IBVSWITCH_LAB_DIR to a shorter one",
                path.display()
            )));
        }
        prepare(base)?;
        // Held while labs are looked at: who makes one has its lock before others see it.
        let _base = locked(&base.join(LOCK))?;
        sweep(base)?;
        let free = room(base)?;
        if free < ROOM {
            return Err(Error::Host(format!(
                "there is no room in {}: {} KiB are free, and a lab takes {} MiB for what it logs; make some, or set \
                 IBVSWITCH_LAB_DIR to a folder elsewhere",
                base.display(),
                free >> 10,
                ROOM >> 20
            )));
        }
        if path.exists() {
            let by = fs::read_to_string(path.join(LOCK)).unwrap_or_default();
            return Err(Error::Host(format!(
                "a lab `{name}` runs already (process {}); end it, or choose another name",
                by.trim()
            )));
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .at("create", &path)?;
        let mut lock = locked(&path.join(LOCK))?;
        writeln!(lock, "{}", process::id()).at("write", &path.join(LOCK))?;
        Ok(Self {
            path,
            _lock: lock,
            kept: false,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder where it is. The next lab removes it.
    pub fn keep(&mut self) {
        self.kept = true;
    }
}

/// A lab that runs.
#[derive(Debug)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Its process.
    pub process: i32,
    lock: File,
}

impl Running {
    /// Waits until it does not run any more.
    pub fn await_end(&self) -> Result<()> {
        self.lock.lock().at("lock", &self.path)
    }
}

/// All labs of this user that run, by name.
pub fn running(base: &Path) -> Result<Vec<Running>> {
    if !base.exists() {
        return Ok(Vec::new());
    }
    ours(base)?;
    // A process that looks has locks for a moment, which others are not to take for a lab's.
    let _base = locked(&base.join(LOCK))?;
    let entries = fs::read_dir(base).at("read", base)?.flatten();
    let running = entries.filter_map(|entry| {
        let path = entry.path();
        let lock = File::open(path.join(LOCK)).ok()?;
        if lock.try_lock().is_ok() {
            return None;
        }
        let process = fs::read_to_string(path.join(LOCK)).ok()?;
        Some(Running {
            name: entry.file_name().to_str()?.to_owned(),
            process: process.trim().parse().ok()?,
            path,
            lock,
        })
    });
    let mut running: Vec<Running> = running.collect();
    running.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(running)
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.kept {
            // The next lab removes what cannot be removed now. Meanwhile nobody makes one of this name.
            let _base = self.path.parent().map(|base| locked(&base.join(LOCK)));
            let _ = clear(&self.path);
        }
    }
}

/// Makes the folder of all labs.
fn prepare(base: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(base)
        .at("create", base)?;
    ours(base)
}

/// Bytes that are free in the file system of a folder.
pub(crate) fn room(folder: &Path) -> Result<u64> {
    let all = statvfs(folder).at("look for room in", folder)?;
    Ok(all.blocks_available() * all.fragment_size())
}

/// Refuses a folder that others may write to: they could put theirs into it.
fn ours(base: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(base).at("read", base)?;
    let ours = meta.is_dir() && meta.uid() == geteuid().as_raw();
    if ours && meta.permissions().mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::Host(format!(
        "{} belongs to another user, or others may write to it; remove it, or set IBVSWITCH_LAB_DIR",
        base.display()
    )))
}

fn locked(path: &Path) -> Result<File> {
    let mut open = File::options();
    let file = open.create(true).truncate(false).read(true).write(true);
    let file = file.open(path).at("create", path)?;
    file.lock().at("lock", path)?;
    Ok(file)
}

/// Removes folders of labs that do not run.
fn sweep(base: &Path) -> Result<()> {
    for entry in fs::read_dir(base).at("read", base)?.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|it| it.is_dir()) {
            continue;
        }
        let running = match File::open(path.join(LOCK)) {
            Ok(lock) => lock.try_lock().is_err(),
            // Killed before it had one.
            Err(_) => false,
        };
        if !running {
            clear(&path)?;
        }
    }
    Ok(())
}

/// Removes a lab's folder, whatever nodes have made in their part of it: folders that cannot be written
/// to, or more of them in each other than can be open.
fn clear(path: &Path) -> Result<()> {
    let on = |program: &str, options: [&str; 2]| {
        let mut command = Command::new(program);
        apt::run(command.args(options).arg("--").arg(path)).map(drop)
    };
    on("rm", ["-r", "-f"]).or_else(|_| {
        // If it fails, the next step says so.
        let _ = on("chmod", ["-R", "u+rwX"]);
        on("rm", ["-r", "-f"])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_lab_left_goes_and_what_runs_stays() {
        let base = tempfile::tempdir().unwrap();
        let base = &base.path().join("labs");
        let running = RunDir::create(base, "one").unwrap();
        let mut killed = RunDir::create(base, "two").unwrap();
        killed.keep();
        drop(killed);
        fs::write(base.join("two/console.log"), "x").unwrap();
        fs::create_dir(base.join("three")).unwrap();
        let next = RunDir::create(base, "four").unwrap();
        let mut names: Vec<_> = fs::read_dir(base).unwrap().flatten().collect();
        names.sort_by_key(fs::DirEntry::path);
        let names: Vec<_> = names.iter().map(fs::DirEntry::file_name).collect();
        assert_eq!(names, ["four", "lock", "one"]);
        drop((running, next));
        assert_eq!(fs::read_dir(base).unwrap().count(), 1);
    }

    #[test]
    fn whatever_a_node_has_made_goes() {
        let base = tempfile::tempdir().unwrap();
        let [deep, around] = ["deep", "around"].map(|name| base.path().join(name));
        fs::create_dir(&deep).unwrap();
        // More than a process has files, by far.
        for _ in 0..3000 {
            fs::create_dir(&around).unwrap();
            fs::rename(&deep, around.join("d")).unwrap();
            fs::rename(&around, &deep).unwrap();
        }
        let closed = deep.join("closed");
        fs::create_dir_all(closed.join("in it")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        clear(&deep).unwrap();
        assert!(!deep.exists());
        clear(&deep).unwrap();
    }

    #[test]
    fn a_name_is_one_labs() {
        let base = tempfile::tempdir().unwrap();
        let base = &base.path().join("labs");
        let _first = RunDir::create(base, "one").unwrap();
        let all = running(base).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, "one");
        let error = RunDir::create(base, "one").unwrap_err().to_string();
        let process = process::id();
        assert!(
            error.contains(&format!("`one` runs already (process {process})")),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_others_write_to_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = RunDir::create(&open, "one").unwrap_err().to_string();
        assert!(error.contains("set IBVSWITCH_LAB_DIR"), "{error}");
        let error = running(&open).unwrap_err().to_string();
        assert!(error.contains("set IBVSWITCH_LAB_DIR"), "{error}");
        let long = base.path().join("x".repeat(80));
        let error = RunDir::create(&long, "one").unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }
}
