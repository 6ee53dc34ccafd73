//! The life of a daemon: from a configuration to serving, and down again.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, RawFd};
use std::path::PathBuf;
use std::process;

use keeper::Keeper;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use sd_notify::NotifyState;
use tracing::{error, info, warn};

use crate::budget::{Available, Budget};
use crate::control::{Server, UpgradeRequest};
use crate::daemon::life::abort::Abort;
use crate::daemon::life::assembly::{Assembly, AssemblyError};
use crate::daemon::life::limits::raise_open_files;
use crate::daemon::life::logging;
use crate::daemon::life::sandbox;
use crate::daemon::life::sockets::{SocketError, Sockets};
use crate::daemon::management::manager_files::{strangers, write_partitions};
use crate::daemon::management::{self, ManagementError};
use crate::daemon::moves::upgrade::arrival::Before;
use crate::daemon::moves::upgrade::{FIT, handover};
use config::Config;
use vswitch::Plan;

/// State that the program before has left in this process.
#[derive(Debug, Clone, Copy)]
pub struct Inherit {
    /// The number of the descriptor that leads to it.
    pub handover: RawFd,
    /// The other program goes on meanwhile: this one ends where it would begin to serve.
    pub trial: bool,
}

/// Why a daemon did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log filter is wrong.
    #[error("{0}")]
    Log(String),
    /// The configuration makes no subnet.
    #[error("the subnet cannot be set up: {0}")]
    Subnet(#[from] ManagementError),
    /// The directory of the subnet manager's memory cannot be written.
    #[error("sm.state_dir {}: {source}; name a directory that the daemon may write, or leave the key out", .dir.display())]
    StateDir {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A socket or the runtime directory cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The parts of the daemon cannot be put together.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The system refused something that a daemon needs.
    #[error("cannot {what}: {source}{}", vfio_user::remedy(.source))]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The state that the program before has left cannot be read.
    #[error("the state of the running daemon is unknown to this program, of version {version}: {source}", version = env!("CARGO_PKG_VERSION"))]
    Handover {
        /// The error.
        source: io::Error,
    },
    /// A part of the daemon failed while it was serving.
    #[error("stopped: {0}; the log says more")]
    Aborted(String),
}

/// Serves the VFs of `config` until SIGTERM, SIGINT or SIGHUP. Calls `ready` once VMs can be
/// started. `keeper` is told of them, where there is one, and has those of a daemon before. With
/// `inherit`, goes on with what another program of this process has left.
///
/// To be called once, from a process with a single thread: it sets the signal mask and the file
/// mode creation mask of the whole process.
///
/// # Errors
/// [`RunError`]; nothing is left of a start that failed.
pub fn run(
    config: &Config,
    keeper: Option<Keeper>,
    inherit: Option<Inherit>,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), RunError> {
    let system = |what| move |source: io::Error| RunError::System { what, source };
    let trial = inherit.is_some_and(|inherit| inherit.trial);
    let mut tried = config.clone();
    if trial {
        // The files and names are another program's, and its log says what is going on.
        (tried.external.socket, tried.files.state_dir) = (None, None);
        "error".clone_into(&mut tried.log);
    }
    if inherit.is_none() {
        management::check(&tried)?;
    }
    let strangers = strangers(&tried, &Plan::new(&tried.model())).map_err(ManagementError::from)?;
    tried.file_warnings = strangers;
    let config = &tried;
    logging::start(&config.log).map_err(RunError::Log)?;
    // Before any thread is started, so that all of them leave the signals to the descriptor.
    let signals = block_signals().map_err(system("take signals"))?;
    if keeper.is_some() && !trial {
        // Its supervisor's end is its own.
        set_pdeathsig(Signal::SIGTERM).map_err(|errno| system("ask for a signal")(errno.into()))?;
    }
    // Nothing is created that others may use, unless it is given to them afterwards.
    umask(Mode::from_bits_truncate(0o077));
    if let Err(error) = raise_open_files() {
        warn!(%error, "the limit of open files stays as it is");
    }

    let mut confined = None;
    let (sockets, before) = match inherit {
        None => (Sockets::create(config, keeper.as_ref())?, None),
        Some(Inherit { handover, trial }) => {
            let mut handover =
                handover::read(handover).map_err(|source| RunError::Handover { source })?;
            confined = handover.sandbox;
            let mut before = Before::new(config, &handover, trial);
            let taken = &mut before.taken;
            let sockets = Sockets::inherit(config, keeper.as_ref(), &mut handover, taken, trial)?;
            (sockets, Some(before))
        }
    };
    let settled = config
        .clone()
        .settled(sockets.doorbells(config, before.is_some()));
    let config = &settled;
    if let Some(complaint) = complaint(config) {
        warn!("{complaint}");
    }
    // Its directories are there now, and no thread but this one is.
    match confined {
        Some(sandbox) => sandbox::stay_in(sandbox),
        None => {
            create_state_dir(config)?;
            sandbox::enter(config);
        }
    }
    let leave = { sockets.to_leave() }.map_err(system("keep sockets for another program"))?;
    let Sockets {
        control,
        vfs,
        lock: _lock,
    } = sockets;
    let abort = Abort::new().map_err(system("create an event descriptor"))?;
    let listener = control
        .listener()
        .map_err(system("listen on the control socket"))?;
    let is_first = before.is_none();
    let mut assembly = Assembly::start(config, vfs, leave, before, &abort)?;
    if trial {
        let mut out = io::stdout().lock();
        let told = out.write_all(FIT.as_bytes()).and_then(|()| out.flush());
        // At once: everything belongs to the program that goes on meanwhile.
        process::exit(told.is_err().into());
    }
    assembly.go_on();
    write_partitions(config);
    let answering = Server::start(listener, assembly.status_source())
        .map_err(system("start the control server"))?;

    // A program that sees the daemon ready may count on the keeper.
    if let Some(keeper) = &keeper {
        keeper.ready().map_err(system("tell the keeper"))?;
    }
    if is_first {
        ready().map_err(system("say that the daemon is ready"))?;
    }
    notify(&[NotifyState::Ready]);
    info!(dir = %config.runtime_dir.display(), vfs = config.vfs().count(), "serving");

    let source = assembly.status_source();
    let ended = loop {
        let ended = wait(&signals, &abort).map_err(system("wait for signals"))?;
        if ended != Some(Signal::SIGUSR2) {
            break ended;
        }
        // The log says why not.
        let _ = source.upgrade(&UpgradeRequest::default());
    };
    drop(source);
    if let (Some(_), Some(reason)) = (&keeper, abort.reason()) {
        // At once, so that VMs and sockets stay with the keeper.
        error!("stopped: {reason}");
        process::exit(1);
    }
    notify(&[NotifyState::Stopping]);
    match ended {
        Some(signal) => info!(signal = signal.as_str(), "stopping"),
        None => warn!("stopping"),
    }
    drop(answering);
    drop(assembly);
    drop(control);
    match abort.reason() {
        Some(reason) => Err(RunError::Aborted(reason)),
        None => Ok(()),
    }
}

/// Makes the directory of what is remembered, which the sandbox lets it write to if it is there.
fn create_state_dir(config: &Config) -> Result<(), RunError> {
    let Some(dir) = &config.files.state_dir else {
        return Ok(());
    };
    let probe = dir.join(".writable");
    let made = fs::create_dir_all(dir)
        .and_then(|()| fs::write(&probe, ""))
        .and_then(|()| fs::remove_file(&probe));
    made.map_err(|source| RunError::StateDir {
        dir: dir.clone(),
        source,
    })
}

/// Returns an error text if guests can make the daemon take more memory than it may have.
fn complaint(config: &Config) -> Option<String> {
    Available::here()?.complaint(&Budget::of(config))
}

fn block_signals() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR2,
    ] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(SignalFd::with_flags(
        &signals,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// Waits for a signal, which it returns, or for an abort.
fn wait(signals: &SignalFd, abort: &Abort) -> io::Result<Option<Signal>> {
    loop {
        let mut waited = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(abort.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waited, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if abort.reason().is_some() {
            return Ok(None);
        }
        if let Some(info) = signals.read_signal()? {
            // Only those that were asked for arrive here.
            return Ok(Signal::try_from(info.ssi_signo as i32).ok());
        }
    }
}

/// Tells systemd, where it is listening.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "systemd cannot be told");
    }
}
