//! The server's socket: one device on one path, one client after the other.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::poll::PollFlags;
use tracing::{info, warn};
use vmm_socket::socket::{Lost, wait_beside};
use vmm_socket::{BindError, Journal, Listener, Stop};

use crate::Device;
use crate::connection::{Arrival, serve_before};
use crate::end::End;
use crate::message_log::{MessageLog, Nobody};

/// A device's socket. Its file is removed on drop.
pub struct Server {
    listener: Listener,
    journal: Journal,
    message_log: Box<dyn MessageLog>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Listens on `path`, for this user alone (mode 0600). A socket there that
    /// nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`] names the path and the remedy.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        Ok(Listener::bind(path)?.into())
    }

    /// Has a log told of the clients, so that another process can go on with them.
    #[must_use]
    pub fn with_message_log(mut self, message_log: Box<dyn MessageLog>) -> Self {
        self.message_log = message_log;
        self
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Serves `device` to one client after the other until `stop` is
    /// signalled. Clients that connect while another is served wait for it to
    /// go.
    ///
    /// # Errors
    /// Where no client can be accepted any more.
    pub fn run(&mut self, device: &mut dyn Device, stop: &Stop) -> io::Result<()> {
        let mut resumed = self.message_log.resume(stop);
        loop {
            let arrival = match resumed.take() {
                Some(resumed) => Arrival::Resumed(resumed),
                None if !self.idle(device, stop)? => break,
                None => match self.listener.accept(stop, &mut self.journal)? {
                    Some(stream) => Arrival::New(stream),
                    None => break,
                },
            };
            let next = Some(self.listener.as_fd());
            let message_log = self.message_log.as_mut();
            let end = serve_before(next, arrival, device, stop, &mut self.journal, message_log);
            match (self.journal.departure(), end) {
                (None, _) => {}
                (Some(omitted), End::Closed | End::Stopped) => info!("client gone{omitted}"),
                (Some(omitted), end) => warn!("client gone: {end}{omitted}"),
            }
            if end == End::Stopped {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a client, and lets the device do what it has to do meanwhile. Returns false when `stop`
    /// is signalled.
    fn idle(&self, device: &mut dyn Device, stop: &Stop) -> io::Result<bool> {
        loop {
            let (listener, ready) = (self.listener.as_fd(), device.ready());
            let waited = wait_beside(
                listener,
                PollFlags::POLLIN,
                Some(stop.as_fd()),
                [None, ready],
            );
            match waited {
                Ok([_, true]) => device.poll(),
                Ok(_) => return Ok(true),
                Err(Lost::Stopped) => return Ok(false),
                Err(lost) => return Err(io::Error::other(lost)),
            }
        }
    }
}

impl From<Listener> for Server {
    fn from(listener: Listener) -> Self {
        Self {
            listener,
            journal: Journal::default(),
            message_log: Box::new(Nobody),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{DmaTable, Interrupts, Stop};

    /// Types that the data path may send to its own threads.
    const _: () = {
        const fn send<T: Send>() {}
        const fn shared<T: Send + Sync + Clone>() {}
        send::<DmaTable>();
        shared::<Interrupts>();
        shared::<Stop>();
    };
}
