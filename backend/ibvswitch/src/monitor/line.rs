//! A socket that carries lines both ways.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::MonitorError;

/// The longest line, in bytes: a description of all PCI devices has some ten thousand.
const LONGEST: u64 = 4 << 20;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Lines {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Lines {
    pub(super) fn connect(socket: &Path) -> Result<Self, MonitorError> {
        let stream = UnixStream::connect(socket).map_err(|source| MonitorError::Absent {
            socket: socket.to_owned(),
            source,
        })?;
        Ok(Self {
            socket: socket.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    pub(super) fn send(&mut self, line: &str, patience: Duration) -> Result<(), MonitorError> {
        let stream = self.stream.get_mut();
        let sent = { stream.set_write_timeout(Some(patience)) }
            .and_then(|()| stream.write_all(format!("{line}\n").as_bytes()));
        sent.map_err(|source| self.lost("took no command", source))
    }

    /// The next line, without its end, by `deadline`.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<String, MonitorError> {
        let left = deadline.saturating_duration_since(Instant::now());
        // The system takes no zero.
        let left = left.max(Duration::from_millis(1));
        let mut line = String::new();
        let read = { self.stream.get_ref().set_read_timeout(Some(left)) }
            .and_then(|()| (&mut self.stream).take(LONGEST).read_line(&mut line));
        let read = read.and_then(|_| {
            if line.ends_with('\n') {
                Ok(())
            } else {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"))
            }
        });
        read.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => {
                self.lost("did not answer in time", io::ErrorKind::TimedOut.into())
            }
            _ => self.lost("is gone", source),
        })?;
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    pub(super) fn lost(&self, what: impl Into<String>, source: io::Error) -> MonitorError {
        MonitorError::Lost {
            socket: self.socket.clone(),
            what: what.into(),
            source,
        }
    }

    pub(super) fn refused(
        &self,
        what: impl Into<String>,
        answer: impl Into<String>,
    ) -> MonitorError {
        MonitorError::Refused {
            socket: self.socket.clone(),
            what: what.into(),
            answer: answer.into(),
        }
    }
}
