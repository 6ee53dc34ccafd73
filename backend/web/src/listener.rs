//! A listening socket with bounds: so many connections, and so long for a request.
//!
//! Where there is no room for one more connection, the eldest that has not shown the token is closed for it, so that
//! clients that only connect deny the server to nobody.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{interval, sleep};
use tokio_rustls::TlsAcceptor;
use vmm_socket::Pace;

use crate::tls::Stream;

/// Most connections at a time.
const CONNECTIONS: usize = 256;
/// Time that a connection has for its first request, and before it for the handshake of TLS.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a connection has for another request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which these times are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// State of a connection.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Its last request may be answered.
    admitted: bool,
    /// A request is being answered.
    busy: bool,
    /// Time of the accept, or of the end of the last answer.
    since: Instant,
}

/// A connection, for its requests and for the listener.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<PeerInner>);

#[derive(Debug)]
struct PeerInner {
    state: Mutex<State>,
    closed: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    /// Told when an answer ends.
    room: Arc<Notify>,
}

impl Peer {
    fn new(room: Arc<Notify>) -> Self {
        Self(Arc::new(PeerInner {
            state: Mutex::new(State {
                admitted: false,
                busy: false,
                since: Instant::now(),
            }),
            closed: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            room,
        }))
    }

    fn state(&self) -> State {
        *self.0.state.lock()
    }

    /// A request has come, and is answered until the result is dropped.
    pub(crate) fn begin(&self) -> Turn {
        self.0.state.lock().busy = true;
        Turn(self.clone())
    }

    /// The request has the token, or needs none.
    pub(crate) fn admit(&self) {
        self.0.state.lock().admitted = true;
    }

    fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.reader.wake();
        self.0.writer.wake();
    }

    /// Whether the connection goes on; else `waker` is woken when it does not.
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        waker.register(context.waker());
        if self.0.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn is_overdue(&self, now: Instant) -> bool {
        let State {
            admitted,
            busy,
            since,
        } = self.state();
        let limit = if admitted {
            IDLE_TIMEOUT
        } else {
            FIRST_TIMEOUT
        };
        !(busy && admitted) && now.saturating_duration_since(since) > limit
    }
}

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        stream.io().peer.clone()
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Turn(Peer);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        (state.busy, state.since) = (false, Instant::now());
        drop(state);
        self.0.0.room.notify_one();
    }
}

impl Turn {
    /// The body of the answer, with which the request ends.
    pub(crate) fn until_sent(self, body: Body) -> Body {
        Body::new(Sent { body, _turn: self })
    }
}

struct Sent {
    body: Body,
    _turn: Turn,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// The connections by their numbers: the eldest first.
#[derive(Debug, Default)]
struct Peers {
    peers: Mutex<BTreeMap<u64, Peer>>,
    /// A connection is gone, or may be closed.
    room: Arc<Notify>,
}

impl Peers {
    /// Closes the connections that have been silent for too long.
    fn check(&self) {
        let now = Instant::now();
        self.peers.lock().retain(|_, peer| {
            let overdue = peer.is_overdue(now);
            if overdue {
                peer.close();
                self.room.notify_one();
            }
            !overdue
        });
    }

    /// Whether there is room for one more, if need be in place of another one.
    fn make_room(&self) -> bool {
        let mut peers = self.peers.lock();
        if peers.len() < CONNECTIONS {
            return true;
        }
        let states = peers.iter().map(|(number, peer)| (number, peer.state()));
        // Without the token, then without a request; the eldest of these.
        let least = states
            .filter(|(_, state)| !(state.admitted && state.busy))
            .min_by_key(|(_, state)| (state.admitted, state.since));
        let Some(number) = least.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(peer) = peers.remove(&number) {
            peer.close();
        }
        true
    }
}

/// A listener that has at most so many connections.
pub(crate) struct Bounded {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    peers: Arc<Peers>,
    number: u64,
    pace: Pace,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        let peers = Arc::<Peers>::default();
        let checked = Arc::clone(&peers);
        tokio::spawn(async move {
            let mut interval = interval(CHECK_INTERVAL);
            loop {
                interval.tick().await;
                checked.check();
            }
        });
        Self {
            listener,
            tls,
            peers,
            number: 0,
            pace: Pace::default(),
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let rest = self.pace.rest(Instant::now());
        if !rest.is_zero() {
            sleep(rest).await;
        }
        let (stream, from) = axum::serve::Listener::accept(&mut self.listener).await;
        self.pace.count(Instant::now());
        while !self.peers.make_room() {
            self.peers.room.notified().await;
        }
        self.number += 1;
        let peer = Peer::new(Arc::clone(&self.peers.room));
        let peers = Arc::clone(&self.peers);
        peers.peers.lock().insert(self.number, peer.clone());
        let connection = Connection {
            stream: Stream::new(stream, self.tls.as_ref()),
            peer,
            peers,
            number: self.number,
        };
        (connection, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, which has its room as long as it lives.
pub(crate) struct Connection {
    stream: Stream,
    peer: Peer,
    peers: Arc<Peers>,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.peers.peers.lock().remove(&self.number);
        self.peers.room.notify_one();
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.peer.check(&self.peer.0.reader, context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.peer.check(&self.peer.0.writer, context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All places are taken by answers under way: the end of one makes room, and is told.
    #[tokio::test]
    async fn the_end_of_an_answer_makes_room() {
        let peers = Peers::default();
        let peer = || Peer::new(Arc::clone(&peers.room));
        let turns: Vec<Turn> = { (0..CONNECTIONS as u64).map(|number| (number, peer())) }
            .map(|(number, peer)| {
                let turn = peer.begin();
                peer.admit();
                peers.peers.lock().insert(number, peer);
                turn
            })
            .collect();
        assert!(!peers.make_room());
        let waits = async {
            while !peers.make_room() {
                peers.room.notified().await;
            }
        };
        let ends = async { drop(turns) };
        tokio::join!(waits, ends);
        assert_eq!(peers.peers.lock().len(), CONNECTIONS - 1);
    }
}
