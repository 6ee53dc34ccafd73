//! The process: waits for whoever has something to say.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use tracing::{info, warn};

use crate::channel::{Channel, Kind};
use crate::sandbox;
use crate::slot::{SEND_TIMEOUT, Slot};

/// The most devices that are kept.
const MAX_DEVICES: usize = 4096;

/// Keeps what daemons have it keep, until the supervisor, to which `supervisor` leads, is gone.
///
/// # Errors
/// What the system says of poll(2).
pub fn run(supervisor: OwnedFd) -> io::Result<()> {
    // A signal to a whole service or terminal is for the daemon, and then for the keeper.
    let mut ignored = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        ignored.add(signal);
    }
    ignored.thread_block()?;
    if let Err(error) = sandbox::enter() {
        warn!(%error, "the keeper runs without a sandbox");
    }
    let mut keeper = Keeper {
        supervisor: Channel::new(supervisor),
        daemon: None,
        slots: BTreeMap::new(),
    };
    while keeper.turn()? {}
    Ok(())
}

struct Keeper {
    supervisor: Channel,
    /// The daemon that was started last, as long as it lives.
    daemon: Option<Channel>,
    slots: BTreeMap<String, Slot>,
}

impl Keeper {
    /// Waits, and does what is to be done; whether there is more to come.
    fn turn(&mut self) -> io::Result<bool> {
        self.wait()?;
        let now = Instant::now();
        // First those who may have died: what they had to say comes before what others know of it.
        for slot in self.slots.values_mut() {
            slot.hear_some(now);
        }
        self.hear_daemon(now);
        for slot in self.slots.values_mut() {
            slot.answer(now);
        }
        self.hear_supervisor()
    }

    /// Waits until somebody says something or a time has come.
    fn wait(&self) -> io::Result<()> {
        let now = Instant::now();
        let slots = self.slots.values();
        let deadline = slots.clone().filter_map(|slot| slot.deadline(now)).min();
        let timeout = deadline.map(|end| end.saturating_duration_since(now));
        let timeout = timeout.map(|left| left.as_millis().saturating_add(1));
        let timeout = timeout.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let daemon = self.daemon.iter().map(AsFd::as_fd);
        let all = [self.supervisor.as_fd()].into_iter().chain(daemon);
        let all = all.chain(slots.flat_map(Slot::waits_for));
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn hear_daemon(&mut self, now: Instant) {
        while let Some(daemon) = &self.daemon {
            match daemon.try_receive() {
                Ok(Some(packet)) => match packet.kind {
                    Kind::Open if self.slots.len() < MAX_DEVICES => {
                        let name = packet.text();
                        let Some(end) = packet.fd() else { continue };
                        let slot = self.slots.entry(name.clone());
                        let slot = slot.or_insert_with(|| Slot::new(name));
                        slot.open(Channel::new(end), now);
                    }
                    Kind::Ready => {
                        self.slots.retain(|_, slot| slot.is_open());
                        // A process that is gone is noticed below.
                        let _ = {
                            self.supervisor
                                .send_within(SEND_TIMEOUT, Kind::Ready, &[], &[])
                        }
                        .and_then(|()| daemon.send_within(SEND_TIMEOUT, Kind::Done, &[], &[]));
                    }
                    _ => {}
                },
                Ok(None) => break,
                Err(_) => {
                    info!("the daemon is gone");
                    self.daemon = None;
                }
            }
        }
    }

    fn hear_supervisor(&mut self) -> io::Result<bool> {
        loop {
            match self.supervisor.try_receive() {
                Ok(Some(packet)) if packet.kind == Kind::Started => {
                    self.daemon = packet.fd().map(Channel::new);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            }
        }
    }
}
