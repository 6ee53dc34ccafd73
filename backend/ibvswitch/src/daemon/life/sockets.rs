//! The files of a running daemon: the runtime directory, its lock, and the listening sockets.
//!
//! Everything is created before anything is served, and everything is removed again when it is
//! dropped, so that a start that fails leaves nothing behind.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use keeper::{Keeper, Kept};
use nix::fcntl::{Flock, FlockArg};
use vmm_socket::{BindError, Listener, remedy};

use crate::daemon::moves::upgrade::handover::ClientRecord;
use config::{Config, Doorbells, Hardware, Kind};

mod inherited;

const LOCK: &str = "ibvswitch.lock";

/// Bits of a directory's mode: its group or others may write to it.
const OTHERS_WRITE: u32 = 0o022;
/// Bit of a directory's mode: whoever may write to it may remove only what is theirs.
const STICKY: u32 = 0o1000;

/// The name under which a keeper has the memory of doorbell pages.
pub(in crate::daemon) const DOORBELLS: &str = "doorbells";

/// Why the daemon's files are not there.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The runtime directory cannot be used.
    #[error("`runtime_dir = \"{}\"`: {what}; {remedy}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The error.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Another daemon has the runtime directory.
    #[error("`runtime_dir = \"{}\"`: in use by another ibvswitch{}; stop that one, or choose another directory with --runtime-dir", .dir.display(), process(.pid))]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The other daemon's process, if it says.
        pid: Option<u32>,
    },
    /// A VF's socket cannot be had.
    #[error("VF `{vf}`: {source}")]
    Vf {
        /// The VF.
        vf: String,
        /// Why not.
        source: BindError,
    },
    /// A descriptor that the program before has left is missing, or has no use in the configuration.
    #[error("{what}: {source}")]
    Inheritance {
        /// Name of the descriptor.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// A VM would have no VF any more.
    #[error(
        "VF `{vf}`: a VMM is connected, and the configuration does not have the VF, or has it with another socket or of another kind; stop the VM first, or configure the VF as it was"
    )]
    Abandoned {
        /// The VF.
        vf: String,
    },
    /// A VF's socket cannot be given its mode.
    #[error("VF `{vf}`: cannot set the mode of {} to {mode:#o}: {source}; choose another `socket`", .path.display())]
    Mode {
        /// The VF.
        vf: String,
        /// Its socket.
        path: PathBuf,
        /// The mode.
        mode: u32,
        /// Why not.
        source: io::Error,
    },
    /// The keeper cannot be told of a VF.
    #[error("VF `{vf}`: {source}{}", remedy(.source))]
    Keeper {
        /// The VF.
        vf: String,
        /// Why not.
        source: io::Error,
    },
    /// There is no control socket.
    #[error("the control socket {} cannot be created: {source}{}", .path.display(), control_remedy(.source))]
    Control {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn control_remedy(error: &io::Error) -> &'static str {
    match remedy(error) {
        "" => "; remove the file of that name, or choose another directory with --runtime-dir",
        limit => limit,
    }
}

fn process(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// The control socket, for the daemon's user alone. Its file is removed on drop.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The file is another's to remove.
    borrowed: bool,
}

impl ControlSocket {
    /// Creates it, in place of one that a killed daemon left behind: nobody else's can be there,
    /// since the runtime directory is locked.
    fn bind(path: PathBuf, _lock: &Lock) -> Result<Self, SocketError> {
        let bind = || {
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(&path)?,
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        match bind() {
            Ok(listener) => Ok(Self {
                listener,
                path,
                borrowed: false,
            }),
            Err(source) => Err(SocketError::Control { path, source }),
        }
    }

    /// Another handle to the listening socket.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if !self.borrowed
            && let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "a socket cannot be removed");
        }
    }
}

