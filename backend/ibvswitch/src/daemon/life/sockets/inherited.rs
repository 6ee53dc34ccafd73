//! Files and sockets that the program before has left to this one.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use keeper::{Keeper, Kept};
use nix::fcntl::{Flock, FlockArg};
use vmm_socket::Listener;

use super::{ControlSocket, LOCK, Lock, SocketError, Sockets, VfSocket, kept_vf};
use crate::daemon::moves::upgrade::handover::{HandoverV1, Taken, VfRecord};
use config::{Config, Kind};

fn error(what: impl Into<String>) -> impl FnOnce(io::Error) -> SocketError {
    let what = what.into();
    move |source| SocketError::Inheritance { what, source }
}

impl Sockets {
    /// Takes over the sockets that the program before has left, and makes the others of the configuration. In a
    /// `trial` all still belong to the other program: nothing is removed in the end, and no keeper is told of
    /// anything.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn inherit(
        config: &Config,
        keeper: Option<&Keeper>,
        handover: &mut HandoverV1,
        taken: &mut Taken,
        trial: bool,
    ) -> Result<Self, SocketError> {
        let file = taken.get(handover.lock).map_err(error("the lock"))?;
        let lock = Lock::inherit(&config.runtime_dir, file, trial)?;
        let control = taken
            .get(handover.control)
            .map_err(error("the control socket"))?;
        let control = ControlSocket {
            listener: UnixListener::from(control),
            path: config.control_socket(),
            borrowed: trial,
        };
        let mut left = std::mem::take(&mut handover.vfs);
        let mode = config.socket_mode;
        let vfs = config.vfs().map(|(_, vf)| {
            let keeper = keeper.filter(|_| !trial);
            (&vf.model.name, &vf.socket, vf.kind == Kind::Hca, keeper)
        });
        let hardware = config
            .hardware()
            .map(|vf| (&vf.name, &vf.socket, false, None));
        let mut sockets = Vec::new();
        for (name, socket, is_hca, keeper) in vfs.chain(hardware) {
            let fits = |vf: &VfRecord| {
                vf.name == *name && vf.socket == *socket && (is_hca || vf.client.is_none())
            };
            let former = left.iter().position(fits);
            sockets.push(match (former.map(|at| left.swap_remove(at)), keeper) {
                (Some(former), _) => {
                    let adopted = VfSocket::inherit(former, taken, trial);
                    let mut adopted = adopted.map_err(error(format!("VF `{name}`")))?;
                    if !is_hca {
                        adopted.note_with(name, keeper)?;
                    }
                    adopted
                }
                (None, Some(keeper)) if is_hca => kept_vf(keeper, name, socket, mode)?,
                _ => VfSocket::new(name, socket, mode, keeper)?,
            });
        }
        if let Some(abandoned) = left.iter().find(|vf| vf.client.is_some()) {
            let vf = abandoned.name.clone();
            return Err(SocketError::Abandoned { vf });
        }
        for former in left.into_iter().filter(|_| !trial) {
            let name = former.name.clone();
            // Its file goes with it.
            let adopted = VfSocket::inherit(former, taken, trial);
            drop(adopted.map_err(error(format!("VF `{name}`")))?);
        }
        Ok(Self {
            control,
            vfs: sockets,
            lock,
        })
    }
}

impl VfSocket {
    fn inherit(left: VfRecord, taken: &mut Taken, trial: bool) -> io::Result<Self> {
        let listener = Listener::adopt(taken.get(left.listener)?, left.socket)?;
        let keeper = left.keeper.filter(|_| !trial);
        let kept = keeper.map(|[channel, mark]| {
            let [channel, mark] = [taken.get(channel)?, taken.get(mark)?];
            Kept::adopt([channel, mark])
        });
        let doorbells = left.doorbells.map(|number| taken.get(number));
        Ok(Self {
            listener: if trial {
                listener.without_file()
            } else {
                listener
            },
            kept: kept.transpose()?,
            left: (doorbells.transpose()?, left.client),
        })
    }
}

impl Lock {
    fn inherit(dir: &Path, file: OwnedFd, trial: bool) -> Result<Self, SocketError> {
        let file = File::from(file);
        let there = fs::metadata(dir.join(LOCK)).and_then(|there| {
            let file = file.metadata()?;
            Ok((there.dev(), there.ino()) == (file.dev(), file.ino()))
        });
        if !there.map_err(error("the lock"))? {
            return Err(SocketError::Directory {
                dir: dir.to_owned(),
                what: "is not where the running daemon has its sockets".to_owned(),
                remedy: "keep it, or restart the daemon for another one",
            });
        }
        if trial {
            return Ok(Self { file: None });
        }
        let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let file = locked.map_err(|(_, errno)| error("the lock")(errno.into()))?;
        Ok(Self { file: Some(file) })
    }
}
