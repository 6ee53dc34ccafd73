//! The manager at work.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use subnet_manager::SubnetManager;
use tracing::info;
use wire::attribute::SmState;

use crate::port::Port;

/// The signals that this program takes: two to end it, SIGHUP to read its files again and to sweep.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Takes the signals from now on.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> io::Result<Self> {
        let all = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        all.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(SignalFd::with_flags(&all, flags)?))
    }

    fn next(&self) -> io::Result<Option<Signal>> {
        let info = self.0.read_signal()?;
        Ok(info.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok()))
    }
}

/// Has the manager work at a port until a signal ends it, or until the first sweep has ended if it is for `once`: the
/// subnet is up then, or another manager is the master. `swept` is called after each full sweep, `reload` at SIGHUP
/// before the sweep.
///
/// # Errors
/// The port is gone, or the system refuses something.
pub fn run(
    manager: &mut SubnetManager,
    port: &mut impl Port,
    signals: &Signals,
    once: bool,
    mut swept: impl FnMut(&SubnetManager),
    mut reload: impl FnMut(&mut SubnetManager),
) -> io::Result<()> {
    let began = Instant::now();
    let mut sweeps = 0;
    loop {
        port.take()?;
        let next = manager.poll(began.elapsed(), port);
        port.flush()?;
        if manager.is_up() && manager.report().sweeps != sweeps {
            sweeps = manager.report().sweeps;
            swept(manager);
        }
        if once && (manager.is_up() || manager.state() == SmState::Standby) {
            return Ok(());
        }
        wait(
            port,
            signals,
            next.map(|due| due.saturating_sub(began.elapsed())),
        )?;
        while let Some(signal) = signals.next()? {
            if signal != Signal::SIGHUP {
                info!(%signal, "ending");
                // Requests on their way here get their answers: programs of ibsim wait for them without a limit.
                port.resign();
                port.take()?;
                manager.poll(began.elapsed(), port);
                return port.finish();
            }
            reload(manager);
            manager.request_sweep();
        }
    }
}

/// Waits for packets, for room for those that wait to be sent, for a signal or for the end of `left`.
fn wait(port: &impl Port, signals: &Signals, left: Option<Duration>) -> io::Result<()> {
    let timeout = left.map_or(PollTimeout::NONE, |left| {
        // Up to the next millisecond, so that it is due then.
        let millis = left.as_millis().saturating_add(1);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    });
    let mut wanted = PollFlags::POLLIN;
    wanted.set(PollFlags::POLLOUT, port.is_behind());
    let mut waited = [
        PollFd::new(port.descriptor(), wanted),
        PollFd::new(signals.0.as_fd(), PollFlags::POLLIN),
    ];
    match poll(&mut waited, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
