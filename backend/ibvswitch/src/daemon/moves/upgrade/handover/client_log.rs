//! Record of a device's client, kept by the device's thread, so that the program that this process runs next can go
//! on with the client. The keeper, if there is one, is told the same.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use keeper::{Client, Kept};
use parking_lot::Mutex;
use vfio_user::{Message, MessageLog, Resumed, StandIn, Stop};
use vmm_socket::Journal;

use super::{ClientRecord, Leaving, Taken};

/// Clones are of the same client.
#[derive(Debug, Clone)]
pub struct ClientLog(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    kept: Option<Kept>,
    client: Option<Client>,
    /// Client of the program before, until the device's thread takes it.
    inherited: Option<Resumed>,
    /// The device is not yet again what it was: how it is shown meanwhile is nobody's concern.
    silent: bool,
    /// Lines that clients can cause.
    journal: Journal,
}

/// Why a client cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum ClientLogError {
    /// It has not said who it is, or has said too much to be kept.
    #[error(
        "its VMM has only just connected, or shares more memory or interrupts than can be handed over; try again later"
    )]
    Unknown,
    /// No descriptor can be had.
    #[error("{source}{}", vmm_socket::remedy(.source))]
    System {
        /// The system's error.
        #[from]
        source: io::Error,
    },
}

impl ClientLog {
    /// Returns the log of a device without a client.
    #[must_use]
    pub fn new(kept: Option<Kept>) -> Self {
        Self(Arc::new(Mutex::new(State {
            kept,
            client: None,
            inherited: None,
            silent: false,
            journal: Journal::default(),
        })))
    }

    /// The client that the program before has left; the image of its machine.
    ///
    /// # Errors
    /// Something was not left, or the process has no file descriptors left.
    pub fn inherit(&self, left: ClientRecord, taken: &mut Taken) -> io::Result<String> {
        let connection = taken.get(left.connection)?;
        let mut client = Client::new(connection.try_clone()?);
        let mut messages: Vec<Message> = Vec::new();
        for (message, fds) in left.messages {
            let fds: io::Result<Vec<OwnedFd>> = fds.iter().map(|&fd| taken.get(fd)).collect();
            let fds = fds?;
            let own: io::Result<Vec<OwnedFd>> = fds.iter().map(OwnedFd::try_clone).collect();
            client.note(message.clone(), own?);
            messages.push((message, fds));
        }
        client.show(left.shown.clone(), Instant::now());
        let mut state = self.0.lock();
        state.client = Some(client);
        state.silent = true;
        state.inherited = Some(Resumed {
            stream: UnixStream::from(connection),
            messages,
            shown: left.shown,
        });
        Ok(left.image)
    }

    /// The device is what it was.
    pub fn arrive(&self) {
        self.0.lock().silent = false;
    }

    /// Whether there is a client.
    #[must_use]
    pub fn has_client(&self) -> bool {
        self.0.lock().client.is_some()
    }

    /// Leaves the client, with the image of its machine, to the next program.
    ///
    /// # Errors
    /// [`ClientLogError`].
    pub fn leave(
        &self,
        image: String,
        leaving: &mut Leaving,
    ) -> Result<ClientRecord, ClientLogError> {
        let state = self.0.lock();
        let client = state.client.as_ref().filter(|client| client.is_known());
        let client = client.ok_or(ClientLogError::Unknown)?;
        let mut messages = Vec::new();
        for (message, fds) in client.messages() {
            let fds: io::Result<Vec<_>> = fds.into_iter().map(|fd| leaving.leave(fd)).collect();
            messages.push((message, fds?));
        }
        Ok(ClientRecord {
            connection: leaving.leave(client.as_fd())?,
            messages,
            shown: client.shown().clone(),
            image,
        })
    }

    /// Leaves the connection to the keeper, where there is one.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn leave_keeper(&self, leaving: &mut Leaving) -> io::Result<Option<[i32; 2]>> {
        let state = self.0.lock();
        let ends = state.kept.as_ref().and_then(Kept::ends);
        ends.map(|[channel, mark]| Ok([leaving.leave(channel)?, leaving.leave(mark)?]))
            .transpose()
    }
}

impl MessageLog for ClientLog {
    fn resume(&mut self, stop: &Stop) -> Option<Resumed> {
        let mut state = self.0.lock();
        if let Some(inherited) = state.inherited.take() {
            return Some(inherited);
        }
        let resumed = state.kept.as_mut()?.resume(stop)?;
        state.connect(&resumed.stream);
        for (message, fds) in &resumed.messages {
            state.note(message, fds);
        }
        if let Some(client) = &mut state.client {
            client.show(resumed.shown.clone(), Instant::now());
        }
        Some(resumed)
    }

    fn connected(&mut self, stream: &UnixStream) {
        let mut state = self.0.lock();
        state.connect(stream);
        if let Some(kept) = &mut state.kept {
            kept.connected(stream);
        }
    }

    fn takes(&mut self, start: &[u8]) {
        if let Some(kept) = &mut self.0.lock().kept {
            kept.takes(start);
        }
    }

    fn keeps(&mut self, message: &[u8], fds: &[OwnedFd]) {
        let mut state = self.0.lock();
        state.note(message, fds);
        if let Some(kept) = &mut state.kept {
            kept.keeps(message, fds);
        }
    }

    fn refused(&mut self) {
        let mut state = self.0.lock();
        if let Some(client) = &mut state.client {
            client.refuse();
        }
        if let Some(kept) = &mut state.kept {
            kept.refused();
        }
    }

    fn answers(&mut self) {
        if let Some(kept) = &mut self.0.lock().kept {
            kept.answers();
        }
    }

    fn answered(&mut self) {
        if let Some(kept) = &mut self.0.lock().kept {
            kept.answered();
        }
    }

    fn shows(&mut self, stand_in: &StandIn) {
        let mut state = self.0.lock();
        if state.silent {
            return;
        }
        if let Some(client) = &mut state.client {
            client.show(stand_in.clone(), Instant::now());
        }
        if let Some(kept) = &mut state.kept {
            kept.shows(stand_in);
        }
    }

    fn gone(&mut self) {
        let mut state = self.0.lock();
        state.client = None;
        if let Some(kept) = &mut state.kept {
            kept.gone();
        }
    }
}

impl State {
    fn connect(&mut self, stream: &UnixStream) {
        let own = stream.as_fd().try_clone_to_owned();
        if let Err(error) = &own {
            let what = format_args!("the client cannot be handed to another program: {error}");
            self.journal.warn("handover", what);
        }
        self.client = own.ok().map(Client::new);
    }

    fn note(&mut self, message: &[u8], fds: &[OwnedFd]) {
        let Some(client) = &mut self.client else {
            return;
        };
        let own: io::Result<Vec<OwnedFd>> = fds.iter().map(OwnedFd::try_clone).collect();
        match own {
            Ok(own) => client.note(message.to_vec(), own),
            Err(error) => {
                let what = format_args!("the client cannot be handed to another program: {error}");
                self.journal.warn("handover", what);
                self.client = None;
            }
        }
    }
}
