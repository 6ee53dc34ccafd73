//! A third party between a client and a server, which counts what the client does.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vmm_socket::socket::{Lost, ReceivedFds, Socket};

use crate::message::{HEADER_LEN, RegionAccess};
use crate::{Command, Header};

/// Bytes of a page of a region.
const PAGE: u64 = 4096;
/// Longer messages are none.
const MAX_MESSAGE: u32 = 2 << 20;

/// Where a client has accessed a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Index of the region.
    pub region: u32,
    /// Page of 4 KiB within it.
    pub page: u64,
    /// It was a write.
    pub write: bool,
}

type Counts = Arc<Mutex<BTreeMap<Access, u64>>>;

/// A relay of one client to one server, until dropped: every message goes on as it came, with its descriptors.
#[derive(Debug)]
pub struct Relay {
    path: PathBuf,
    counts: Counts,
    ends: Arc<Mutex<Vec<Arc<UnixStream>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Waits for the client at the socket `path`; the server is at `server`.
    ///
    /// # Errors
    /// Where there can be no socket.
    pub fn start(path: &Path, server: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let counts = Counts::default();
        let ends: Arc<Mutex<Vec<Arc<UnixStream>>>> = Arc::default();
        let (counted, opened) = (Arc::clone(&counts), Arc::clone(&ends));
        let server = server.to_owned();
        let thread = std::thread::spawn(move || {
            let connected = listener
                .accept()
                .and_then(|(client, _)| Ok([client, UnixStream::connect(server)?]));
            let Ok(streams) = connected else { return };
            let [client, server] = streams.map(Socket::new);
            *opened.lock() = [&client, &server]
                .map(|end| Arc::clone(end.stream()))
                .into();
            std::thread::scope(|scope| {
                scope.spawn(|| pass(&server, &client, |_, _| {}));
                pass(&client, &server, |header, payload| {
                    count(&counted, header, payload);
                });
            });
        });
        Ok(Self {
            path: path.to_owned(),
            counts,
            ends,
            thread: Some(thread),
        })
    }

    /// Returns the numbers of the client's accesses to regions of the server so far.
    #[must_use]
    pub fn accesses(&self) -> BTreeMap<Access, u64> {
        self.counts.lock().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A relay that nobody has come to waits for somebody.
        drop(UnixStream::connect(&self.path));
        for end in self.ends.lock().iter() {
            let _ = end.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Passes messages on until one of both is gone.
fn pass(from: &Socket, to: &Socket, see: impl Fn(&Header, &[u8])) {
    let message = || -> Result<(), Lost> {
        let mut fds = ReceivedFds::default();
        let mut head = [0; HEADER_LEN];
        from.wait(None)?;
        from.receive(&mut head, &mut fds, None)?;
        let header = Header::parse(&head);
        let length = header.size.clamp(HEADER_LEN as u32, MAX_MESSAGE) as usize - HEADER_LEN;
        let mut payload = vec![0; length];
        from.receive(&mut payload, &mut fds, None)?;
        see(&header, &payload);
        let fds: Vec<_> = fds.fds.iter().map(AsFd::as_fd).collect();
        to.send(&head, &payload, &fds, None)
    };
    while message().is_ok() {}
    for end in [from, to] {
        let _ = end.stream().shutdown(Shutdown::Both);
    }
}

fn count(counts: &Counts, header: &Header, payload: &[u8]) {
    let write = match Command::from_number(header.command) {
        Some(Command::RegionRead) => false,
        Some(Command::RegionWrite) => true,
        _ => return,
    };
    if let Ok((access, _)) = RegionAccess::parse(payload) {
        let access = Access {
            region: access.region,
            page: access.offset / PAGE,
            write,
        };
        *counts.lock().entry(access).or_default() += 1;
    }
}
