//! The daemon's end: what it tells the keeper, and what it is handed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tracing::{error, info};
use vfio_user::{MessageLog, Resumed, StandIn, Stop};
use vmm_socket::socket::Lost;

use crate::channel::{Channel, Kind};
use crate::mark::Mark;
use crate::note;

/// The name under which the keeper has a device's [`Mark`].
pub(crate) const MARK: &str = "mark";

/// The longest message that is kept, in bytes: no monitor has longer ones of these kinds.
pub(crate) const LONGEST_MESSAGE: usize = 4096;

/// The keeper of this process.
#[derive(Debug)]
pub struct Keeper(Channel);

fn other(lost: Lost) -> io::Error {
    io::Error::other(format!("the keeper does not answer: {lost}"))
}

impl Keeper {
    /// The keeper that [`supervisor`](crate::supervisor) has put at the standard input.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn from_stdin() -> io::Result<Self> {
        let end = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(Channel::new(end)))
    }

    /// Says that there is a device of this name, and learns what the keeper has of it.
    ///
    /// # Errors
    /// The keeper is gone, or a limit of the system was met.
    pub fn open(&self, name: &str) -> io::Result<Kept> {
        let (end, channel) = Channel::pair()?;
        let opened = self.0.send(Kind::Open, name.as_bytes(), &[end.as_fd()]);
        opened.map_err(other)?;
        drop(end);
        let mut held = BTreeMap::new();
        loop {
            let packet = channel.receive(None).map_err(other)?;
            if packet.kind != Kind::Hold {
                break;
            }
            let label = packet.text();
            held.extend(packet.fd().map(|fd| (label, fd)));
        }
        let mark = held.remove(MARK).and_then(|fd| Mark::adopt(fd).ok());
        let (mark, new) = match mark {
            Some(mark) => (mark, false),
            None => (Mark::new()?, true),
        };
        let kept = Kept {
            channel: Some(Arc::new(channel)),
            held,
            mark,
            told: false,
        };
        if new {
            kept.hold(MARK, kept.mark.as_fd())?;
        }
        Ok(kept)
    }

    /// Says that all devices are opened and serve. From then on a daemon that dies is started again.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn ready(&self) -> io::Result<()> {
        let said = self.0.send(Kind::Ready, &[], &[]);
        let heard = said.and_then(|()| self.0.receive(None));
        heard.map(drop).map_err(other)
    }
}

/// A device as the keeper has it.
#[derive(Debug)]
pub struct Kept {
    /// `None` once the keeper is gone.
    channel: Option<Arc<Channel>>,
    held: BTreeMap<String, OwnedFd>,
    mark: Mark,
    /// The keeper was told of the last message.
    told: bool,
}

impl Kept {
    /// Descriptors for the next program of this process, so that it has the device: first the end of the
    /// connection to the keeper, then the memory with the message in hand. `None` once the keeper is gone.
    #[must_use]
    pub fn ends(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let channel = self.channel.as_ref()?;
        Some([channel.as_fd(), self.mark.as_fd()])
    }

    /// A device that the program had which this process ran before, by its [`Kept::ends`].
    ///
    /// # Errors
    /// The memory is not what it was.
    pub fn adopt([channel, mark]: [OwnedFd; 2]) -> io::Result<Self> {
        Ok(Self {
            channel: Some(Arc::new(Channel::new(channel))),
            held: BTreeMap::new(),
            mark: Mark::adopt(mark)?,
            told: false,
        })
    }

