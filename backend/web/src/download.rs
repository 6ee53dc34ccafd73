//! Captures to download, as `ibvswitch capture` makes them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{env, io};

use axum::body::Body;
use futures_util::Stream;
use serde::Deserialize;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::io::ReaderStream;

/// Most captures at a time by this program: the daemon has some more, for others.
const AT_A_TIME: usize = 4;
/// Longest capture, in seconds.
const LONGEST: u32 = 600;

/// Selection of packets to capture.
#[derive(Debug, Deserialize)]
pub struct Wish {
    /// At the port of this VF; at all VFs and the subnet manager without.
    #[serde(default)]
    pub vf: String,
    /// Data packets as well.
    #[serde(default)]
    pub data: bool,
    /// For so many seconds.
    pub seconds: u32,
}

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It would be too long, or of no length.
    #[error("a capture takes 1 to {LONGEST} seconds")]
    Length,
    /// There are too many.
    #[error("{AT_A_TIME} captures are under way; wait for one to end")]
    Busy,
    /// The program cannot be started.
    #[error("`ibvswitch capture` cannot be started: {0}")]
    Program(io::Error),
}

/// Makes captures, with bounds.
#[derive(Debug)]
pub struct Captures {
    runtime_dir: PathBuf,
    room: Arc<Semaphore>,
}

impl Captures {
    /// Captures of the daemon that has its sockets there.
    #[must_use]
    pub fn new(runtime_dir: &Path) -> Self {
        Self {
            runtime_dir: runtime_dir.to_owned(),
            room: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    /// A capture in pcap format, which comes while it is made.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start(&self, wish: &Wish) -> Result<Body, CaptureError> {
        if !(1..=LONGEST).contains(&wish.seconds) {
            return Err(CaptureError::Length);
        }
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_| CaptureError::Busy)?;
        let program = env::current_exe()
            .map(|own| own.with_file_name("ibvswitch"))
            .map_err(CaptureError::Program)?;
        let mut child = Command::new(program)
            .args(self.arguments(wish))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(CaptureError::Program)?;
        let stdout = child.stdout.take();
        let stdout =
            stdout.ok_or_else(|| CaptureError::Program(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Body::from_stream(Running {
            stream: ReaderStream::new(stdout),
            _child: child,
            _room: room,
        }))
    }

    fn arguments(&self, wish: &Wish) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--runtime-dir".into(),
            self.runtime_dir.clone().into(),
            "capture".into(),
            format!("--duration={}", wish.seconds).into(),
        ];
        if !wish.vf.is_empty() {
            // One word, so that a name is never an option.
            arguments.push(format!("--vf={}", wish.vf).into());
        }
        if wish.data {
            arguments.push("--data".into());
        }
        arguments
    }
}

/// A capture under way. It ends when its reader is gone.
struct Running {
    stream: ReaderStream<ChildStdout>,
    _child: Child,
    _room: OwnedSemaphorePermit,
}

impl Stream for Running {
    type Item = io::Result<axum::body::Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_an_option() {
        let captures = Captures::new(Path::new("/run/x"));
        let wish = Wish {
            vf: "--write=/etc/passwd".to_owned(),
            data: true,
            seconds: 5,
        };
        let arguments = captures.arguments(&wish);
        assert!(arguments.contains(&"--vf=--write=/etc/passwd".into()));
        assert_eq!(arguments.len(), 6);
    }
}
