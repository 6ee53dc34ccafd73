//! The thread of a port: serves one client after the other, and carries between the rings of its guest,
//! the port, and the subnet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hca::transport::Frame;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use thiserror::Error;
use tracing::{debug, info, warn};
use vmm_socket::socket::{Lost, ReceivedFds, Socket};
use vmm_socket::{Files, Journal, Listener, MemoryLimits, Stop};
use wire::MadPacket;

use crate::frames::{Scratch, Taken};
use crate::message::{HEADER_LEN, Header};
use crate::port::{Output, Port, Surroundings};
use crate::ring::RingError;
use crate::session::{Change, RECEIVE, RINGS, Session, SessionError, TRANSMIT};
use crate::translate::{Dropped, Packet};

/// Frames of one direction between looks at everything else.
const BATCH: usize = 256;
/// Descriptors and datagrams of one direction between looks at everything else. A guest may have a frame of
/// very many.
const DESCRIPTORS: usize = 4 * BATCH;
/// Time for which an output waits for room in the subnet, in nanoseconds: then it is lost, with all behind it.
/// A slow receiver is slow for all, whatever this guest does.
const JAM: u64 = 10_000_000;
/// Unit of epoll's timeouts, in nanoseconds.
const TICK: u64 = 1_000_000;

/// Something for the port.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all that arrives is frames"
)]
pub enum Arrival {
    /// A datagram at its queue pair, or at a group.
    Frame(Frame),
    /// A datagram at its queue pair 1.
    Mad(Box<MadPacket>),
    /// [`Outside::surroundings`] may have changed.
    Changed,
}

/// The subnet, as a port needs it.
pub trait Outside: Send {
    /// Now, in nanoseconds.
    fn now(&self) -> u64;
    /// A counter that changes when a way may have changed.
    fn generation(&self) -> u64;
    /// Returns the state of the port's surroundings.
    fn surroundings(&mut self) -> Surroundings;
    /// A client has come, or is gone.
    fn presence(&mut self, present: bool);
    /// The guest is as new: what the port has had entered is to be taken back.
    fn reset(&mut self);
    /// The guest takes trains of datagrams as they are from now on, or does not.
    fn set_takes_trains(&mut self, takes: bool);
    /// Whether a train may leave as it is. Otherwise its datagrams are sent.
    fn passes_whole(&mut self, train: &Frame) -> bool;
    /// Something leaves the port. It is returned where there is no room for it. Its receiver is woken before the
    /// thread sleeps.
    fn send(&mut self, now: u64, output: Output) -> Option<Output>;
    /// Takes the next arrival.
    fn receive(&mut self, now: u64) -> Option<Arrival>;
    /// When something arrives, if that is known.
    fn deadline(&self) -> Option<u64>;
    /// The thread is about to sleep, or not any more. Whether something has arrived already.
    fn sleep(&mut self, asleep: bool) -> bool;
    /// Signalled where something has arrived for a thread that sleeps.
    fn bell(&self) -> BorrowedFd<'_>;
}

/// Why a client is not served any more.
#[derive(Debug, Error)]
enum End {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("ring {0}: {1}")]
    Ring(usize, RingError),
    #[error("the link of the port is down")]
    LinkDown,
    #[error("{0}")]
    System(#[from] Errno),
}

/// Events that the thread waits for.
const STOP: u64 = 0;
const LISTENER: u64 = 1;
const SOCKET: u64 = 2;
const BELL: u64 = 3;
const KICK: u64 = 4;

/// A port and its socket.
#[derive(Debug)]
pub struct Server<O> {
    listener: Listener,
    journal: Journal,
    port: Port,
    outside: O,
    limits: MemoryLimits,
    mtu: u16,
    epoll: Epoll,
    scratch: Scratch,
    packet: Packet,
    /// Output for which there is no room, and the time since when. Nothing is taken from the guest meanwhile.
    stuck: Option<(Output, u64)>,
    /// The link went down while a client was there: others are turned away until it is up.
    down: bool,
}

/// A client that is served.
#[derive(Debug)]
struct Client {
    socket: Socket,
    incoming: Incoming,
    session: Session,
    /// Its driver has the rings at work.
    up: bool,
    /// The driver takes trains of datagrams.
    takes_trains: bool,
}

/// The message that comes in.
#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// Bytes of it that are there.
    filled: usize,
    fds: ReceivedFds,
}