    /// Names of what the keeper has of it, from a daemon before.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.held.keys().map(String::as_str)
    }

    /// Takes the descriptor that the keeper holds under this name, from a daemon before.
    pub fn take(&mut self, label: &str) -> Option<OwnedFd> {
        self.held.remove(label)
    }

    /// Has the keeper keep a descriptor under this name, for a daemon to come.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn hold(&self, label: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(channel) = &self.channel else {
            return Ok(());
        };
        let held = channel.send(Kind::Hold, label.as_bytes(), &[fd]);
        held.map_err(other)
    }

    /// The text that a daemon before has noted under this label.
    pub fn noted(&mut self, label: &str) -> Option<String> {
        self.take(label).and_then(|fd| note::read(fd).ok())
    }

    /// Notes texts about the device, also while somebody waits for what the keeper has. `None` once the keeper is
    /// gone.
    #[must_use]
    pub fn notes(&self) -> Option<Notes> {
        self.channel.clone().map(Notes)
    }

    fn tell(&mut self, kind: Kind, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let Some(channel) = &self.channel else { return };
        if let Err(lost) = channel.send(kind, body, fds) {
            error!("the keeper is gone ({lost}): VMs will not outlive this daemon; restart it");
            self.channel = None;
        }
    }

    fn resumed(&mut self, stop: &Stop) -> Result<Option<Resumed>, Lost> {
        let Some(channel) = &self.channel else {
            return Ok(None);
        };
        channel.send(Kind::Resume, &[], &[])?;
        let (mut stream, mut messages, mut shown) = (None, Vec::new(), StandIn::default());
        loop {
            let packet = channel.receive(Some(stop.as_fd()))?;
            match packet.kind {
                Kind::Client => stream = packet.fd(),
                Kind::Message => messages.push((packet.body, packet.fds)),
                Kind::Shown => match serde_json::from_slice(&packet.body) {
                    Ok(read) => shown = read,
                    Err(error) => error!("a VM's device is as after a reset: {error}"),
                },
                _ => break,
            }
        }
        Ok(stream.map(|stream| Resumed {
            stream: UnixStream::from(stream),
            messages,
            shown,
        }))
    }
}

/// Texts about a device that the keeper keeps for a daemon to come. Clones are about the same one.
#[derive(Debug, Clone)]
pub struct Notes(Arc<Channel>);

impl Notes {
    /// Notes `text` under a label, in place of the one that is there.
    ///
    /// # Errors
    /// The keeper is gone, or a limit of the system was met.
    pub fn note(&self, label: &str, text: &str) -> io::Result<()> {
        let fd = note::write(text)?;
        let held = self.0.send(Kind::Hold, label.as_bytes(), &[fd.as_fd()]);
        held.map_err(other)
    }
}

impl MessageLog for Kept {
    fn resume(&mut self, stop: &Stop) -> Option<Resumed> {
        match self.resumed(stop) {
            Ok(resumed) => {
                if let Some(resumed) = &resumed {
                    let messages = resumed.messages.len();
                    info!(messages, "goes on with the client of a daemon before");
                }
                resumed
            }
            Err(Lost::Stopped) => None,
            Err(lost) => {
                error!("the keeper is gone ({lost}): the VM that it had needs a restart");
                self.channel = None;
                None
            }
        }
    }

    fn connected(&mut self, stream: &UnixStream) {
        self.mark.idle();
        self.tell(Kind::Client, &[], &[stream.as_fd()]);
    }

    fn takes(&mut self, start: &[u8]) {
        self.mark.take(start);
    }

    fn keeps(&mut self, message: &[u8], fds: &[OwnedFd]) {
        self.told = message.len() <= LONGEST_MESSAGE;
        if self.told {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            self.tell(Kind::Message, message, &fds);
        }
    }

    fn refused(&mut self) {
        if self.told {
            self.tell(Kind::Refused, &[], &[]);
        }
    }

    fn answers(&mut self) {
        self.mark.answer();
    }

    fn answered(&mut self) {
        self.mark.idle();
    }

    fn shows(&mut self, stand_in: &StandIn) {
        let json = serde_json::to_vec(stand_in).expect("plain numbers serialize");
        self.tell(Kind::Shown, &json, &[]);
    }

    fn gone(&mut self) {
        self.tell(Kind::Gone, &[], &[]);
    }
}