impl Sockets {
    /// Returns the way of doorbells to the engine, if the configuration leaves it to the daemon and a daemon before
    /// has settled it: guests go on with the pages that they have mapped. `upgraded`: that daemon has left its VFs to
    /// this one.
    pub fn doorbells(&self, config: &Config, upgraded: bool) -> Option<Doorbells> {
        let left = config
            .vfs()
            .zip(&self.vfs)
            .filter(|((_, vf), _)| vf.doorbells.is_none());
        let mut left = left.map(|(_, socket)| socket).peekable();
        left.peek()?;
        let (mut known, mut mapped) = (upgraded, false);
        for socket in left {
            let labels = socket.kept.iter().flat_map(Kept::labels);
            let labels: Vec<&str> = labels.collect();
            known |= !labels.is_empty();
            mapped |= socket.left.0.is_some() || labels.contains(&DOORBELLS);
        }
        known.then_some(if mapped {
            Doorbells::Adaptive
        } else {
            Doorbells::Trap
        })
    }
}

/// The socket of a VF.
#[derive(Debug)]
pub struct VfSocket {
    /// It listens.
    pub listener: Listener,
    /// The VF as the keeper has it, where there is one.
    pub kept: Option<Kept>,
    /// The memory of its doorbell pages, and its client, which the program before has left.
    pub left: (Option<OwnedFd>, Option<ClientRecord>),
}

impl VfSocket {
    /// The socket of a client that comes again by itself. The keeper may have notes about it.
    fn new(
        name: &str,
        socket: &Path,
        mode: u32,
        keeper: Option<&Keeper>,
    ) -> Result<Self, SocketError> {
        let mut new = Self {
            listener: bind_vf(name, socket, mode)?,
            kept: None,
            left: (None, None),
        };
        new.note_with(name, keeper)?;
        Ok(new)
    }

    fn note_with(&mut self, name: &str, keeper: Option<&Keeper>) -> Result<(), SocketError> {
        let kept = keeper.map(|keeper| keeper.open(name)).transpose();
        self.kept = kept.map_err(|source| SocketError::Keeper {
            vf: name.to_owned(),
            source,
        })?;
        Ok(())
    }
}

/// All files of one daemon.
#[derive(Debug)]
pub struct Sockets {
    /// The control socket.
    pub control: ControlSocket,
    /// The VFs' sockets, in the order of the configuration; behind them those of VFs that are passed
    /// through, in that order as well.
    pub vfs: Vec<VfSocket>,
    /// The lock on the runtime directory, to be kept as long as the sockets are.
    pub lock: Lock,
}

impl Sockets {
    /// Creates the runtime directory where it is missing, locks it, and creates all sockets. On an
    /// error, those created before it are removed again.
    ///
    /// # Errors
    /// [`SocketError`] for the first that cannot be had.
    ///
    /// A socket that `keeper` has from a daemon before is used again.
    pub fn create(config: &Config, keeper: Option<&Keeper>) -> Result<Self, SocketError> {
        let lock = Lock::take(&config.runtime_dir, config.socket_mode)?;
        let mode = config.socket_mode;
        let hardware = |vf: &Hardware| VfSocket::new(&vf.name, &vf.socket, mode, None);
        let vfs = { config.vfs() }.map(|(_, vf)| match (vf.kind, keeper) {
            (Kind::Hca, Some(keeper)) => kept_vf(keeper, &vf.model.name, &vf.socket, mode),
            _ => VfSocket::new(&vf.model.name, &vf.socket, mode, keeper),
        });
        let vfs = vfs.chain(config.hardware().map(hardware));
        let vfs = vfs.collect::<Result<_, _>>()?;
        let control = ControlSocket::bind(config.control_socket(), &lock)?;
        Ok(Self { control, vfs, lock })
    }

    /// Descriptors for the next program of this process: of the lock's file, and the control socket.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn to_leave(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        let lock = self.lock.file.as_ref();
        lock.map(|lock| {
            let both = [lock.as_fd(), self.control.listener.as_fd()];
            let [lock, control] = both.map(|fd| fd.try_clone_to_owned());
            Ok([lock?, control?])
        })
        .transpose()
    }
}

