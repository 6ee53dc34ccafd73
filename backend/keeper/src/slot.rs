//! A device: what the keeper has of it, and who serves it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vmm_socket::Journal;
use vmm_socket::socket::Lost;

use crate::channel::{Channel, Kind, Packet};
use crate::client::Client;
use crate::daemon::MARK;
use crate::mark::{Left, Mark};

/// The most descriptors that are held for one device besides its client's.
const MAX_HELD: usize = 16;

/// So long a daemon may take to make room for a packet: less than QEMU waits for an answer of ours.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// The most packets that are heard of one device before others have their turn.
const A_TURN: usize = 64;

/// One device.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    name: String,
    held: BTreeMap<String, OwnedFd>,
    mark: Option<Mark>,
    channel: Option<Channel>,
    client: Option<Client>,
    /// The daemon has the client.
    served: bool,
    /// The daemon waits for the client.
    wanted: bool,
    journal: Journal,
}

impl Slot {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Whether a daemon is there that knows it.
    pub(crate) const fn is_open(&self) -> bool {
        self.channel.is_some()
    }

    /// A daemon opens it, and learns what there is.
    pub(crate) fn open(&mut self, channel: Channel, now: Instant) {
        // All that the daemon before had to say.
        while self.hear_some(now) {}
        self.close(now);
        let tell = || -> Result<(), Lost> {
            for (label, fd) in &self.held {
                channel.send_within(SEND_TIMEOUT, Kind::Hold, label.as_bytes(), &[fd.as_fd()])?;
            }
            channel.send_within(SEND_TIMEOUT, Kind::Done, &[], &[])
        };
        match tell() {
            Ok(()) => self.channel = Some(channel),
            Err(lost) => warn!(vf = self.name, "the daemon does not listen: {lost}"),
        }
    }

    /// Returns the awaited descriptors: the daemon, and the client if it has no server.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let client = self.client.as_ref().filter(|_| !self.served);
        let channel = self.channel.iter().map(AsFd::as_fd);
        channel.chain(client.map(AsFd::as_fd))
    }

    /// When something is to be done without anybody saying so.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.client.as_ref().filter(|_| self.wanted)?.hold(now)
    }

    /// Hears what the daemon says, in part; whether there may be more.
    pub(crate) fn hear_some(&mut self, now: Instant) -> bool {
        for _ in 0..A_TURN {
            let Some(channel) = &self.channel else {
                return false;
            };
            match channel.try_receive() {
                Ok(Some(packet)) => self.handle(packet, now),
                Ok(None) => return false,
                Err(_) => self.close(now),
            }
        }
        true
    }

    fn handle(&mut self, packet: Packet, now: Instant) {
        match packet.kind {
            Kind::Hold if self.held.len() < MAX_HELD => {
                let label = packet.text();
                let Some(fd) = packet.fd() else { return };
                if label == MARK {
                    let mark = fd.try_clone().and_then(Mark::adopt);
                    self.mark = mark
                        .inspect_err(|error| {
                            warn!(
                                vf = self.name,
                                "cannot read the requests that a daemon had in hand: {error}"
                            );
                        })
                        .ok();
                }
                self.held.insert(label, fd);
            }
            Kind::Client => {
                self.client = packet.fd().map(Client::new);
                self.served = true;
            }
            Kind::Gone => self.client = None,
            Kind::Resume => self.wanted = true,
            kind => {
                let Some(client) = &mut self.client else {
                    return;
                };
                match kind {
                    Kind::Message if !packet.whole => {
                        client.forsake("has more files than this process may have open");
                    }
                    Kind::Message => client.note(packet.body, packet.fds),
                    Kind::Refused => client.refuse(),
                    Kind::Shown => match serde_json::from_slice(&packet.body) {
                        Ok(shown) => client.show(shown, now),
                        Err(error) => warn!(vf = self.name, "it is shown as before: {error}"),
                    },
                    _ => {}
                }
                if let Some(reason) = client.take_forsaken()
                    && let Some(omitted) = self.journal.admit("forsaken")
                {
                    let vf = &self.name;
                    warn!(
                        vf,
                        "a VM {reason}, and will not outlive the daemon{omitted}"
                    );
                }
            }
        }
    }

    /// The daemon is gone: from now on the client is answered here.
    fn close(&mut self, now: Instant) {
        self.channel = None;
        self.wanted = false;
        if !std::mem::take(&mut self.served) {
            return;
        }
        let left = self.mark.as_ref().map_or(Left::Nothing, Mark::left);
        let Some(client) = self.client.as_mut().filter(|client| client.is_known()) else {
            self.client = None;
            return;
        };
        let failed = client.hold(now).is_none();
        info!(vf = self.name, failed, "its VM is kept");
        if let Err(lost) = client.take_over(left, failed) {
            self.lose(lost);
        }
    }

    /// Answers what the client has said, and hands it over once that may be.
    pub(crate) fn answer(&mut self, now: Instant) {
        let Some(client) = self.client.as_mut().filter(|_| !self.served) else {
            // There is none: the daemon may take whoever comes.
            if std::mem::take(&mut self.wanted) {
                self.tell(|channel| channel.send_within(SEND_TIMEOUT, Kind::Done, &[], &[]));
            }
            return;
        };
        let failed = client.hold(now).is_none();
        if let Err(lost) = client.serve(failed) {
            return self.lose(lost);
        }
        if failed && self.wanted {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.wanted = false;
        let (Some(channel), Some(client)) = (&self.channel, &self.client) else {
            return;
        };
        if let Some(mark) = &self.mark {
            mark.idle();
        }
        let hand = || -> Result<(), Lost> {
            let send =
                |kind, body: &[u8], fds: &[_]| channel.send_within(SEND_TIMEOUT, kind, body, fds);
            send(Kind::Client, &[], &[client.as_fd()])?;
            for (message, fds) in client.messages() {
                send(Kind::Message, &message, &fds)?;
            }
            let shown = serde_json::to_vec(client.shown()).expect("plain numbers serialize");
            send(Kind::Shown, &shown, &[])?;
            send(Kind::Done, &[], &[])
        };
        match hand() {
            Ok(()) => {
                info!(vf = self.name, "its VM is handed to the daemon");
                self.served = true;
            }
            Err(lost) => self.give_up(lost),
        }
    }

    fn tell(&mut self, say: impl FnOnce(&Channel) -> Result<(), Lost>) {
        if let Some(channel) = &self.channel
            && let Err(lost) = say(channel)
        {
            self.give_up(lost);
        }
    }

    /// The daemon is not to have the client, of which it may know a part.
    fn give_up(&mut self, lost: Lost) {
        warn!(vf = self.name, "the daemon does not listen: {lost}");
        self.channel = None;
    }

    fn lose(&mut self, lost: Lost) {
        info!(vf = self.name, "its VM is gone: {lost}");
        self.client = None;
    }
}