impl Incoming {
    /// Reads what is there of the message. The message, when it is whole.
    fn read(&mut self, socket: &Socket) -> Result<Option<(Header, Vec<u8>, ReceivedFds)>, End> {
        loop {
            let header = self
                .bytes
                .first_chunk()
                .filter(|_| self.filled >= HEADER_LEN);
            let header = header.map(|bytes| Header::parse(*bytes)).transpose();
            let header = header.map_err(SessionError::from)?;
            let len = HEADER_LEN + header.map_or(0, |header| header.size as usize);
            if let Some(header) = header
                && self.filled == len
            {
                let payload = self.bytes.split_off(HEADER_LEN);
                let whole = std::mem::take(self);
                return Ok(Some((header, payload, whole.fds)));
            }
            self.bytes.resize(len, 0);
            match socket.receive_some(&mut self.bytes[self.filled..], &mut self.fds) {
                Ok(0) if self.filled == 0 => return Err(Lost::Closed.into()),
                Ok(0) => return Err(Lost::Truncated.into()),
                Ok(count) => self.filled += count,
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
                Err(errno) => return Err(Lost::from(errno).into()),
            }
        }
    }
}

impl<O: Outside> Server<O> {
    /// Serves `port` on this socket. `mtu` is the longest IP packet in bytes, `limits` what a client may
    /// share.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn new(
        listener: Listener,
        port: Port,
        outside: O,
        limits: MemoryLimits,
        mtu: u16,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self {
            listener,
            journal: Journal::default(),
            port,
            outside,
            limits,
            mtu,
            epoll,
            scratch: Scratch::default(),
            packet: Packet::default(),
            stuck: None,
            down: false,
        })
    }

    /// Serves until `stop` is signalled.
    ///
    /// # Errors
    /// Where no client can be accepted any more.
    pub fn run(&mut self, stop: &Stop) -> io::Result<()> {
        let level = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        self.epoll.add(stop.as_fd(), level(STOP))?;
        self.epoll.add(self.outside.bell(), edge(BELL))?;
        loop {
            self.epoll.add(self.listener.as_fd(), level(LISTENER))?;
            let client = self.next_client(stop)?;
            self.epoll.delete(self.listener.as_fd())?;
            let Some(stream) = client else { return Ok(()) };
            self.down &= !self.outside.surroundings().view.active;
            if self.down {
                debug!("a client is turned away: the link is down");
                continue;
            }
            if let Some(omitted) = self.journal.arrival() {
                info!("client connected{omitted}");
            }
            self.outside.presence(true);
            let end = self.serve(stream);
            self.rest();
            self.outside.presence(false);
            self.down |= matches!(end, End::LinkDown);
            match (self.journal.departure(), end) {
                (_, End::Lost(Lost::Stopped)) => return Ok(()),
                (None, _) => {}
                (Some(omitted), End::Lost(Lost::Closed)) => info!("client gone{omitted}"),
                (Some(omitted), end @ End::LinkDown) => info!("client sent away: {end}{omitted}"),
                (Some(omitted), end) => warn!("client sent away: {end}{omitted}"),
            }
        }
    }

    /// The next client, or `None` to stop. Packets that arrive meanwhile are dropped.
    fn next_client(&mut self, stop: &Stop) -> io::Result<Option<UnixStream>> {
        loop {
            for token in self.wait(self.outside.deadline())?.into_iter().flatten() {
                match token {
                    STOP => return Ok(None),
                    LISTENER => return self.listener.accept(stop, &mut self.journal),
                    _ => {}
                }
            }
            let now = self.outside.now();
            while self.outside.receive(now).is_some() {}
        }
    }

    /// Waits for events, at most until `due` on the clock.
    fn wait(&mut self, due: Option<u64>) -> nix::Result<[Option<u64>; 8]> {
        let asleep_already = self.outside.sleep(true);
        let left = due.map(|due| due.saturating_sub(self.outside.now()));
        let timeout = match left {
            _ if asleep_already => EpollTimeout::ZERO,
            Some(0) => EpollTimeout::ZERO,
            Some(left) if left < TICK => {
                // Links take microseconds, which epoll does not know.
                let mut polled = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
                match ppoll(&mut polled, Some(Duration::from_nanos(left).into()), None) {
                    Ok(_) | Err(Errno::EINTR) => EpollTimeout::ZERO,
                    Err(errno) => return Err(errno),
                }
            }
            // Not before it is due.
            Some(left) => EpollTimeout::from(left.div_ceil(TICK).min(60_000) as u16),
            None => EpollTimeout::NONE,
        };
        let mut events = [EpollEvent::empty(); 8];
        let woken = self.epoll.wait(&mut events, timeout);
        self.outside.sleep(false);
        let count = match woken {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(errno),
        };
        let mut tokens = [None; 8];
        for (token, event) in tokens.iter_mut().zip(&events[..count]) {
            *token = Some(event.data());
        }
        Ok(tokens)
    }

    /// When there is something to do that nobody rings for.
    fn deadline(&self) -> Option<u64> {
        let lost = self.stuck.as_ref().map(|(_, since)| since + JAM);
        let due = [self.port.deadline(), self.outside.deadline(), lost];
        due.into_iter().flatten().min()
    }

    fn serve(&mut self, stream: UnixStream) -> End {
        let socket = Socket::new(stream);
        let files = Files::new(self.limits, Some(socket.stream().clone()));
        let mut client = Client {
            session: Session::new(files, self.mtu),
            socket,
            incoming: Incoming::default(),
            up: false,
            takes_trains: false,
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, SOCKET);
        let end = match self.epoll.add(client.socket.stream(), event) {
            Ok(()) => self.converse(&mut client),
            Err(errno) => End::System(errno),
        };
        // The client may keep what these are open.
        for ring in 0..RINGS {
            if let Some(kick) = client.session.kick(ring) {
                let _ = self.epoll.delete(kick);
            }
        }
        let _ = self.epoll.delete(client.socket.stream());
        end
    }

    fn converse(&mut self, client: &mut Client) -> End {
        let mut more = false;
        loop {
            let due = if more { Some(0) } else { self.deadline() };
            let tokens = match self.wait(due) {
                Ok(tokens) => tokens,
                Err(errno) => return errno.into(),
            };
            for token in tokens.into_iter().flatten() {
                let outcome = match token {
                    STOP => Err(Lost::Stopped.into()),
                    SOCKET => self.message(client),
                    _ => Ok(()),
                };
                if let Err(end) = outcome {
                    return end;
                }
            }
            more = match self.work(client) {
                Ok(more) => more,
                Err(end) => return end,
            };
        }
    }

    /// Takes what there is of a message, and answers it when it is whole. A client that sends half of one
    /// keeps nobody waiting.
    fn message(&mut self, client: &mut Client) -> Result<(), End> {
        let Some((header, payload, fds)) = client.incoming.read(&client.socket)? else {
            return Ok(());
        };
        let Client {
            socket, session, ..
        } = client;
        if fds.surplus {
            let count = fds.fds.len();
            return Err(SessionError::Descriptors(count, header.request).into());
        }
        let (answer, change) = session.handle(header, &payload, fds.fds)?;
        if let Some(Change::Kick(ring, old)) = change {
            self.change_kick(ring, old, session.kick(ring))?;
        }
        if let Some(answer) = answer {
            socket.send_at_once(&header.answer(answer.len()), &answer, &[])?;
        }
        let up = session.is_up();
        let takes_trains = up && session.takes_trains();
        if takes_trains != client.takes_trains {
            client.takes_trains = takes_trains;
            self.outside.set_takes_trains(takes_trains);
        }
        if up != client.up {
            client.up = up;
            if up {
                self.begin();
            } else {
                self.rest();
            }
        }
        Ok(())
    }

    fn change_kick(
        &self,
        ring: usize,
        old: Option<OwnedFd>,
        new: Option<&OwnedFd>,
    ) -> nix::Result<()> {
        if let Some(old) = old {
            self.epoll.delete(old)?;
        }
        // Not level triggered, since nobody reads it: who does waits where its owner makes him.
        new.map_or(Ok(()), |new| self.epoll.add(new, edge(KICK + ring as u64)))
    }

    /// A guest's driver has begun.
    fn begin(&mut self) {
        debug!("the guest's driver is up");
        self.port.reset();
        let now = self.outside.now();
        let surroundings = self.outside.surroundings();
        self.port.set_surroundings(now, surroundings);
    }

    /// A guest's driver is gone.
    fn rest(&mut self) {
        self.stuck = None;
        self.port.reset();
        self.outside.set_takes_trains(false);
        self.outside.reset();
    }

    /// Moves what there is to move, or some of it; whether there is more.
    fn work(&mut self, client: &mut Client) -> Result<bool, End> {
        let mut more = self.arrivals(client)?;
        let now = self.outside.now();
        if client.up {
            more |= self.flush(now) && self.departures(client, now)?;
            self.port.poll(now);
            self.ask(client)?;
        }
        let gone = self.flush(now);
        for ring in 0..RINGS {
            if let Some(mut running) = client.session.running(ring) {
                running.finish();
            }
        }
        if more || !gone {
            return Ok(more);
        }
        let Some(running) = client.session.running(TRANSMIT) else {
            return Ok(false);
        };
        let waiting = running.ring.listen(true);
        waiting.map_err(|error| End::Ring(TRANSMIT, error))
    }

    /// Sends what leaves the port; whether all of it is gone.
    fn flush(&mut self, now: u64) -> bool {
        let (mut next, since) = match self.stuck.take() {
            Some((output, since)) => (Some(output), since),
            None => (self.port.poll_output(), now),
        };
        while let Some(output) = next {
            match output {
                Output::Frame(train)
                    if train.train.is_some() && !self.outside.passes_whole(&train) =>
                {
                    self.port.cut(train);
                }
                output => {
                    if let Some(output) = self.outside.send(now, output) {
                        if now < since + JAM {
                            self.stuck = Some((output, since));
                            return false;
                        }
                        self.port.drop_outputs();
                    }
                }
            }
            next = self.port.poll_output();
        }
        true
    }

    /// Handles arrivals from the subnet.
    fn arrivals(&mut self, client: &mut Client) -> Result<bool, End> {
        let mut descriptors = 0;
        let now = self.outside.now();
        for _ in 0..BATCH {
            if descriptors > DESCRIPTORS {
                break;
            }
            let Some(arrival) = self.outside.receive(now) else {
                return Ok(false);
            };
            match arrival {
                Arrival::Mad(mad) => {
                    let generation = self.outside.generation();
                    self.port.from_management(now, generation, &mad);
                }
                Arrival::Changed => {
                    let surroundings = self.outside.surroundings();
                    let was = self.port.is_active();
                    if client.up {
                        self.port.set_surroundings(now, surroundings);
                        if was && !self.port.is_active() {
                            return Err(End::LinkDown);
                        }
                    }
                }
                Arrival::Frame(datagram) if client.up => {
                    if self.port.from_fabric(now, datagram, &mut self.packet) {
                        if self.packet.train.is_some() && !client.takes_trains {
                            // Its guest is another one since it left.
                            self.port.count(Dropped::Segments);
                        } else if !self.give(client)? {
                            self.port.count(Dropped::NoBuffer);
                        }
                        descriptors += self.scratch.take_work();
                    }
                }
                Arrival::Frame(_) => {}
            }
        }
        Ok(true)
    }

    /// Gives the guest the frame in hand; whether it had room for it.
    fn give(&mut self, client: &mut Client) -> Result<bool, End> {
        let Some(mut running) = client.session.running(RECEIVE) else {
            return Ok(false);
        };
        let given = running.give(&mut self.scratch, &self.packet);
        given.map_err(|error| End::Ring(RECEIVE, error))
    }

    /// Gives the guest what the port itself has for it, as soon as it has room.
    fn ask(&mut self, client: &mut Client) -> Result<(), End> {
        while let Some(question) = self.port.next_question() {
            self.packet.clone_from(question);
            if !self.give(client)? {
                break;
            }
            self.port.asked();
        }
        Ok(())
    }

    /// Handles frames that the guest sends.
    fn departures(&mut self, client: &mut Client, now: u64) -> Result<bool, End> {
        let generation = self.outside.generation();
        let mut descriptors = 0;
        for _ in 0..BATCH {
            if descriptors > DESCRIPTORS {
                break;
            }
            let Some(mut running) = client.session.running(TRANSMIT) else {
                return Ok(false);
            };
            let taken = running.take(&mut self.scratch, &mut self.packet);
            descriptors += self.scratch.take_work();
            match taken.map_err(|error| End::Ring(TRANSMIT, error))? {
                Taken::Nothing => return Ok(false),
                Taken::Nonsense => self.port.count(Dropped::Short),
                Taken::Frame(header) => {
                    let packet = &mut self.packet;
                    self.port.from_guest(now, generation, &header, packet);
                    descriptors += self.port.outputs();
                    if !self.flush(now) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}

fn edge(token: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token)
}
