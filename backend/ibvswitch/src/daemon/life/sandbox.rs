//! Sandbox of the daemon once its sockets are there: it confines the daemon to files that it has named (`files`) and
//! to some kinds of system calls (`calls`), as well as threads that it starts later and programs that it executes.
//!
//! A program that takes over starts in the sandbox of the program before, so it needs the same rights at its start as
//! at work. It enters no sandbox of its own: sandboxes add up, and the kernel limits their number.

mod calls;
mod files;

#[cfg(test)]
mod tests;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tracing::{info, warn};

use crate::control::{Landlock, Sandbox};
use config::{self, Config};

/// Sandbox of this process.
static STATE: OnceLock<Sandbox> = OnceLock::new();

/// Returns the sandbox of this process.
#[must_use]
pub fn state() -> Sandbox {
    STATE.get().copied().unwrap_or_default()
}

/// The program before was in a sandbox, and so is this process.
pub(super) fn stay_in(sandbox: Sandbox) {
    let _ = STATE.set(sandbox);
}

/// Confines the process, which has one thread, to what a daemon of this configuration needs, and programs that take
/// its place. The log names parts of the sandbox that the kernel does not have.
pub(super) fn enter(config: &Config) {
    if config.sandbox == config::Sandbox::Off {
        let _ = STATE.set(Sandbox::default());
        return;
    }
    let landlock = files::enter(&Needs::of(config)).unwrap_or_else(|error| {
        warn!(%error, "files are not confined");
        Landlock::None
    });
    let seccomp = match calls::enter(uses_vfio(config)) {
        Ok(()) => true,
        Err(error) => {
            warn!(%error, "system calls are not filtered");
            false
        }
    };
    let sandbox = Sandbox { landlock, seccomp };
    let _ = STATE.set(sandbox);
    match sandbox.lacks() {
        None => info!("sandbox: {sandbox}"),
        Some(lacks) => warn!("sandbox: {sandbox}; {lacks}"),
    }
}

/// The program of this process, or the one installed in its place.
///
/// # Errors
/// The system does not tell it.
pub fn own_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    let text = path.to_string_lossy();
    // As the kernel names a file that was replaced.
    Ok(match text.strip_suffix(" (deleted)") {
        Some(before) => PathBuf::from(before),
        None => path,
    })
}

/// Whether the kernel has VFs for it.
fn uses_vfio(config: &Config) -> bool {
    let mut devices = config.hardware().map(|vf| &vf.device);
    devices.any(|device| matches!(device, passthrough::Device::Pci(_)))
}

/// Files and directories, of which those that are not there are left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Directories of programs and libraries, to be executed and read.
    programs: Vec<PathBuf>,
    /// To be read.
    read: Vec<PathBuf>,
    /// Directories with files and sockets of the daemon's own.
    own: Vec<PathBuf>,
    /// Directories where sockets are made and removed.
    sockets: Vec<PathBuf>,
    /// Devices.
    devices: Vec<PathBuf>,
}

impl Needs {
    fn of(config: &Config) -> Self {
        let mut needs = Self::default();
        let system = [
            "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin",
        ];
        needs.programs = system.map(PathBuf::from).into();
        // Where a new version is put, whatever its name is until it has that of this one.
        let own = own_program().ok();
        let above = own.as_deref().and_then(Path::parent);
        needs.programs.extend(above.map(PathBuf::from));
        // Also by libraries, by what loads them, and by the log of a panic.
        let read = [
            "/dev/urandom",
            "/dev/null",
            "/etc/ld.so.cache",
            "/etc/ld.so.preload",
            "/proc",
            "/sys/fs/cgroup",
            "/sys/devices/system/cpu",
        ];
        needs.read = read.map(PathBuf::from).into();
        // Directories, since whoever edits a file may put another one in its place.
        let named = config.read.iter().chain(config.files.read());
        let named = named.filter_map(|file| std::path::absolute(file).ok());
        needs
            .read
            .extend(named.filter_map(|file| Some(file.parent()?.to_owned())));
        // A program that computes paths, and the files that it is told of.
        let mut command = config.files.routing_program.iter().map(Path::new);
        let folder = |path: &Path| {
            path.parent()
                .filter(|_| path.is_absolute())
                .map(PathBuf::from)
        };
        needs.programs.extend(command.next().and_then(folder));
        needs.read.extend(command.filter_map(folder));
        needs.own.push(config.runtime_dir.clone());
        needs.own.extend(config.files.state_dir.clone());
        let partitions = config.external.partitions.as_deref();
        needs.own.extend(partitions.and_then(folder));
        let vfs = config.vfs().map(|(_, vf)| &vf.socket);
        let sockets = vfs.chain(config.hardware().map(|vf| &vf.socket));
        let sockets = sockets.filter_map(|socket| socket.parent());
        let elsewhere = sockets.filter(|dir| *dir != config.runtime_dir);
        needs.sockets = elsewhere.map(PathBuf::from).collect();
        needs.devices.push("/dev/null".into());
        if uses_vfio(config) {
            needs.devices.push("/dev/vfio".into());
            needs.read.push("/sys".into());
        }
        needs
    }
}
