//! The files of a running daemon: the runtime directory, its lock, and the listening sockets.
//!
//! Everything is created before anything is served, and everything is removed again when it is
//! dropped, so that a start that fails leaves nothing behind.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::config::Config;

const LOCK: &str = "ibvswitch.lock";

/// Why the daemon's files are not there.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The runtime directory cannot be used.
    #[error("`runtime_dir = \"{}\"`: {what}; {remedy}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        what: String,
        /// What to do.
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
    /// Somebody listens on the socket.
    #[error("the socket {} of {owner} is in use by another process; stop that process, or give {owner} another `socket`", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Whose it is, such as "VF `vm1`".
        owner: String,
    },
    /// There is a file in its place.
    #[error("the socket {} of {owner} cannot be created: there is a file of that name that is not a socket; remove it, or give {owner} another `socket`", .path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: String,
    },
    /// It cannot be created.
    #[error("the socket {} of {owner} cannot be created: {source}; see that its directory exists and that this user may write there", .path.display())]
    Create {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        owner: String,
        /// What creating it said.
        source: io::Error,
    },
}

fn process(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// A listening socket whose file is removed with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

impl Socket {
    /// Creates the socket `path` of `owner` with permission bits `mode`, in place of a file that a
    /// daemon left behind when it was killed.
    ///
    /// # Errors
    /// [`SocketError`] says why there is none.
    pub fn bind(path: &Path, owner: &str, mode: u32) -> Result<Self, SocketError> {
        let create = |source| SocketError::Create {
            path: path.to_owned(),
            owner: owner.to_owned(),
            source,
        };
        remove_stale(path, owner)?;
        let listener = UnixListener::bind(path).map_err(create)?;
        let file = SocketFile(path.to_owned());
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(create)?;
        Ok(Self { listener, file })
    }

    /// The listener, and what removes its file when dropped.
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// A socket's file, removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a socket cannot be removed");
        }
    }
}

fn remove_stale(path: &Path, owner: &str) -> Result<(), SocketError> {
    let create = |source| SocketError::Create {
        path: path.to_owned(),
        owner: owner.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(create(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket {
                path: path.to_owned(),
                owner: owner.to_owned(),
            });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        // Nobody listens: whoever created it has gone.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(create)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(create(error)),
        Ok(_) | Err(_) => Err(SocketError::InUse {
            path: path.to_owned(),
            owner: owner.to_owned(),
        }),
    }
}

/// All files of one daemon.
#[derive(Debug)]
pub struct Sockets {
    /// The control socket.
    pub control: Socket,
    /// The VFs' sockets, in the order of the configuration.
    pub vfs: Vec<Socket>,
    /// The lock on the runtime directory, to be kept as long as the sockets are.
    pub lock: Lock,
}

impl Sockets {
    /// Creates the runtime directory where it is missing, locks it, and creates all sockets. On an
    /// error, those created before it are removed again.
    ///
    /// # Errors
    /// [`SocketError`] for the first that cannot be had.
    pub fn create(config: &Config) -> Result<Self, SocketError> {
        let lock = Lock::take(&config.runtime_dir, config.socket_mode)?;
        let vfs = config
            .vfs()
            .map(|(_, vf)| {
                Socket::bind(&vf.socket, &format!("VF `{}`", vf.name), config.socket_mode)
            })
            .collect::<Result<_, _>>()?;
        let control = Socket::bind(&config.control_socket(), "the daemon", 0o600)?;
        Ok(Self { control, vfs, lock })
    }
}

/// The lock on a runtime directory: one daemon each.
#[derive(Debug)]
pub struct Lock {
    // Released by closing. The file stays: removing it would let a second daemon lock a new file
    // of the same name while a third waits for the old one.
    _file: Flock<File>,
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
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(dir)
            .map_err(|source| error(format!("cannot be created: {source}"), WRITABLE))?;
        let metadata = fs::metadata(dir)
            .map_err(|source| error(format!("cannot be examined: {source}"), WRITABLE))?;
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            // Whoever owns the directory can replace the sockets in it.
            return Err(error(
                format!("belongs to user {}", metadata.uid()),
                "choose a directory of this user's own, with --runtime-dir",
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
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DEFAULT, Directories};

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
    fn sockets_come_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(&dir.path().join("a/b"));
        let sockets = Sockets::create(&config).expect("nothing is in the way");
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
        let _sockets = Sockets::create(&config).expect("nothing is in the way");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        assert_eq!(mode(&config.runtime_dir.join("vm1.sock")), 0o660);
        assert_eq!(mode(&config.control_socket()), 0o600);
    }

    #[test]
    fn what_a_killed_daemon_left_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        // A listener that is dropped leaves its file.
        drop(UnixListener::bind(dir.path().join("vm1.sock")).expect("a socket"));
        let _sockets = Sockets::create(&config).expect("the stale file is no obstacle");
        UnixStream::connect(dir.path().join("vm1.sock")).expect("is listening");
    }

    #[test]
    fn one_daemon_for_a_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let _first = Sockets::create(&config).expect("nothing is in the way");
        let error = Sockets::create(&config).expect_err("is taken").to_string();
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
        let error = Sockets::create(&config)
            .expect_err("vm2.sock is taken")
            .to_string();
        assert_eq!(
            error,
            format!(
                "the socket {} of VF `vm2` is in use by another process; stop that process, or \
                 give VF `vm2` another `socket`",
                path.display()
            )
        );
        assert_eq!(names(dir.path()), ["ibvswitch.lock", "vm2.sock"]);
        drop(other);

        fs::remove_file(&path).expect("is there");
        fs::write(&path, "precious").expect("a file");
        let error = Sockets::create(&config)
            .expect_err("vm2.sock is a file")
            .to_string();
        assert!(
            error.contains("there is a file of that name that is not a socket"),
            "{error}"
        );
        assert_eq!(fs::read(&path).expect("is still there"), b"precious");
        assert_eq!(names(dir.path()), ["ibvswitch.lock", "vm2.sock"]);
    }

    #[test]
    fn a_directory_that_cannot_be() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let config = config(&file.path().join("sub"));
        let error = Sockets::create(&config)
            .expect_err("a file is in the way")
            .to_string();
        assert!(error.contains("cannot be created: "), "{error}");
        assert!(error.ends_with("choose a directory this user may write to, with --runtime-dir"));
    }
}
