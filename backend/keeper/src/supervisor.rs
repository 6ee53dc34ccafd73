//! Starts the keeper and the daemon, and the daemon again whenever it dies.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use tracing::{error, warn};

use crate::channel::{Channel, Kind};

/// A daemon that has died before it was ready is started again after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts `keeper`, then `daemon` for as long as it dies of something other than a signal to end: each
/// finds the keeper, or the supervisor, at its standard input. Returns the daemon's exit status in the
/// end: it ended by itself, it was told to end (SIGTERM, SIGINT and SIGHUP are passed on), or it never
/// became ready.
///
/// To be called from a process with a single thread.
///
/// # Errors
/// What cannot be started.
pub fn supervise(mut keeper: Command, mut daemon: Command) -> io::Result<ExitStatus> {
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (end, channel) = Channel::pair()?;
    let keeper = keeper.stdin(Stdio::from(end)).spawn()?;
    let mut supervisor = Supervisor {
        signals,
        channel,
        keeper: Some(keeper),
        ending: false,
        was_ready: false,
    };
    loop {
        let status = supervisor.live(&mut daemon)?;
        // A restarted daemon would repeat the output of the first one, and the reader may be gone.
        daemon.stdout(Stdio::null());
        if supervisor.ending || status.success() || !supervisor.was_ready {
            return Ok(status);
        }
        match (status.signal(), status.code()) {
            (Some(signal), _) => error!(signal, "the daemon was killed; it is started again"),
            (_, code) => error!(code, "the daemon has failed; it is started again"),
        }
    }
}

struct Supervisor {
    signals: SignalFd,
    channel: Channel,
    /// `None` once it has died.
    keeper: Option<Child>,
    /// A signal to end was passed on.
    ending: bool,
    /// A daemon has been ready.
    was_ready: bool,
}

impl Supervisor {
    /// The life of one daemon.
    fn live(&mut self, daemon: &mut Command) -> io::Result<ExitStatus> {
        let (one, other) = Channel::pair()?;
        self.tell_keeper(other);
        let mut child = daemon.stdin(Stdio::from(one)).spawn()?;
        // The command has the daemon's end, without which the keeper would not see the daemon die.
        daemon.stdin(Stdio::null());
        let mut ready = false;
        let status = loop {
            self.wait(PollTimeout::NONE)?;
            while let Some(info) = self.signals.read_signal()? {
                if info.ssi_signo != Signal::SIGCHLD as u32 {
                    self.ending = true;
                    let pid = Pid::from_raw(child.id().cast_signed());
                    // It has not been waited for, so that nobody else has its number.
                    kill(pid, Signal::SIGTERM)?;
                }
            }
            ready |= self.is_ready();
            if let Some(status) = child.try_wait()? {
                break status;
            }
            self.look_after_keeper()?;
        };
        self.was_ready |= ready || self.is_ready();
        if !ready && self.was_ready && !self.ending {
            // Not at once: it would fail again.
            let pause = PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::MAX);
            self.wait(pause)?;
        }
        Ok(status)
    }

    fn wait(&self, timeout: PollTimeout) -> io::Result<()> {
        let signals = PollFd::new(self.signals.as_fd(), PollFlags::POLLIN);
        let channel = PollFd::new(self.channel.as_fd(), PollFlags::POLLIN);
        let mut polled = [signals, channel];
        // A keeper that is dead would be heard of again and again.
        let count = if self.keeper.is_some() { 2 } else { 1 };
        match poll(&mut polled[..count], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn tell_keeper(&self, end: Channel) {
        if let Err(lost) = self.channel.send(Kind::Started, &[], &[end.as_fd()]) {
            warn!("the keeper cannot be told of the daemon: {lost}");
        }
    }

    /// Whether the keeper says that the daemon is ready.
    fn is_ready(&self) -> bool {
        let mut ready = false;
        while let Ok(Some(packet)) = self.channel.try_receive() {
            ready |= packet.kind == Kind::Ready;
        }
        ready
    }

    fn look_after_keeper(&mut self) -> io::Result<()> {
        let Some(keeper) = &mut self.keeper else {
            return Ok(());
        };
        if let Some(status) = keeper.try_wait()? {
            error!(%status, "the keeper has died: VMs will not outlive the daemon; restart both");
            self.keeper = None;
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The keeper ends when it hears no more of the supervisor.
        let (_, gone) = match Channel::pair() {
            Ok(pair) => pair,
            Err(_) => return,
        };
        self.channel = gone;
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.wait();
        }
    }
}