/// The socket of a VF with a keeper.
fn kept_vf(keeper: &Keeper, name: &str, socket: &Path, mode: u32) -> Result<VfSocket, SocketError> {
    let error = |source| SocketError::Keeper {
        vf: name.to_owned(),
        source,
    };
    let mut kept = keeper.open(name).map_err(error)?;
    // Under its path, so that a VF that is configured with another gets that one.
    let label = socket.to_string_lossy();
    let former = kept.take(&label);
    let former = former.and_then(|former| Listener::adopt(former, socket).ok());
    let listener = match former {
        Some(listener) => listener,
        None => {
            let listener = bind_vf(name, socket, mode)?;
            kept.hold(&label, listener.as_fd()).map_err(error)?;
            listener
        }
    };
    Ok(VfSocket {
        listener,
        kept: Some(kept),
        left: (None, None),
    })
}

fn bind_vf(name: &str, socket: &Path, mode: u32) -> Result<Listener, SocketError> {
    let listener = Listener::bind(socket).map_err(|source| SocketError::Vf {
        vf: name.to_owned(),
        source,
    })?;
    fs::set_permissions(socket, Permissions::from_mode(mode)).map_err(|source| {
        SocketError::Mode {
            vf: name.to_owned(),
            path: socket.to_owned(),
            mode,
            source,
        }
    })?;
    Ok(listener)
}

/// The lock on a runtime directory: one daemon each.
#[derive(Debug)]
pub struct Lock {
    // Released by closing. The file stays: removing it would let a second daemon lock a new file
    // of the same name while a third waits for the old one.
    // `None` in a program that is tried: the lock is another's.
    file: Option<Flock<File>>,
}

