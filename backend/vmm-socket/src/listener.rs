//! The socket that VMMs connect to: one path, one client after the other.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use thiserror::Error;
use tracing::warn;

use crate::journal::{Journal, Pace};
use crate::socket::{Lost, wait};

/// The longest path that fits `sun_path` with its NUL, in bytes.
const MAX_PATH: usize = 107;
/// Interval of tries to accept a client for which the process has no descriptor.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Tells a server to stop, from any thread; clones are the same signal, which
/// stays once given.
#[derive(Debug, Clone)]
pub struct Stop {
    eventfd: Arc<EventFd>,
}

impl Stop {
    /// A signal not given yet.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            eventfd: Arc::new(eventfd),
        })
    }

    /// Gives the signal.
    pub fn signal(&self) {
        // Fails where the counter is full: then the signal has been given.
        let _ = self.eventfd.write(1);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Why a server cannot listen on a path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The path does not fit a UNIX socket address.
    #[error(
        "socket path {path} has {len} bytes, a UNIX socket's can have {MAX_PATH}: use a shorter one"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length, in bytes.
        len: usize,
    },
    /// Another process serves this path.
    #[error("another process listens on {path}: stop it, or choose another socket path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is no socket has this path.
    #[error("{path} exists and is no socket: remove it, or choose another socket path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {source}{}", path_remedy(.source))]
    System {
        /// The failed action.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

fn path_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create its directory first",
        io::ErrorKind::PermissionDenied => "; use a directory that this user may write to",
        _ => remedy(error),
    }
}

/// Returns the remedy for a limit of the system that `error` reports, to follow the error in a message; empty
/// for other errors.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            "; raise the limit of open files: `LimitNOFILE=` of a service, `ulimit -n` in a shell"
        }
        Some(Errno::ENFILE) => "; raise the host's limit of open files: `sysctl fs.file-max`",
        _ => "",
    }
}

/// The socket of a device or port. Its file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    pace: Pace,
    path: PathBuf,
    /// Device and inode of the socket's file; `None` where the file is another's to remove.
    identity: Option<(u64, u64)>,
}

impl Listener {
    /// Listens on `path`, for this user alone (mode 0600). A socket there that
    /// nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`] names the path and the remedy.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        let path = path.as_ref();
        let system = |what| {
            move |source: io::Error| BindError::System {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(BindError::PathTooLong {
                path: path.to_owned(),
                len,
            });
        }
        let address =
            UnixAddr::new(path).map_err(|errno| system("use socket path")(errno.into()))?;
        remove_stale(path, &address)?;

        let socket = new_socket().map_err(|errno| system("create a socket for")(errno.into()))?;
        bind(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            // Another process was faster.
            Errno::EADDRINUSE => BindError::InUse {
                path: path.to_owned(),
            },
            errno => system("bind a socket to")(errno.into()),
        })?;
        // Nobody can connect before listen, so nobody does before the mode is
        // right.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(system("restrict access to"))?;
        let metadata = fs::symlink_metadata(path).map_err(system("look at"))?;
        listen(&socket, Backlog::MAXCONN).map_err(|errno| system("listen on")(errno.into()))?;
        let listener = UnixListener::from(socket);
        Ok(Self {
            listener,
            pace: Pace::default(),
            path: path.to_owned(),
            identity: Some((metadata.dev(), metadata.ino())),
        })
    }

    /// A socket that another process has bound to `path` and listened on, and that is there yet.
    ///
    /// # Errors
    /// Nothing has that name any more.
    pub fn adopt(socket: OwnedFd, path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            listener: UnixListener::from(socket),
            pace: Pace::default(),
            path: path.to_owned(),
            identity: Some((metadata.dev(), metadata.ino())),
        })
    }

    /// Leaves the socket's file to whoever has the socket, too.
    #[must_use]
    pub fn without_file(mut self) -> Self {
        self.identity = None;
        self
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next client, or `None` when `stop` is signalled. Clients that come too fast wait. The `journal` has it
    /// where one waits that cannot be accepted yet.
    ///
    /// # Errors
    /// Where no client can be accepted any more.
    pub fn accept(&mut self, stop: &Stop, journal: &mut Journal) -> io::Result<Option<UnixStream>> {
        loop {
            pause(stop, self.pace.rest(Instant::now()));
            match wait(self.listener.as_fd(), PollFlags::POLLIN, Some(stop.as_fd())) {
                Ok(()) => {}
                Err(Lost::Stopped) => return Ok(None),
                Err(lost) => return Err(io::Error::other(lost)),
            }
            let error = match self.listener.accept() {
                Ok((stream, _)) => {
                    self.pace.count(Instant::now());
                    return Ok(Some(stream));
                }
                Err(error) => error,
            };
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => {}
                Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                    // The client stays in the queue, so that the listener is
                    // ready at once again: give the process time to recover.
                    let remedy = remedy(&error);
                    journal.warn(
                        "accept",
                        format_args!("cannot accept a client: {error}{remedy}"),
                    );
                    pause(stop, RETRY_INTERVAL);
                }
                _ => return Err(error),
            }
        }
    }
}

/// Sleeps for this time, or until `stop` is signalled.
fn pause(stop: &Stop, time: Duration) {
    if !time.is_zero() {
        let mut polled = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        // Up to the next millisecond. An interruption only makes the next look come sooner.
        let millis = time.as_nanos().div_ceil(1_000_000);
        let _ = poll(
            &mut polled,
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX),
        );
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Unless somebody has put something else there.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| Some((metadata.dev(), metadata.ino())) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!(socket = %self.path.display(), "cannot remove the socket: {error}");
        }
    }
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path, address: &UnixAddr) -> Result<(), BindError> {
    let system = |what| {
        move |source: io::Error| BindError::System {
            what,
            path: path.to_owned(),
            source,
        }
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    // Without waiting: a server that is stuck accepts nobody, but is there.
    let probe = new_socket().map_err(|errno| system("create a socket for")(errno.into()))?;
    match connect(probe.as_raw_fd(), address) {
        Ok(()) | Err(Errno::EAGAIN) => Err(BindError::InUse {
            path: path.to_owned(),
        }),
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(system("remove stale socket")),
        Err(errno) => Err(system("probe socket")(errno.into())),
    }
}

fn new_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
