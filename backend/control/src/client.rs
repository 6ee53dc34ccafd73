//! The commands' side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ErrorKind, LINE_MAX, Request, Response, allowed};

/// Time limit of an answer. A daemon answers from memory; one that takes longer is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of the move of a VM. The daemon itself gives up after a minute and says so; another subnet manager may
/// be allowed more time.
const MOVE_TIMEOUT: Duration = Duration::from_secs(70);

/// Time limit of the answer to a request.
fn patience(request: &Request) -> Duration {
    match request {
        Request::Migrate(request) => MOVE_TIMEOUT + allowed(request.wait_s),
        Request::MigrateAll(request) => {
            MOVE_TIMEOUT * request.moves.len().max(1) as u32 + allowed(request.wait_s)
        }
        // Undone, it moves addresses twice.
        Request::LiveStep { .. } | Request::LiveSettle { .. } => MOVE_TIMEOUT * 2,
        Request::Upgrade(request) => {
            ANSWER_TIMEOUT + Duration::from_millis(request.within_ms.unwrap_or(0)) * 3
        }
        _ => ANSWER_TIMEOUT,
    }
}

/// Why a daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("no daemon answers on {}: {source}; start one with `ibvswitch run`, or name the one you mean with --runtime-dir", .socket.display())]
    NotRunning {
        /// The control socket.
        socket: PathBuf,
        /// Error of the connection.
        source: io::Error,
    },
    /// The user may not use the socket.
    #[error("no access to {}: only the daemon's own user and root may ask it; use that user, or sudo", .socket.display())]
    NoAccess {
        /// The control socket.
        socket: PathBuf,
    },
    /// The daemon has not answered in time.
    #[error("the daemon on {} has not answered within {} s: it is stuck, or others keep it busy (`ss -xp` shows who is connected); ask again, and see its log", .socket.display(), .limit.as_secs())]
    Late {
        /// The control socket.
        socket: PathBuf,
        /// The time that it had.
        limit: Duration,
    },
    /// The connection failed afterwards.
    #[error("the daemon on {} gave no answer: {source}; its log says more", .socket.display())]
    Broken {
        /// The control socket.
        socket: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The daemon refused.
    #[error("{}{message}", if *.kind == ErrorKind::Unknown { "" } else { "the daemon refused: " })]
    Refused {
        /// Kind of the error.
        kind: ErrorKind,
        /// In the daemon's words.
        message: String,
    },
}

/// A connection to a running daemon.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon's control socket.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] or [`ClientError::NoAccess`].
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NoAccess {
                socket: socket.to_owned(),
            },
            _ => ClientError::NotRunning {
                socket: socket.to_owned(),
                source,
            },
        })?;
        let client = Self {
            socket: socket.to_owned(),
            stream: BufReader::new(stream),
        };
        let stream = client.stream.get_ref();
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(|source| client.broken(source))?;
        Ok(client)
    }

    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for an error response, [`ClientError::Broken`] where none came.
    pub fn ask(&mut self, request: &Request) -> Result<Response, ClientError> {
        match self.exchange(request) {
            Ok(Response::Error { kind, message }) => Err(ClientError::Refused { kind, message }),
            Ok(response) => Ok(response),
            // A time limit of the socket.
            Err(source) if source.kind() == io::ErrorKind::WouldBlock => Err(ClientError::Late {
                socket: self.socket.clone(),
                limit: patience(request),
            }),
            Err(source) => Err(self.broken(source)),
        }
    }

    /// The connection itself, for what follows a response that is not a line, and what of that has
    /// been read already.
    pub fn into_stream(self) -> (UnixStream, Vec<u8>) {
        let early = self.stream.buffer().to_vec();
        (self.stream.into_inner(), early)
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(patience(request)))?;
        self.stream.get_mut().write_all(&line)?;
        line.clear();
        (&mut self.stream)
            .take(LINE_MAX as u64)
            .read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Broken {
            socket: self.socket.clone(),
            source,
        }
    }
}