impl Lock {
    fn take(dir: &Path, socket_mode: u32) -> Result<Self, SocketError> {
        let error = |what: String, remedy| SocketError::Directory {
            dir: dir.to_owned(),
            what,
            remedy,
        };
        const WRITABLE: &str = "choose a directory this user may write to, with --runtime-dir";
        // Others must be able to enter the directory if they may use the sockets in it.
        let mode = if socket_mode & 0o077 == 0 {
            0o700
        } else {
            0o755
        };
        let create = || {
            if dir.is_dir() {
                return Ok(());
            }
            DirBuilder::new().recursive(true).mode(mode).create(dir)?;
            // The file mode creation mask may have taken bits away.
            fs::set_permissions(dir, Permissions::from_mode(mode))
        };
        create().map_err(|source| error(format!("cannot be created: {source}"), WRITABLE))?;
        let metadata = fs::metadata(dir)
            .map_err(|source| error(format!("cannot be examined: {source}"), WRITABLE))?;
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            // The owner of the directory can replace the sockets in it.
            return Err(error(
                format!("belongs to user {}", metadata.uid()),
                "choose a directory of this user's own, with --runtime-dir",
            ));
        }
        let mode = metadata.permissions().mode();
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            // So can others who may write to it.
            return Err(error(
                format!("others may write to it (mode {:#o})", mode & 0o7777),
                "take that right away with `chmod go-w`, or choose another directory with --runtime-dir",
            ));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(LOCK))
            .map_err(|source| error(format!("the lock cannot be created: {source}"), WRITABLE))?;
        let mut file =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, _)| {
                let mut pid = String::new();
                // Without it the message is only less helpful.
                let _ = (&mut file).take(16).read_to_string(&mut pid);
                SocketError::Locked {
                    dir: dir.to_owned(),
                    pid: pid.trim().parse().ok(),
                }
            })?;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(*file, "{}", std::process::id()))
            .map_err(|source| error(format!("the lock cannot be written: {source}"), WRITABLE))?;
        Ok(Self { file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use config::{DEFAULT, Directories};

    fn config(dir: &Path) -> Config {
        let dirs = Directories {
            chosen: Some(dir),
            fallback: dir,
        };
        Config::parse("f", DEFAULT, dirs).expect("is right")
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("is there")
            .map(|entry| {
                entry
                    .expect("readable")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        for (mode, allowed) in [
            (0o777, false),
            (0o770, false),
            (0o702, false),
            (0o1777, true),
            (0o755, true),
            (0o700, true),
        ] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("is ours");
            let created = Sockets::create(&config, None).map(drop);
            assert_eq!(created.is_ok(), allowed, "{mode:o}: {created:?}");
            if let Err(error) = created {
                assert!(error.to_string().contains("`chmod go-w`"), "{error}");
            }
        }
    }

    #[test]
    fn sockets_come_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(&dir.path().join("a/b"));
        let sockets = Sockets::create(&config, None).expect("nothing is in the way");
        assert_eq!(
            names(&config.runtime_dir),
            ["control.sock", "ibvswitch.lock", "vm1.sock", "vm2.sock"]
        );
        for (path, mode) in [
            (config.control_socket(), 0o600),
            (config.runtime_dir.clone(), 0o700),
        ] {
            let found = fs::metadata(&path).expect("is there").permissions().mode() & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
        UnixStream::connect(config.runtime_dir.join("vm1.sock")).expect("is listening");
        drop(sockets);
        assert_eq!(names(&config.runtime_dir), ["ibvswitch.lock"]);
    }

    #[test]
    fn sockets_for_a_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(&dir.path().join("run"));
        config.socket_mode = 0o660;
        let _sockets = Sockets::create(&config, None).expect("nothing is in the way");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        assert_eq!(mode(&config.runtime_dir), 0o755);
        assert_eq!(mode(&config.runtime_dir.join("vm1.sock")), 0o660);
        assert_eq!(mode(&config.control_socket()), 0o600);
    }

    #[test]
    fn what_a_killed_daemon_left_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        // A listener that is dropped leaves its file.
        drop(UnixListener::bind(dir.path().join("vm1.sock")).expect("a socket"));
        let _sockets = Sockets::create(&config, None).expect("the stale file is no obstacle");
        UnixStream::connect(dir.path().join("vm1.sock")).expect("is listening");
    }

    #[test]
    fn one_daemon_for_a_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let _first = Sockets::create(&config, None).expect("nothing is in the way");
        let error = Sockets::create(&config, None)
            .expect_err("is taken")
            .to_string();
        assert_eq!(
            error,
            format!(
                "`runtime_dir = \"{}\"`: in use by another ibvswitch (process {}); stop that one, \
                 or choose another directory with --runtime-dir",
                dir.path().display(),
                std::process::id()
            )
        );
        UnixStream::connect(dir.path().join("vm1.sock")).expect("the first goes on");
    }

    #[test]
    fn nothing_is_left_of_a_start_that_fails() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let path = dir.path().join("vm2.sock");
        let other = UnixListener::bind(&path).expect("a socket");
        let error = Sockets::create(&config, None)
            .expect_err("vm2.sock is taken")
            .to_string();
        assert_eq!(
            error,
            format!(
                "VF `vm2`: another process listens on {}: stop it, or choose another socket path",
                path.display()
            )
        );
        assert_eq!(names(dir.path()), ["ibvswitch.lock", "vm2.sock"]);
        drop(other);

        fs::remove_file(&path).expect("is there");
        fs::write(&path, "precious").expect("a file");
        let error = Sockets::create(&config, None)
            .expect_err("vm2.sock is a file")
            .to_string();
        assert!(error.starts_with("VF `vm2`: "), "{error}");
        assert_eq!(fs::read(&path).expect("is still there"), b"precious");
        assert_eq!(names(dir.path()), ["ibvswitch.lock", "vm2.sock"]);
    }

    #[test]
    fn a_directory_that_cannot_be() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let config = config(&file.path().join("sub"));
        let error = Sockets::create(&config, None)
            .expect_err("a file is in the way")
            .to_string();
        assert!(error.contains("cannot be created: "), "{error}");
        assert!(error.ends_with("choose a directory this user may write to, with --runtime-dir"));
    }
}
